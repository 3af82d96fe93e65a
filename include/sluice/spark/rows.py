"""The rows of a stage's inputs, as DataFrames: a source's slices or a stream's segments.

Rows may have reserved columns: ``_source``, the origin of a row; ``_malformed``, why it could not
be read, and ``_raw``, its text; ``_weight``, -1 for a row that is taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.connectors.contracts.source import MALFORMED_COLUMN, RAW, TextDecoding
from sluice.connectors.files.parquet_source import ParquetSource
from sluice.core.plan import SourceCut
from sluice.declaration.changelog import Append
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import KeyedLookup, Lookup, Transform
from sluice.declaration.params import value_of
from sluice.declaration.steps import Filter, Projection, Step, columns_read
from sluice.errors import ConfigurationError
from sluice.job.places import open_source
from sluice.spark.decoding import decoded
from sluice.spark.names import columns_named, quoted
from sluice.spark.reading import for_spark, read_columns, read_segments, read_slices
from sluice.spark.stage_run import StageRun
from sluice.subtask.operators.operator import WEIGHT
from sluice.subtask.side_rows import SOURCE
from sluice.subtask.state.cache import SegmentCache

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OURS = (SOURCE, MALFORMED_COLUMN, RAW, WEIGHT)


def read_inputs(run: StageRun) -> list[DataFrame]:
    """The epoch's rows of each input that is shuffled, filtered and projected as declared."""
    sides = [side for side, given in enumerate(run.node.inputs) if not given.is_broadcast]
    return [_read(run, side) for side in sides]


def lookup_table(run: StageRun) -> DataFrame | None:
    """The table that a lookup's barrier pinned; None for any other stage."""
    lookup = lookup_of(run.node)
    if lookup is None:
        return None
    handle = run.plan.source(lookup.table).table
    assert handle is not None, "a plan pins every table source"
    pinned = SegmentCache(run.job.location, run.job.store).open(handle)
    rows = run.spark.createDataFrame(for_spark(pinned))
    source = open_source(run.job, lookup.table, run.configuration.params)
    return rows if source.decoding is None else table_rows(lookup.table, rows, source.decoding)


def table_rows(uid: str, lines: DataFrame, how: TextDecoding) -> DataFrame:
    """The rows in the lines of a table source.

    A malformed line is an error: without its row, lookups would silently find nothing.
    """
    origin = "struct(file AS partition, line_number - 1 AS record)"
    rows = decoded(lines.selectExpr(how.column, *how.keeps, f"{origin} AS {SOURCE}"), how)
    place = f"'line ', {SOURCE}.record + 1, ' of ', {SOURCE}.partition"
    words = f"concat({place}, ', which table source {uid} reads, is ', {MALFORMED_COLUMN})"
    readable = rows.where(f"{MALFORMED_COLUMN} IS NULL OR raise_error({words}) IS NOT NULL")
    return readable.drop(*OURS)


def lookup_of(node: StageNode) -> Lookup | None:
    match node.operation:
        case Lookup() as lookup:
            return lookup
        case KeyedLookup(lookup=lookup):
            return lookup
        case _:
            return None


def looked_up(
    node: StageNode, inputs: Sequence[DataFrame], table: DataFrame | None
) -> Sequence[DataFrame]:
    """The inputs of a stage with keyed state.

    Those of a keyed lookup are its new rows, joined with the table, and rows that are not looked
    up, with the keys that have rows taken back.
    """
    if not isinstance(node.operation, KeyedLookup):
        return inputs
    from pyspark.sql.functions import lit

    assert table is not None
    (rows,) = inputs
    new = _look_up(node.operation.lookup, rows.where(f"{WEIGHT} > 0"), table)
    added = {
        field.name: lit(None).cast(field.dataType)
        for field in new.schema.fields
        if field.name in node.operation.lookup.add
    }
    gone = rows.where(f"{WEIGHT} < 0").withColumns(added)
    return [new.unionByName(gone)]


def transformed(
    node: StageNode, inputs: Sequence[DataFrame], table: DataFrame | None, params: Mapping[str, str]
) -> DataFrame:
    """The result of a stateless stage, which Spark's JVM computes from the inputs."""
    rows = _united(inputs)
    match node.operation:
        case Transform(function=function, arguments=arguments):
            resolved = {name: value_of(spec, params) for name, spec in arguments.items()}
            return _checked(node, rows, function(rows, **resolved))
        case Lookup() as lookup:
            assert table is not None
            return _look_up(lookup, rows, table)
        case _:
            return rows


def projected(rows: DataFrame, given: Input) -> DataFrame:
    """A source's rows, filtered and projected for an input; malformed rows pass every filter."""
    is_kept = f" OR {MALFORMED_COLUMN} IS NOT NULL" if MALFORMED_COLUMN in rows.columns else ""
    for step in given.steps:
        if isinstance(step, Filter):
            rows = rows.where(f"({step.condition}){is_kept}")
        else:
            rows = rows.selectExpr(*_items(step, rows), *filter(rows.columns.__contains__, OURS))
    return renamed(rows, given)


def _items(step: Projection, rows: DataFrame) -> Iterator[str]:
    for column in step.columns:
        if column.strip() == "*":
            yield from (quoted(name) for name in rows.columns if name not in OURS)
        else:
            yield column


def renamed(rows: DataFrame, given: Input) -> DataFrame:
    """*rows* with the columns renamed that the stage knows by another name."""
    for name, new in given.renames.items():
        rows = rows.withColumnRenamed(name, new)
    return rows


def _read(run: StageRun, side: int) -> DataFrame:
    given = run.node.inputs[side]
    if given.producer in run.job.pipeline.sources:
        cut = run.plan.source(given.producer)
        rows = read_source(run, given.producer, cut, given.steps)
        if MALFORMED_COLUMN in rows.columns and not _is_first_reader(run, side):
            rows = rows.where(f"{MALFORMED_COLUMN} IS NULL")
        return projected(rows, given)
    stream = run.given.streams[given.producer]
    schema = pa.ipc.read_schema(pa.py_buffer(stream.schema))
    rows = read_segments(run.spark, run.job.location, stream.segments, schema, run.task.parallelism)
    is_added_up = run.node.is_stateful and lookup_of(run.node) is None
    if stream.has_waited and given.kind != Append() and not is_added_up:
        rows = settled(rows, run.task.parallelism)
    return renamed(rows, given)


def _is_first_reader(run: StageRun, side: int) -> bool:
    """Whether this input reports the malformed rows of its source: one input of one stage does."""
    producer = run.node.inputs[side].producer
    first = run.job.pipeline.consumers_of(producer)[0]
    return first.uid == run.node.uid and first.producers.index(producer) == side


def settled(rows: DataFrame, parallelism: int) -> DataFrame:
    """Changes of several epochs, merged to those of one; rows that came and went cancel out."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    kept = columns_named(name for name in rows.columns if name != WEIGHT)
    total = F.col("_total")
    net = rows.groupBy(*kept).agg(F.sum(WEIGHT).alias("_total")).where("_total <> 0")
    copies = F.array_repeat(F.signum(total).cast("tinyint"), F.abs(total).cast("int"))
    changes = net.select(*kept, F.explode(copies).alias(WEIGHT))
    # A repeated attempt must write the same files.
    return changes.repartition(parallelism, *kept).sortWithinPartitions(*kept)


def read_source(
    run: StageRun,
    uid: str,
    cut: SourceCut,
    steps: Sequence[Step] = (),
    wanted: Sequence[str] | None = None,
) -> DataFrame:
    """The rows of the slices of *cut*.

    They have at least the columns that *steps* read, and those *wanted* after them; see
    ``columns_read``.
    """
    source = open_source(run.job, uid, run.configuration.params)
    if isinstance(source, ParquetSource):
        names = source.schema().names
        columns = columns_read(steps, names, wanted)
        # Spark would take a dot in a name for the path to a field.
        if columns is not None and not any("." in name for name in names):
            return read_columns(run.spark, source, columns, cut.slices, run.task.parallelism)
    rows = read_slices(run.spark, source, cut.slices, run.task.parallelism)
    return rows if source.decoding is None else decoded(rows, source.decoding)


def _checked(node: StageNode, rows: DataFrame, result: DataFrame) -> DataFrame:
    """Refuse a function that drops the column of malformed rows, or that of weights."""
    for name in (MALFORMED_COLUMN, WEIGHT):
        if name in rows.columns and name not in result.columns:
            raise ConfigurationError(
                f"the function of stage {node.uid!r} drops the column {name!r}; keep it: it "
                "says which rows could not be read, or are taken back"
            )
    return result


def _united(inputs: Sequence[DataFrame]) -> DataFrame:
    """The rows of all *inputs*.

    An input without a reserved column that another one has gets its default: a weight of 1, and
    an unknown origin.
    """
    from pyspark.sql.functions import lit

    if len(inputs) == 1:
        return inputs[0]
    ours = {
        field.name: lit(1 if field.name == WEIGHT else None).cast(field.dataType)
        for rows in inputs
        for field in rows.schema.fields
        if field.name in OURS
    }
    completed = [
        rows.withColumns({name: one for name, one in ours.items() if name not in rows.columns})
        for rows in inputs
    ]
    return reduce(lambda one, other: one.unionByName(other), completed)


def _look_up(lookup: Lookup, rows: DataFrame, table: DataFrame) -> DataFrame:
    from pyspark.sql.functions import broadcast

    columns = {**lookup.on, **lookup.add}
    wanted = table.selectExpr(
        *(f"{expression} AS {quoted(column)}" for column, expression in columns.items())
    )
    matched = "inner" if lookup.add else "left_semi"
    how = {"matched": matched, "unmatched": "left_anti", "all": "left"}[lookup.keep]
    return rows.join(broadcast(wanted), on=list(lookup.on), how=how)
