"""The columns that each stage of a pipeline yields, and whether it can read the state that its job
has, as far as that is known without Spark.

The columns of files and of SQL on the allow-list are known, and the operators derive their results
from them.  The result of a user's function, or of SQL that only Spark can compute, is not known;
stages that read it are left to Spark (``sluice.spark.checking``).  No row is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import polars as pl

from sluice.connectors.columns import unreadable_columns
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import JobStatus
from sluice.core.handles import StateHandle
from sluice.core.restoring import changes_since
from sluice.core.transitions import Becomes, notes_of, problems_of
from sluice.declaration.changelog import Append, Kind, check_sink_columns
from sluice.declaration.column_types import ColumnType, row_schema
from sluice.declaration.columns import OF_RECORDS, check_source_columns
from sluice.declaration.determinism import (
    check_arguments,
    check_key_expressions,
    check_lookup,
)
from sluice.declaration.expressions import Filter, Step, result_name, words_read
from sluice.declaration.fingerprints import fingerprints
from sluice.declaration.nodes import Input, SinkNode, SourceNode, StageNode
from sluice.declaration.operations import KeyedLookup, Lookup, SparkCode, Transform, Union
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import (
    MALFORMED_COLUMN,
    RAW,
    RECORD,
    WEIGHT,
    Source,
    TypedSinkSpec,
)
from sluice.declaration.sql import parsed
from sluice.errors import ConfigurationError, RestoreError, written_on
from sluice.exchange.output import projected_result
from sluice.job.job import Job
from sluice.operators.aggregate import aggregate_arguments, is_sql
from sluice.operators.build import build_operator
from sluice.operators.changes import behind
from sluice.operators.common_types import check_looked_up, united_columns
from sluice.operators.operator import Operator, require_column, require_columns, wrong_type
from sluice.operators.sql import TYPES, NotCompiledError, compiled, spark_type
from sluice.state.cache import SegmentCache
from sluice.state.evolution import Evolutions
from sluice.state.key_hash import can_hash
from sluice.state.runs import Run, RunSlice
from sluice.state.segments import StateSchema, empty_frame, instance_of, to_table

# Column -> type; None for a type that only Spark knows, or instead of columns that only it knows.
ColumnTypes: TypeAlias = Mapping[str, pl.DataType | None]

# What Spark reads as what Polars has.
_TYPES: Mapping[str, pl.DataType] = {
    **TYPES,
    **dict.fromkeys(("char", "varchar"), pl.String()),
    "binary": pl.Binary(),
}
_DECIMAL = (10, 0)  # Spark's default precision and scale.
_NOT_READ = (Becomes.BEGUN_ANEW, Becomes.RECOMPUTED, Becomes.REFUSED)
_HIDDEN = (RECORD, MALFORMED_COLUMN, RAW, WEIGHT)  # Columns of a source that no stage sees.
_CONTINUES = (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.SUSPENDED)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a stage: its columns, its kind of stream, and its tables of state; and whether
    Spark has to sort its rows, as ``Operator.is_order_sensitive`` says.

    Where Spark has analysed it, ``read`` are the columns that its subtasks get of each input, with
    those of ours, or those of its rows, if it has no state.
    """

    columns: pl.Schema
    kind: Kind
    tables: Mapping[str, StateSchema] = field(default_factory=dict[str, StateSchema])
    is_order_sensitive: bool = False
    read: tuple[pl.Schema, ...] = field(default=(), compare=False)

    def of(self, operator: Operator) -> Result:
        """The result of a stage that *operator* computes."""
        return replace(self, tables=operator.tables, is_order_sensitive=operator.is_order_sensitive)


def analyse(
    pipeline: Pipeline, params: Mapping[str, str], endpoint_url: str | None
) -> dict[str, Result | None]:
    """The result of each stage by uid; None for a stage that only Spark can analyse.

    Raises:
        ConfigurationError: a stage or a sink cannot do what it declares; the message names it.
    """
    if not pipeline.sinks:
        raise ConfigurationError(
            f"pipeline {pipeline.uid!r} has no sink, so its result would be lost; add "
            f'one: stream.sink("my_sink", FilesTable())'
        )
    rows: dict[str, ColumnTypes | None] = {}
    for uid, node in pipeline.sources.items():
        with written_on(node.line):
            source = node.spec.open(params, endpoint_url)
            check_readable(pipeline, uid, source)
            rows[uid] = columns = _source_columns(uid, source)
            pipeline.check_answers(uid, columns)
    results: dict[str, Result | None] = {}
    for uid, stage in pipeline.stages.items():
        with written_on(stage.line):
            result = results[uid] = _stage_result(pipeline, stage, rows)
        rows[uid] = None if result is None else result.columns
        if result is not None:
            for sink in pipeline.sinks_of(uid):
                with written_on(sink.line):
                    check_sink_schema(sink, uid, behind(sink.steps, result.columns.to_frame(), uid))
    return results


def check_readable(pipeline: Pipeline, uid: str, source: Source) -> None:
    """Check that no stage reads a column of *source* that no stage can use.

    Raises:
        ConfigurationError: a stage names one, or selects none of the source's columns.
    """
    refused = unreadable_columns(source.schema())
    if pipeline.sources[uid].is_table:  # All of it is pinned at every barrier.
        for why in refused.values():
            raise ConfigurationError(f"table source {uid!r}: {why}")
    for stage in pipeline.consumers_of(uid):
        for given in stage.inputs:
            names = words_read(given.steps) if given.producer == uid else set()
            for name, why in refused.items():
                if names is None or name.lower() in names:
                    raise ConfigurationError(f"stage {stage.uid!r}: {why}")


def check_names(
    stage: StageNode, sources: Mapping[str, Iterable[str]], streams: Mapping[str, Iterable[str]]
) -> None:
    """Check the columns that *stage* names of *sources*, and of the rows that it looks up, where no
    more than the names of columns are known.  *streams* are those of stages, behind their steps.

    Raises:
        ConfigurationError: one is not there.
    """
    behind_steps = {
        given.producer: _after_steps(stage.uid, given, dict.fromkeys(sources[given.producer]))
        for given in stage.inputs
        if given.producer in sources
    }
    match stage.operation:
        case (Lookup() as lookup) | KeyedLookup(lookup=lookup):
            (given,) = stage.inputs
            names = streams.get(given.producer, behind_steps.get(given.producer))
            of_table = dict.fromkeys(sources[lookup.table])
            table = _table_read(stage.uid, lookup.table, lookup.steps, of_table)
            if names is not None:
                _looked_up(stage.uid, lookup, dict.fromkeys(given.spelt([*names])), table)
        case SparkCode(tables=tables):
            for of in tables.values():
                _table_read(stage.uid, of.uid, of.steps, dict.fromkeys(sources[of.uid]))
        case _:
            pass


def check_sink_schema(sink: SinkNode, producer: str, rows: pl.DataFrame) -> None:
    """Raises ConfigurationError if *rows*, which *sink* writes of the stage *producer*, lack a
    column that it needs, or have one that it cannot write.
    """
    check_sink_columns(sink.uid, sink.spec, producer, rows.columns)
    if isinstance(sink.spec, TypedSinkSpec):
        sink.spec.check_types(sink.uid, to_table(rows).schema)


def check_state(job: Job, results: Mapping[str, Result | None]) -> tuple[str, ...]:
    """The fate of state whose meaning has changed, in words; nothing where it has not.

    Compares the declared meanings of state, and the types of its columns, with those in the
    checkpoint that the job continues.

    Reads one small file for each table of state, or two.

    Raises:
        ConfigurationError: a stage could not read its state.
        RestoreError: the checkpoint is gone.
    """
    state = job.state()
    metadata = job.base_metadata(state) if state.status in _CONTINUES else None
    if metadata is None:
        return ()
    declared = fingerprints(job.pipeline, state.configuration.params)
    changes = changes_since(metadata, declared)
    consent = state.consent.within(declared)
    problems = problems_of(changes, declared, consent, metadata.held)
    anew = {one.uid for one in changes if one.becomes in _NOT_READ}
    problems += [
        problem
        for uid, result in results.items()
        if result is not None and uid not in anew
        for problem in _state_problems(job, metadata, uid, result.tables)
    ]
    if problems:
        raise ConfigurationError(f"{'; '.join(problems)} (checkpoint {metadata.checkpoint_id})")
    return notes_of(changes, consent)


def problems_of_results(
    job: Job, metadata: CheckpointMetadata, params: Mapping[str, str]
) -> list[str]:
    """The stages of Spark code that could not read their state in *metadata*, whose declared result
    says so.  Reads one small file for each.
    """
    changes = changes_since(metadata, fingerprints(job.pipeline, params))
    anew = {one.uid for one in changes if one.becomes in _NOT_READ}
    found: list[str] = []
    for uid, stage in job.pipeline.stages.items():
        if isinstance(stage.operation, SparkCode) and stage.is_stateful and uid not in anew:
            declared = row_schema(f"stage {uid!r}", stage.operation.schema)
            columns = {name: of for name, one in declared.items() if (of := _polars(one))}
            if len(columns) == len(declared):  # Spark knows the others.
                tables = build_operator(stage, [pl.Schema(columns)]).tables
                found += _state_problems(job, metadata, uid, tables)
    return found


def _source_columns(uid: str, source: Source) -> ColumnTypes:
    """The columns that stages see, by name; None where only Spark knows the type."""
    schema = empty_frame(source.schema()).schema
    types = {name: dtype for name, dtype in schema.items() if name not in _HIDDEN}
    check_source_columns(types, f"source {uid!r}")
    decoding = source.decoding
    if decoding is None:
        return {name: _unless_spark_changes(dtype) for name, dtype in types.items()}
    decoded = row_schema("the source", decoding.schema)
    return {name: _polars(column) for name, column in decoded.items()} | {
        name: types.get(name) for name in decoding.keeps
    }


def _unless_spark_changes(dtype: pl.DataType) -> pl.DataType | None:
    match dtype:
        case pl.List() | pl.Map() | pl.Struct():
            return dtype if None not in map(_unless_spark_changes, _inner_types(dtype)) else None
        case _:
            return dtype if dtype in _TYPES.values() or isinstance(dtype, pl.Decimal) else None


def _inner_types(dtype: pl.List | pl.Map | pl.Struct) -> list[pl.DataType]:
    match dtype:
        case pl.Struct():
            return [instance_of(of.dtype) for of in dtype.fields]
        case pl.Map():
            return [instance_of(dtype.key), instance_of(dtype.value)]
        case _:
            return [instance_of(dtype.inner)]


def _has_map(dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.Map):
        return True
    return isinstance(dtype, pl.List | pl.Struct) and any(map(_has_map, _inner_types(dtype)))


def _polars(column: ColumnType) -> pl.DataType | None:
    inside = [(name, _polars(of)) for name, of in column.fields]
    known = {name: of for name, of in inside if of is not None}
    types = [of for _, of in inside if of is not None]
    match column.name:
        case "decimal":
            precision, scale = (*column.arguments, *_DECIMAL[len(column.arguments) :])
            return pl.Decimal(precision, scale)
        case "array" if types:
            return pl.List(*types)
        case "map" if len(types) == len(inside):
            return pl.Map(*types)
        case "struct" if len(known) == len(inside):
            return pl.Struct(known)
        case name:
            return _TYPES.get(name)


def _stage_result(
    pipeline: Pipeline, stage: StageNode, rows: Mapping[str, ColumnTypes | None]
) -> Result | None:
    inputs: list[ColumnTypes] = []
    producers: list[str] = []
    is_known = True
    for stream in stage.shuffled:
        columns = rows[stream.producer]
        if columns is not None and stream.producer in pipeline.sources:
            columns = _after_steps(stage.uid, stream, columns)
            _check_event_time(stage, pipeline.sources[stream.producer], stream, columns)
        elif columns is not None:  # A stage's are all known, or none is.
            columns = dict(behind(stream.steps, _known(columns).to_frame(), stream.producer).schema)
        if columns is None:
            is_known = False  # The names in the other inputs are checked all the same.
        else:
            renamed = dict(zip(stream.spelt(columns), columns.values(), strict=True))
            inputs.append(_with_computed(stage, stream, renamed))
            producers.append(stream.producer)
    united: ColumnTypes = {}
    if isinstance(stage.operation, Union) and inputs:  # Also where another one is not known.
        united = united_columns(stage.uid, list(zip(producers, inputs, strict=True)))
    if not is_known:
        return None
    match stage.operation:
        case Transform():
            return None
        case SparkCode(tables=tables):
            for of in tables.values():
                _table_read(stage.uid, of.uid, of.steps, rows[of.uid])
            return None
        case (Lookup() as lookup) | KeyedLookup(lookup=lookup):
            found = _lookup_result(stage.uid, lookup, inputs[0], rows[lookup.table])
            is_keyed = isinstance(stage.operation, KeyedLookup)
            return None if is_keyed else _stateless(pipeline, stage, found)
        case Union():
            return _stateless(pipeline, stage, united)
        case _:
            return _of_operator(pipeline, stage, inputs)


def _check_event_time(
    stage: StageNode, source: SourceNode, stream: Input, columns: ColumnTypes | None
) -> None:
    """Check the event time of *source* where *columns* are all that *stage* reads of it."""
    yields = isinstance(stage.operation, Transform | Lookup | SparkCode)  # It may be of the result.
    if columns is None or stream.event_time is None or source.event_time is None or yields:
        return
    spelt = {name.lower(): name for name in columns}
    name = spelt.get(source.event_time.lower(), source.event_time)
    with written_on(source.line):
        require_column(stage.uid, columns, name, f"for the event time of {source.uid!r}")
        if not isinstance(columns[name], pl.Datetime | pl.Date | None):
            purpose = f"as the event time of {source.uid!r}, which is a timestamp"
            raise wrong_type(stage.uid, _known(columns), name, purpose)


def _after_steps(uid: str, stream: Input, columns: ColumnTypes) -> ColumnTypes | None:
    """The columns of a source after an input's filters and projections."""
    where = f"in what it reads of {stream.producer!r}"
    for step in stream.steps:
        if isinstance(step, Filter):
            with written_on(step.line):
                require_columns(uid, step.condition, columns, where, beside=OF_RECORDS)
                of = _type_of(step.condition, _known(columns))
                if of not in (None, pl.Boolean(), pl.Null()):
                    raise ConfigurationError(
                        f"stage {uid!r} has {step.condition!r} as a condition {where}, which is "
                        f"{spark_type(of)}, not true or false; compare it with a value"
                    )
            if stream.kind != Append() and of is None:
                return None  # Spark says whether it answers alike when the row is taken back.
            continue
        selected: list[tuple[str, pl.DataType | None]] = []
        known = _known(columns)
        for text in step.columns:
            if text.strip() == "*":
                selected += columns.items()
                continue
            with written_on(step.line):
                require_columns(uid, text, columns, where, beside=OF_RECORDS)
            name = result_name(text)
            if name is None:  # Spark makes one up.
                return None
            selected.append((name, _type_of(text, known)))
        with written_on(step.line):
            names = [name for name, _ in selected]
            check_source_columns(names, f"stage {uid!r}, {where},")
        columns = dict(selected)
    return columns


def _table_read(
    uid: str, table: str, steps: tuple[Step, ...], columns: ColumnTypes | None
) -> ColumnTypes | None:
    """The *columns* of a table source behind the *steps* with which the stage *uid* reads it."""
    read = Input(producer=table, steps=steps)
    return None if columns is None else _after_steps(uid, read, columns)


def _with_computed(stage: StageNode, stream: Input, columns: ColumnTypes) -> ColumnTypes:
    """*columns* with those that keys and aggregates compute; checks every name in them."""
    found = dict(columns)
    known = _known(columns)
    with written_on(stream.line):
        check_key_expressions(f"stage {stage.uid!r}", stream.key_expressions, columns)
        for name, sql in stream.key_expressions.items():
            require_columns(stage.uid, sql, columns, f"in its key {name!r}")
            found[name] = _type_of(sql, known)
        for key in stream.keys:
            is_name = key.isidentifier()
            hint = "" if is_name else f"; name what is computed, key_by(name={key!r})"
            require_column(stage.uid, found, key, f"for its key{hint}")
            if (of := found[key]) is not None and _has_map(of):
                purpose = "for its key, as equal maps may differ; take an element"
                raise wrong_type(stage.uid, _known(found), key, purpose)
    check_arguments(stage, columns)
    known, given = _known(found), dict(found)
    for computed in aggregate_arguments(stage.operation):
        where = "in where=" if computed.is_condition else "in an aggregate"
        if computed.is_condition or is_sql(computed.sql, given):
            with written_on(computed.line):
                require_columns(stage.uid, computed.sql, given, where)
            of = _type_of(computed.sql, known)
            is_nothing = computed.is_condition and of == pl.Null()
            found[computed.column] = None if is_nothing else of
    return found


def _type_of(sql: str, known: pl.Schema) -> pl.DataType | None:
    """The type that Spark gives the result of *sql*; None if we do not know it."""
    try:
        return compiled(parsed(sql), known).dtype
    except NotCompiledError:
        return None


def _known(columns: ColumnTypes) -> pl.Schema:
    """The columns whose types are known."""
    return pl.Schema({name: of for name, of in columns.items() if of is not None})


def _lookup_result(
    uid: str, lookup: Lookup, rows: ColumnTypes, table: ColumnTypes | None
) -> ColumnTypes | None:
    if table is not None:
        check_lookup(uid, lookup, table)
    return _looked_up(uid, lookup, rows, _table_read(uid, lookup.table, lookup.steps, table))


def _looked_up(
    uid: str, lookup: Lookup, rows: ColumnTypes, table: ColumnTypes | None
) -> ColumnTypes | None:
    for column, sql, argument in lookup.compared:
        require_column(uid, rows, column, "to look up")
        if table is not None:
            require_columns(uid, sql, table, f"in the table {lookup.table!r}")
            of_table = _type_of(sql, _known(table))
            check_looked_up(uid, column, rows[column], lookup.table, of_table, argument)
    if table is None:
        return None
    found = {name: rows[name] for name in lookup.on} | dict(rows)
    known = _known(table)
    for name, sql in lookup.add.items():
        require_columns(uid, sql, table, f"in the table {lookup.table!r}")
        found[name] = _type_of(sql, known)
    return found


def _stateless(pipeline: Pipeline, stage: StageNode, columns: ColumnTypes | None) -> Result | None:
    """The result of a stage without state, after its filters and projections."""
    schema = None if columns is None else _known(columns)
    if schema is None or len(schema) < len(columns or ()):
        return None
    pipeline.check_answers(stage.uid, schema.names())
    return Result(projected_result(stage, schema.to_frame()).schema, stage.kind)


def _of_operator(pipeline: Pipeline, stage: StageNode, inputs: list[ColumnTypes]) -> Result | None:
    schemas = [_known(columns) for columns in inputs]
    all_known = all(len(schema) == len(of) for schema, of in zip(schemas, inputs, strict=True))
    if not all_known or not _can_hash_keys(stage, schemas):
        return None
    weighted = (
        schema if stream.kind == Append() else pl.Schema({**schema, WEIGHT: pl.Int8()})
        for stream, schema in zip(stage.shuffled, schemas, strict=True)
    )
    operator = build_operator(stage, list(weighted))
    pipeline.check_answers(stage.uid, operator.output_schema.names())
    columns = projected_result(stage, operator.output_schema.to_frame()).schema
    return Result(columns, stage.kind).of(operator)


def _can_hash_keys(stage: StageNode, schemas: list[pl.Schema]) -> bool:
    """No key has a type that only Spark may be able to hash."""
    return all(
        can_hash(schema[key])
        for stream, schema in zip(stage.shuffled, schemas, strict=True)
        for key in stream.keys
    )


def _state_problems(
    job: Job, metadata: CheckpointMetadata, uid: str, tables: Mapping[str, StateSchema]
) -> Iterator[str]:
    stage = metadata.stage(uid)
    runs: dict[str, dict[int, StateHandle]] = {}
    for subtask in stage.subtasks if stage is not None else ():
        for handle in subtask.state:
            runs.setdefault(handle.table, {}).setdefault(handle.run, handle)
    for name in sorted(tables.keys() & runs.keys()):
        # Where a state migrates, older runs may be of types that it has no migration from.
        oldest = {min(runs[name])} if tables[name].declared else set()
        for run in sorted({max(runs[name])} | oldest, reverse=True):
            stored = SegmentCache(job.location, job.store).open(runs[name][run].segment)
            try:
                evolutions = Evolutions(tables[name], f"stage {uid!r}")
                RunSlice.of(Run(table=stored), evolutions).rows(0, 0)
            except RestoreError as error:
                yield str(error)
                break
