"""The search for hashes in a run: binary search, or interpolation in a long run.

Hashes are evenly distributed, so the place of one can be estimated from its value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sluice.subtask.state.order import Indices

# Below it, a binary search stays in the processor's caches.  100,000 sorted keys: 1 million rows 5
# ms either way; 10 million 10 ms by interpolation, 20 ms without; 50 million 15 ms, 50 ms without.
_INTERPOLATE_FROM = 2**21

_CHUNK = (
    2**14
)  # Keys that are searched for at a time: the steps below work within a processor's cache.
_STEPS = 2  # Each step takes the error, in rows, to about its square root: 50 million, 7,000, 80.
_NEAR = 16  # An estimate this near is made exact by halving; any other key is searched for.


class Blocks(NamedTuple):
    """Matches: the ``counts[i]`` rows from ``first[i]`` on match the wanted hash ``which[i]``."""

    which: Indices
    first: Indices
    counts: Indices

    def pairs(self) -> tuple[Indices, Indices]:
        """``which``, repeated for every matching row, and the place of that row."""
        starts = np.cumsum(self.counts) - self.counts
        where = np.repeat(self.first - starts, self.counts) + np.arange(self.counts.sum())
        return np.repeat(self.which, self.counts), where


def equal_hashes(hashes: Indices, wanted: Indices) -> Blocks:
    """The matches of *wanted* in the sorted *hashes*."""
    if not len(hashes) or not len(wanted):
        return Blocks(*(np.empty(0, np.int64) for _ in range(3)))
    last = len(hashes) - 1
    first = first_not_less(hashes, wanted)
    which = np.flatnonzero(hashes[np.minimum(first, last)] == wanted)
    first = first[which]
    # Most hashes occur once; the end is searched only where the next row has the same hash.
    repeated = hashes[np.minimum(first + 1, last)] == hashes[first]
    several = np.flatnonzero(repeated & (first < last))
    counts = np.ones(len(which), np.int64)
    if len(several):
        ends = np.searchsorted(hashes, wanted[which[several]], side="right")
        counts[several] = ends - first[several]
    return Blocks(which, first, counts)


def first_not_less(hashes: Indices, wanted: Indices) -> Indices:
    """For each of *wanted*, the index of the first of the sorted *hashes* that is not less."""
    if len(hashes) < _INTERPOLATE_FROM or hashes[0] == hashes[-1]:
        return np.searchsorted(hashes, wanted)
    chunks = (wanted[start : start + _CHUNK] for start in range(0, len(wanted), _CHUNK))
    return np.concatenate([np.empty(0, np.int64), *(_interpolated(hashes, c) for c in chunks)])


def _interpolated(hashes: Indices, wanted: Indices) -> Indices:
    last = len(hashes) - 1
    values = wanted.astype(np.float64)
    rows_per_value = last / (float(hashes[-1]) - float(hashes[0]))
    guess = (values - float(hashes[0])) * rows_per_value
    for _ in range(_STEPS):
        index = np.clip(guess, 0, last).astype(np.int64)
        guess = index + (values - hashes[index]) * rows_per_value
    place = np.maximum(np.clip(guess, 0, last).astype(np.int64) - _NEAR, 0)
    half = _NEAR
    while half:
        place += half * (hashes[np.minimum(place + half - 1, last)] < wanted)
        half //= 2
    place = np.minimum(place, last + 1)
    is_after_smaller = (place == 0) | (hashes[np.maximum(place, 1) - 1] < wanted)
    is_not_smaller = (place > last) | (hashes[np.minimum(place, last)] >= wanted)
    wrong = np.flatnonzero(~(is_after_smaller & is_not_smaller))
    place[wrong] = np.searchsorted(hashes, wanted[wrong])
    return place
