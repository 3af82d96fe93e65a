"""The key groups that most rows of an epoch came to a subtask in, with some of their keys.

Rows are counted as they come: where equal keys were folded before the exchange, a key is one row of
each sender, and no key is hot.  What is kept of an epoch is small, whatever its keys are: a number
for each key group of the subtask while it runs, and three groups in its ack.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from sluice.core.answers import HotGroup
from sluice.core.handles import MIN_HASH
from sluice.core.key_groups import KeyGroupRange
from sluice.operators.changes import COPIES
from sluice.state.segments import HASH

MOST_GROUPS, MOST_KEYS = 3, 3
HOT = 2  # So many times the rows of the mean key group, or more.
LEAST_ROWS = 1_000  # No subtask waits for fewer.
SAMPLED_ROWS = 10_000  # Of a group in a chunk: a key with a tenth of them is among the first.
MAX_KEY_TEXT = 80  # Characters; a key may be a megabyte.


class KeyGroupRows:
    """The rows of each of *groups*, of which the stage has *max_parallelism*."""

    def __init__(
        self,
        groups: KeyGroupRange,
        max_parallelism: int,
        keys: Sequence[str],
        *,
        least_rows: int = LEAST_ROWS,
    ) -> None:
        self._first, self._max_parallelism, self._keys = groups.first, max_parallelism, keys
        self._least = least_rows
        self._rows = np.zeros(groups.last - groups.first + 1, dtype=np.int64)
        # Of the hottest: the rows of the chunk in which it had most, and the keys there.
        self._seen: dict[int, tuple[int, tuple[str, ...]]] = {}

    def add(self, rows: pl.DataFrame) -> None:
        if not rows.height:
            return
        groups = self._groups_of(rows[HASH].to_numpy())
        counts = np.bincount(groups, minlength=len(self._rows))
        self._rows += counts
        hottest = self._hottest()
        self._seen = {group: seen for group, seen in self._seen.items() if group in hottest}
        for group in hottest:
            count = int(counts[group])
            if count > self._seen.get(group, (0, ()))[0]:
                found = np.flatnonzero(groups == group)[:SAMPLED_ROWS]
                self._seen[group] = (count, self._keys_of(rows[found]))

    def hot(self) -> tuple[HotGroup, ...]:
        """The hottest, the one with most rows first; none where all are about equal, or small."""
        return tuple(
            HotGroup(
                group=self._first + group,
                rows=int(self._rows[group]),
                keys=self._seen.get(group, (0, ()))[1],
            )
            for group in self._hottest()
        )

    def _groups_of(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Their places among the subtask's own (``core/key_groups.hash_range``)."""
        groups = hashes >> 32  # In place from here on: memory costs more than the arithmetic.
        groups -= MIN_HASH >> 32
        groups *= self._max_parallelism
        groups >>= 32
        groups -= self._first
        return groups

    def _hottest(self) -> list[int]:
        least = max(self._least, HOT * self._rows.sum() / len(self._rows))
        order = np.argsort(self._rows, kind="stable")[::-1][:MOST_GROUPS]
        return [int(group) for group in order if self._rows[group] >= least]

    def _keys_of(self, rows: pl.DataFrame) -> tuple[str, ...]:
        """The keys that come most often in *rows*, as people read them."""
        keys = [key for key in self._keys if key in rows.columns]
        if not keys:
            return ()
        often = rows.group_by(keys).len(COPIES).top_k(MOST_KEYS, by=COPIES)
        return tuple(
            ", ".join(f"{key}={row[key]}" for key in keys)[:MAX_KEY_TEXT]
            for row in often.sort(COPIES, descending=True).iter_rows(named=True)
        )
