"""The rows of a stage's inputs, as DataFrames: a source's slices or a stream's segments.

Python reads both in ``mapInArrow``, spread over exactly *parallelism* Spark partitions, so that no
S3 jar is needed and partition i is subtask i of a stage that does not shuffle.

Rows may have reserved columns: ``_source``, the origin of a row; ``_malformed``, why it could not
be read, and ``_raw``, its text; ``_weight``, -1 for a row that is taken back.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeVar

import polars as pl
import pyarrow as pa

from sluice.connectors.columns import (
    check_announced,
    narrowed,
    narrowed_schema,
    unreadable_columns,
)
from sluice.connectors.plain_lines import plain_lines, with_objects
from sluice.core.plan import Slice, SourceCut
from sluice.declaration.changelog import Append
from sluice.declaration.column_types import ColumnType, row_schema
from sluice.declaration.columns import check_columns
from sluice.declaration.expressions import Filter, Projection, Step, columns_read
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import KeyedLookup, Lookup, SparkCode, Transform, Versions
from sluice.declaration.params import value_of
from sluice.declaration.places import (
    END,
    MALFORMED_COLUMN,
    RAW,
    RECORD,
    WEIGHT,
    Source,
    TextDecoding,
)
from sluice.errors import ConfigurationError
from sluice.exchange.reading import SOURCE, StreamRows, bounded, rows_with_origin, with_origin
from sluice.job.places import open_source, open_source_at
from sluice.operators.common_types import check_looked_up, united_columns
from sluice.spark.pruning import pruned_input
from sluice.spark.row_wise import keeps_every_row, marked
from sluice.spark.tasks import StageRun, columns_named, numbers, pickle_functions_by_value, quoted
from sluice.spark.versions import arrow_schema
from sluice.state.cache import SegmentCache
from sluice.state.segments import empty_frame, to_table
from sluice.surface.state import StateTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_OF_SOURCES = (RECORD, MALFORMED_COLUMN, RAW, WEIGHT)  # Those of a source's rows.
# The metadata of the column RAW that a function is given: one that the user computes has others.
_OF_SOURCE = {"sluice": "the text of a malformed row"}
RESERVED = (SOURCE, MALFORMED_COLUMN, RAW, WEIGHT)  # The reserved columns.
DECODED_RECORD = "_record"
OBJECT = "_object"  # What Python has decoded.
CORRUPT = "_corrupt"
MODE: Mapping[str, str] = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
BLANKS = " \t"
_SHOWN_LETTERS = 100  # Of a value; its line is beside it.
# A call at a time: stages run beside each other in a session, whose views are those of them all.
CALLING = threading.RLock()
T = TypeVar("T")


def read_inputs(run: StageRun) -> list[DataFrame]:
    """The epoch's rows of each input that is shuffled, filtered and projected as declared."""
    inputs = enumerate(run.node.inputs)
    return [_read_input(run, side) for side, given in inputs if not given.is_broadcast]


def _read_input(run: StageRun, side: int) -> DataFrame:
    given = run.node.inputs[side]
    if given.producer in run.job.pipeline.sources:
        cut = run.plan.source(given.producer)
        cut = replace(cut, slices=pruned_input(run, given).kept)
        rows = read_source(run, cut, given.steps)
        if MALFORMED_COLUMN in rows.columns and not _is_first_reader(run, side):
            rows = _well_formed(rows)
        return projected(rows, given)
    stream = run.given.streams[given.producer]
    parallelism = run.task.parallelism
    shares = share(stream.segments, parallelism)
    read = StreamRows(run.job.location, shares, stream.schema, given.producer, given.steps)
    rows = read_segments(run.spark, read, parallelism)
    is_added_up = isinstance(run.node.operation, SparkCode) or (
        run.node.is_stateful and lookup_of(run.node) is None
    )
    # Of different rows a projection may make equal ones, some of which are taken back.
    may_cancel_out = stream.has_waited or given.is_projected
    if may_cancel_out and given.kind != Append() and not is_added_up:
        rows = net_changes(rows, parallelism)
    return renamed(rows, given)


def _well_formed(rows: DataFrame) -> DataFrame:
    """The *rows* that are not malformed; Spark knows that none of them is, and reads none of the
    others for what is made of these.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    good = rows.where(f"{MALFORMED_COLUMN} IS NULL")
    marks = [name for name in (MALFORMED_COLUMN, RAW) if name in rows.columns]
    return good.withColumns({name: F.lit(None).cast("string") for name in marks})


def _is_first_reader(run: StageRun, side: int) -> bool:
    """Whether this input reports the malformed rows of its source: one input of one stage does."""
    producer = run.node.inputs[side].producer
    first = run.job.pipeline.consumers_of(producer)[0]
    return first.uid == run.node.uid and first.producers.index(producer) == side


def projected(rows: DataFrame, given: Input) -> DataFrame:
    """A source's rows, filtered and projected for an input; malformed rows pass every filter."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    may_be_malformed = MALFORMED_COLUMN in rows.columns
    for step in given.steps:
        if isinstance(step, Filter):
            passes = F.expr(step.condition)  # Alone, so that an error has it as it was written.
            if may_be_malformed:
                passes = passes | F.col(MALFORMED_COLUMN).isNotNull()
            rows = rows.where(passes)
        else:
            rows = rows.selectExpr(
                *_items(step, rows), *filter(rows.columns.__contains__, RESERVED)
            )
    return renamed(rows, given)


def _items(step: Projection, rows: DataFrame) -> Iterator[str]:
    for column in step.columns:
        if column.strip() == "*":
            yield from (quoted(name) for name in rows.columns if name not in RESERVED)
        else:
            yield column


def renamed(rows: DataFrame, given: Input) -> DataFrame:
    """*rows* with the columns renamed that the stage spells otherwise, or knows by another name."""
    names = zip(rows.columns, given.spelt(rows.columns), strict=True)
    renames = {old: new for old, new in names if old != new}
    # At once: Spark analyses all columns again for each call.
    return rows.withColumnsRenamed(renames) if renames else rows


def net_changes(rows: DataFrame, parallelism: int) -> DataFrame:
    """Changes of several epochs, merged to those of one; rows that came and went cancel out."""
    kept = columns_named(name for name in rows.columns if name != WEIGHT)
    # A repeated attempt must write the same files.
    return sorted_in_partitions(added_up(rows).repartition(parallelism, *kept))


def added_up(rows: DataFrame) -> DataFrame:
    """The changes that are left when those of equal rows are added up."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    kept = columns_named(name for name in rows.columns if name != WEIGHT)
    total = F.col("_total")
    net = rows.groupBy(*kept).agg(F.sum(WEIGHT).alias("_total")).where("_total <> 0")
    copies = F.array_repeat(F.signum(total).cast("tinyint"), F.abs(total).cast("int"))
    return net.select(*kept, F.explode(copies).alias(WEIGHT))


def sorted_in_partitions(rows: DataFrame) -> DataFrame:
    """*rows*, of which those of a partition are in an order that their values alone decide.

    Spark has no order of maps: they go by their text.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    columns = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    order = [
        F.to_json(F.struct(column)) if "map<" in columns[name] else column
        for name, column in zip(columns, columns_named(columns), strict=True)
    ]
    return rows.sortWithinPartitions(*order)


def read_source(
    run: StageRun,
    cut: SourceCut,
    steps: Sequence[Step] = (),
    wanted: Sequence[str] | None = None,
) -> DataFrame:
    """The rows of the slices of *cut*.

    They have at least the columns that *steps* read, and those *wanted* after them; see
    ``columns_read``.
    """
    source = open_source_at(run.job, cut, run.configuration.params)
    if source.decoding is not None:
        return text_rows(run.spark, source, source.decoding, cut.slices, run.task.parallelism)
    columns = _needed(source.schema(), steps, wanted)
    return read_slices(run.spark, source, cut.slices, run.task.parallelism, columns)


def text_rows(
    spark: SparkSession,
    source: Source,
    how: TextDecoding,
    slices: Sequence[Slice],
    parallelism: int,
) -> DataFrame:
    """The rows in the texts of *slices*, as ``decoded_text`` has them.

    Spark decodes the batches alone of which Python cannot tell what Spark would make of them.
    """
    columns, plain = [how.column, *how.keeps], plain_lines(how)
    if plain is None:
        return decoded_text(read_slices(spark, source, slices, parallelism, columns), how)

    def begun(batch: pa.RecordBatch) -> pa.RecordBatch:
        if how.has_header and batch.num_rows and not batch.column(SOURCE)[0]["record"].as_py():
            batch = batch.slice(1)
        return with_objects(batch, how.column, OBJECT, plain)

    rows = read_slices(spark, source, slices, parallelism, columns, begun)
    return decoded_text(rows, how, is_begun=True)


def _needed(
    schema: pa.Schema, steps: Sequence[Step], wanted: Sequence[str] | None
) -> list[str] | None:
    """The columns of a source that a stage reads, with reserved ones; None for all."""
    refused = unreadable_columns(schema)
    names = [name for name in schema.names if name not in refused and name not in _OF_SOURCES]
    columns = columns_read(steps, names, wanted)
    # Spark would take a dot in a name for the path to a field.
    if columns is None or any("." in name for name in names):
        return None
    reserved = [name for name in schema.names if name in _OF_SOURCES]
    return [*(columns or names[:1]), *reserved]


def read_slices(
    spark: SparkSession,
    source: Source,
    slices: Sequence[Slice],
    parallelism: int,
    columns: Sequence[str] | None = None,
    mapped: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
) -> DataFrame:
    """The records of *slices*, each with ``_source``: its partition, and its number in that.

    Only *columns*, in the source's order, if they are given; *mapped*, where they are read.
    """
    shares = share(slices, parallelism)
    schema = source.schema()
    schema = schema if columns is None else narrowed_schema(schema, columns)
    whole = with_origin(schema)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for index in partition_numbers(batches):
            for piece in shares[index]:
                record = piece.first_record
                for batch in bounded(source.read(piece, columns)):
                    found = batch if columns is None else narrowed(batch, schema)
                    check_announced(found.schema, schema, piece.partition)
                    yield mapped(rows_with_origin(found, piece.partition, record, whole))
                    record += batch.num_rows

    yielded = mapped(pa.RecordBatch.from_pylist([], whole)).schema
    return read_in_parallel(spark, read, yielded, parallelism)


def read_segments(spark: SparkSession, stream: StreamRows, parallelism: int) -> DataFrame:
    """The rows of a stream's segments of one epoch, verified as they are read."""
    schema = pa.ipc.read_schema(pa.py_buffer(stream.schema))
    schema = pa.schema([field.with_type(_for_spark(field.type)) for field in schema])

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for index in partition_numbers(batches):
            for _, batch in stream.read(index, schema.names):
                yield from bounded([batch.cast(schema)])

    return read_in_parallel(spark, read, schema, parallelism)


def state_dataframe(spark: SparkSession, state: StateTable) -> DataFrame:
    """The live rows of *state*, read by the executors: a partition per subtask that wrote it."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for subtask in partition_numbers(batches):
            for piece in state.pieces(subtask):
                yield from to_table(piece).cast(schema).to_batches()

    if state.migrating is not None:
        pickle_functions_by_value(state.migrating)
    schema = to_table(state.schema().columns.to_frame()).schema
    return read_in_parallel(spark, read, schema, len(state.subtasks))


def read_in_parallel(
    spark: SparkSession,
    read: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    parallelism: int,
) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    return numbers(spark, parallelism).mapInArrow(read, from_arrow_schema(schema))


def partition_numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def share(items: Sequence[T], parallelism: int) -> tuple[tuple[T, ...], ...]:
    """*items* in *parallelism* shares of neighbours, whose sizes differ by at most one."""
    bounds = [len(items) * index // parallelism for index in range(parallelism + 1)]
    return tuple(tuple(items[start:end]) for start, end in pairwise(bounds))


def for_spark(table: pa.Table) -> pa.Table:
    """*table* with types that Spark accepts from Python."""
    fields = [field.with_type(_for_spark(field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))


def _for_spark(dtype: pa.DataType) -> pa.DataType:
    """*dtype* with plain lists, as Spark accepts no large ones, which segments have."""
    if pa.types.is_large_list(dtype) or pa.types.is_list(dtype):
        return pa.list_(dtype.value_field.with_type(_for_spark(dtype.value_type)))
    if pa.types.is_struct(dtype):
        return pa.struct([field.with_type(_for_spark(field.type)) for field in dtype])
    if pa.types.is_map(dtype):
        return pa.map_(_for_spark(dtype.key_type), _for_spark(dtype.item_type))
    return dtype


def polars_schema(rows: DataFrame) -> pl.Schema:
    frame = empty_frame(arrow_schema(rows.schema))
    return frame.drop(SOURCE, MALFORMED_COLUMN, RAW, strict=False).schema


def decoded_text(rows: DataFrame, how: TextDecoding, *, is_begun: bool = False) -> DataFrame:
    """The decoded columns of a column of text; blank texts are no rows.

    With *is_begun* Python has decoded some of them: see ``with_objects``.

    A text is one record, or it is malformed: no part of it is silently dropped or misread.
    ``from_json`` stops behind the first value, whatever follows, and ``from_csv`` closes a quote
    that is open at the end.  So an extra field is appended to each text, and a record is good if
    that field was decoded.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    text = F.col(how.column)
    is_text = f"trim(BOTH '{_blanks(how)}' FROM {how.column}) != ''"
    rows = rows.where(f"{OBJECT} IS NOT NULL OR {is_text}" if is_begun else is_text)
    if how.has_header:
        rows = rows.where(f"{SOURCE}.record > 0")
    if how.format == "json":
        what, read, fields = "a JSON object", _from_json(text, how), f"{DECODED_RECORD}.record"
        is_there = f"{fields} IS NOT NULL"
    else:
        what, read, fields = "a CSV row", _from_csv(text, how), DECODED_RECORD
        is_there = "true"
    is_good = (
        f"coalesce({DECODED_RECORD}.{CORRUPT} IS NULL AND {DECODED_RECORD}.{END} = '{END}'"
        f" AND {is_there}"
        f" AND NOT contains({how.column}, '{END}'), false)"
    )
    columns: Sequence[Column | str] = [f"{fields}.*"]
    if is_begun:
        read = F.when(F.col(OBJECT).isNull(), read)
        is_good = f"{OBJECT} IS NOT NULL OR {is_good}"
        columns = [_either(name, fields) for name in row_schema("the source", how.schema)]
    is_bad = ~F.expr(is_good)
    return (
        rows.withColumn(DECODED_RECORD, read)
        .withColumn(MALFORMED_COLUMN, F.when(is_bad, F.expr(_why_bad(how, what, fields))))
        .withColumn(RAW, F.when(is_bad, text))
        .select(*columns, *columns_named(how.keeps), SOURCE, MALFORMED_COLUMN, RAW)
        .drop(END, CORRUPT)
    )


def _why_bad(how: TextDecoding, what: str, fields: str) -> str:
    """SQL of why a text is no record: the first of its values that is not of its column's type.

    That is one that is there where the text is decoded as text alone, and null among the decoded
    *fields*.  A conditional evaluates this for malformed texts only, and it is as long for a
    thousand columns as for one, but for their names.
    """
    of_text, columns = "map<string, string>", row_schema("the source", how.schema)
    types = {name: str(of) for name, of in columns.items()}
    options = ", ".join(map(_literal, chain.from_iterable({**MODE, **how.options}.items())))
    texts = f"from_json({quoted(how.column)}, '{of_text}', map({options}))"
    if how.format == "csv":
        schema = ", ".join(f"{quoted(name)} string" for name in columns)
        texts = f"from_csv({quoted(how.column)}, {_literal(schema)}, map({options}))"
        texts = f"from_json(to_json({texts}), '{of_text}')"
    types_of = f"from_json({_literal(json.dumps(types))}, '{of_text}')"
    there = "map_keys(map_filter(_texts, (_name, _text) -> _text IS NOT NULL))"
    decoded = f"map_keys(from_json(to_json({fields}), '{of_text}'))"
    wrong = f"array_intersect(map_keys({types_of}), array_except({there}, {decoded}))"
    shown = f"left(try_element_at(_texts, _name), {_SHOWN_LETTERS})"
    told = f"printf('field \\'%s\\' is \\'%s\\', not %s', _name, {shown}, {types_of}[_name])"
    first = f"transform(slice({wrong}, 1, 1), _name -> {told})"
    why = f"get(get(transform(array({texts}), _texts -> {first}), 0), 0)"
    within = [*_within_structs(columns)]
    if within:
        why = f"coalesce({why}, {_wrong_within(within, how.column, fields)})"
    if how.format == "csv":
        count = f"'it has not {len(columns)} fields'"
        why = f"if({DECODED_RECORD}.{END} <=> '{END}', {why}, {count})"
    bare = _literal(f"not {what} of the source's schema")
    return f"concat_ws(': ', {bare}, if({fields} IS NULL, NULL, {why}))"


def _wrong_within(fields_of_structs: Sequence[tuple[str, ...]], column: str, fields: str) -> str:
    """SQL of the first field within a struct that the text has, and the decoded *fields* have not.

    One expression for all of them: one for each struct took Spark seconds to analyse.
    """
    paths = _literal(json.dumps(fields_of_structs))
    text = f"get_json_object({quoted(column)}, _path[0])"
    is_wrong = f"{text} IS NOT NULL AND get_json_object(to_json({fields}), _path[0]) IS NULL"
    wrong = f"filter(from_json({paths}, 'array<array<string>>'), _path -> {is_wrong})"
    shown = f"left({text}, {_SHOWN_LETTERS})"
    told = f"printf('field \\'%s\\' is \\'%s\\', not %s', _path[1], {shown}, _path[2])"
    return f"get(transform(slice({wrong}, 1, 1), _path -> {told}), 0)"


def _within_structs(
    columns: Mapping[str, ColumnType], path: str = "$", name: str = ""
) -> Iterator[tuple[str, ...]]:
    """The fields within structs among *columns*: path in JSON, name and type."""
    for column, of in columns.items():
        if name:
            yield f"{path}['{column}']", f"{name}{column}", str(of)
        if of.name == "struct":
            inner = dict(of.fields)
            yield from _within_structs(inner, f"{path}['{column}']", f"{name}{column}.")


def _literal(text: str) -> str:
    """*text* as SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _either(name: str, fields: str) -> Column:
    """The field *name* as Python has decoded it, or of Spark's *fields*."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    of_python, of_spark = f"{OBJECT}.{quoted(name)}", f"{fields}.{quoted(name)}"
    return F.expr(f"if({OBJECT} IS NULL, {of_spark}, {of_python})").alias(name)


def _blanks(how: TextDecoding) -> str:
    """The characters of a blank text; a delimiter is none, as it makes a row of empty fields."""
    delimiter = how.delimiter if how.format == "csv" else ""
    return "".join(blank for blank in BLANKS if blank not in delimiter)


def _from_json(text: Column, how: TextDecoding) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    schema = f"record struct<{how.schema}>, {END} string, {CORRUPT} string"
    # A line break ends a comment, if the declaration allows comments.
    within = F.concat(F.lit('{"record":'), text, F.lit(f'\n,"{END}":"{END}"}}'))
    return F.from_json(within, schema, {**MODE, **how.options})


def _from_csv(text: Column, how: TextDecoding) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    schema = f"{how.schema}, {END} string, {CORRUPT} string"
    with_end = F.concat(text, F.lit(how.delimiter + END))
    return F.from_csv(with_end, schema, {**MODE, **how.options})


def lookup_table(run: StageRun) -> DataFrame | None:
    """The table that a lookup's barrier pinned; None for any other stage."""
    lookup = lookup_of(run.node)
    if lookup is None:
        return None
    return pinned_table(run, lookup.table, lookup.steps)


def pinned_table(run: StageRun, uid: str, steps: Sequence[Step]) -> DataFrame:
    """The rows of the table source *uid* behind *steps*, as the barrier pinned them."""
    handle = run.plan.source(uid).table
    assert handle is not None, "a plan pins every table source"
    pinned = SegmentCache(run.job.location, run.job.store).open(handle)
    rows = run.spark.createDataFrame(for_spark(pinned))
    how = open_source(run.job, uid, run.configuration.params).settled(()).decoding
    if how is not None:
        # Beside the text there are the columns that the barrier pinned, whatever there is now.
        kept = [name for name in pinned.column_names if name not in (how.column, SOURCE)]
        rows = table_rows(uid, rows, replace(how, keeps=tuple(kept)))
    return table_behind(rows, uid, steps)


def table_behind(rows: DataFrame, uid: str, steps: Sequence[Step]) -> DataFrame:
    """The *rows* of the table source *uid* behind *steps*."""
    return projected(rows, Input(producer=uid, steps=tuple(steps)))


def table_rows(uid: str, lines: DataFrame, how: TextDecoding) -> DataFrame:
    """The rows in the lines of a table source.

    A malformed line is an error: without its row, lookups would silently find nothing.
    """
    rows = decoded_text(lines, how)
    place = f"'line ', {SOURCE}.record + 1, ' of ', {SOURCE}.partition"
    message = f"concat({place}, ', which table source {uid} reads, is ', {MALFORMED_COLUMN})"
    readable = rows.where(f"{MALFORMED_COLUMN} IS NULL OR raise_error({message}) IS NOT NULL")
    return readable.drop(*RESERVED)


def lookup_of(node: StageNode) -> Lookup | None:
    match node.operation:
        case (Lookup() as lookup) | KeyedLookup(lookup=lookup):
            return lookup
        case _:
            return None


def keyed_inputs(
    node: StageNode, inputs: Sequence[DataFrame], table: DataFrame | None
) -> Sequence[DataFrame]:
    """The inputs of a stage with keyed state.

    A keyed lookup gets one: its new rows, joined with *table*, and the rows that are taken back,
    which are not looked up.
    """
    if not isinstance(node.operation, KeyedLookup):
        return inputs
    from pyspark.sql.functions import lit

    assert table is not None
    (rows,) = inputs
    joined = _look_up(node.uid, node.operation.lookup, rows.where(f"{WEIGHT} > 0"), table)
    added = {
        field.name: lit(None).cast(field.dataType)
        for field in joined.schema.fields
        if field.name in node.operation.lookup.add
    }
    taken_back = rows.where(f"{WEIGHT} < 0").withColumns(added)
    return [joined.unionByName(taken_back)]


def transformed(
    node: StageNode,
    inputs: Sequence[DataFrame],
    table: DataFrame | None,
    params: Mapping[str, str],
    check: Callable[[str, DataFrame], None] | None = None,
) -> DataFrame:
    """The result of a stateless stage, which Spark's JVM computes from the inputs.

    *check* is called with the stage and what its function yields of ``marked`` rows.
    """
    rows = _united(node, inputs)
    match node.operation:
        case Transform(function=function, arguments=arguments):
            resolved = {name: value_of(spec, params) for name, spec in arguments.items()}
            with CALLING:
                result = _passing_by(node, rows, partial(function, **resolved), check)
        case Lookup() as lookup:
            assert table is not None
            result = _look_up(node.uid, lookup, rows, table)
        case _:
            result = rows
    # A function says itself which rows are malformed; what else is ours, it only keeps.
    ours = [name for name in RESERVED if name == MALFORMED_COLUMN or name in rows.columns]
    check_columns(result.columns, f"the result of stage {node.uid!r}", may_have=ours)
    return result


def _united(node: StageNode, inputs: Sequence[DataFrame]) -> DataFrame:
    """The rows of all *inputs* of *node*, which Spark widens to the types of ``united_columns``.

    An input without a reserved column that another one has gets its default: a weight of 1, and
    an unknown origin.
    """
    from pyspark.sql.functions import lit

    if len(inputs) == 1:
        return inputs[0]
    own = [polars_schema(rows).items() for rows in inputs]
    columns = [{name: of for name, of in schema if name != WEIGHT} for schema in own]
    united_columns(node.uid, list(zip(node.producers, columns, strict=True)))
    defaults = {
        field.name: lit(1 if field.name == WEIGHT else None).cast(field.dataType)
        for rows in inputs
        for field in rows.schema.fields
        if field.name in RESERVED
    }
    completed = [
        rows.withColumns({name: d for name, d in defaults.items() if name not in rows.columns})
        for rows in inputs
    ]
    return reduce(lambda rows, others: rows.unionByName(others), completed)


def _passing_by(
    node: StageNode,
    rows: DataFrame,
    function: Callable[[DataFrame], DataFrame],
    check: Callable[[str, DataFrame], None] | None,
) -> DataFrame:
    """The rows that *function* yields of *rows*, and those that are malformed, which pass it by.

    They are read with the others where it keeps every row, as one that only computes columns does.

    Raises:
        ConfigurationError: it drops the column of weights, or has another column of such a name.
    """
    given = rows.schema
    ours = [name for name in RESERVED if name in given.names]
    rows = rows.withMetadata(RAW, _OF_SOURCE) if RAW in ours else rows
    must_be_known = check is not None or MALFORMED_COLUMN in ours
    result = function(marked(rows) if must_be_known else rows)
    if not hasattr(result, "schema"):
        raise ConfigurationError(
            f"the function of stage {node.uid!r} returns {type(result).__name__}; have it return "
            "a DataFrame"
        )
    if check is not None:
        check(node.uid, result)
    _check_ours(node.uid, given, result.schema)
    if WEIGHT in ours and WEIGHT not in result.columns:
        raise ConfigurationError(
            f"the function of stage {node.uid!r} drops the column {WEIGHT!r}; keep it: it says "
            "which rows are taken back"
        )
    if MALFORMED_COLUMN not in ours or ({*ours} <= {*result.columns} and keeps_every_row(result)):
        return result
    good = rows.where(f"{MALFORMED_COLUMN} IS NULL")
    malformed = rows.where(f"{MALFORMED_COLUMN} IS NOT NULL").selectExpr(*ours)
    return function(marked(good)).unionByName(malformed, allowMissingColumns=True)


def _check_ours(uid: str, rows: StructType, result: StructType) -> None:
    """Check that columns of ours which a function's *result* has are those of its *rows*.

    Raises:
        ConfigurationError: one has another type, or is a text of the user's.
    """
    given, found = ({field.name: field for field in of.fields} for of in (rows, result))
    types = {name: given[name].dataType.simpleString() for name in (SOURCE,) if name in given}
    for name, of in {**types, MALFORMED_COLUMN: "string"}.items():
        is_of = found[name].dataType.simpleString() if name in found else of
        if is_of not in (of, "void"):
            raise ConfigurationError(
                f"the function of stage {uid!r} yields {name!r} as {is_of}, and sluice's own "
                f"column of that name is {of}: give yours another name"
            )
    if RAW in given and RAW in found and found[RAW].metadata != _OF_SOURCE:
        check_columns([RAW], f"the result of stage {uid!r}")


def _look_up(uid: str, lookup: Lookup, rows: DataFrame, table: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    columns, versions = {**lookup.on, **lookup.add}, lookup.versions
    good = "_" * (1 + max(map(len, (*rows.columns, *columns))))  # No other column has that name.
    found, since, true = f"{good}_", f"{good}__", F.lit(True)  # noqa: FBT003 - a value
    if versions is not None:
        columns |= {since: versions.valid_from}
    wanted = table.selectExpr(
        *(f"{expression} AS {quoted(column)}" for column, expression in columns.items())
    )
    types, of_table = polars_schema(rows), polars_schema(wanted)
    names = [*lookup.on, since][: len(lookup.compared)]
    for name, (column, _, argument) in zip(names, lookup.compared, strict=True):
        of = of_table.get(name)
        check_looked_up(uid, column, types.get(column), lookup.table, of, argument)
    keys, matched = [*lookup.on], "inner" if lookup.add else "left_semi"
    how = {"matched": matched, "unmatched": "left_anti", "all": "left"}[lookup.keep]
    if versions is not None:
        wanted, how = _versions_by_key(uid, lookup, versions, wanted, since), "left"
    if MALFORMED_COLUMN not in rows.columns:
        joined = rows.join(F.broadcast(wanted), on=keys, how=how)
        return joined if versions is None else _valid(lookup, versions, joined, since, None)
    # A malformed row, of which some values may be known, matches nothing, and is reported once.
    rows = rows.withColumn(good, F.expr(f"{MALFORMED_COLUMN} IS NULL"))
    wanted = wanted.withColumn(good, true)
    if lookup.keep == "matched" and versions is None:
        wanted = (wanted if lookup.add else wanted.distinct()).withColumn(found, true)
        how = "left"
    joined = rows.join(F.broadcast(wanted), on=[*keys, good], how=how)
    if versions is not None:
        return _valid(lookup, versions, joined, since, good)
    if lookup.keep == "matched":
        joined = joined.where(f"{quoted(found)} OR NOT {quoted(good)}")
    return joined.drop(good, found)


def _versions_by_key(
    uid: str, lookup: Lookup, versions: Versions, wanted: DataFrame, since: str
) -> DataFrame:
    """A row for each key, whose column *since* has its versions in the order of their *since*."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    keys = [F.col(quoted(key)) for key in lookup.on]
    pairs = zip(lookup.on.values(), keys, strict=True)
    key = F.concat_ws(
        ", ",
        *(F.concat(F.lit(f"{name} = "), of.cast("string")) for name, of in pairs),
    )
    where = F.lit(f" in the table {lookup.table} ")
    at = F.col(quoted(since))
    has_key = reduce(lambda one, other: one & other, (of.isNotNull() for of in keys))
    no_time = F.concat(
        *(F.lit(f"lookup {uid} finds a version of "), key, where),
        F.lit(
            f"whose {versions.valid_from} is null; leave it out with where() of the table, or say "
            f"since when it is valid: valid_from='coalesce({versions.valid_from}, ...)'"
        ),
    )
    timed = wanted.where(has_key).where(at.isNotNull() | F.raise_error(no_time).isNotNull())
    order = f"CASE WHEN l.{since} < r.{since} THEN -1 WHEN l.{since} > r.{since} THEN 1 ELSE 0 END"
    whole = f"struct({', '.join(map(quoted, (since, *lookup.add)))})"
    # One partition needs no shuffle; a table has 64 MiB at most.
    by_key = timed.coalesce(1).groupBy(*keys)
    found = by_key.agg(F.expr(f"array_sort(collect_list({whole}), (l, r) -> {order})").alias(since))
    same = f"filter({since}, (v, n) -> n > 0 AND v.{since} = get({since}, n - 1).{since})"
    two = F.expr(f"get({same}, 0).{since}")
    twice = F.concat(
        *(F.lit(f"lookup {uid} finds two versions of "), key, where),
        *(F.lit("that are valid from "), two.cast("string")),
        F.lit("; leave one of them out of the table, or name what tells them apart, too, in on="),
    )
    return found.where(two.isNull() | F.raise_error(twice).isNotNull())


def _valid(
    lookup: Lookup, versions: Versions, joined: DataFrame, since: str, good: str | None
) -> DataFrame:
    """The rows of *joined*, each with the newest version that is not newer than its event time."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    older = f"filter({since}, {since} -> {since}.{since} <= {quoted(versions.time)})"
    joined = joined.withColumn(since, F.expr(f"try_element_at({older}, -1)"))
    if lookup.keep != "all":
        is_kept = f"{since} IS {'NOT ' * (lookup.keep == 'matched')}NULL"
        joined = joined.where(is_kept if good is None else f"{is_kept} OR NOT {good}")
    own = [quoted(name) for name in joined.columns if name not in (since, good)]
    added = [f"{since}.{quoted(name)} AS {quoted(name)}" for name in lookup.add]
    return joined.selectExpr(*own, *added)
