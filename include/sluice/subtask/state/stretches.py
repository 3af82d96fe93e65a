"""Where two states of a table can differ, told by their segments' names without opening one.

    hashes      MIN .................................................. MAX
    before      [ a            ][ b              ]
    after       [ a            ][ b              ]   [ c        ]
    differ                             [ c ]  [ c    ]

A key's row is that of the newest segment that has it.  So where both sides have the same segments
none differs, and elsewhere only keys of those segments that are between the oldest and the newest
ones that both have.  A segment is known by the checksum of its bytes, wherever it lies.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sluice.core.handles import MAX_HASH, SegmentHandle, StateHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Hashes, both ends included, whose keys may differ where one of ``own`` has them.

    ``shared`` are the segments that both sides read there, and in the same place.
    """

    first_hash: int
    last_hash: int
    own: tuple[SegmentHandle, ...]
    shared: tuple[StateHandle, ...] = ()


def stretches(
    before: Sequence[StateHandle],
    after: Sequence[StateHandle],
    *,
    expires_after_ms: int | None = None,
) -> tuple[Stretch, ...]:
    """Ascending and disjoint; *before* and *after* have a subtask's segments from oldest to newest.

    Rows of shared segments differ, too, where one side is read after their TTL and the other before
    it: those with a write after *expires_after_ms*.  None: no row expires between the two.
    """
    found: list[Stretch] = []
    for first, last, old, new in _pieces(before, after):
        own, shared = _parted(old, new)
        kept = () if expires_after_ms is None else _expiring(shared, expires_after_ms)
        if not own and not kept:
            continue
        one = Stretch(first_hash=first, last_hash=last, own=own, shared=kept)
        if found and _continues(found[-1], one):
            one = Stretch(first_hash=found.pop().first_hash, last_hash=last, own=own, shared=kept)
        found.append(one)
    return tuple(found)


def _pieces(
    before: Sequence[StateHandle], after: Sequence[StateHandle]
) -> Iterator[tuple[int, int, list[StateHandle], list[StateHandle]]]:
    """The hash space cut wherever a segment begins or ends, and the segments of each piece."""
    every = [*before, *after]
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for index, handle in enumerate(every):
        starts.setdefault(handle.first_hash, []).append(index)
        if handle.last_hash < MAX_HASH:
            ends.setdefault(handle.last_hash + 1, []).append(index)
    cuts = sorted(starts.keys() | ends.keys())
    here: list[int] = []
    for first, following in pairwise([*cuts, MAX_HASH + 1]):
        for index in ends.get(first, ()):
            here.remove(index)
        for index in starts.get(first, ()):
            insort(here, index)
        yield (
            first,
            following - 1,
            [every[index] for index in here if index < len(before)],
            [every[index] for index in here if index >= len(before)],
        )


def _parted(
    old: Sequence[StateHandle], new: Sequence[StateHandle]
) -> tuple[tuple[SegmentHandle, ...], tuple[StateHandle, ...]]:
    """The segments that one side has, each once, and those oldest and newest that both have."""
    most = min(len(old), len(new))
    oldest = 0
    while oldest < most and _same(old[oldest], new[oldest]):
        oldest += 1
    newest = 0
    while newest < most - oldest and _same(old[-1 - newest], new[-1 - newest]):
        newest += 1
    own = {
        handle.segment.checksum: handle.segment
        for handles in (old, new)
        for handle in handles[oldest : len(handles) - newest]
    }
    return tuple(own.values()), (*old[:oldest], *old[len(old) - newest :])


def _same(one: StateHandle, other: StateHandle) -> bool:
    return one.segment.checksum == other.segment.checksum


def _expiring(shared: Sequence[StateHandle], after_ms: int) -> tuple[StateHandle, ...]:
    return tuple(h for h in shared if h.last_write_ms is None or h.last_write_ms > after_ms)


def _continues(before: Stretch, after: Stretch) -> bool:
    return before.last_hash + 1 == after.first_hash and _names(before) == _names(after)


def _names(stretch: Stretch) -> tuple[list[str], list[str]]:
    return (
        [segment.checksum for segment in stretch.own],
        [handle.segment.checksum for handle in stretch.shared],
    )
