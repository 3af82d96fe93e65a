"""The keys by which two states of a table differ, found in the segments that only one side has.

    stretches --windows--> identities of a few hashes --find, in both--> added, removed, changed

Promises: exact, also across compactions, rescales and TTLs; sorted by identity, hash first, as
state is kept; a window is in memory at a time, whatever the size of the states; a segment that both
sides have is opened only where a key of another one is searched for in it, or its rows may expire.
Refuses: keys of other columns, or of other types.

``stretches`` finds where they can differ by the names of segments alone, without opening one:

    hashes      MIN .................................................. MAX
    before      [ a            ][ b              ]
    after       [ a            ][ b              ]   [ c        ]
    differ                             [ c ]  [ c    ]

A key's row is that of the newest segment that has it.  So where both sides have the same segments
none differs, and elsewhere only keys of those segments that are between the oldest and the newest
ones that both have.  A segment is known by the checksum of its bytes, in whichever root it is.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import islice, pairwise
from operator import or_

import numpy as np
import polars as pl
import pyarrow as pa

from sluice.core.handles import MAX_HASH, SegmentHandle, StateHandle
from sluice.state.evolution import Evolutions, is_widened, widened
from sluice.state.keyed import KeyedState
from sluice.state.merging import merged_windows
from sluice.state.runs import Run, RunSlice
from sluice.state.segments import HASH, WRITTEN, StateSchema, hash_column, to_frame

ADDED, REMOVED, CHANGED = "added", "removed", "changed"

# After a rescale there is a stretch for each subtask, of a few rows, and a search for the keys of
# several costs as much as for those of one.
STRETCHES_AT_ONCE = 32

Open = Callable[[SegmentHandle], pa.Table]
Prefetch = Callable[[Sequence[SegmentHandle]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A table's state in one snapshot, read as of then.

    ``handles`` has the segments of every subtask, each from oldest to newest.
    """

    schema: StateSchema
    handles: tuple[StateHandle, ...]
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStretch:
    """The identities up to ``last_hash`` that differ, with both rows of each.

    ``keys`` are the identities; ``places`` are their numbers, from 0 on, among the compared ones
    of an equal hash; ``changed`` has a flag for each column that both sides have.  All are of one
    height.  ``read`` counts the identities that were compared, and the rows whose TTL was checked.
    """

    last_hash: int
    read: int
    keys: pl.DataFrame
    places: pl.Series
    kinds: pl.Series
    before: pl.DataFrame
    after: pl.DataFrame
    changed: pl.DataFrame

    def where(self, chosen: pl.Series) -> ComparedStretch:
        """The identities that are *chosen*."""
        return replace(
            self,
            keys=self.keys.filter(chosen),
            places=self.places.filter(chosen),
            kinds=self.kinds.filter(chosen),
            before=self.before.filter(chosen),
            after=self.after.filter(chosen),
            changed=self.changed.filter(chosen) if self.changed.width else self.changed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A range of hashes, both ends included, in which keys of the segments ``own`` may differ.

    ``shared`` are segments that both sides have there, oldest or newest, whose rows may expire.
    """

    first_hash: int
    last_hash: int
    own: tuple[SegmentHandle, ...]
    shared: tuple[StateHandle, ...] = ()


class Differences:
    """The differences of two sides whose keys have the same columns; see ``key_change``."""

    def __init__(
        self,
        before: Side,
        after: Side,
        open_segment: Open,
        prefetch: Prefetch = lambda _: None,
    ) -> None:
        """*prefetch* gets the segments that are opened next."""
        assert _identity(before.schema) == _identity(after.schema)
        self._open = _once(open_segment)
        self._prefetch = prefetch
        self._before, self._after = (
            KeyedState(
                side.schema,
                [Run.of(handle, self._open) for handle in side.handles],
                now_ms=side.now_ms,
            )
            for side in (before, after)
        )
        self._expiry = expiry(after.schema.ttl_ms, before.now_ms, after.now_ms)
        self._stretches = stretches(
            before.handles,
            after.handles,
            expires_after_ms=None if self._expiry is None else self._expiry[0],
        )
        # To find identities, only the columns of the key are read.
        names = _identity(after.schema)
        self._keys = replace(after.schema, columns=pl.Schema(names), time_column=None, ttl_ms=None)
        self._evolutions = Evolutions(self._keys, owner="")
        self._dated = 0

    def windows(self, first_hash: int, max_rows: int) -> Iterator[ComparedStretch]:
        """The differences from *first_hash* on, in stretches of about *max_rows* stored rows."""
        ahead = (stretch for stretch in self._stretches if stretch.last_hash >= first_hash)
        while together := tuple(islice(ahead, STRETCHES_AT_ONCE)):
            self._prefetch([segment for stretch in together for segment in stretch.own])
            found = self._keys.live.to_frame()
            for stretch in together:
                slices = self._slices(stretch, max(first_hash, stretch.first_hash))
                for rows in merged_windows(self._keys, slices, max_rows):
                    if found.height and found.height + rows.height > max_rows:
                        yield self._compared(found, int(found[HASH][-1]))
                        found = found.clear()
                    found = pl.concat([found, rows.select(self._keys.identity)])
                if self._dated >= max_rows:  # Rows that do not expire count as read, too.
                    yield self._compared(found, stretch.last_hash)
                    found = found.clear()
            if found.height or self._dated:
                yield self._compared(found, together[-1].last_hash)

    def _compared(self, keys: pl.DataFrame, last_hash: int) -> ComparedStretch:
        hashes = keys[HASH].to_numpy()
        places = pl.Series(np.arange(len(hashes)) - np.searchsorted(hashes, hashes))
        before, after = self._before.find(keys), self._after.find(keys)
        changed = _changed(before, after, [n for n in before.columns if n not in keys.columns])
        kinds = _kinds(before[HASH], after[HASH], changed)
        read, self._dated = keys.height + self._dated, 0
        compared = ComparedStretch(
            last_hash=last_hash,
            read=read,
            keys=keys,
            places=places,
            kinds=kinds,
            before=before,
            after=after,
            changed=changed,
        )
        return compared.where(kinds.is_not_null())

    def _slices(self, stretch: Stretch, first_hash: int) -> list[RunSlice]:
        tables = [partial(self._open, segment) for segment in stretch.own]
        tables += [
            partial(self._expiring, h, first_hash, stretch.last_hash) for h in stretch.shared
        ]
        runs = [
            Run(table=table, first_hash=first_hash, last_hash=stretch.last_hash) for table in tables
        ]
        return [RunSlice.of(run, self._evolutions) for run in runs]

    def _expiring(self, handle: StateHandle, first_hash: int, last_hash: int) -> pa.Table:
        """The keys of the rows between two hashes that expire between the two sides."""
        table = self._open(handle.segment)
        names = [*self._keys.stored]
        if WRITTEN not in table.column_names:  # From before the stage had a TTL.
            return table.select(names).slice(0, 0)
        hashes = hash_column(table)
        first = int(np.searchsorted(hashes, first_hash))
        end = int(np.searchsorted(hashes, last_hash, side="right"))
        written = to_frame(table.select([WRITTEN]).slice(first, end - first)).to_series()
        self._dated += len(written)
        assert self._expiry is not None
        after_ms, until_ms = self._expiry
        expires = ((written > after_ms) & (written <= until_ms)).fill_null(value=False)
        places = first + np.flatnonzero(expires.to_numpy())
        return table.select(names).take(pa.array(places)).combine_chunks()


def key_change(before: StateSchema, after: StateSchema) -> str | None:
    """The reason why keys of the two cannot be compared, in a few words; None if they can."""
    if _identity(before) == _identity(after):
        return None
    return f"its key was {_in_words(before)} and is {_in_words(after)}"


def expiry(ttl_ms: int | None, before_ms: int, after_ms: int) -> tuple[int, int] | None:
    """The times of writes whose rows are expired at one of two moments and not at the other: after
    the first, up to the second; None if there are none.
    """
    if ttl_ms is None or before_ms == after_ms:
        return None
    return min(before_ms, after_ms) - ttl_ms, max(before_ms, after_ms) - ttl_ms


def stretches(
    before: Sequence[StateHandle],
    after: Sequence[StateHandle],
    *,
    expires_after_ms: int | None = None,
) -> tuple[Stretch, ...]:
    """The ranges of hashes in which keys may differ, ascending and disjoint.

    *before* and *after* have a subtask's segments from oldest to newest.  A row of a shared segment
    differs, too, if it is expired on one side only; it has then a write after *expires_after_ms*.
    None: no row expires between the two.
    """
    found: list[Stretch] = []
    for first, last, old, new in _pieces(before, after):
        own, shared = _parted(old, new)
        kept = () if expires_after_ms is None else _expiring(shared, expires_after_ms)
        if not own and not kept:
            continue
        stretch = Stretch(first_hash=first, last_hash=last, own=own, shared=kept)
        if found and _continues(found[-1], stretch):
            stretch = replace(stretch, first_hash=found.pop().first_hash)
        found.append(stretch)
    return tuple(found)


def _identity(schema: StateSchema) -> dict[str, pl.DataType]:
    return {name: schema.columns[name] for name in (*schema.key_columns, *schema.sub_key_columns)}


def _in_words(schema: StateSchema) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in _identity(schema).items())


def _once(open_segment: Open) -> Open:
    """*open_segment*, called at most once for a segment: a mapped file takes no memory."""
    opened: dict[str, pa.Table] = {}

    def opening(segment: SegmentHandle) -> pa.Table:
        if segment.checksum not in opened:
            opened[segment.checksum] = open_segment(segment)
        return opened[segment.checksum]

    return opening


def _changed(before: pl.DataFrame, after: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Whether the values differ, for each column that both sides have."""
    return pl.DataFrame(
        {name: _differ(before[name], after[name]) for name in names if name in after.columns}
    )


def _differ(before: pl.Series, after: pl.Series) -> pl.Series:
    """Whether the values differ; a value that is only widened does not.  Values of types of which
    neither is the other one widened differ.
    """
    old, new = before.dtype, after.dtype
    if is_widened(old, new):
        before = pl.select(widened(pl.lit(before), old, new)).to_series()
    elif is_widened(new, old):
        after = pl.select(widened(pl.lit(after), new, old)).to_series()
    else:
        return before.is_not_null() | after.is_not_null()
    return ~before.eq_missing(after)


def _kinds(before: pl.Series, after: pl.Series, changed: pl.DataFrame) -> pl.Series:
    """The kind of each difference; null where the two rows are the same, or there are none."""
    was, is_there = before.is_not_null(), after.is_not_null()
    differs = reduce(or_, changed.get_columns(), was & False)
    kinds = pl.DataFrame({"was": was, "is": is_there, "differs": differs}).select(
        pl.when(~pl.col("was") & pl.col("is"))
        .then(pl.lit(ADDED))
        .when(pl.col("was") & ~pl.col("is"))
        .then(pl.lit(REMOVED))
        .when(pl.col("was") & pl.col("is") & pl.col("differs"))
        .then(pl.lit(CHANGED))
    )
    return kinds.to_series()


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
    """The segments of one side alone, each once, and the oldest and newest that both have."""
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
