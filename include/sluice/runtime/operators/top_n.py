"""``TopN``: per key, the n rows with the largest value; Flink's ``UpdatableTopNFunction``.

Input is an upsert stream on key and ``unique`` columns in which ``by`` never decreases: then a row
that was overtaken by n others need not be remembered.  Ties go to the smaller ``unique`` columns;
nulls in ``by`` come last.  Two versions of a row with equal ``by`` in one epoch: the one with the
larger other columns, so that the order of arrival decides nothing.

Output is an upsert stream on key and rank: the rows that changed, sorted by hash, key and rank.
State is one row per key and rank, so a rank that did not change is not written again.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from sluice.errors import ConfigurationError
from sluice.runtime.operators.operator import (
    Outcome,
    Partial,
    Watermarks,
    column_type,
    input_schema,
    key_types,
    require_distinct,
)
from sluice.runtime.state.keyed import KeyedState, StateSchema, newest_per_identity
from sluice.runtime.state.segments import HASH

RANK = "rank"


class TopN:
    """An ``Operator``; see ``sluice.runtime.operators.operator``."""

    def __init__(
        self,
        uid: str,
        keys: Sequence[str],
        n: int,
        by: str,
        unique: Sequence[str],
        schema: pl.Schema,
    ) -> None:
        """*schema* is that of the input.

        Raises:
            ConfigurationError: the input cannot be ranked so.
        """
        if n < 1:
            raise ConfigurationError(f"stage {uid!r} needs n of 1 or more, not {n}")
        if not unique:
            raise ConfigurationError(f"stage {uid!r} needs the columns that make a row unique")
        self._input = input_schema(schema)
        key_columns = key_types(uid, self._input, keys)
        for column in unique:
            column_type(uid, self._input, column, "to make its rows unique")
        column_type(uid, self._input, by, "to rank by")
        require_distinct(uid, [RANK, *self._input])
        self._n = n
        self._by = by
        self._key = (HASH, *keys)
        self._row = (*self._key, *(column for column in unique if column not in keys))
        others = {name: dtype for name, dtype in self._input.items() if name not in keys}
        self._others = tuple(others)
        self.output_schema = pl.Schema({**key_columns, RANK: pl.Int32(), **others})
        self.state_schema = StateSchema(
            columns=self.output_schema, key_columns=tuple(keys), sub_key_columns=(RANK,)
        )

    def partial(self, rows: pl.DataFrame, watermarks: Watermarks) -> Partial:  # noqa: ARG002 - time plays no part here
        return Partial(groups=self.combine(rows), late=self._input.to_frame())

    def combine(self, groups: pl.DataFrame) -> pl.DataFrame:
        """The last version of each row, of the n best per key: no other can end among the best."""
        groups = groups.select(*self._key, *self._others)
        others = [name for name in self._others if name != self._by]
        last_first = groups.sort(self._by, *others, descending=True, nulls_last=True)
        return self._ranked(newest_per_identity(last_first, self._row)).drop(RANK)

    def process(self, groups: pl.DataFrame, state: KeyedState, watermarks: Watermarks) -> Outcome:  # noqa: ARG002 - as above
        before = state.lookup(groups.select(self._key).unique())
        # The first of two versions stays: an update beats what it updates.
        rows = pl.concat([groups, before.select(groups.columns)])
        ranked = self._ranked(newest_per_identity(rows, self._row))
        changed = ranked.join(
            before, on=ranked.columns, how="anti", nulls_equal=True, maintain_order="left"
        )
        return Outcome(
            output=changed.select(self.output_schema.names()),
            upserts=changed,
            deletes=before.clear().select(self.state_schema.identity),
            late=self._input.to_frame(),
        )

    def _ranked(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The n best of each key with their ranks, sorted by hash, key and rank."""
        unique = self._row[len(self._key) :]
        best_first = rows.sort(
            *self._key,
            self._by,
            *unique,
            descending=[*(False for _ in self._key), True, *(False for _ in unique)],
            nulls_last=[*(False for _ in self._key), True, *(False for _ in unique)],
        )
        same_key = pl.all_horizontal(
            pl.col(name).eq_missing(pl.col(name).shift()) for name in self._key
        )
        position = pl.int_range(pl.len(), dtype=pl.Int32)
        first = pl.when(~same_key | (position == 0)).then(position).forward_fill()
        ranked = best_first.with_columns((position - first + 1).alias(RANK))
        return ranked.filter(pl.col(RANK) <= self._n).select(self.state_schema.live.names())
