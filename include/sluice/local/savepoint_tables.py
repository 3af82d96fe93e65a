"""Tables of keyed state written anew: sorted rows as the segments of one run, subtask by subtask.

    rows of a snapshot, merged --function--> sorted rows --cut at the subtasks' key groups--> files
    rows of a person --hashed, spilled, sorted by ranges of hashes--^

Promises: a piece of the rows is in memory at a time, whatever the size of the state; a piece has
all rows of each of its keys.

Refused by name: columns that are missing or unknown, types that may lose a value, keys that only
Spark can hash or that a rewritten row did not have, and an identity that is there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.core.completed import CheckpointMetadata, StageState, SubtaskState
from sluice.core.configuration import JobConfiguration
from sluice.core.event_time import MIN_WATERMARK
from sluice.core.handles import MAX_HASH, MIN_HASH, SegmentHandle, StateHandle
from sluice.core.ids import SubtaskId
from sluice.core.key_groups import (
    check_parallelism,
    default_max_parallelism,
    hash_range,
    key_group_range,
)
from sluice.declaration.arguments import checked_arguments
from sluice.declaration.changelog import Append
from sluice.declaration.expressions import across_rows
from sluice.declaration.params import resolve_params
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.sql import parsed
from sluice.errors import ConfigurationError
from sluice.exchange.group_buffer import GroupBuffer, HashRange
from sluice.job.analysis import analyse
from sluice.job.job import Job
from sluice.operators.operator import Frames
from sluice.operators.sql import Compiled, NotCompiledError, compiled, computed
from sluice.spark.checking import check_pipeline
from sluice.spark.session import local_session
from sluice.state.cache import SegmentCache
from sluice.state.evolution import is_widened, widened
from sluice.state.key_hash import can_hash, key_hash
from sluice.state.merging import describe_segment, merge_pieces, open_runs
from sluice.state.runs import newest_per_identity
from sluice.state.segments import DELETED, HASH, WRITTEN, RowFiles, StateSchema, to_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE_ROWS = 262_144  # Of a snapshot or a Parquet file, in memory at a time.
MEMORY_BYTES = 512 * 1024**2  # Of which a quarter holds rows that wait to be sorted.
_PLACE = "_place"

StateRows: TypeAlias = pl.DataFrame | str | Path | Iterable[pl.DataFrame]
"""A frame, several of them, or a Parquet file or a folder of such files."""

Function: TypeAlias = Callable[[pl.DataFrame], pl.DataFrame]
Tables: TypeAlias = Mapping[str, StateSchema]
SessionFactory: TypeAlias = "Callable[[], AbstractContextManager[SparkSession]]"
"""Opens the Spark that finds the columns which Spark alone knows; it reads no row."""

StoreSegment = Callable[[SegmentHandle, bytes], SegmentHandle]
"""Stores a segment's bytes; returns the handle that says where they are."""


@dataclass(slots=True)
class StageChanges:
    """The changes of one stage: its state is removed first; then tables are written or rewritten.

    ``functions`` and ``rows`` are by table; a table None is the stage's only one.
    """

    is_removed: bool = False
    functions: dict[str, list[Function]] = field(default_factory=dict[str, list[Function]])
    rows: dict[str | None, StateRows] = field(default_factory=dict["str | None", StateRows])


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenTable:
    """A table of a stage; ``now_ms`` is when rows are written that were not there."""

    stage: str
    table: str
    schema: StateSchema
    parallelism: int
    max_parallelism: int
    now_ms: int

    def __str__(self) -> str:
        return f"stage {self.stage!r}, table {self.table!r} of its state"

    @property
    def owned(self) -> list[tuple[int, int]]:
        """The first and the last hash of each subtask."""
        most, count = self.max_parallelism, self.parallelism
        return [hash_range(most, key_group_range(most, count, index)) for index in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """The handles of each subtask, and how many rows were read and written for them."""

    subtasks: tuple[tuple[StateHandle, ...], ...]
    rows_before: int
    rows: int


def rewrite_table(
    place: RewrittenTable,
    subtasks: Sequence[Sequence[StateHandle]],
    functions: Sequence[Function],
    *,
    as_of_ms: int,
    cache: SegmentCache,
    keep: StoreSegment,
) -> NewTable:
    """The table that *functions* make of a snapshot's rows that are live at *as_of_ms*.

    *subtasks* have the table's segments of each former subtask, oldest first.

    Raises:
        ConfigurationError: a function's rows cannot take the place of those it was given.
        CorruptSegment: a file of the snapshot is gone, or is not what was written.
        RestoreError: the stage, as it is declared now, cannot read its state.
    """
    writer = _Writer(place, keep)
    rows_before = 0
    for handles in subtasks:
        pieces = merge_pieces(
            place.schema,
            open_runs(cache, handles),
            drop_tombstones=True,
            now_ms=as_of_ms,
            max_rows=PIECE_ROWS,
            owner=f"stage {place.stage!r}",
        )
        for piece in pieces:
            rows = to_frame(piece)
            rows_before += rows.height
            for function in functions:
                rows = rewritten(place.schema, rows, function, now_ms=place.now_ms, what=str(place))
            writer.add(rows)
    return NewTable(subtasks=writer.finish(), rows_before=rows_before, rows=writer.rows)


def rewritten(
    schema: StateSchema, before: pl.DataFrame, function: Function, *, now_ms: int, what: str
) -> pl.DataFrame:
    """The stored rows that *function* makes of the stored rows *before*, sorted by identity.

    A row keeps the time of its last write, unless its sub-key is a new one: an edit is no access.
    """
    given = before.select(schema.columns.names())
    result: object = function(given)
    if not isinstance(result, pl.DataFrame):
        raise ConfigurationError(
            f"{what}: the function gives a {type(result).__name__}; it has to give the frame of "
            "rows that take the place of those it was given"
        )
    after = conformed_to_state(schema, result, what)
    others = schema.identity[1:]
    if after.select(others).equals(before.select(others)):
        return before.with_columns(after.get_columns()).select(*schema.stored)
    hashes = before.select(schema.key).unique()
    found = _joined(after, hashes, schema.key_columns)
    if found[HASH].null_count():
        key = found.filter(pl.col(HASH).is_null()).select(schema.key_columns).row(0, named=True)
        raise ConfigurationError(
            f"{what}: the function gives the key {_named(key)}, which none of its rows has; a "
            "function rewrites values and drops keys: for other keys remove the state, and "
            "bootstrap the rows"
        )
    if schema.ttl_ms is not None:
        times = before.select(*others, pl.col(WRITTEN), pl.lit(value=True).alias(_PLACE))
        found = _joined(found, times, others).with_columns(
            pl.when(pl.col(_PLACE)).then(pl.col(WRITTEN)).otherwise(now_ms).alias(WRITTEN)
        )
    return unique_by_identity(schema, _stored(schema, found, now_ms), what)


def bootstrap_table(place: RewrittenTable, given: StateRows, keep: StoreSegment) -> NewTable:
    """The table that holds the rows *given*.

    Raises:
        ConfigurationError: they are no rows of this table; the message says why.
    """
    writer = _Writer(place, keep)
    with GroupBuffer(_AsTheyAre(), HashRange(MIN_HASH, MAX_HASH), MEMORY_BYTES) as buffer:
        buffer.add({place.table: place.schema.stored.to_frame()})
        for frame in frames_of(given, str(place)):
            rows = bootstrapped(place.schema, frame, now_ms=place.now_ms, what=str(place))
            buffer.add({place.table: rows})
        for _, groups in buffer.ranges(0):
            writer.add(unique_by_identity(place.schema, groups[place.table], str(place)))
    return NewTable(subtasks=writer.finish(), rows_before=0, rows=writer.rows)


class _AsTheyAre:
    """An operator with as much as a buffer needs, for rows that are not folded."""

    def combine(self, groups: Frames) -> Frames:
        return groups


def frames_of(rows: StateRows, what: str) -> Iterator[pl.DataFrame]:
    """*rows*, piece by piece; *what* is for messages: "stage 'totals', table 'groups'".

    Raises:
        ConfigurationError: there is no such file, or it is no Parquet.
    """
    if isinstance(rows, pl.DataFrame):
        yield rows
    elif isinstance(rows, str | Path):
        for path in _files(Path(rows), what):
            yield from _read(path, what)
    else:
        yield from rows


def _files(path: Path, what: str) -> list[Path]:
    found = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not found or not path.exists():
        raise ConfigurationError(f"{what}: there is no Parquet file {path}")
    return found


def _read(path: Path, what: str) -> Iterator[pl.DataFrame]:
    try:
        with pq.ParquetFile(path) as file:
            yield to_frame(pa.Table.from_batches([], schema=file.schema_arrow))
            for batch in file.iter_batches(PIECE_ROWS):
                yield to_frame(pa.Table.from_batches([batch]))
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(f"{what}: {path} cannot be read as Parquet: {error}") from error


def bootstrapped(
    schema: StateSchema, rows: pl.DataFrame, *, now_ms: int, what: str
) -> pl.DataFrame:
    """*rows* as stored ones, hashed as Spark does, written at *now_ms*; in any order."""
    conformed = conformed_to_state(schema, rows, what)
    for name in schema.key_columns:
        if not can_hash(schema.columns[name]):
            raise ConfigurationError(
                f"{what}: its key column {name!r} is {schema.columns[name]}, whose hash only Spark "
                "computes, so it cannot be bootstrapped; let the stage key by a whole number, a "
                "text, a date or a timestamp"
            )
    if schema.one_hash is not None:
        hashes: pl.Expr | pl.Series = pl.lit(schema.one_hash, pl.Int64).alias(HASH)
    else:
        hashes = pl.Series(HASH, key_hash(conformed, schema.key_columns))
    return _stored(schema, conformed.with_columns(hashes), now_ms)


def unique_by_identity(schema: StateSchema, rows: pl.DataFrame, what: str) -> pl.DataFrame:
    """*rows* sorted by identity; raises ConfigurationError if one is there twice."""
    numbered = rows.with_row_index(_PLACE)
    newest = newest_per_identity(numbered, schema.identity)
    if newest.height < rows.height:
        twice = numbered.join(newest.select(_PLACE), on=_PLACE, how="anti")
        identity = twice.select(schema.identity[1:]).row(0, named=True)
        raise ConfigurationError(
            f"{what}: {_named(identity)} is there more than once; a table of state has one row for "
            "each key" + (" and sub-key" if schema.sub_key_columns else "")
        )
    return newest.drop(_PLACE)


def conformed_to_state(schema: StateSchema, rows: pl.DataFrame, what: str) -> pl.DataFrame:
    """*rows* with exactly the columns of the table, in its order and its types."""
    wanted = schema.columns
    missing = [name for name in wanted if name not in rows.columns]
    unknown = [name for name in rows.columns if name not in wanted]
    if missing or unknown:
        problems = [f"the rows lack {', '.join(missing)}"] if missing else []
        problems += [f"the table has no {', '.join(unknown)}"] if unknown else []
        columns = ", ".join(f"{name} ({dtype})" for name, dtype in wanted.items())
        raise ConfigurationError(f"{what}: {'; '.join(problems)}; its columns are {columns}")
    for name, dtype in wanted.items():
        if not is_widened(rows[name].dtype, dtype) and rows[name].dtype != pl.Null():
            raise ConfigurationError(
                f"{what}: column {name!r} of the rows is {rows[name].dtype}, and the state keeps "
                f"{dtype}; cast it"
            )
    return rows.select(_converted(name, rows.schema[name], dtype) for name, dtype in wanted.items())


def _converted(name: str, given: pl.DataType, wanted: pl.DataType) -> pl.Expr:
    if given == pl.Null():
        return pl.col(name).cast(wanted)
    return widened(pl.col(name), given, wanted).alias(name)


def _stored(schema: StateSchema, rows: pl.DataFrame, now_ms: int) -> pl.DataFrame:
    """*rows*, hashed, with the reserved columns that they lack."""
    if schema.ttl_ms is not None and WRITTEN not in rows.columns:
        rows = rows.with_columns(pl.lit(now_ms, pl.Int64).alias(WRITTEN))
    return rows.with_columns(pl.lit(value=False).alias(DELETED)).select(
        pl.col(name).cast(dtype) for name, dtype in schema.stored.items()
    )


def _joined(rows: pl.DataFrame, other: pl.DataFrame, on: Iterable[str]) -> pl.DataFrame:
    return rows.join(other, on=[*on], how="left", nulls_equal=True, maintain_order="left")


def _named(values: dict[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


class _Writer:
    """Writes stored rows, ascending by identity, to files of which each is of one subtask."""

    def __init__(self, place: RewrittenTable, keep: StoreSegment) -> None:
        self._place = place
        self._keep = keep
        self._files = RowFiles(self._write)
        self._owned = place.owned
        self._written: list[list[StateHandle]] = [[] for _ in self._owned]
        self._index = 0
        self.rows = 0

    def add(self, rows: pl.DataFrame) -> None:
        self.rows += rows.height
        for index, part in self._by_subtask(rows):
            if index != self._index:
                self._files.finish()
                self._index = index
            self._files.add(part)

    def finish(self) -> tuple[tuple[StateHandle, ...], ...]:
        self._files.finish()
        return tuple(map(tuple, self._written))

    def _by_subtask(self, rows: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
        hashes = rows[HASH].to_numpy()
        lasts = np.array([last for _, last in self._owned], np.int64)
        start = 0
        for index, end in enumerate(np.searchsorted(hashes, lasts, side="right").tolist()):
            if end > start:
                yield index, rows.slice(start, end - start)
                start = end

    def _write(self, rows: pa.Table) -> None:
        handle, body = describe_segment(self._place.schema, rows)
        segment = self._keep(handle.segment, body)
        handle = replace(handle, segment=segment, table=self._place.table, run=1)
        self._written[self._index].append(handle)


@checked_arguments
def state_tables(
    job: Job,
    stages: Iterable[str],
    params: Mapping[str, str] | None = None,
    *,
    session: SessionFactory = local_session,
) -> dict[str, Tables]:
    """The tables of each of *stages*, by name.

    *params* are as for a submission; those of a submitted job need not be given.  A Spark is
    started only if Spark alone knows the columns of one of these stages.

    Raises:
        ConfigurationError: a stage is not declared, or keeps no state.
    """
    wanted = [*stages]
    for uid in wanted:
        require_stateful(job, uid)
    if not wanted:
        return {}
    resolved = resolved_params(job, params or {})
    known = analyse(job.pipeline, resolved, job.location.endpoint_url)
    found = {uid: _written(result.tables) for uid in wanted if (result := known[uid]) is not None}
    if len(found) < len({*wanted}):
        with session() as spark:
            checked = check_pipeline(job.pipeline, spark, resolved, job.location.endpoint_url)
        found = {uid: _written(checked[uid].tables) for uid in wanted}
    return found


def require_stateful(job: Job, uid: str) -> None:
    """Raises ConfigurationError unless the pipeline declares *uid* as a stage with keyed state."""
    declared = job.pipeline.stages
    stateful = ", ".join(name for name, stage in declared.items() if stage.is_stateful) or "none"
    if uid not in declared:
        raise ConfigurationError(
            f"pipeline {job.pipeline.uid!r} has no stage {uid!r}; with keyed state it has "
            f"{stateful}"
        )
    if not declared[uid].is_stateful:
        raise ConfigurationError(f"stage {uid!r} keeps no state; with keyed state are {stateful}")


def resolved_params(job: Job, params: Mapping[str, str]) -> dict[str, str]:
    """The pipeline's parameters: those of the job, and *params* above them."""
    declared = {one.name for one in job.pipeline.params}
    kept = {n: v for n, v in job.state().configuration.params.items() if n in declared}
    return resolve_params(job.pipeline.params, kept | dict(params), job.pipeline.uid)


def _written(tables: Tables) -> Tables:
    """The *tables* that a stage writes."""
    return {name: schema for name, schema in tables.items() if not schema.is_former}


def with_new_stages(
    job: Job,
    base: CheckpointMetadata,
    changes: Mapping[str, StageChanges],
    configuration: JobConfiguration,
) -> list[StageState]:
    """The snapshot's stages, and empty ones for those that it does not know and that get rows."""
    stages = [*base.stages]
    for uid in job.pipeline.stages:
        if uid not in changes or base.stage(uid) is not None:
            continue
        parallelism = job.parallelism_of(uid, configuration)
        most = job.pipeline.max_parallelism or default_max_parallelism(parallelism)
        check_parallelism(uid, parallelism, most)
        subtasks = (
            SubtaskState(subtask=SubtaskId(uid, index), state=(), output=())
            for index in range(parallelism)
        )
        stages.append(
            StageState(
                uid=uid,
                parallelism=parallelism,
                max_parallelism=most,
                subtasks=tuple(subtasks),
                watermark_ms=MIN_WATERMARK,
            )
        )
    return stages


def kept_stages(
    job: Job, stages: Iterable[StageState], changes: Mapping[str, StageChanges]
) -> Iterable[StageState]:
    """The *stages* with those tables alone that stay as they are."""
    for stage in stages:
        change = changes.get(stage.uid, StageChanges())
        if change.is_removed and stage.uid not in job.pipeline.stages:
            continue
        subtasks = (
            replace(
                subtask,
                state=tuple(
                    handle
                    for handle in subtask.state
                    if not change.is_removed and handle.table not in change.functions
                ),
            )
            for subtask in stage.subtasks
        )
        yield replace(stage, subtasks=tuple(subtasks))


def with_tables(
    metadata: CheckpointMetadata, made: Iterable[tuple[RewrittenTable, NewTable]]
) -> CheckpointMetadata:
    """*metadata* with the new tables in their stages."""
    added: dict[SubtaskId, list[StateHandle]] = {}
    for place, table in made:
        for index, handles in enumerate(table.subtasks):
            added.setdefault(SubtaskId(place.stage, index), []).extend(handles)
    stages = (
        replace(
            stage,
            subtasks=tuple(
                replace(subtask, state=(*subtask.state, *added.get(subtask.subtask, ())))
                for subtask in stage.subtasks
            ),
        )
        for stage in metadata.stages
    )
    return replace(metadata, stages=tuple(stages))


def readers_of(pipeline: Pipeline, changed: Collection[str]) -> tuple[str, ...]:
    """The stages with state that read updates of the *changed* ones, directly or through stages
    without state, and are not changed themselves.

    A stage takes rows back from its own state.  So a changed one may take back a row that its
    reader never got, and the reader would subtract what it never added.
    """
    declared = pipeline.stages
    producers = [uid for uid in changed if uid in declared and declared[uid].kind != Append()]
    found: dict[str, None] = {}
    while producers:
        for reader in pipeline.consumers_of(producers.pop()):
            if reader.uid in changed or reader.uid in found:
                continue
            if reader.is_stateful:
                found[reader.uid] = None
            else:
                producers.append(reader.uid)
    return tuple(found)


def dropping(where: str) -> Function:
    """Leaves out the rows for which *where* is true: SQL of one row, as behind a stage."""

    def function(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.filter(~_is_true(where, rows))

    return function


def setting(columns: Mapping[str, str], where: str | None = None) -> Function:
    """Computes *columns*, each by its SQL, of the rows alone for which *where* is true.

    The SQL is that of a row, as behind a stage's result; it sees the row as it was before.
    """

    def function(rows: pl.DataFrame) -> pl.DataFrame:
        for name in columns:
            if name not in rows.columns:
                raise ConfigurationError(
                    f"the state has no column {name!r} to set; it has {', '.join(rows.columns)}"
                )
        values = {name: _compiled(sql, rows) for name, sql in columns.items()}
        is_set = pl.repeat(value=True, n=rows.height, eager=True)
        if where is not None:
            is_set = _is_true(where, rows)
        kept = [name for name in rows.columns if name not in columns]
        changed = computed(rows.filter(is_set), list(values.items()), kept).select(rows.columns)
        together = pl.concat([changed, rows.filter(~is_set)], how="vertical_relaxed")
        places = pl.concat([is_set.arg_true(), (~is_set).arg_true()])
        return together[places.arg_sort()]

    return function


def _is_true(where: str, rows: pl.DataFrame) -> pl.Series:
    sql = _compiled(where, rows)
    if sql.dtype != pl.Boolean():
        raise ConfigurationError(f"{where!r} is {sql.dtype}, and has to say yes or no of each row")
    return computed(rows, [("holds", sql)])["holds"].fill_null(value=False)


def _compiled(text: str, rows: pl.DataFrame) -> Compiled:
    what = across_rows(text)
    if what is not None:
        raise ConfigurationError(f"{text!r} has {what}, and has to be of one row by itself")
    sql = parsed(text)
    if not text.strip():
        raise ConfigurationError("an SQL text is empty; write one, or leave its option out")
    if sql.tree is None:
        raise ConfigurationError(f"{text!r} is no SQL of one row that is known here: {sql.unread}")
    try:
        return compiled(sql, rows.schema)
    except NotCompiledError as error:
        raise ConfigurationError(f"{text!r} cannot be computed: {error}") from error
