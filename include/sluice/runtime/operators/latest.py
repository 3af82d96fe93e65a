"""``Latest``: per key the row with the largest ``by``, compared column by column.

Null is smaller than anything.  Of rows equal in ``by`` the one that is larger in its other columns
stays, whenever they came.  Rows that are taken back are passed over: a row that replaces one is
expected to be later.

Output is an upsert stream on the key, the rows that changed, each in the columns of the input; what
is retracted are the rows that these replace.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice import operations as ops
from sluice.errors import ConfigurationError
from sluice.nodes import StageNode
from sluice.runtime.operators.aggregates import differs
from sluice.runtime.operators.operator import (
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
from sluice.runtime.operators.ranking import Ranking, descending, require_ordered
from sluice.runtime.state.keyed import KeyedState, StateSchema, newest_per_identity
from sluice.runtime.state.segments import HASH

ROWS = "rows"


class Latest:
    """An ``Operator``; see ``sluice.runtime.operators.operator``."""

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
        require_distinct(stage.uid, self._input)
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

    def needed_columns(self) -> tuple[str, ...] | None:
        return None

    def spark_partial(self) -> SparkPartial | None:
        return None

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        if WEIGHT in rows.columns:  # Without it nobody needs what rows are taken back.
            rows = rows.filter(pl.col(WEIGHT) > 0)
        return Partial(groups={ROWS: self._latest(rows)}, late=self._input.to_frame())

    def combine(self, groups: Frames) -> Frames:
        return {ROWS: self._latest(groups[ROWS])}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        rows = newest_per_identity(groups[ROWS], self._key)
        before = state[ROWS].find(rows)
        latest = self._latest(pl.concat([rows, before.drop_nulls(HASH)]))  # In the order of rows.
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

    def _latest(self, rows: pl.DataFrame) -> pl.DataFrame:
        return self._ranking.best(rows, self._key).select(self._schema.live.names())
