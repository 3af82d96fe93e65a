"""The real ``run_stage`` and the real subtasks, with lists of rows in the place of Spark.

Everything that touches the store is real; only reading, shuffling and scheduling are not Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import pyarrow as pa
import pytest

from harness.key_groups import key_group_of, subtask_of
from sluice.connectors.columns import narrowed, narrowed_schema
from sluice.core.plan import Slice, TaskPlan
from sluice.declaration.nodes import StageNode
from sluice.declaration.places import MALFORMED_COLUMN, RAW, Source
from sluice.exchange.reading import SOURCE, StreamRows, rows_with_origin, with_origin
from sluice.operators.build import build_operator
from sluice.operators.changes import without_pairs
from sluice.operators.operator import WEIGHT
from sluice.spark.deployment import KeyedRows
from sluice.spark.tasks import Frame
from sluice.state.key_hash import can_hash, key_hash
from sluice.state.segments import HASH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Around = Callable[[str], AbstractContextManager[Any]]
Subtask = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Rows:
    """A DataFrame's place: a table for each partition."""

    partitions: Sequence[pa.Table]
    around: Around

    @property
    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.partitions[0].schema)

    @property
    def columns(self) -> list[str]:
        return list(self.partitions[0].column_names)

    def mapInArrow(self, subtask: Subtask, _: Any) -> Rows:  # noqa: N802 - Spark's
        answers: list[pa.Table] = []
        for index, table in enumerate(self.partitions):
            with self.around("subtask"), _in_task(index):
                answers.append(pa.Table.from_batches([*subtask(iter(table.to_batches()))]))
        return Rows(answers, self.around)

    def coalesce(self, partitions: int) -> Rows:
        assert len(self.partitions) <= partitions
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's
        return pa.concat_tables(self.partitions)


@contextmanager
def stages_without_spark(around: Around = nullcontext) -> Iterator[None]:
    """Within the block ``run_stage(job, None, ...)`` runs here, in this thread.

    *around* is entered with "read" for what a stage reads, and "subtask" for each subtask.
    """

    def read_slices(
        _: object,
        source: Source,
        slices: Sequence[Slice],
        parallelism: int,
        columns: Sequence[str] | None = None,
    ) -> Rows:
        own = source.schema()
        own = own if columns is None else narrowed_schema(own, columns)
        schema = with_origin(own)
        with around("read"):
            batches = [
                rows_with_origin(narrowed(batch, own), piece.partition, record, schema)
                for piece in slices
                for batch, record in _numbered(source, piece, columns)
            ]
        return spread(pa.Table.from_batches(batches, schema=schema), parallelism)

    def read_segments(_: object, stream: StreamRows, parallelism: int) -> Rows:
        schema = pa.ipc.read_schema(pa.py_buffer(stream.schema))
        with around("read"):
            shares = [
                [batch for _, batch in stream.read(index, schema.names)]
                for index in range(parallelism)
            ]
        return Rows([pa.Table.from_batches(batches, schema) for batches in shares], around)

    def spread(whole: pa.Table, parallelism: int) -> Rows:
        return Rows([whole, *[whole.slice(0, 0)] * (parallelism - 1)], around)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.spark.stage.with_our_settings", lambda spark: spark)
        patch.setattr("sluice.spark.frames.read_slices", read_slices)
        patch.setattr("sluice.spark.frames.read_segments", read_segments)
        patch.setattr("sluice.spark.frames._united", _united)
        patch.setattr("sluice.spark.frames.net_changes", _settled)
        patch.setattr("sluice.spark.deployment.keyed_rows", _keyed_rows)
        patch.setattr("sluice.spark.deployment.exchange_of", lambda _: None)
        patch.setattr("sluice.spark.deployment._block_folder", lambda _: None)
        yield


def _united(_: StageNode, inputs: Sequence[Rows]) -> Rows:
    """As the real one: our columns are where any input has them, rows have weight 1 there."""
    if len(inputs) == 1:
        return inputs[0]
    frames = [
        [pl.DataFrame(pl.from_arrow(table)).drop(SOURCE, strict=False) for table in one.partitions]
        for one in inputs
    ]
    names = list(dict.fromkeys(name for first, *_ in frames for name in first.columns))
    one = pl.lit(1, pl.Int8).alias(WEIGHT)
    united = [
        pl.concat(
            (
                frame if WEIGHT in frame.columns or WEIGHT not in names else frame.with_columns(one)
            ).select(names)
            for frame in parts
        ).to_arrow()
        for parts in zip(*frames, strict=True)
    ]
    return Rows(united, inputs[0].around)


def _settled(rows: Rows, parallelism: int) -> Rows:
    """As the real one; all rows are in the first partition."""
    frame = pl.DataFrame(pl.from_arrow(pa.concat_tables(rows.partitions)))
    whole = without_pairs(frame).to_arrow()
    return Rows([whole, *[whole.slice(0, 0)] * (parallelism - 1)], rows.around)


def _numbered(
    source: Source, piece: Slice, columns: Sequence[str] | None
) -> Iterator[tuple[pa.RecordBatch, int]]:
    record = piece.first_record
    for batch in source.read(piece, columns):
        yield batch, record
        record += batch.num_rows


def _keyed_rows(inputs: Sequence[Rows], node: StageNode, task: TaskPlan, *_: object) -> KeyedRows:
    """As the real one for one input, and nothing pre-aggregated.

    A hash that only Spark computes is another one here.
    """
    (rows,) = inputs
    frame = pl.from_arrow(pa.concat_tables(rows.partitions))
    assert isinstance(frame, pl.DataFrame)
    frame = frame.drop(SOURCE, strict=False)
    keys = frame.select(node.keys)
    if all(map(can_hash, keys.dtypes)):
        hashes = pl.Series(key_hash(keys, node.keys))
    else:
        hashes = keys.hash_rows().reinterpret(signed=True)
    owners = [
        subtask_of(
            key_group_of(hash_, task.max_parallelism), task.max_parallelism, task.parallelism
        )
        for hash_ in hashes
    ]
    placed = frame.with_columns(hashes.alias(HASH), pl.Series("owner", owners, pl.Int64))
    partitions = [
        placed.filter(pl.col("owner") == index).drop("owner").to_arrow()
        for index in range(task.parallelism)
    ]
    schema = partitions[0].schema.serialize().to_pybytes()
    operator = build_operator(
        node, [placed.drop("owner", MALFORMED_COLUMN, RAW, strict=False).schema]
    )
    placed_rows = Frame(cast("DataFrame", Rows(partitions, rows.around)))
    return KeyedRows(
        rows=placed_rows,
        schemas=(schema,),
        result=operator.output_schema,
        tables=operator.tables,
    )


@contextmanager
def _in_task(index: int) -> Iterator[None]:
    class Context:
        def partitionId(self) -> int:  # noqa: N802 - Spark's
            return index

        def attemptNumber(self) -> int:  # noqa: N802 - Spark's
            return 0  # Nothing is tried again here.

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark.TaskContext.get", Context)
        yield
