"""``RawRows``: the base of operators that need every single row: joins and the user's functions.

Their groups are the rows themselves, so nothing is folded before ``process``, which sorts the rows
by their content alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

import polars as pl

from sluice.subtask.operators.operator import EpochTime, Frames
from sluice.subtask.state.order import gathered, order_of
from sluice.subtask.state.segments import HASH

# The number of a row among those of its key: its checkpoint, then its place in that.
SEQUENCE = "_sequence"
_PLACE_BITS = 32  # Room for four billion rows of one key in one epoch, and two billion checkpoints.


class RawRows:
    """The methods of an ``Operator`` that are the same for all of these."""

    @property
    def is_order_sensitive(self) -> bool:
        return False

    def needed_columns(self) -> tuple[str, ...] | None:
        """None: all columns."""
        return None

    def spark_partial(self) -> None:
        """None: there is nothing to aggregate."""
        return

    def combine(self, groups: Frames) -> Frames:
        return groups


def in_order(rows: pl.DataFrame, first: Iterable[str]) -> pl.DataFrame:
    """*rows* sorted by the columns *first*, then by all others, so that only equal rows tie."""
    names = dict.fromkeys((*first, *rows.columns))
    return rows.sort(*names)


def sequenced(
    rows: pl.DataFrame, run: Sequence[str], time: EpochTime, *, then: Sequence[str] = ()
) -> pl.DataFrame:
    """*rows* in order, numbered within those equal in the columns *run*, which start with the hash.

    Within a run they are sorted by the columns *then*, and only then by all others.  The number
    does not depend on rows of other keys: a range of hashes numbers as the whole does.
    """
    assert run[0] == HASH, "the hash, which is never null, tells the first row from none"
    first_number = time.checkpoint_id << _PLACE_BITS
    number = (place_in_run(run) + first_number).alias(SEQUENCE)
    return in_order(rows, (*run, *then)).with_columns(number)


def place_in_run(run: Sequence[str]) -> pl.Expr:
    """The number of rows of the same *run* before a row, in a frame that is sorted by it."""
    place = pl.int_range(pl.len(), dtype=pl.Int64)
    is_first = reduce(or_, (pl.col(name).ne_missing(pl.col(name).shift()) for name in run))
    return place - pl.when(is_first).then(place).forward_fill()


def by_hash(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """*frames* as one, sorted by hash; rows of one hash keep their order."""
    rows = pl.concat(frames)
    order = order_of(rows[HASH].to_numpy())
    return rows if order is None else gathered(rows, order)
