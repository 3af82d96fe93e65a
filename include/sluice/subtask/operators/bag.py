"""``Bag``: the current rows of a changelog, and the number of copies of each.

A row is identified by all its columns, so a row that is taken back is found by its values (as in
Flink's RetractableTopNFunction and its join views without a unique key).  State has a row for each
distinct one, and drops it with its last copy; taking back a row that is not there, because its TTL
has passed, for example, does nothing.

Of 0.0 and -0.0, which are equal, a bag keeps 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from sluice.subtask.operators.argument import without_negative_zero
from sluice.subtask.operators.grouping import grouped
from sluice.subtask.operators.operator import WEIGHT, Changes
from sluice.subtask.state.keyed import KeyedState, StateSchema, newest_per_identity
from sluice.subtask.state.order import gathered
from sluice.subtask.state.segments import HASH

COPIES = "_copies"
_BEFORE = "_copies_before"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BagChange:
    """The distinct rows that an epoch touched, sorted, with the number of copies after it.

    ``before`` is the number of copies before it, row by row.
    """

    rows: pl.DataFrame
    before: pl.Series

    @property
    def copies(self) -> pl.Series:
        return self.rows[COPIES]

    def came(self) -> pl.DataFrame:
        """The rows whose number of copies changed, with the difference."""
        grown = self.rows.with_columns(self.copies - self.before)
        return grown.filter(pl.col(COPIES) != 0)

    def overlaid(self, stored: pl.DataFrame, identity: Sequence[str]) -> pl.DataFrame:
        """*stored* rows of the same bag with the epoch's changes applied; sorted."""
        together = newest_per_identity(pl.concat([self.rows, stored]), identity)
        return together.filter(pl.col(COPIES) > 0)

    def changes(self, *, is_refreshed: bool) -> Changes:
        """The changes to write; with *is_refreshed*, every row that was touched."""
        is_there = self.copies > 0
        written = is_there if is_refreshed else is_there & (self.copies != self.before)
        return Changes(
            upserts=self.rows.filter(written),
            deletes=self.rows.filter(~is_there & (self.before > 0)),
        )


class Bag:
    """A table of state that keeps rows of these *columns*, keyed by *keys*."""

    def __init__(self, columns: pl.Schema, keys: Sequence[str], *, ttl_ms: int | None) -> None:
        self.schema = StateSchema(
            columns=pl.Schema({**columns, COPIES: pl.Int64()}),
            key_columns=tuple(keys),
            sub_key_columns=tuple(name for name in columns if name not in keys),
            ttl_ms=ttl_ms,
        )
        self.identity = self.schema.identity
        self._is_refreshed = ttl_ms is not None
        self._names = self.schema.live.names()

    def weighed(self, rows: pl.DataFrame, *columns: pl.Expr) -> pl.DataFrame:
        """The group frame of a chunk: distinct rows, each with the sum of its weights.

        *columns* compute the bag's columns; without them, *rows* have them.  Rows without weights
        are all new.
        """
        weight = pl.col(WEIGHT).cast(pl.Int64) if WEIGHT in rows.columns else pl.lit(1, pl.Int64)
        mine = rows.select(HASH, *(columns or self._names[1:-1]), weight.alias(COPIES))
        floats = [n for n, dtype in self.schema.columns.items() if dtype.is_float()]
        return self.folded(mine.with_columns(map(without_negative_zero, floats)))

    def folded(self, groups: pl.DataFrame) -> pl.DataFrame:
        """The groups of several chunks as one; rows that were added and taken back cancel out."""
        found = grouped(groups, self.identity[1:], [pl.col(HASH).first(), pl.col(COPIES).sum()])
        return found.filter(pl.col(COPIES) != 0).select(self._names)

    def changed(self, groups: pl.DataFrame, state: KeyedState) -> BagChange:
        """The bag after the folded *groups* are applied to it."""
        deltas = newest_per_identity(groups, self.identity)
        before = state.find(deltas)[COPIES].fill_null(0)
        after = (before + deltas[COPIES]).clip(lower_bound=0).alias(COPIES)
        return BagChange(rows=deltas.with_columns(after), before=before.alias(_BEFORE))

    def changes(self, change: BagChange) -> Changes:
        return change.changes(is_refreshed=self._is_refreshed)


def repeated(rows: pl.DataFrame, copies: pl.Series) -> pl.DataFrame:
    """Each row as often as *copies* says; rows with none are left out."""
    if rows.is_empty() or (copies.min() == 1 and copies.max() == 1):
        return rows
    return gathered(rows, np.repeat(np.arange(rows.height), copies.to_numpy()))
