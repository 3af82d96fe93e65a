"""What differs between two snapshots of a job, told by their ``_metadata`` alone.

A snapshot is a retained checkpoint or a savepoint, of the job's own root or of another one.  The
keys that differ in a table of state are in ``state_differences``.

The keys by which a table of state differs in two snapshots, a page at a time.

before, after = (stored_table(job, one, "totals", "totals") for one in (older, newer))
page = table_difference(before, after, Asked(limit=100))
page = table_difference(before, after, Asked(limit=100, after=page.next))

What is read is bounded by what is asked: only segments that one of the two has, until ``limit``
differences are found, or ``most_rows`` rows were compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.core.completed import CheckpointMetadata, StageState, moved_to_root
from sluice.core.handles import MAX_HASH, MIN_HASH, SegmentHandle, StateHandle
from sluice.core.plan import SourceCut
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.snapshots import LATEST, retained_checkpoint
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
from sluice.surface.state import StateTable, json_value, stored_table, table_names, wanted_keys

if TYPE_CHECKING:
    import polars as pl

    from sluice.state.differences import ComparedStretch, Differences
    from sluice.state.segments import StateSchema

MOST_PARTITIONS = 20  # Of a source, by name; the others are counted.


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
    """What differs but rows, and the files of each table of state that one of the two has."""

    before: ComparedSnapshot
    after: ComparedSnapshot
    differences: tuple[Difference, ...]
    tables: tuple[TableFiles, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two opened snapshots of one job."""

    job: Job
    before: CheckpointMetadata
    after: CheckpointMetadata
    names: tuple[SnapshotName, SnapshotName]

    def tables(self, stage: str) -> tuple[str, ...]:
        """Those that one of the two has, sorted; none if neither has such a stage."""
        found = (one.stage(stage) for one in (self.before, self.after))
        names = {name for one in found if one is not None for name in table_names(one)}
        return tuple(sorted(names))

    def stages(self) -> tuple[str, ...]:
        """The stages of which one of the two has keyed state, in the order of the chain."""
        uids = dict.fromkeys(s.uid for one in (self.after, self.before) for s in one.stages)
        return tuple(uid for uid in uids if self.tables(uid))

    def table(self, stage: str, name: str) -> tuple[StateTable, StateTable]:
        older, newer = (
            stored_table(self.job, one, stage, name) for one in (self.before, self.after)
        )
        return older, newer


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
    """The table of that name of *stage*; None: its first.

    Raises:
        ConfigurationError: neither of the two has it.
    """
    names = pair.tables(stage)
    if not names:
        raise ConfigurationError(
            f"stage {stage!r} has keyed state in neither of the two; these have: "
            f"{', '.join(pair.stages()) or 'none'}"
        )
    if table is not None and table not in names:
        raise ConfigurationError(
            f"the state of stage {stage!r} has no table {table!r}; it has {', '.join(names)}"
        )
    return names[0] if table is None else table


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


def open_snapshot(job: Job, name: SnapshotName) -> CheckpointMetadata:
    """The ``_metadata`` of a snapshot, with the files of another root marked as such.

    Raises:
        ConfigurationError: there is no such checkpoint.
        RestoreError: its ``_metadata`` is gone, or there is no such savepoint.
    """
    place = job
    if name.root is not None:
        place = elsewhere(job, name.root, name.pipeline or job.pipeline.uid)
    if name.named != LATEST and not name.named.isdecimal():
        found = place.savepoint_metadata(name.named)
    else:
        found = place.metadata(retained_checkpoint(place, name.named))
    return found if name.root is None else moved_to_root(found, name.root)


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
    before, after = ({h.checksum: h for h in _segments(table)} for table in tables)
    return TableFiles(
        stage=stage,
        table=name,
        before=_stored(before.values()),
        after=_stored(after.values()),
        shared=_stored(before[one] for one in before.keys() & after.keys()),
        may_differ=may_differ(*tables),
    )


def _segments(table: StateTable) -> Iterator[SegmentHandle]:
    return (handle.segment for handles in table.subtasks for handle in handles)


def _stored(segments: Iterable[SegmentHandle]) -> StoredRows:
    found = [*segments]
    return StoredRows(
        segments=len(found),
        rows=sum(one.rows for one in found),
        size_bytes=sum(one.size_bytes for one in found),
    )


def _differences(pair: Pair) -> Iterator[Difference]:
    before, after = pair.before, pair.after
    uid = pair.job.pipeline.uid
    facts = (facts_of_checkpoint(one) for one in (before, after))
    yield from _between(About.CHECKPOINT, uid, *facts)
    for uid in _uids(before.sources, after.sources):
        yield from _source(pair.job, uid, before.source(uid), after.source(uid))
    for uid in _uids(before.stages, after.stages):
        facts = (facts_of_stage(one.stage(uid)) for one in (before, after))
        yield from _between(About.STAGE, uid, *facts)
    for uid in sorted({*sinks_of(before), *sinks_of(after)}):
        facts = (facts_of_sink(one, uid) for one in (before, after))
        yield from _between(About.SINK, uid, *facts)


def _uids(
    before: Sequence[SourceCut | StageState], after: Sequence[SourceCut | StageState]
) -> list[str]:
    return list(dict.fromkeys(one.uid for one in (*after, *before)))


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
    old, new = (offsets(job, cut) for cut in (before, after))
    yield from _between(
        About.SOURCE, uid, facts_of_source(before, old), facts_of_source(after, new)
    )
    moved = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    for name in moved[:MOST_PARTITIONS]:
        moved_to = [side[name][0] if name in side else None for side in (old, new)]
        yield _moved(uid, f"offset of {name}", *moved_to)
    if len(moved) > MOST_PARTITIONS:
        yield _moved(uid, "further partitions that moved", None, len(moved) - MOST_PARTITIONS)


def _moved(uid: str, what: str, before: int | None, after: int | None) -> Difference:
    return Difference(about=About.SOURCE, name=uid, what=what, before=before, after=after)


WINDOW_ROWS = 65_536  # Compared at a time: some megabytes of keys, and as many rows of each side.
PLACE = re.compile(r"(-?[0-9]{1,19})\.([0-9]{1,18})")  # A hash, and the identities of it before.


class ChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class Cut(StrEnum):
    """Why a page ends before the differences do."""

    LIMIT = "limit"  # It has as many as were asked for.
    ROWS = "rows"  # So many rows were compared.


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceQuery:
    """Which differences: of these *kinds*, of a *key* as in ``state_keys``, from a ``next`` on.

    A *limit* of 0 counts them all and returns none.  *most_rows* None: however many there are.
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
        Side(schema=schema, handles=_handles(table), now_ms=table.as_of_ms)
        for schema, table in zip(schemas, (before, after), strict=True)
    )
    cache = SegmentCache(after.location)
    differences = Differences(old, new, cache.open, cache.prefetch)
    wanted = wanted_keys(asked.key, schemas[1])
    return _answer(after, columns, _found(differences, asked, place, wanted))


def may_differ(before: StateTable, after: StateTable) -> bool:
    """Whether a key can differ, told without opening a segment."""
    has_ttl = after.ttl_ms is not None and before.as_of_ms != after.as_of_ms
    from sluice.state.differences import stretches

    expires_after_ms = min(before.as_of_ms, after.as_of_ms) - (after.ttl_ms or 0)
    return bool(
        stretches(
            _handles(before),
            _handles(after),
            expires_after_ms=expires_after_ms if has_ttl else None,
        )
    )


@dataclass(slots=True, kw_only=True)
class _Found:
    """What a page has so far."""

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
    """Takes what fits into *limit*; 0: counts only."""
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
        _named(window.changed.head(most), most),
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


def _named(flags: pl.DataFrame, most: int) -> list[tuple[str, ...]]:
    """Of each row the columns with a flag."""
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


def _handles(table: StateTable) -> tuple[StateHandle, ...]:
    return tuple(handle for handles in table.subtasks for handle in handles)


def _schemas(before: StateTable, after: StateTable) -> tuple[StateSchema, StateSchema]:
    """A side without the table has the other's."""
    if not before.subtasks:
        return after.schema(), after.schema()
    return before.schema(), after.schema() if after.subtasks else before.schema()


def _columns(before: StateSchema, after: StateSchema) -> tuple[DifferenceColumn, ...]:
    keys = {*after.key_columns, *after.sub_key_columns}
    return tuple(
        DifferenceColumn(
            name=name,
            is_key=name in keys,
            before=_kind(before.columns.get(name)),
            after=_kind(after.columns.get(name)),
        )
        for name in {**after.columns, **before.columns}
    )


def _kind(dtype: pl.DataType | None) -> str | None:
    return None if dtype is None else str(dtype)


def _place(after: str | None) -> tuple[int, int]:
    """A hash, and how many of its identities are before the page."""
    if after is None:
        return MIN_HASH, 0
    found = PLACE.fullmatch(after)
    if found is None or not MIN_HASH <= int(found[1]) <= MAX_HASH:
        raise ConfigurationError(f"{after!r} is no place in a difference; pass what `next` said")
    return int(found[1]), int(found[2])
