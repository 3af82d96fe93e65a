"""``WindowTopN``: the n rows with the largest value of each key and window, when it has ended.

Windows, late rows and firing are those of ``AlignedWindow``, without allowed lateness.  Of rows
equal in ``by`` the smallest in the other columns wins; with ``has_ties`` they have the same rank.
Nulls come last.  Without key columns the window is the key.

Output is append-only: the columns of the input, the bounds of the window unless the rows had them,
and the rank.  State is the best rows of each pane, each with its position.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.core.watermarks import MIN_WATERMARK
from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.subtask.operators.operator import (
    Changes,
    EpochTime,
    Frames,
    Outcome,
    Partial,
    SparkPartial,
    column_type,
    input_schema,
    require_distinct,
)
from sluice.subtask.operators.panes import (
    INSTANT,
    WINDOW_END,
    WINDOW_START,
    panes_of,
    require_append_only,
)
from sluice.subtask.operators.ranking import (
    RANK,
    Ranking,
    ascending,
    descending,
    numbered,
    require_ordered,
    require_rows,
)
from sluice.subtask.operators.row_comparison import beside, differs
from sluice.subtask.operators.windows import TIMER
from sluice.subtask.state.keyed import KeyedState, StateSchema, newest_per_identity
from sluice.subtask.state.segments import HASH

ROWS = "rows"
_POSITION = "_position"


class WindowTopN:
    """An ``Operator``; see ``sluice.subtask.operators.operator``."""

    is_order_sensitive = False

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        """*schema* is that of the input.

        Raises:
            ConfigurationError: the input cannot be ranked so.
        """
        operation = stage.operation
        assert isinstance(operation, ops.WindowTopN)
        require_append_only(stage, "a window")
        self._input = input_schema(schema)
        for key in stage.keys:
            column_type(stage.uid, self._input, key, "for its key")
        require_rows(stage, operation.n)
        require_ordered(stage, self._input, (operation.by,), "to rank by")
        self._panes = panes_of(stage, operation.window, self._input)
        bounds = (WINDOW_START, WINDOW_END)
        added = bounds if self._panes.event_time is not None else ()
        require_distinct(stage.uid, [*self._input, *added, RANK, TIMER, _POSITION])
        keys = stage.keys or (WINDOW_START,)
        within = [name for name in self._panes.columns if name not in keys]
        self._pane = (HASH, *keys, *within)
        rest = [name for name in self._input if name != operation.by]
        others = ascending(name for name in rest if name not in self._pane)
        order = (*descending([operation.by]), *others)
        self._ranking = Ranking(n=operation.n, order=order, has_ties=operation.has_ties)
        ours = {_POSITION: pl.Int32(), TIMER: pl.Int64()}
        columns = {**self._input, **dict.fromkeys(added[:1], INSTANT)}
        self._columns = (HASH, *columns)
        self._schema = StateSchema(
            columns=pl.Schema({**columns, **ours}),
            key_columns=keys,
            sub_key_columns=(*within, _POSITION),
            time_column=TIMER,
        )
        self.tables = {ROWS: self._schema}
        self.output_schema = pl.Schema(
            {**self._input, **dict.fromkeys(added, INSTANT), RANK: pl.Int32()}
        )

    def needed_columns(self) -> tuple[str, ...] | None:
        return None

    def spark_partial(self) -> SparkPartial | None:
        return None

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - it has one input
        placed = rows.select(HASH, *self._input).with_columns(self._panes.of_rows())
        is_open = self._panes.last_fires_ms() > time.previous_watermark_ms
        is_live = placed.select(is_open.fill_null(value=False)).to_series()
        late = rows.select(self._input.names()).filter(~is_live)
        return Partial(groups={ROWS: self._best(placed.filter(is_live))}, late=late)

    def combine(self, groups: Frames) -> Frames:
        return {ROWS: self._best(groups[ROWS])}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        new = groups[ROWS]
        panes = new.select(self._pane).unique()
        stored = state[ROWS].lookup(new.select(self._schema.key).unique())
        before = stored.join(panes, on=self._pane, how="semi", nulls_equal=True)
        after = self._placed(pl.concat([new, before.select(self._columns)]))
        due = self._due(state[ROWS], time)
        untouched = due.join(panes, on=self._pane, how="anti", nulls_equal=True)

        begun = self._panes.first_fires_ms() <= time.watermark_ms
        ripe = pl.concat([untouched, after]).filter(begun).select(self._columns)
        is_kept = self._panes.last_fires_ms() > time.watermark_ms
        identity = self._schema.identity
        is_changed = differs(after, beside(after, before, identity), after.columns)
        dropped = before.join(after, on=identity, how="anti", nulls_equal=True)
        gone = pl.concat([due.filter(~is_kept), dropped]).select(identity)
        changes = Changes(
            upserts=after.filter(is_changed).filter(is_kept),
            deletes=newest_per_identity(gone, identity),
        )
        return Outcome(output=self._ended(ripe, time), changes={ROWS: changes})

    def _due(self, state: KeyedState, time: EpochTime) -> pl.DataFrame:
        """The stored panes of every window that ends in this epoch."""
        start_ms, end_ms = time.previous_watermark_ms, time.watermark_ms
        if not self._panes.fires(start_ms, end_ms):
            return self._schema.live.to_frame()
        return state.due(end_ms, after_ms=max(start_ms - self._panes.overhang_ms, MIN_WATERMARK))

    def _best(self, rows: pl.DataFrame) -> pl.DataFrame:
        return self._ranking.best(rows, self._pane).select(self._columns)

    def _placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The best of *rows* in each pane, in the columns of the state."""
        best = numbered(self._ranking.best(rows, self._pane), self._pane, _POSITION)
        placed = best.with_columns(self._panes.first_fires_ms().alias(TIMER))
        return placed.select(self._schema.live.names())

    def _ended(self, panes: pl.DataFrame, time: EpochTime) -> pl.DataFrame:
        """The result of every window that ends in this epoch."""
        windows = self._panes.windows(
            panes, time.previous_watermark_ms, time.watermark_ms, self._best
        )
        return self._ranking.ranked(windows, self._pane).select(self.output_schema.names())
