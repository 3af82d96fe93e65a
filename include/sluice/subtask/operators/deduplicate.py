"""``Deduplicate``: the first row of each key, emitted once.

Of several rows of one key in one epoch, the row with the smallest ``by`` is the first (the event
time by default; null comes last), then the row that is smallest in its other columns.  Output is
append-only; state is the keys alone.  With a TTL a key is forgotten when no row of it came for that
long.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.subtask.operators.operator import (
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
from sluice.subtask.operators.panes import require_append_only
from sluice.subtask.operators.ranking import Ranking, ascending, require_ordered
from sluice.subtask.state.keyed import KeyedState, StateSchema, newest_per_identity
from sluice.subtask.state.segments import HASH

KEYS = "keys"
_ROWS = "rows"


class Deduplicate:
    """An ``Operator``; see ``sluice.subtask.operators.operator``."""

    is_order_sensitive = False

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        """*schema* is that of the input.

        Raises:
            ConfigurationError: the input cannot be deduplicated so.
        """
        operation = stage.operation
        assert isinstance(operation, ops.Deduplicate)
        require_append_only(stage, "a deduplication")
        self._input = input_schema(schema)
        key_columns = key_types(stage.uid, self._input, stage.keys)
        require_distinct(stage.uid, self._input)
        by = operation.by or stage.inputs[0].event_time
        first = () if by is None else (by,)
        require_ordered(stage, self._input, first, "to tell which row is the first")
        self._key = (HASH, *stage.keys)
        self._is_refreshed = stage.ttl_ms is not None
        order = dict.fromkeys((*first, *self._input))
        names = [name for name in order if name not in stage.keys] or stage.keys
        self._ranking = Ranking(n=1, order=ascending(names, nulls_last=True))
        self.output_schema = self._input
        self._schema = StateSchema(columns=key_columns, key_columns=stage.keys, ttl_ms=stage.ttl_ms)
        self.tables = {KEYS: self._schema}

    def needed_columns(self) -> tuple[str, ...] | None:
        return None

    def spark_partial(self) -> SparkPartial | None:
        return None

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        return Partial(groups={_ROWS: self._first(rows)}, late=self._input.to_frame())

    def combine(self, groups: Frames) -> Frames:
        return {_ROWS: self._first(groups[_ROWS])}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        rows = newest_per_identity(groups[_ROWS], self._key)
        is_new = state[KEYS].find(rows)[HASH].is_null()
        keys = rows.select(self._schema.live.names())
        return Outcome(
            output=rows.filter(is_new).select(self.output_schema.names()),
            changes={
                KEYS: Changes(
                    upserts=keys if self._is_refreshed else keys.filter(is_new),
                    deletes=keys.clear(),
                )
            },
        )

    def _first(self, rows: pl.DataFrame) -> pl.DataFrame:
        return self._ranking.best(rows, self._key).select(HASH, *self._input)
