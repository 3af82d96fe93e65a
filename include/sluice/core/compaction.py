"""Runs of keyed state merged into one, off the critical path, and taken over by a later epoch.

A compaction reads the runs of some checkpoint and names those that it replaces.  An epoch whose
state still has all of these may put the merged run in their place.  Nothing else depends on a
compaction, so it may come late, twice or never.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedRun:
    """The handles of one run: its segments follow each other in hash."""

    run: int
    handles: tuple[StateHandle, ...]

    @property
    def rows(self) -> int:
        return sum(handle.segment.rows for handle in self.handles)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedSegment:
    """A segment, and the part of it that belonged to the subtask; a rescale changes that part."""

    key: str
    checksum: str
    first_hash: int
    last_hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRuns:
    """Neighbouring runs of one subtask's table, and the run that holds the same rows."""

    replaced: tuple[ReplacedSegment, ...]
    merged: tuple[StateHandle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A merge of the state that *stage* had at a checkpoint, without the rows that had expired at
    its ``processing_time_ms``.

    An epoch at an earlier time, behind a restore, does not take it over: it would miss rows that
    are alive for it.  Without any ``merged`` runs it only keeps a late compaction of that
    checkpoint off the record.
    """

    stage: str
    checkpoint_id: CheckpointId
    merged: tuple[MergedRuns, ...]
    processing_time_ms: int = 0

    @property
    def files(self) -> tuple[SegmentHandle, ...]:
        return tuple(handle.segment for runs in self.merged for handle in runs.merged)


def still_useful(compactions: Iterable[Compaction], keys_in_use: Iterable[str]) -> list[Compaction]:
    """The compactions that an epoch may still take over, given the files that checkpoints use.

    One may build on another: the files that a useful compaction made count as used.  Only files
    are compared, as small state travels in acks and may be anywhere.  A compaction that is not
    useful now never will be, for nothing that was merged comes apart again.
    """
    within_reach, left, found = {*keys_in_use}, [*compactions], list[Compaction]()
    while more := [compaction for compaction in left if _is_within_reach(compaction, within_reach)]:
        found += more
        left = [compaction for compaction in left if compaction not in more]
        within_reach.update(file.key for compaction in more for file in compaction.files)
    return found


def _is_within_reach(compaction: Compaction, keys: Collection[str]) -> bool:
    return any(
        all(segment.key in keys for segment in runs.replaced if segment.key)
        for runs in compaction.merged
    )


def sorted_runs(handles: Iterable[StateHandle]) -> list[SortedRun]:
    """The handles of one table by run, oldest first."""
    runs: dict[int, list[StateHandle]] = {}
    for handle in handles:
        runs.setdefault(handle.run, []).append(handle)
    return [SortedRun(run=run, handles=tuple(members)) for run, members in runs.items()]


def replaced_segment(handle: StateHandle) -> ReplacedSegment:
    return ReplacedSegment(
        key=handle.segment.key,
        checksum=handle.segment.checksum,
        first_hash=handle.first_hash,
        last_hash=handle.last_hash,
    )


_Named = list[tuple[ReplacedSegment, StateHandle]]


class Merges:
    """Merged runs, found by the first segment that they replace.

    A stage has thousands of subtasks, and each takes over its own merged runs.
    """

    def __init__(self, compactions: Iterable[Compaction]) -> None:
        self._all = [
            runs for compaction in compactions for runs in compaction.merged if runs.replaced
        ]
        self._by_first: dict[ReplacedSegment, list[int]] = {}
        for at, runs in enumerate(self._all):
            self._by_first.setdefault(runs.replaced[0], []).append(at)

    def applied_to(self, state: Sequence[StateHandle]) -> tuple[StateHandle, ...]:
        """A subtask's state, oldest first, with every run merged that can be.

        In the order in which the compactions were made, as one may build on another.
        """
        handles = _named(state)
        due = self._beginning_with(handles, after=-1)
        heapify(due)
        done = -1
        while due:
            at = heappop(due)
            if at == done:
                continue  # Equal small segments look alike.
            done = at
            merged = _named(self._all[at].merged)
            result = _merged(handles, self._all[at].replaced, merged)
            if result is not None:
                handles = result
                for new in self._beginning_with(merged, after=at):
                    heappush(due, new)
        return tuple(handle for _, handle in handles)

    def _beginning_with(self, handles: _Named, *, after: int) -> list[int]:
        found = (self._by_first.get(segment, ()) for segment, _ in handles)
        return [at for places in found for at in places if at > after]


def _named(handles: Iterable[StateHandle]) -> _Named:
    return [(replaced_segment(handle), handle) for handle in handles]


def _merged(
    handles: _Named, replaced: tuple[ReplacedSegment, ...], merged: _Named
) -> _Named | None:
    """*handles* with *merged* in the place of *replaced*; None where a part of these is missing, or
    where they are not of the ages, beside one another, that they had when they were merged.
    """
    wanted = set(replaced)
    found = [at for at, (segment, _) in enumerate(handles) if segment in wanted]
    if len(found) != len(replaced):
        return None  # Equal small segments look alike: each counts.
    present = [handles[at] for at in found]
    by_age = [
        handle for run in sorted_runs(handle for _, handle in present) for handle in run.handles
    ]
    if [*map(replaced_segment, by_age)] != [*replaced]:
        return None
    gone = set(found)
    behind = [(at, handles[at]) for at in range(found[0], len(handles)) if at not in gone]
    newer = [(at, handles[at][1]) for at in found]
    if any(
        place < at and _overlap(between, handle)
        for place, (_, between) in behind
        for at, handle in newer
    ):
        return None  # It is older than a part of what was merged, and would be searched first.
    return [*handles[: found[0]], *merged, *(named for _, named in behind)]


def _overlap(one: StateHandle, other: StateHandle) -> bool:
    """Whether a key may be in both."""
    return (
        one.table == other.table
        and one.first_hash <= other.last_hash
        and other.first_hash <= one.last_hash
    )
