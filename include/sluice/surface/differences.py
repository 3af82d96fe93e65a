"""The differences between two snapshots of a job: by their ``_metadata``, and key by key.

A snapshot is a retained checkpoint or a savepoint, of the job's own root or of another one.
``snapshot_difference`` reads the ``_metadata`` alone.  ``table_difference`` has the keys by which a
table of state differs, a page at a time:

    pair = open_pair(job, SnapshotName(named="before"), SnapshotName(named="latest"))
    older, newer = pair.table("totals", "totals")
    page = table_difference(older, newer, DifferenceQuery(limit=100))
    page = table_difference(older, newer, DifferenceQuery(limit=100, after=page.next))

It reads only segments that one of the two has, until ``limit`` differences are found, or
``most_rows`` rows were compared.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.core.completed import CheckpointMetadata, moved_to_root
from sluice.core.handles import MAX_HASH, MIN_HASH, SegmentHandle
from sluice.core.plan import SourceCut
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.snapshots import LATEST
from sluice.surface.snapshots import (
    Facts,
    elsewhere,
    facts_of_checkpoint,
    facts_of_sink,
    facts_of_source,
    facts_of_stage,
    offsets,
    sinks_of,
)
from sluice.surface.state import (
    StateTable,
    chosen_name,
    json_value,
    snapshot_metadata,
    stored_table,
    table_names,
    wanted_keys,
)

if TYPE_CHECKING:
    import polars as pl

    from sluice.state.differences import ComparedStretch, Differences
    from sluice.state.segments import StateSchema

MOST_PARTITIONS = 20  # Of a source, by name; the others are counted.
WINDOW_ROWS = 65_536  # Compared at a time: some megabytes of keys, and as many rows of each side.
# The place of a page: a hash, and how many of its identities are before the page.
PLACE = re.compile(r"(-?[0-9]{1,19})\.([0-9]{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotName:
    """``named``: ``latest``, an id, or a savepoint's name; ``pipeline``: the uid in that root."""

    named: str
    root: str | None = None
    pipeline: str | None = None


class About(StrEnum):
    CHECKPOINT = "checkpoint"
    SOURCE = "source"
    STAGE = "stage"
    SINK = "sink"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """``what`` of the source, stage or sink ``name`` differs; None where a side has no such thing.

    A ``watermark`` is in milliseconds.
    """

    about: About
    name: str
    what: str
    before: int | str | None
    after: int | str | None


class ComparedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """``name`` is what it was asked for by; ``root`` is empty for the job's own."""

    name: str
    id: int
    root: str
    pipeline: str
    type: str
    triggered_at_ms: int


class StoredRows(msgspec.Struct, frozen=True, kw_only=True):
    """Segments, each once, and what they hold: older versions and expired rows, too."""

    segments: int
    rows: int
    size_bytes: int


class TableFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A table of state in the two; ``may_differ`` is False where no key can differ."""

    stage: str
    table: str
    before: StoredRows
    after: StoredRows
    shared: StoredRows
    may_differ: bool


class SnapshotDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The differences beside rows, and the files of each table of state that one of the two has."""

    before: ComparedSnapshot
    after: ComparedSnapshot
    differences: tuple[Difference, ...]
    tables: tuple[TableFiles, ...]


class ChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class Cut(StrEnum):
    """The reason why a page ends before the differences do."""

    LIMIT = "limit"  # It has as many as were asked for.
    ROWS = "rows"  # So many rows were compared.


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceQuery:
    """The differences asked for: of these *kinds*, of a *key* (``wanted_keys``), *after* a place.

    A *limit* of 0 counts them all and returns none.  *most_rows* None compares all rows.
    """

    limit: int
    after: str | None = None
    kinds: frozenset[ChangeKind] = frozenset(ChangeKind)
    key: tuple[str, ...] = ()
    most_rows: int | None = None


class DifferenceColumn(msgspec.Struct, frozen=True, kw_only=True):
    """Types are Polars' names; None on the side that lacks the column, whose values count not."""

    name: str
    is_key: bool
    before: str | None
    after: str | None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A key with the other columns of its row in both; ``changed`` names those that differ."""

    kind: ChangeKind
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    changed: tuple[str, ...] = ()


class ChangeCounts(msgspec.Struct, frozen=True, kw_only=True):
    added: int = 0
    removed: int = 0
    changed: int = 0


class TableDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of one table, in the order of its keys' hashes, in values as of ``StatePage``.

    ``counts`` are of this page, and of all if nothing was cut; ``next`` is the place behind it.
    ``problem``: why the two cannot be compared, or is null.
    """

    stage: str
    table: str
    columns: tuple[DifferenceColumn, ...]
    changes: tuple[Change, ...]
    counts: ChangeCounts
    rows_compared: int
    cut: Cut | None
    next: str | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two opened snapshots of one job."""

    job: Job
    before: CheckpointMetadata
    after: CheckpointMetadata
    names: tuple[SnapshotName, SnapshotName]

    def tables(self, stage: str) -> tuple[str, ...]:
        """The tables of state that one of the two has, sorted; none if neither has the stage."""
        states = (snapshot.stage(stage) for snapshot in (self.before, self.after))
        return tuple(sorted({name for state in states if state for name in table_names(state)}))

    def stages(self) -> tuple[str, ...]:
        """The stages of which one of the two has keyed state, in the order of the chain."""
        uids = dict.fromkeys(stage.uid for stage in (*self.after.stages, *self.before.stages))
        return tuple(uid for uid in uids if self.tables(uid))

    def table(self, stage: str, name: str) -> tuple[StateTable, StateTable]:
        return (
            stored_table(self.job, self.before, stage, name),
            stored_table(self.job, self.after, stage, name),
        )


def open_pair(job: Job, before: SnapshotName, after: SnapshotName) -> Pair:
    """
    Raises:
        ConfigurationError: one of them is not retained.
        RestoreError: its ``_metadata`` is gone, or there is no such savepoint.
    """
    return Pair(
        job=job,
        before=open_snapshot(job, before),
        after=open_snapshot(job, after),
        names=(before, after),
    )


def chosen_table(pair: Pair, stage: str, table: str | None) -> str:
    """*table*, or the first table of *stage*.

    Raises:
        ConfigurationError: neither of the two has it.
    """
    names = pair.tables(stage)
    if not names:
        raise ConfigurationError(
            f"stage {stage!r} has keyed state in neither of the two; these have: "
            f"{', '.join(pair.stages()) or 'none'}"
        )
    return chosen_name(names, stage, table)


def snapshot_difference(pair: Pair) -> SnapshotDifference:
    """
    Raises:
        RestoreError: a file of a source's position is gone.
    """
    before, after = (
        _compared(name, metadata)
        for name, metadata in zip(pair.names, (pair.before, pair.after), strict=True)
    )
    return SnapshotDifference(
        before=before,
        after=after,
        differences=tuple(_differences(pair)),
        tables=tuple(_files(pair, uid, name) for uid in pair.stages() for name in pair.tables(uid)),
    )


def read_between(pair: Pair) -> dict[str, int]:
    """The number of records of each source between the earlier and the later positions.

    Raises:
        RestoreError: a file of a source's position is gone.
    """
    found: dict[str, int] = {}
    for after in pair.after.sources:
        old, new = offsets(pair.job, pair.before.source(after.uid)), offsets(pair.job, after)
        found[after.uid] = sum(
            max(0, records - (old[name][1] if name in old else 0))
            for name, (_, records, _) in new.items()
        )
    return found


class RestorePreview(msgspec.Struct, frozen=True, kw_only=True):
    """The records that a restore would read again, and the checkpoints that it would abort.

    ``repeats``: records per source that completed checkpoints have read since the snapshot.
    ``aborts``: the pending checkpoints, whose ``pending_records`` are read again, too.
    """

    repeats: dict[str, int]
    aborts: tuple[int, ...]
    pending_records: int


def restore_preview(job: Job, named: str) -> RestorePreview:
    """The preview of a restore from a snapshot, before anybody asks for it.

    *named* is ``latest``, an id, or a savepoint's name.  What becomes of its tables is in
    ``Snapshot.tables_ahead``, of a list with checks.

    Raises:
        ConfigurationError: it is not retained.
        RestoreError: its ``_metadata`` is gone, or there is no such savepoint.
    """
    state = job.state()
    repeats: dict[str, int] = {}
    if state.completed:
        pair = open_pair(job, SnapshotName(named=named), SnapshotName(named=LATEST))
        repeats = read_between(pair)
    return RestorePreview(
        repeats=repeats,
        aborts=tuple(pending.checkpoint_id for pending in state.pending),
        pending_records=sum(pending.records for pending in state.pending),
    )


def table_difference(
    before: StateTable, after: StateTable, asked: DifferenceQuery
) -> TableDifference:
    """
    Raises:
        ConfigurationError: *asked* names a column that is no key, or a place that is none.
        CorruptSegment: a segment is gone, or damaged.
    """
    from sluice.state.cache import SegmentCache
    from sluice.state.differences import Differences, Side, key_change

    place = _place(asked.after)
    if not may_differ(before, after):
        return _answer(after, (), _Found())
    schemas = _schemas(before, after)
    columns = _columns(*schemas)
    problem = key_change(*schemas)
    if problem is not None:
        return _answer(after, columns, _Found(), problem)
    old, new = (
        Side(schema=schema, handles=table.handles, now_ms=table.as_of_ms)
        for schema, table in zip(schemas, (before, after), strict=True)
    )
    cache = SegmentCache(after.location)
    differences = Differences(old, new, cache.open, cache.prefetch)
    wanted = wanted_keys(asked.key, schemas[1])
    return _answer(after, columns, _found(differences, asked, place, wanted))


def may_differ(before: StateTable, after: StateTable) -> bool:
    """Whether a key can differ, by the names of segments alone: none is opened."""
    from sluice.state.differences import expiry, stretches

    expires = expiry(after.ttl_ms, before.as_of_ms, after.as_of_ms)
    expires_after_ms = None if expires is None else expires[0]
    return bool(stretches(before.handles, after.handles, expires_after_ms=expires_after_ms))


def open_snapshot(job: Job, name: SnapshotName) -> CheckpointMetadata:
    """The ``_metadata`` of a snapshot, with the files of another root marked as such.

    Raises:
        ConfigurationError: there is no such checkpoint.
        RestoreError: its ``_metadata`` is gone, or there is no such savepoint.
    """
    place = job
    if name.root is not None:
        place = elsewhere(job, name.root, name.pipeline or job.pipeline.uid)
    metadata = snapshot_metadata(place, name.named)
    return metadata if name.root is None else moved_to_root(metadata, name.root)


def _compared(name: SnapshotName, metadata: CheckpointMetadata) -> ComparedSnapshot:
    return ComparedSnapshot(
        name=name.named,
        id=metadata.checkpoint_id,
        root=name.root or "",
        pipeline=metadata.pipeline,
        type=metadata.type.value,
        triggered_at_ms=metadata.triggered_at_ms,
    )


def _files(pair: Pair, stage: str, name: str) -> TableFiles:
    tables = pair.table(stage, name)
    before, after = (
        {handle.segment.checksum: handle.segment for handle in side.handles} for side in tables
    )
    return TableFiles(
        stage=stage,
        table=name,
        before=_stored(before.values()),
        after=_stored(after.values()),
        shared=_stored([before[checksum] for checksum in before.keys() & after.keys()]),
        may_differ=may_differ(*tables),
    )


def _stored(segments: Collection[SegmentHandle]) -> StoredRows:
    return StoredRows(
        segments=len(segments),
        rows=sum(segment.rows for segment in segments),
        size_bytes=sum(segment.size_bytes for segment in segments),
    )


def _differences(pair: Pair) -> Iterator[Difference]:
    before, after = pair.before, pair.after
    uid = pair.job.pipeline.uid
    yield from _between(
        About.CHECKPOINT, uid, facts_of_checkpoint(before), facts_of_checkpoint(after)
    )
    for uid in dict.fromkeys(cut.uid for cut in (*after.sources, *before.sources)):
        yield from _source(pair.job, uid, before.source(uid), after.source(uid))
    for uid in dict.fromkeys(stage.uid for stage in (*after.stages, *before.stages)):
        stages = (before.stage(uid), after.stage(uid))
        yield from _between(About.STAGE, uid, *map(facts_of_stage, stages))
    for uid in sorted({*sinks_of(before), *sinks_of(after)}):
        yield from _between(About.SINK, uid, facts_of_sink(before, uid), facts_of_sink(after, uid))


def _between(about: About, name: str, before: Facts, after: Facts) -> Iterator[Difference]:
    for what in {**after, **before}:
        old, new = before.get(what), after.get(what)
        if old != new:
            yield Difference(about=about, name=name, what=what, before=old, after=new)


def _source(
    job: Job, uid: str, before: SourceCut | None, after: SourceCut | None
) -> Iterator[Difference]:
    if before == after:
        return
    old, new = offsets(job, before), offsets(job, after)
    yield from _between(
        About.SOURCE, uid, facts_of_source(before, old), facts_of_source(after, new)
    )
    moved = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    for name in moved[:MOST_PARTITIONS]:
        was, now = (side[name][0] if name in side else None for side in (old, new))
        yield Difference(
            about=About.SOURCE, name=uid, what=f"offset of {name}", before=was, after=now
        )
    if len(moved) > MOST_PARTITIONS:
        yield Difference(
            about=About.SOURCE,
            name=uid,
            what="further partitions that moved",
            before=None,
            after=len(moved) - MOST_PARTITIONS,
        )


@dataclass(slots=True, kw_only=True)
class _Found:
    """The differences that a page has so far."""

    changes: list[Change] = field(default_factory=list[Change])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    rows: int = 0
    cut: Cut | None = None
    next: str | None = None


def _found(
    differences: Differences, asked: DifferenceQuery, place: tuple[int, int], wanted: pl.Expr
) -> _Found:
    from sluice.state.segments import HASH

    found = _Found()
    kinds = [kind.value for kind in asked.kinds]
    for window in differences.windows(place[0], WINDOW_ROWS):
        found.rows += window.read
        is_behind = (window.keys[HASH] > place[0]) | (window.places >= place[1])
        is_wanted = window.keys.select(wanted.alias("wanted"), HASH)["wanted"]
        _add(found, window.where(is_behind & is_wanted & window.kinds.is_in(kinds)), asked.limit)
        if found.cut is not None:
            break
        is_full = asked.most_rows is not None and found.rows >= asked.most_rows
        if is_full and window.last_hash < MAX_HASH:
            found.cut, found.next = Cut.ROWS, f"{window.last_hash + 1}.0"
            break
    return found


def _add(found: _Found, window: ComparedStretch, limit: int) -> None:
    """Add the differences of *window* that fit into *limit*; 0 counts them only."""
    from sluice.state.segments import HASH

    room = limit - len(found.changes) if limit else window.kinds.len()
    if window.kinds.len() > room:
        found.cut = Cut.LIMIT
        found.next = f"{window.keys[HASH][room]}.{window.places[room]}"
    for kind, count in window.kinds.head(room).value_counts().iter_rows():
        found.counts[kind] = found.counts.get(kind, 0) + count
    if limit:
        found.changes += _changes(window, room)


def _changes(window: ComparedStretch, most: int) -> list[Change]:
    keys = window.keys.columns
    sides = (window.keys.drop(keys[0]), window.before.drop(keys), window.after.drop(keys))
    rows = zip(
        window.kinds.head(most),
        *(side.head(most).to_dicts() for side in sides),
        _flagged(window.changed.head(most), most),
        strict=False,
    )
    return [
        Change(
            kind=ChangeKind(kind),
            key=json_value(key),
            before=None if kind == ChangeKind.ADDED else json_value(before),
            after=None if kind == ChangeKind.REMOVED else json_value(after),
            changed=changed if kind == ChangeKind.CHANGED else (),
        )
        for kind, key, before, after, changed in rows
    ]


def _flagged(flags: pl.DataFrame, most: int) -> list[tuple[str, ...]]:
    """The names of the columns that are true, for each row."""
    if not flags.width:
        return [()] * most
    return [
        tuple(name for name, flag in zip(flags.columns, row, strict=True) if flag)
        for row in flags.iter_rows()
    ]


def _answer(
    table: StateTable,
    columns: tuple[DifferenceColumn, ...],
    found: _Found,
    problem: str | None = None,
) -> TableDifference:
    return TableDifference(
        stage=table.stage,
        table=table.name,
        columns=columns,
        changes=tuple(found.changes),
        counts=ChangeCounts(**found.counts),
        rows_compared=found.rows,
        cut=found.cut,
        next=found.next,
        problem=problem,
    )


def _schemas(before: StateTable, after: StateTable) -> tuple[StateSchema, StateSchema]:
    """The schemas of both; a side without the table has the other's."""
    if not before.subtasks:
        return after.schema(), after.schema()
    return before.schema(), after.schema() if after.subtasks else before.schema()


def _columns(before: StateSchema, after: StateSchema) -> tuple[DifferenceColumn, ...]:
    keys = {*after.key_columns, *after.sub_key_columns}
    return tuple(
        DifferenceColumn(
            name=name,
            is_key=name in keys,
            before=str(before.columns[name]) if name in before.columns else None,
            after=str(after.columns[name]) if name in after.columns else None,
        )
        for name in {**after.columns, **before.columns}
    )


def _place(after: str | None) -> tuple[int, int]:
    """A hash, and how many of its identities are before the page."""
    if after is None:
        return MIN_HASH, 0
    found = PLACE.fullmatch(after)
    if found is None or not MIN_HASH <= int(found[1]) <= MAX_HASH:
        raise ConfigurationError(
            f"{after!r} is no place in a difference; pass the `next` of an answer"
        )
    return int(found[1]), int(found[2])
