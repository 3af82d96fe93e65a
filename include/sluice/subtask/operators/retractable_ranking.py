"""``RetractableRanking``: the n best rows of each key of a changelog, where rows are taken back.

All current rows are kept, in a ``Bag`` beside the ranks that were sent.  An epoch reads from it the
rows that it touches, and all rows of a key only where an unranked row may move up: because a ranked
one was taken back, or fell behind the last rank that was sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from sluice.subtask.operators.bag import COPIES, Bag, BagChange, repeated
from sluice.subtask.operators.ranking import By, Ranking
from sluice.subtask.operators.row_comparison import differs_from_previous
from sluice.subtask.state.keyed import KeyedState

_IS_FORMER = "_is_former"
_RUN = "_run"


class RetractableRanking:
    """A ranking of the rows of *bag*; no two different rows may tie in *ranking*."""

    def __init__(self, bag: Bag, ranking: Ranking, key: Sequence[str], *, rank: str) -> None:
        """*rank* is the name of the column of ranks."""
        self._bag = bag
        self._rank = rank
        self._ranking = ranking
        self._key = tuple(key)
        order = (*ranking.order, By(_IS_FORMER))
        self._better = Ranking(n=1, order=order)

    def best(self, change: BagChange, before: pl.DataFrame, state: KeyedState) -> pl.DataFrame:
        """The ranked rows, with their ranks, of every key that *change* touches.

        *before* are the ranked rows that were sent of these keys, by key and rank; *state* is the
        bag's.
        """
        ranked = self._of(change.overlaid(self._counted(before), self._bag.identity))
        short = self._short(ranked, before)
        if short.is_empty():
            return ranked
        everything = change.overlaid(state.lookup(short), self._bag.identity)
        mine = everything.join(short, on=self._key, how="semi", nulls_equal=True)
        others = ranked.join(short, on=self._key, how="anti", nulls_equal=True)
        again = pl.concat([others, self._of(mine)])
        return again.sort(*self._key, self._rank)

    def _of(self, rows: pl.DataFrame) -> pl.DataFrame:
        copies = rows[COPIES].clip(upper_bound=self._ranking.n)
        return self._ranking.ranked(repeated(rows.drop(COPIES), copies), self._key, self._rank)

    def _counted(self, ranked: pl.DataFrame) -> pl.DataFrame:
        """Ranked rows, sorted, as distinct rows of the bag; equal rows have neighbouring ranks."""
        names = self._bag.schema.live.names()
        identity = self._bag.identity
        runs = ranked.with_columns(differs_from_previous(identity).cum_sum().alias(_RUN))
        copies = pl.len().over(_RUN).cast(pl.Int64).alias(COPIES)
        return runs.with_columns(copies).select(names)

    def _short(self, ranked: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """The keys where a row that is neither ranked nor touched may now be among the best.

        Rows that were not sent are no better than the former n-th, so these are the keys that had
        an n-th row, and now have a worse one or none.
        """
        n = self._ranking.n
        place = pl.len().over(self._key)
        former = before.filter(place == n).unique(self._key, keep="last", maintain_order=True)
        last = ranked.filter(pl.col(self._rank) == n).select(self._bag.identity)
        both = pl.concat(
            [
                rows.with_columns(pl.lit(is_former).alias(_IS_FORMER))
                for rows, is_former in ((last, False), (former.select(last.columns), True))
            ]
        )
        better = self._better.best(both, self._key)
        held = better.filter(~pl.col(_IS_FORMER)).select(self._key)
        return former.select(self._key).join(held, on=self._key, how="anti", nulls_equal=True)
