"""``TopN``: per key, the n rows with the largest value.

Without ``unique`` columns every row counts, duplicates too (Flink's AppendOnlyTopNFunction).  With
them, over an append-only stream, a row replaces the earlier one with the same ``unique`` columns,
and ``by`` must never decrease (Flink's UpdatableTopNFunction): so a row below rank n is dropped.

Over a changelog all current rows are kept, in a ``Bag``, and when a ranked row is taken back the
next one moves up (Flink's RetractableTopNFunction); ``unique`` then only decides ties.  With a TTL,
ranks expire when their key was not touched for that long, other rows when they themselves were not.

Ties in ``by`` go to the smallest ``ties_by``, then the smallest ``unique``, then the smallest other
columns; nulls in ``by`` come last.  Of two versions of a row with equal ``by`` in one epoch, the
one with the larger other columns is kept, so that the order of arrival decides nothing.

Output is an upsert stream on key and rank: the ranks that changed, with the rows that had them
before as retractions.  State is a row per key and rank; an unchanged rank is not written again.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.subtask.operators.bag import Bag
from sluice.subtask.operators.operator import (
    WEIGHT,
    Changes,
    EpochTime,
    Frames,
    Outcome,
    Partial,
    SparkPartial,
    column_type,
    input_schema,
    key_types,
    require_distinct,
)
from sluice.subtask.operators.ranking import (
    RANK,
    Ranking,
    ascending,
    descending,
    require_ordered,
    require_rows,
)
from sluice.subtask.operators.retractable_ranking import RetractableRanking
from sluice.subtask.operators.row_comparison import beside, differs
from sluice.subtask.state.keyed import KeyedState, StateSchema, newest_per_identity
from sluice.subtask.state.segments import HASH

ROWS = "rows"
BAG = "bag"


class TopN:
    """An ``Operator``; see ``sluice.subtask.operators.operator``."""

    is_order_sensitive = False

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        """*schema* is that of the input.

        Raises:
            ConfigurationError: the input cannot be ranked so.
        """
        operation = stage.operation
        assert isinstance(operation, ops.TopN)
        self._input = input_schema(schema)
        key_columns = key_types(stage.uid, self._input, stage.keys)
        require_rows(stage, operation.n)
        require_ordered(stage, self._input, (operation.by,), "to rank by")
        require_ordered(stage, self._input, operation.ties_by, "to rank equal ones by")
        for column in operation.unique:
            column_type(stage.uid, self._input, column, "to make its rows unique")
        require_distinct(stage.uid, [RANK, *self._input])
        self._key = (HASH, *stage.keys)
        self._unique = operation.unique
        self._is_refreshed = stage.ttl_ms is not None
        others = {name: dtype for name, dtype in self._input.items() if name not in stage.keys}
        self._others = tuple(others)
        newest = dict.fromkeys((operation.by, *others))
        self._newest = Ranking(n=1, order=descending(newest))
        ties = dict.fromkeys((*operation.ties_by, *operation.unique, *others))
        done = (*stage.keys, operation.by)
        ties_by = ascending(name for name in ties if name not in done)
        self._ranking = Ranking(n=operation.n, order=(*descending([operation.by]), *ties_by))
        self.output_schema = pl.Schema({**key_columns, RANK: pl.Int32(), **others})
        self._schema = StateSchema(
            columns=self.output_schema,
            key_columns=stage.keys,
            sub_key_columns=(RANK,),
            ttl_ms=stage.ttl_ms,
        )
        self.tables = {ROWS: self._schema}
        self._bag = Bag(self._input, stage.keys, ttl_ms=stage.ttl_ms)
        self._retractable: RetractableRanking | None = None
        if WEIGHT in schema:
            self._retractable = RetractableRanking(self._bag, self._ranking, self._key, rank=RANK)
            self.tables[BAG] = self._bag.schema

    def needed_columns(self) -> tuple[str, ...] | None:
        return None

    def spark_partial(self) -> SparkPartial | None:
        return None

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        late = self._input.to_frame()
        if self._retractable is not None:
            return Partial(groups={BAG: self._bag.weighed(rows)}, late=late)
        return Partial(groups={ROWS: self._best(rows)}, late=late)

    def combine(self, groups: Frames) -> Frames:
        if self._retractable is not None:
            return {BAG: self._bag.folded(groups[BAG])}
        return {ROWS: self._best(groups[ROWS])}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        if self._retractable is not None:
            change = self._bag.changed(groups[BAG], state[BAG])
            before = state[ROWS].lookup(change.rows.select(self._key).unique())
            ranked = self._retractable.best(change, before, state[BAG])
            return self._outcome(ranked, before, {BAG: self._bag.changes(change)})
        rows = groups[ROWS]
        before = state[ROWS].lookup(rows.select(self._key).unique())
        # *unique* keeps the first of two versions, which is the newer one.
        both = pl.concat([rows, before.select(rows.columns)])
        if self._unique:
            both = newest_per_identity(both, [*self._key, *self._unique])
        return self._outcome(self._ranking.ranked(both, self._key), before, {})

    def _outcome(
        self, ranked: pl.DataFrame, before: pl.DataFrame, changes: Mapping[str, Changes]
    ) -> Outcome:
        """*before* are the ranks that were sent of the keys of *ranked*."""
        identity, names = self._schema.identity, self._schema.live.names()
        ranked = ranked.select(names)
        former = beside(ranked, before, identity)
        is_news = differs(ranked, former, names)
        gone = before.clear()
        if self._retractable is not None:
            gone = before.join(ranked, on=identity, how="anti", nulls_equal=True)
        replaced = former.filter(is_news & former[HASH].is_not_null())
        if gone.height:
            replaced = newest_per_identity(pl.concat([replaced, gone]), identity)
        result = self.output_schema.names()
        ranks = Changes(
            upserts=ranked if self._is_refreshed else ranked.filter(is_news),
            deletes=gone,
        )
        return Outcome(
            output=ranked.filter(is_news).select(result),
            retracted=replaced.select(result),
            changes={ROWS: ranks, **changes},
        )

    def _best(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The n best rows per key, each in its last version: no other row can be ranked."""
        rows = rows.select(*self._key, *self._others)
        if self._unique:
            rows = self._newest.best(rows, [*self._key, *self._unique])
        return self._ranking.best(rows, self._key)
