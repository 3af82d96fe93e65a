"""Which subtask owns a row: by its hash, in the ranges of hashes into which key groups are cut."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.plan import TaskPlan
from sluice.subtask.state.segments import HASH

# Of so few subtasks each takes its rows out of the frame; for more, the frame is sorted.  Measured
# with 2.5 million rows of three columns: 8 ms for each of them, and 49 ms to sort.
_FEW = 4

Counts: TypeAlias = npt.NDArray[np.int64]


class Owners:
    """The subtasks of a task, by the hashes that they own."""

    def __init__(self, task: TaskPlan) -> None:
        groups = (
            key_group_range(task.max_parallelism, task.parallelism, index)
            for index in range(task.parallelism)
        )
        self._ranges = [hash_range(task.max_parallelism, mine) for mine in groups]

    def split(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        """The rows of each subtask, in the order in which they were."""
        if len(self._ranges) == 1:
            return [rows]
        if len(self._ranges) <= _FEW:
            hashes = rows[HASH]
            return [rows.filter(hashes.is_between(*mine)) for mine in self._ranges]
        owners = self._of(rows)
        order = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[order], np.arange(1, len(self._ranges) + 1))
        sorted_rows = rows[pl.Series(order.astype(np.uint32))]
        starts = [0, *ends[:-1]]
        return [sorted_rows[start:end] for start, end in zip(starts, ends, strict=True)]

    def count(self, rows: pl.DataFrame, counts: str | None = None) -> Counts:
        """The number of rows that each subtask owns; *counts* says for how many one stands."""
        if len(self._ranges) <= _FEW:
            masks = (rows[HASH].is_between(*mine) for mine in self._ranges)
            owned = [
                mask.sum() if counts is None else rows[counts].filter(mask).sum() for mask in masks
            ]
            return np.array(owned, np.int64)
        weights = None if counts is None else rows[counts].to_numpy()
        return np.bincount(self._of(rows), weights, len(self._ranges)).astype(np.int64)

    def _of(self, rows: pl.DataFrame) -> npt.NDArray[np.uint16]:
        """The subtask of each row; numbers of 16 bits are sorted several times faster."""
        firsts = np.array([first for first, _ in self._ranges[1:]], np.int64)
        return np.searchsorted(firsts, rows[HASH].to_numpy(), side="right").astype(np.uint16)
