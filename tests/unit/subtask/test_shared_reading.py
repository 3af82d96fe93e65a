"""Inputs of a stage that read the same slices share one pass over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.text import FilesSource
from sluice.core.event_time import MIN_WATERMARK
from sluice.core.plan import Slice, TaskPlan
from sluice.declaration.pipeline import Pipeline
from sluice.exchange.blocks import BlockKind, ExchangeSpec, Received, received, send
from sluice.exchange.reading import Feed, JsonRows, ParquetRows
from sluice.operators.operator import EpochTime
from sluice.sources import Files

READ: Counter[tuple[str, ...]] = Counter()


@dataclass(frozen=True, slots=True)
class CountedSource(ParquetSource):
    """A source that notes which columns it was asked for."""

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        READ[tuple(columns or ())] += 1
        return ParquetSource.read(self, piece, columns)


@pytest.fixture(name="pipeline")
def _pipeline(tmp_path: Path) -> Pipeline:
    """A join of two inputs of one source, which filter and select differently."""
    pipeline = Pipeline("shared")
    rows = pipeline.source(
        "rows",
        Files(str(tmp_path), format="json", schema="kind bigint, a bigint, b bigint, c bigint"),
    )
    left = rows.where("kind = 0").select("a AS id", "b").key_by("id")
    left.join("joined", rows.where("kind = 1").select("a AS key").key_by("key"))
    return pipeline


def test_slices_are_read_once_with_the_columns_of_all_inputs(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    table = pl.DataFrame({"kind": [0, 1, 1], "a": [5, 6, 7], "b": [1, 2, 3], "c": [0, 0, 0]})
    table.write_parquet(tmp_path / "a.parquet")
    source = CountedSource(str(tmp_path))
    slices = source.plan((), max_records=None, parallelism=1).slices
    READ.clear()

    found = sent(pipeline, ParquetRows(source, (slices,), schema_of(table)))

    assert READ == {("kind", "a", "b"): 1}
    assert {part.name: part.rows.drop("_hash").rows() for part in found} == {
        "0": [(5, 1)],
        "1": [(6,), (7,)],
    }


def test_a_line_in_doubt_reaches_every_subtask(pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"kind":0,"a":5,"b":1}\n{"kind":1\n')
    source = FilesSource(str(tmp_path))
    slices = source.plan((), max_records=None, parallelism=1).slices
    schema = pl.DataFrame({"kind": [0], "a": [0], "b": [0], "c": [0]})

    found = sent(pipeline, JsonRows(source, (slices,), schema_of(schema)), parallelism=3)

    assert [part.kind for part in found] == [BlockKind.UNDECIDED] * 3


def sent(pipeline: Pipeline, rows: ParquetRows | JsonRows, parallelism: int = 1) -> list[Received]:
    node = pipeline.stages["joined"]
    feeds = [
        Feed(rows=rows, schema=rows.schema, given=given, hashed=given.keys)
        for given in node.shuffled
    ]
    spec = ExchangeSpec(
        stage=node,
        task=TaskPlan(uid="joined", parallelism=parallelism, max_parallelism=8),
        feeds=tuple(feed.narrowed(feed.prepared_schema.names()) for feed in feeds),
        epoch_time=EpochTime(
            checkpoint_id=1,
            previous_watermark_ms=MIN_WATERMARK,
            watermark_ms=MIN_WATERMARK,
            processing_time_ms=0,
        ),
        pre_aggregates=False,
    )
    blocks = list(send(spec, [pa.RecordBatch.from_pydict({"id": [0]})]))
    of_subtasks = [
        [block for block in blocks if block.column(0)[0].as_py() == subtask]
        for subtask in range(parallelism)
    ]
    return [part for mine in of_subtasks for part in received(mine)]


def schema_of(rows: pl.DataFrame) -> bytes:
    body: bytes = rows.to_arrow().schema.serialize().to_pybytes()
    return body
