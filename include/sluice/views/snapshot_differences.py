"""What differs between two snapshots of a job, told by their ``_metadata`` alone.

A snapshot is a retained checkpoint or a savepoint, of the job's own root or of another one.  The
keys that differ in a table of state are in ``state_differences``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from sluice.core.completed import CheckpointMetadata, StageState, moved_to_root
from sluice.core.handles import SegmentHandle
from sluice.core.plan import SourceCut
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.retained import LATEST, retained_checkpoint
from sluice.views.keyed_state import StateTable, stored_table, table_names
from sluice.views.snapshot_facts import (
    Facts,
    facts_of_checkpoint,
    facts_of_sink,
    facts_of_source,
    facts_of_stage,
    offsets,
    sinks_of,
)
from sluice.views.snapshots import elsewhere
from sluice.views.state_differences import may_differ

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
