"""The result columns of each stage, as far as they can be known without Spark.

Columns of files and of plain SQL are known, and the operators derive their results from them.  The
result of a user's function, or of SQL that only Spark can compute, is not known; stages that read
it are left to Spark (``sluice.spark.checking``).  No row is read.

The columns of a source, as far as they can be known without Spark.

The check that the stages, as they are declared now, can read their job's state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import polars as pl

from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import JobStatus
from sluice.core.handles import StateHandle
from sluice.declaration.changelog import Append, Kind, check_sink_columns
from sluice.declaration.expressions import (
    ColumnType,
    Filter,
    result_name,
    row_schema,
    unknown_column,
)
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import Lookup, Transform, Union
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import MALFORMED_COLUMN, RAW, RECORD, Source
from sluice.errors import ConfigurationError, RestoreError
from sluice.exchange.output import projected_result
from sluice.job.job import Job
from sluice.job.places import check_table
from sluice.operators.build import build_operator
from sluice.operators.expressions import is_sql, plain_column, plain_condition, wanted
from sluice.operators.operator import column_type
from sluice.state.cache import SegmentCache
from sluice.state.evolution import Evolution
from sluice.state.key_hash import can_hash
from sluice.state.segments import StateSchema

# Column -> type; None for a type that only Spark knows, or instead of columns that only it knows.
ColumnTypes: TypeAlias = Mapping[str, pl.DataType | None]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a stage: its columns, its kind of stream, and its tables of state."""

    columns: pl.Schema
    kind: Kind
    tables: Mapping[str, StateSchema] = field(default_factory=dict[str, StateSchema])


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
        source = node.spec.open(params, endpoint_url)
        if node.is_table:
            check_table(uid, source)
        rows[uid] = source_columns(source)
    results: dict[str, Result | None] = {}
    for uid, stage in pipeline.stages.items():
        results[uid], rows[uid] = _of_stage(pipeline, stage, rows)
        columns = rows[uid]
        if columns is not None:
            for sink in pipeline.sinks_of(uid):
                check_sink_columns(sink.uid, sink.spec, uid, columns)
    return results


def _of_stage(
    pipeline: Pipeline, stage: StageNode, rows: Mapping[str, ColumnTypes | None]
) -> tuple[Result | None, ColumnTypes | None]:
    inputs: list[ColumnTypes] = []
    is_known = True
    for given in stage.shuffled:
        columns = rows[given.producer]
        if columns is not None and given.producer in pipeline.sources:
            columns = _stepped(stage.uid, given, columns)
        if columns is None:
            is_known = False
        else:
            renamed = {given.renames.get(name, name): of for name, of in columns.items()}
            inputs.append(_keyed(stage, given, renamed))
    if not is_known:
        return None, None
    match stage.operation:
        case Transform():
            return None, None
        case Lookup() as lookup:
            return _narrowed(stage, _looked_up(stage.uid, lookup, inputs[0], rows[lookup.table]))
        case Union():
            return _narrowed(stage, _united(stage.uid, inputs))
        case _:
            return _of_operator(stage, inputs)


def _of_operator(
    stage: StageNode, inputs: list[ColumnTypes]
) -> tuple[Result | None, ColumnTypes | None]:
    known = [_typed(columns) for columns in inputs]
    schemas = [schema for schema in known if schema is not None]
    if len(schemas) < len(inputs) or stage.reads_updates or _needs_spark(stage, schemas):
        return None, None
    operator = build_operator(stage, schemas)
    result = Result(
        projected_result(stage, operator.output_schema.to_frame()).schema,
        stage.kind,
        operator.tables,
    )
    return result, dict(result.columns)


def _needs_spark(stage: StageNode, schemas: list[pl.Schema]) -> bool:
    """Whether a key has a type that only Spark may be able to hash."""
    return not all(
        can_hash(schema[key])
        for given, schema in zip(stage.shuffled, schemas, strict=True)
        for key in given.keys
    )


def _narrowed(
    stage: StageNode, columns: ColumnTypes | None
) -> tuple[Result | None, ColumnTypes | None]:
    """The result of a stateless stage, after its filters and projections."""
    schema = None if columns is None else _typed(columns)
    if schema is None or stage.kind != Append():
        return None, None
    result = Result(projected_result(stage, schema.to_frame()).schema, stage.kind)
    return result, dict(result.columns)


def _typed(columns: ColumnTypes) -> pl.Schema | None:
    types = {name: of for name, of in columns.items() if of is not None}
    return pl.Schema(types) if len(types) == len(columns) else None


def _stepped(uid: str, given: Input, columns: ColumnTypes) -> ColumnTypes | None:
    """The columns of a source after an input's filters and projections."""
    where = f"in what it reads of {given.producer!r}"
    for step in given.steps:
        if isinstance(step, Filter):
            _require(uid, step.condition, columns, where)
            continue
        selected: dict[str, pl.DataType | None] = {}
        for text in step.columns:
            if text.strip() == "*":
                selected |= columns
                continue
            _require(uid, text, columns, where)
            if not _has_name(text, columns):
                return None
            selected[result_name(text)] = _type_of(text, columns)
        columns = selected
    return columns


def _has_name(text: str, columns: ColumnTypes) -> bool:
    """Whether Spark's name for the selected column is known."""
    return (
        " as " in f" {text.lower()} ".replace("\n", " ")
        or text.strip() in columns
        or (text.strip().replace(".", "").replace("_", "").isalnum())
    )


def _keyed(stage: StageNode, given: Input, columns: ColumnTypes) -> ColumnTypes:
    """*columns* with those that keys and aggregates compute; checks every name in them."""
    found = dict(columns)
    for name, sql in given.key_expressions.items():
        _require(stage.uid, sql, columns, f"in its key {name!r}")
        found[name] = _type_of(sql, columns)
    names = _names_only(found)
    for key in given.keys:
        column_type(stage.uid, names, key, "for its key")
    for one in wanted(stage.operation):
        if one.is_condition:
            _require(stage.uid, one.sql, found, "in where=")
            plain = _plain(found)
            is_plain = plain is not None and plain_condition(one.sql, plain) is not None
            found[one.column] = pl.Boolean() if is_plain else None
        elif is_sql(one.sql, found):
            _require(stage.uid, one.sql, found, "in an aggregate")
            found[one.column] = _type_of(one.sql, found)
    return found


def _type_of(sql: str, columns: ColumnTypes) -> pl.DataType | None:
    plain = _plain(columns)
    if plain is None:
        return None
    item = plain_column(sql, plain)
    return None if item is None else plain.to_frame().select(item.expression).dtypes[0]


def _plain(columns: ColumnTypes) -> pl.Schema | None:
    """The columns whose types are known."""
    return pl.Schema({name: of for name, of in columns.items() if of is not None}) or None


def _names_only(columns: ColumnTypes) -> pl.Schema:
    return pl.Schema(dict.fromkeys(columns, pl.Null()))


def _require(uid: str, sql: str, columns: ColumnTypes, where: str) -> None:
    missing = unknown_column(sql, columns)
    if missing is not None:
        column_type(uid, _names_only(columns), missing, f"{where}, {sql!r}")


def _looked_up(
    uid: str, lookup: Lookup, rows: ColumnTypes, table: ColumnTypes | None
) -> ColumnTypes | None:
    for column, sql in lookup.on.items():
        column_type(uid, _names_only(rows), column, "to look up")
        if table is not None:
            _require(uid, sql, table, f"in the table {lookup.table!r}")
    if table is None:
        return None
    found = {name: rows[name] for name in lookup.on} | dict(rows)
    for name, sql in lookup.add.items():
        _require(uid, sql, table, f"in the table {lookup.table!r}")
        found[name] = _type_of(sql, table)
    return found


def _united(uid: str, inputs: list[ColumnTypes]) -> ColumnTypes:
    first = inputs[0]
    for other in inputs[1:]:
        for name in first:
            column_type(uid, _names_only(other), name, "in one of the streams that it unites")
        for name in other:
            column_type(uid, _names_only(first), name, "in the first stream that it unites")
    return {
        name: of if all(other[name] == of for other in inputs) else None
        for name, of in first.items()
    }


_TYPES: dict[str, pl.DataType] = {
    "boolean": pl.Boolean(),
    "tinyint": pl.Int8(),
    "smallint": pl.Int16(),
    "int": pl.Int32(),
    "bigint": pl.Int64(),
    "float": pl.Float32(),
    "double": pl.Float64(),
    "date": pl.Date(),
    "timestamp": pl.Datetime("us", "UTC"),
    "string": pl.String(),
    "char": pl.String(),
    "varchar": pl.String(),
    "binary": pl.Binary(),
}
OURS = (RECORD, MALFORMED_COLUMN, RAW)
_DECIMAL = (10, 0)  # Spark's default.


def source_columns(source: Source) -> Mapping[str, pl.DataType | None]:
    """The columns that stages see, by name; None where only Spark knows the type."""
    frame = pl.DataFrame(source.schema().empty_table())
    types = {name: of for name, of in frame.schema.items() if name not in OURS}
    how = source.decoding
    if how is None:
        return {name: _as_spark_gives_it(of) for name, of in types.items()}
    held = row_schema("the source", how.schema)
    return {name: _polars(of) for name, of in held.items()} | {
        name: types.get(name) for name in how.keeps
    }


def _as_spark_gives_it(dtype: pl.DataType) -> pl.DataType | None:
    """*dtype*, if Spark does not change it; else None."""
    return dtype if dtype in _TYPES.values() or isinstance(dtype, pl.Decimal) else None


def _polars(column: ColumnType) -> pl.DataType | None:
    inside = [(name, _polars(of)) for name, of in column.fields]
    known = {name: of for name, of in inside if of is not None}
    match column.name:
        case "decimal":
            precision, scale = (*column.arguments, *_DECIMAL[len(column.arguments) :])
            return pl.Decimal(precision, scale)
        case "array" if known:
            return pl.List(known[""])
        case "struct" if len(known) == len(inside):
            return pl.Struct(known)
        case name:
            return _TYPES.get(name)


_GOES_ON = (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.SUSPENDED)


def check_state(job: Job, results: Mapping[str, Result | None]) -> None:
    """Compare declared types of state with those in the checkpoint that the job continues.

    Reads one small file for each table of state, or two.

    Raises:
        ConfigurationError: a stage could not read its state.
        RestoreError: the checkpoint is gone.
    """
    state = job.state()
    metadata = job.base_metadata(state) if state.status in _GOES_ON else None
    if metadata is None:
        return
    problems = [
        problem
        for uid, result in results.items()
        if result is not None
        for problem in _problems(job, metadata, uid, result.tables)
    ]
    if problems:
        raise ConfigurationError(f"{'; '.join(problems)} (checkpoint {metadata.checkpoint_id})")


def _problems(
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
                Evolution(tables[name], stored, f"stage {uid!r}")
            except RestoreError as error:
                yield str(error)
                break
