"""``Ranking``: the best rows of each group, in an order that rows alone decide.

Rows of a group are ordered by the columns of the ranking, each ascending or descending; rows that
are equal in all of these are equal rows.  Null is the smallest value, as in SQL, unless the ranking
puts it last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from sluice.declaration.nodes import StageNode
from sluice.errors import ConfigurationError
from sluice.subtask.operators.operator import column_type, wrong_type
from sluice.subtask.operators.row_comparison import differs_from_previous
from sluice.subtask.operators.value_kernels import is_ordered
from sluice.subtask.state.order import gathered, order_of, with_next
from sluice.subtask.state.segments import HASH

RANK = "rank"
_PLACE = "_place"

# Fewer rows are sorted by all columns at once in less time than they are looked at first (1,000:
# 0.8 ms to 3.4 ms; 100,000: 20 ms to 9 ms).
_FEW_ROWS = 10_000

# From this many rows for each that is kept, it is faster to drop most of the others by hashing
# before the sort (a million rows of 10,000 groups: 0.1 s instead of 0.2 s).
_WORTH_PRUNING = 32

# One in so many hashes, a power of two, is sampled to estimate the number of groups.
_SAMPLED = 16


@dataclass(frozen=True, slots=True)
class By:
    column: str
    descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The *n* first rows of a group; ``has_ties`` keeps all whose first column equals the n-th's.

    Ranks are those of SQL's RANK() with ``has_ties``, otherwise those of ROW_NUMBER().
    """

    n: int
    order: tuple[By, ...]
    has_ties: bool = False

    def best(self, rows: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
        """The best rows of each *group*, which starts with the hash; sorted."""
        return self.ranked(rows, group, _PLACE).drop(_PLACE)

    def ranked(self, rows: pl.DataFrame, group: Sequence[str], name: str = RANK) -> pl.DataFrame:
        """The rows of ``best``, with the rank of each in a new column *name*."""
        assert name not in rows.columns, f"the rows have a column {name!r} of their own"
        if rows.height < _FEW_ROWS:
            ordered = self._sorted_at_once(rows, group)
        else:
            ordered = self._sorted(self._pruned(rows, group), group)
        equal = (*group, self.order[0].column) if self.has_ties else None
        ranked = ordered.with_columns(_row_number(group, equal).alias(name))
        return ranked.filter(pl.col(name) <= self.n)

    def _sorted_at_once(self, rows: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
        """*rows* sorted by *group*, which starts with the hash, then as ranked."""
        return rows.select(pl.all().gather(self._order_of(rows, group)))

    def _sorted(self, rows: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
        """The same for many rows.

        Sorting by the first column, then by the hash, and only what is equal in both by all columns
        takes half the time of sorting by all at once.
        """
        first = self.order[0]
        by_first = rows[first.column].arg_sort(
            descending=first.descending, nulls_last=first.nulls_last
        )
        order = by_first.cast(pl.Int64).to_numpy()
        by_hash = order_of(rows[HASH].to_numpy()[order])
        order = order.copy() if by_hash is None else order[by_hash]
        ordered = gathered(rows.select({*group, first.column}), order)
        is_same_hash = pl.col(HASH) == pl.col(HASH).shift()
        mixed = ordered.select(is_same_hash & differs_from_previous(group)).to_series()
        if mixed.any():
            return self._sorted_at_once(rows, group)  # Keys share a hash.
        is_tie = ~differs_from_previous((HASH, first.column))
        ties = ordered.select(is_tie.arg_true()).to_series().to_numpy()
        if len(ties):
            shared = with_next(ties - 1, rows.height)
            within = self._order_of(gathered(rows, order[shared]), group)
            order[shared] = order[shared[within.to_numpy()]]
        return gathered(rows, order)

    def _order_of(self, rows: pl.DataFrame, group: Sequence[str]) -> pl.Series:
        names = [*group, *(by.column for by in self.order)]
        before = [False] * len(group)
        order = pl.arg_sort_by(
            names,
            descending=[*before, *(by.descending for by in self.order)],
            nulls_last=[*before, *(by.nulls_last for by in self.order)],
        )
        return rows.select(order).to_series()

    def _pruned(self, rows: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
        """*rows* without most of those that *n* others of their group precede."""
        first = self.order[0]
        if first.column in group or not (first.descending or self.n == 1):
            return rows
        if rows.schema[first.column].is_nested():  # Polars has no minimum of these.
            return rows
        if rows.height <= _WORTH_PRUNING * self.n * _group_count(rows, group):
            return rows
        value = pl.col(first.column)
        by = group[1:] or group  # The hash is a function of the others.
        if first.descending:
            is_within = value >= value.top_k(self.n).min().over(by)
        else:
            is_within = value <= value.min().over(by)
        return rows.filter(value.is_null() | is_within)  # Nulls are left to the sort.


def numbered(sorted_rows: pl.DataFrame, group: Sequence[str], name: str) -> pl.DataFrame:
    """*sorted_rows*, sorted by *group*, with their number in it, from 1 on, as column *name*."""
    return sorted_rows.with_columns(_row_number(group).alias(name))


def descending(columns: Iterable[str]) -> tuple[By, ...]:
    """A ranking by *columns*, largest first and nulls last."""
    return tuple(By(column, descending=True, nulls_last=True) for column in columns)


def ascending(columns: Iterable[str], *, nulls_last: bool = False) -> tuple[By, ...]:
    return tuple(By(column, nulls_last=nulls_last) for column in columns)


def require_ordered(stage: StageNode, schema: pl.Schema, columns: Iterable[str], why: str) -> None:
    """Refuse columns that do not exist, or whose values cannot be compared.

    Raises:
        ConfigurationError: one of *columns* is of that kind.
    """
    for column in columns:
        if not is_ordered(column_type(stage.uid, schema, column, why)):
            raise wrong_type(stage.uid, schema, column, why)


def require_rows(stage: StageNode, n: int) -> None:
    """Refuse a ranking of less than one row.

    Raises:
        ConfigurationError: *n* is not positive.
    """
    if n < 1:
        raise ConfigurationError(f"stage {stage.uid!r} needs n of 1 or more, not {n}")


def _group_count(rows: pl.DataFrame, group: Sequence[str]) -> int:
    """An estimate of the number of groups."""
    sample = rows.select(group).filter(pl.col(group[0]) & (_SAMPLED - 1) == 0)
    return _SAMPLED * sample.n_unique()


def _row_number(group: Sequence[str], equal: Sequence[str] | None = None) -> pl.Expr:
    """The number of a sorted row in *group*; rows equal in the columns *equal* share the first."""
    position = pl.int_range(pl.len(), dtype=pl.Int32)
    start = pl.when(differs_from_previous(group)).then(position).forward_fill()
    if equal is not None:
        position = pl.when(differs_from_previous(equal)).then(position).forward_fill()
    return position - start + 1
