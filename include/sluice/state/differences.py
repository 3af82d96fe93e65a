"""The keys by which two states of a table differ, found in the segments that only one side has.

    stretches --windows--> identities of a few hashes --find, in both--> added, removed, changed

Promises: exact, also across compactions, rescales and TTLs; sorted by identity, hash first, as
state is kept; a window is in memory at a time, whatever the size of the states; a segment that both
sides have is opened only where a key of another one is looked up in it, or its rows may expire.
Refuses: keys of other columns, or of other types.

Where two states of a table can differ, told by their segments' names without opening one.

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

# After a rescale there are as many as subtasks, of a few rows each: a search costs as much for one.
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
    """Compared identities up to ``last_hash``: those that differ, with both rows of each.

    ``keys`` are their identities; ``places`` are theirs among the compared ones of an equal hash,
    from 0 on; ``changed`` has a flag for each column that both sides have.  All are of one height.
    ``read`` counts the compared identities, and the rows of which it was looked if they expired.
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
        """Those that are *chosen*."""
        return replace(
            self,
            keys=self.keys.filter(chosen),
            places=self.places.filter(chosen),
            kinds=self.kinds.filter(chosen),
            before=self.before.filter(chosen),
            after=self.after.filter(chosen),
            changed=self.changed.filter(chosen) if self.changed.width else self.changed,
        )


def expiry(ttl_ms: int | None, before_ms: int, after_ms: int) -> tuple[int, int] | None:
    """Rows of writes after the first moment, until the second, are alive at one of two times only.

    None: there are no such writes.
    """
    if ttl_ms is None or before_ms == after_ms:
        return None
    return min(before_ms, after_ms) - ttl_ms, max(before_ms, after_ms) - ttl_ms


def key_change(before: StateSchema, after: StateSchema) -> str | None:
    """Why keys of the two cannot be compared, in a few words; None if they can."""
    if _identity(before) == _identity(after):
        return None
    return f"its key was {_in_words(before)} and is {_in_words(after)}"


class Differences:
    """The differences of two sides whose keys have the same columns; see ``key_change``."""

    def __init__(
        self,
        before: Side,
        after: Side,
        open_segment: Open,
        prefetch: Prefetch = lambda _: None,
    ) -> None:
        """*prefetch* is told which segments are opened next."""
        assert _identity(before.schema) == _identity(after.schema)
        self._open = _once(open_segment)
        self._prefetch = prefetch
        self._before, self._after = (_state(side, self._open) for side in (before, after))
        self._expiry = expiry(after.schema.ttl_ms, before.now_ms, after.now_ms)
        self._stretches = stretches(
            before.handles,
            after.handles,
            expires_after_ms=None if self._expiry is None else self._expiry[0],
        )
        # Nothing is read for the identities but the columns of the key.
        names = _identity(after.schema)
        self._keys = replace(after.schema, columns=pl.Schema(names), time_column=None, ttl_ms=None)
        self._evolutions = Evolutions(self._keys, owner="")
        self._dated = 0

    def windows(self, first_hash: int, max_rows: int) -> Iterator[ComparedStretch]:
        """From *first_hash* on; each of about *max_rows* stored rows, some without a difference."""
        ahead = (one for one in self._stretches if one.last_hash >= first_hash)
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
                if self._dated >= max_rows:  # They were read, if for nothing.
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
        window = ComparedStretch(
            last_hash=last_hash,
            read=read,
            keys=keys,
            places=places,
            kinds=kinds,
            before=before,
            after=after,
            changed=changed,
        )
        return window.where(kinds.is_not_null())

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
        """The keys of those rows between two hashes that expire between the two sides."""
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


def _identity(schema: StateSchema) -> dict[str, pl.DataType]:
    return {name: schema.columns[name] for name in (*schema.key_columns, *schema.sub_key_columns)}


def _in_words(schema: StateSchema) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in _identity(schema).items())


def _once(open_segment: Open) -> Open:
    """Each segment is opened at most once: it is a map of a file, which takes no memory."""
    opened: dict[str, pa.Table] = {}

    def opening(segment: SegmentHandle) -> pa.Table:
        if segment.checksum not in opened:
            opened[segment.checksum] = open_segment(segment)
        return opened[segment.checksum]

    return opening


def _state(side: Side, open_segment: Open) -> KeyedState:
    runs = [
        Run(
            table=partial(open_segment, handle.segment),
            first_hash=handle.first_hash,
            last_hash=handle.last_hash,
            last_write_ms=handle.last_write_ms,
        )
        for handle in side.handles
    ]
    return KeyedState(side.schema, runs, now_ms=side.now_ms)


def _changed(before: pl.DataFrame, after: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Whether the values of each column differ; of columns that both have."""
    return pl.DataFrame(
        {name: _differ(before[name], after[name]) for name in names if name in after.columns}
    )


def _differ(before: pl.Series, after: pl.Series) -> pl.Series:
    """A value that was widened since is the same; one of a type that nothing leads to is not."""
    old, new = before.dtype, after.dtype
    if is_widened(old, new):
        before = pl.select(widened(pl.lit(before), old, new)).to_series()
    elif is_widened(new, old):
        after = pl.select(widened(pl.lit(after), new, old)).to_series()
    else:
        return before.is_not_null() | after.is_not_null()
    return ~before.eq_missing(after)


def _kinds(before: pl.Series, after: pl.Series, changed: pl.DataFrame) -> pl.Series:
    """Null where the two rows are the same, or there are none."""
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
