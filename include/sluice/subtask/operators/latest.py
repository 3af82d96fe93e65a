"""``Latest``: per key the row with the largest ``by``, compared column by column.

Null is the smallest value.  Of rows equal in ``by`` the row that is larger in its other columns
wins, whatever the order of arrival.

Over a changelog all current rows are kept, in a ``Bag``: when the latest is taken back, the one
before it is the latest again, and a key without rows has none.

Output is an upsert stream on the key: the rows that changed, in the columns of the input, with the
rows that they replace as retractions.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.errors import ConfigurationError
from sluice.subtask.operators.bag import Bag
from sluice.subtask.operators.operator import (
    WEIGHT,
    Changes,
    EpochTime,
    Frames,
    Outcome,
    Partial,
    SparkPartial,
    input_schema,
    key_types,
    require_distinct,
)
from sluice.subtask.operators.ranking import Ranking, descending, require_ordered
from sluice.subtask.operators.retractable_ranking import RetractableRanking
from sluice.subtask.operators.row_comparison import beside, differs
from sluice.subtask.state.keyed import KeyedState, StateSchema, newest_per_identity
from sluice.subtask.state.segments import HASH

ROWS = "rows"
BAG = "bag"

_RANK = "_rank"  # Always 1; not the input's own column ``rank``.


class Latest:
    """An ``Operator``; see ``sluice.subtask.operators.operator``."""

    is_order_sensitive = False

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        """*schema* is that of the input.

        Raises:
            ConfigurationError: the input cannot be compared so.
        """
        operation = stage.operation
        assert isinstance(operation, ops.Latest)
        self._input = input_schema(schema)
        key_types(stage.uid, self._input, stage.keys)
        require_distinct(stage.uid, [*self._input, _RANK])
        if not operation.by:
            raise ConfigurationError(
                f"stage {stage.uid!r} needs a column by which one row is later than another: by=..."
            )
        require_ordered(stage, self._input, operation.by, "to tell which row is the latest")
        self._key = (HASH, *stage.keys)
        self._is_refreshed = stage.ttl_ms is not None
        order = dict.fromkeys((*operation.by, *self._input))
        order = {name: None for name in order if name not in stage.keys}
        self._ranking = Ranking(n=1, order=descending(order or stage.keys))
        self.output_schema = self._input
        self._schema = StateSchema(columns=self._input, key_columns=stage.keys, ttl_ms=stage.ttl_ms)
        self.tables = {ROWS: self._schema}
        self._bag = Bag(self._input, stage.keys, ttl_ms=stage.ttl_ms)
        self._retractable: RetractableRanking | None = None
        if WEIGHT in schema:
            self._retractable = RetractableRanking(self._bag, self._ranking, self._key, rank=_RANK)
            self.tables[BAG] = self._bag.schema

    def needed_columns(self) -> tuple[str, ...] | None:
        return None

    def spark_partial(self) -> SparkPartial | None:
        return None

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        late = self._input.to_frame()
        if self._retractable is not None:
            return Partial(groups={BAG: self._bag.weighed(rows)}, late=late)
        return Partial(groups={ROWS: self._latest(rows)}, late=late)

    def combine(self, groups: Frames) -> Frames:
        if self._retractable is not None:
            return {BAG: self._bag.folded(groups[BAG])}
        return {ROWS: self._latest(groups[ROWS])}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        if self._retractable is not None:
            return self._of_changelog(self._retractable, groups, state)
        rows = newest_per_identity(groups[ROWS], self._key)
        before = state[ROWS].find(rows)
        latest = self._latest(pl.concat([rows, before.drop_nulls(HASH)]))  # In the order of *rows*.
        is_news = differs(latest, before, latest.columns)
        result = self.output_schema.names()
        return Outcome(
            output=latest.filter(is_news).select(result),
            retracted=before.filter(is_news & before[HASH].is_not_null()).select(result),
            changes={
                ROWS: Changes(
                    upserts=latest if self._is_refreshed else latest.filter(is_news),
                    deletes=latest.clear(),
                )
            },
        )

    def _of_changelog(
        self, ranking: RetractableRanking, groups: Frames, state: Mapping[str, KeyedState]
    ) -> Outcome:
        names, result = self._schema.live.names(), self.output_schema.names()
        change = self._bag.changed(groups[BAG], state[BAG])
        before = state[ROWS].lookup(change.rows.select(self._key).unique())
        latest = ranking.best(change, before, state[BAG]).select(names)
        is_news = differs(latest, beside(latest, before, self._key), names)
        kept = latest.filter(~is_news)
        rows = Changes(
            upserts=latest if self._is_refreshed else latest.filter(is_news),
            deletes=before.join(latest, on=self._key, how="anti", nulls_equal=True),
        )
        replaced = before.join(
            kept, on=self._key, how="anti", nulls_equal=True, maintain_order="left"
        )
        return Outcome(
            output=latest.filter(is_news).select(result),
            retracted=replaced.select(result),
            changes={ROWS: rows, BAG: self._bag.changes(change)},
        )

    def _latest(self, rows: pl.DataFrame) -> pl.DataFrame:
        return self._ranking.best(rows, self._key).select(self._schema.live.names())
