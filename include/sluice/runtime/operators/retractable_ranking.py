"""``RetractableRanking``: the n best rows of each key of a changelog, of which rows are taken back.

All rows are kept, in a ``Bag`` beside the ranks that were sent.  An epoch reads of it what it
touches, and all rows of a key only where a row that was not sent may move up: a ranked one went, or
fell behind the last of those that were sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from sluice.runtime.operators.aggregates import differs_from_previous
from sluice.runtime.operators.bag import COPIES, Bag, BagChange, repeated
from sluice.runtime.operators.ranking import By, Ranking
from sluice.runtime.state.keyed import KeyedState

_IS_FORMER = "_is_former"
_RUN = "_run"


class RetractableRanking:
    """*ranking* tells any two rows of *bag* apart that are not equal."""

    def __init__(self, bag: Bag, ranking: Ranking, key: Sequence[str], *, rank: str) -> None:
        """*rank* is what the column of the ranks is called."""
        self._bag = bag
        self._rank = rank
        self._ranking = ranking
        self._key = tuple(key)
        order = (*ranking.order, By(_IS_FORMER))
        self._better = Ranking(n=1, order=order)

    def best(self, change: BagChange, before: pl.DataFrame, state: KeyedState) -> pl.DataFrame:
        """The ranked rows, with their ranks, of every key that *change* touches.

        *before* are those that were sent of these keys, sorted by key and rank; *state* is the
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
        """Ranked rows, sorted, as rows of the bag: equal ones have neighbouring ranks."""
        names = self._bag.schema.live.names()
        identity = self._bag.identity
        runs = ranked.with_columns(differs_from_previous(identity).cum_sum().alias(_RUN))
        copies = pl.len().over(_RUN).cast(pl.Int64).alias(COPIES)
        return runs.with_columns(copies).select(names)

    def _short(self, ranked: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """The keys of which a row may be among the best that is neither ranked nor touched.

        Those that had n rows, all others being no better than the n-th, and whose n-th is now
        worse than that, or is none.
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
