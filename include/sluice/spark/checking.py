"""The check of a whole pipeline's types and columns before its first epoch; no row is read.

Spark's analyzer and the operators' constructors check every stage, in topological order: so a
misspelt column of the last stage is found now, and not in epoch 7.  A user's function has to be
row-wise (``spark/row_wise.py``).

Catalyst knows what answers otherwise when it is asked again: also functions in Python, if they were
declared with ``asNondeterministic()``, and ``Column``s.  Where that is refused
``declaration/determinism.py`` says.  Of a remote session only the plan as it is printed is known,
which does not say how a function in Python was declared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

import polars as pl
import pyarrow as pa

from sluice.declaration.changelog import Append, StreamRead, after, analysed, check_sink
from sluice.declaration.determinism import (
    CLOCKS,
    DRAWS,
    PLACES,
    TEXTS,
    Reader,
    check_lookup,
    refuse_key,
    refuse_over_updates,
    refuse_two_readers,
    shared_steps,
    why_of_spark,
)
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import SparkCode, Transform
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import MALFORMED_COLUMN, RAW
from sluice.declaration.sql import parsed
from sluice.declaration.sql_tree import Column
from sluice.errors import ConfigurationError, written_on
from sluice.exchange.output import projected_result
from sluice.exchange.reading import SOURCE, measured_column, with_origin
from sluice.job.analysis import Result, check_names, check_readable, check_sink_schema
from sluice.operators.build import build_operator
from sluice.operators.changes import behind
from sluice.operators.operator import WEIGHT, Operator, wrong_type
from sluice.spark.deployment import needed_columns, with_computed_columns
from sluice.spark.frames import (
    RESERVED,
    decoded_text,
    keyed_inputs,
    lookup_of,
    polars_schema,
    projected,
    renamed,
    table_behind,
    transformed,
)
from sluice.spark.row_wise import (
    all_columns_shown,
    analysed_plan,
    check_kept,
    check_row_wise_plan,
)
from sluice.spark.session import with_our_settings
from sluice.spark.spark_code import answered, check_views, empty_results
from sluice.spark.stage import failure_cause
from sluice.spark.tasks import columns_named
from sluice.spark.versions import arrow_schema
from sluice.state.segments import empty_frame, to_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Calls in a printed plan; what is followed by # is a column of that name.
_DRAW = re.compile(rf"\b(?:{'|'.join(sorted(DRAWS))})\((?![^()\n]*\)#)", re.IGNORECASE)
_CLOCK = re.compile(
    rf"\b(?:{'|'.join(sorted(CLOCKS))})\((?:\d+, )?(?:Some\([^()]*\)|\d*)\)(?!#)", re.IGNORECASE
)
# Texts that are made days or instants, and what computes one without columns.  Of a remote session
# BETWEEN and NULLIF are printed without the cast, beside texts, too.
_NESTED = r"(?:[^()\n]|\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\))*?"
_TEXT = re.compile(
    rf"\b(?:(?:try_)?cast\(|(?:between|nullif)\({_NESTED}, |(?:try_)?to_(?:date|timestamp)\w*\()"
    r"\s*(now|today|tomorrow|yesterday)\s*(?:\)|,| as (?:date|timestamp))",
    re.IGNORECASE,
)
_COMPUTED = re.compile(
    rf"\bcast\(((?:{'|'.join(sorted(TEXTS))})\({_NESTED}\)) as (?:date|timestamp)",
    re.IGNORECASE,
)
# Letters of a text, and no column.
_LETTERS = re.compile(r"(?=(?:\w+\(|\bNone\b|[^A-Za-z])*+[A-Za-z])[^#]*")
_PLACE = re.compile(rf"\b(?:{'|'.join(sorted(PLACES))})\(\)(?!#)", re.IGNORECASE)
_DECLARED = "a function that is declared with asNondeterministic()"


# A result without rows, its operator, and the columns that the subtasks get of each input.
_Found: TypeAlias = tuple[pl.DataFrame, Operator | None, tuple[pl.Schema, ...]]


def check_pipeline(
    pipeline: Pipeline, spark: SparkSession, params: Mapping[str, str], endpoint_url: str | None
) -> dict[str, Result]:
    """The result of each stage by its uid: columns and types.

    Raises:
        ConfigurationError: a stage cannot compute what it declares, or a sink cannot write what
            it reads; the message names it, and ends with the cause.
    """
    with_our_settings(spark)
    rows: dict[str, DataFrame] = {}
    for uid, node in pipeline.sources.items():
        with written_on(node.line):
            source = node.spec.open(params, endpoint_url)
            check_readable(pipeline, uid, source)
            empty = _empty(spark, with_origin(source.schema()).empty_table())
            rows[uid] = empty if source.decoding is None else decoded_text(empty, source.decoding)
            _check_shared_steps(pipeline, uid, rows[uid])
    yields: dict[str, Result] = {}
    for uid, declared in pipeline.stages.items():
        stage = _reading(declared, yields)
        with written_on(stage.line):
            kind = stage.kind  # A stage over the wrong kind of stream is refused.
            try:
                frame, operator, read = _result(pipeline, stage, rows, params)
            except ConfigurationError:
                raise
            except Exception as error:  # Spark's analyzer and the user's function raise anything.
                raise ConfigurationError(
                    f"stage {uid!r} cannot be run: {failure_cause(error)}"
                ) from error
        found = Result(frame.schema, analysed(kind, frame.columns), read=read)
        yields[uid] = found if operator is None else found.of(operator)
        _check_sinks(pipeline, uid, yields[uid])
        if kind != Append():
            frame = frame.with_columns(pl.lit(1, pl.Int8).alias(WEIGHT))
        rows[uid] = _empty(spark, to_table(frame))
    return yields


def _reading(stage: StageNode, yields: Mapping[str, Result]) -> StageNode:
    """*stage* with inputs of the kinds that *yields* found: a function may drop a key."""
    inputs = [
        replace(given, kind=after(given.steps, yields[given.producer].kind))
        if given.producer in yields
        else given
        for given in stage.inputs
    ]
    return replace(stage, inputs=tuple(inputs))


def _result(
    pipeline: Pipeline, stage: StageNode, rows: Mapping[str, DataFrame], params: Mapping[str, str]
) -> _Found:
    check_names(stage, *_names_read(pipeline, stage, rows))
    inputs = [
        projected(rows[given.producer], given)
        if given.producer in pipeline.sources
        else renamed(_behind(given, rows[given.producer]), given)
        for given in stage.inputs
    ]
    if isinstance(stage.operation, SparkCode):
        return _of_code(pipeline, stage, inputs, rows)
    lookup = lookup_of(stage)
    if lookup is not None:
        check_lookup(stage.uid, lookup, rows[lookup.table].columns)
    table = None
    if lookup is not None:
        table = table_behind(rows[lookup.table], lookup.table, lookup.steps)
    if stage.is_stateful:
        sides = [
            with_computed_columns(side, stage, given)
            for side, given in zip(keyed_inputs(stage, inputs, table), stage.inputs, strict=True)
            if not given.is_broadcast
        ]
        _check_computed(stage, inputs, sides)
        operator = build_operator(stage, [polars_schema(side) for side in sides])
        pipeline.check_answers(stage.uid, operator.output_schema.names())
        read = [
            side.select(*columns_named(needed_columns(side.columns, given, operator)))
            for side, given in zip(sides, stage.shuffled, strict=True)
        ]
        frame = projected_result(stage, operator.output_schema.to_frame())
        return frame, operator, _schemas(stage.uid, read)
    if isinstance(stage.operation, Transform):
        check_views(stage.uid, stage.operation.function)
        result = transformed(stage, inputs, table, params, _check_rows_of_function)
        _check_event_time(pipeline, stage, result)
        _check_function(stage, result)
    else:
        result = transformed(stage, inputs, table, params)
    frame = polars_schema(result).to_frame()
    pipeline.check_answers(stage.uid, frame.columns)
    frame = frame.drop(SOURCE, MALFORMED_COLUMN, RAW, WEIGHT, strict=False)
    return projected_result(stage, frame), None, _schemas(stage.uid, [result])


def _schemas(uid: str, read: Sequence[DataFrame]) -> tuple[pl.Schema, ...]:
    """The columns of what stage *uid* takes out of Spark, whose VARIANT is two texts of bytes."""
    found = [arrow_schema(of.schema) for of in read]
    for field in (field for schema in found for field in schema):
        if _has_variant(field):
            name = field.name
            raise ConfigurationError(
                f"column {name!r} of stage {uid!r} has the type variant, which Spark alone knows; "
                f'write "to_json({name}) AS {name}", or take values out with variant_get()'
            )
    return tuple(empty_frame(schema).schema for schema in found)


def _has_variant(field: pa.Field) -> bool:
    inner = [field.type.field(number) for number in range(field.type.num_fields)]
    return b"variant" in (field.metadata or {}) or any(map(_has_variant, inner))


def _names_read(
    pipeline: Pipeline, stage: StageNode, rows: Mapping[str, DataFrame]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The columns of each source, and of what *stage* looks up of streams of stages."""
    sources = {
        uid: [name for name in rows[uid].columns if name not in RESERVED]
        for uid in pipeline.sources
    }
    looked_up = stage.inputs if lookup_of(stage) is not None else ()
    streams = {
        uid: behind(given.steps, polars_schema(rows[uid]).to_frame(), uid).columns
        for given in looked_up
        if (uid := given.producer) in pipeline.stages
    }
    streams = {uid: [name for name in of if name != WEIGHT] for uid, of in streams.items()}
    return sources, streams


def _check_rows_of_function(uid: str, result: DataFrame) -> None:
    check_row_wise_plan(uid, result)
    check_kept(uid, result)


def _of_code(
    pipeline: Pipeline, stage: StageNode, inputs: list[DataFrame], rows: Mapping[str, DataFrame]
) -> _Found:
    spark = rows[stage.inputs[0].producer].sparkSession
    assert isinstance(stage.operation, SparkCode)
    given = {
        name: table_behind(rows[table.uid], table.uid, table.steps)
        for name, table in stage.operation.tables.items()
    }
    answer = answered(stage, inputs, given, empty_results(spark, pipeline, stage))
    columns = polars_schema(answer)
    operator = build_operator(stage, [columns]) if stage.is_stateful else None
    if operator is not None:
        columns = operator.output_schema
    pipeline.check_answers(stage.uid, columns.names())
    return projected_result(stage, columns.to_frame()), operator, _schemas(stage.uid, [answer])


def _check_event_time(pipeline: Pipeline, stage: StageNode, result: DataFrame) -> None:
    """Raises ConfigurationError if the watermark cannot be measured of the *result*'s rows."""
    given = stage.inputs[0]
    if given.producer in pipeline.sources and given.event_time is not None:
        column = measured_column(stage.uid, given.event_time, result.columns)
        schema = polars_schema(result)
        if not isinstance(schema[column], pl.Datetime | pl.Date):
            raise wrong_type(stage.uid, schema, column, "as event time")


def _behind(given: Input, rows: DataFrame) -> DataFrame:
    """The empty *rows* of a stage's stream behind the steps of its reader."""
    if not given.steps:
        return rows
    frame = behind(given.steps, polars_schema(rows).to_frame(), given.producer)
    return _empty(rows.sparkSession, to_table(frame))


def _empty(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A DataFrame without rows; its schema is given, as Spark Connect infers none from no rows."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame([], from_arrow_schema(table.schema))


def _check_sinks(pipeline: Pipeline, uid: str, result: Result) -> None:
    for sink in pipeline.sinks_of(uid):
        with written_on(sink.line):
            rows = behind(sink.steps, result.columns.to_frame(), uid)
            kind = analysed(after(sink.steps, result.kind), rows.columns)
            check_sink(sink.uid, sink.spec, StreamRead(uid, kind))
            check_sink_schema(sink, uid, rows)


def _check_function(stage: StageNode, result: DataFrame) -> None:
    """Check the *result* of the function of *stage*.

    Raises:
        ConfigurationError: it tells how Spark cut its rows, or it answers otherwise next time, and
            rows are taken back.
    """
    plan = analysed_plan(result)
    owner = f"the function of stage {stage.uid!r}"
    place = _PLACE.search(plan)
    if place is not None:
        name = place[0].lower()
        raise ConfigurationError(f"{owner} has {name}, {why_of_spark(name)}")
    updating = next((given for given in stage.inputs if given.kind != Append()), None)
    found = _nondeterministic(result, plan) if updating is not None else None
    if updating is not None and found is not None:
        refuse_over_updates(owner, updating.producer, found)


def _check_computed(
    stage: StageNode, inputs: Sequence[DataFrame], sides: Sequence[DataFrame]
) -> None:
    """Check the keys of *stage* over its *inputs*, and what is computed of them in its *sides*.

    Raises:
        ConfigurationError: a key answers otherwise next time, or rows are taken back, and something
            else does.
    """
    for given, rows in zip(stage.inputs, inputs, strict=True):
        for name, sql in given.key_expressions.items():
            alone = _bare(rows).selectExpr(sql)
            found = _nondeterministic(alone) if _may_be_drawn(sql, rows.columns) else None
            if found is not None:
                refuse_key(f"stage {stage.uid!r}", name, sql, found)
    updating = next((given for given in stage.inputs if given.kind != Append()), None)
    if updating is not None:
        for side in sides:
            found = _nondeterministic(side)
            if found is not None:
                refuse_over_updates(f"stage {stage.uid!r}", updating.producer, found)


def _check_shared_steps(pipeline: Pipeline, source: str, rows: DataFrame) -> None:
    """Check the steps that several readers of *source* apply to its *rows*, each for itself.

    Raises:
        ConfigurationError: a step answers otherwise for each of them.
    """
    readers = [
        Reader(f"stage {stage.uid!r}", given.steps)
        for stage in pipeline.consumers_of(source)
        for given in stage.inputs
        if given.producer == source
    ]
    for one, other in combinations(readers, 2):
        steps = shared_steps(one.steps, other.steps)
        if not steps:
            continue
        found = _nondeterministic(projected(_bare(rows), Input(producer=source, steps=steps)))
        if found is not None:
            refuse_two_readers(source, (one, other), steps, found)


def _may_be_drawn(sql: str, columns: Sequence[str]) -> bool:
    """Whether *sql* is more than the columns that there are."""
    known = {column.lower() for column in columns}
    parts = parsed(sql).parts
    return not all(isinstance(of, Column) and of.parts[0].lower() in known for of in parts)


def _bare(rows: DataFrame) -> DataFrame:
    """Rows of that schema, which nothing has computed."""
    return rows.sparkSession.createDataFrame([], rows.schema)


def _nondeterministic(rows: DataFrame, plan: str | None = None) -> str | None:
    """The part of *rows* that answers otherwise when computed again; None if nothing does."""
    plan = analysed_plan(rows) if plan is None else plan
    execution = getattr(rows, "_jdf", None)
    if execution is None or not execution.queryExecution().analyzed().deterministic():
        drawn = _DRAW.search(plan)
        if drawn is not None:
            return _call(drawn)
        if execution is not None:
            return _DECLARED
    read = _CLOCK.search(plan)  # To Catalyst a clock is a constant of the query.
    if read is not None:
        return _call(read)
    plan = plan if execution is None else _replaced(rows)
    computed = (found[1] for found in _COMPUTED.finditer(plan) if _LETTERS.fullmatch(found[1]))
    text = _TEXT.search(plan)
    found = next(computed, None) if text is None else f"{text[1].lower()!r}"
    return None if found is None else f"{found} as a day or an instant"


def _replaced(rows: DataFrame) -> str:
    """The analysed plan of *rows* with the casts of BETWEEN, NULLIF and the like."""
    jvm = rows.sparkSession._jvm  # noqa: SLF001 - no API has it
    assert jvm is not None
    with all_columns_shown(rows):
        analysed = rows._jdf.queryExecution().analyzed()  # noqa: SLF001 - as above
        rule = jvm.org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions
        return str(rule.apply(analysed).toString())


def _call(found: re.Match[str]) -> str:
    return f"{found[0].partition('(')[0].lower()}()"
