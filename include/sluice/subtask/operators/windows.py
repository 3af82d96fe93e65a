"""``AlignedWindow``: aggregates per key and tumbling, hopping or attached window of event time.

A window fires at the first barrier whose watermark reaches its last millisecond, if it has a row.
A row is late, and goes to the late rows unchanged, if it has no time, or if all its windows ended
before the epoch began and are not kept any more; no row is late for a window that ends at the row's
own barrier.

With ``allowed_lateness`` a window is kept that much longer.  A row that arrives in this time and
changes the result fires the window again, and the former result is retracted.  A TTL does not
apply: a window deletes its own state.

State is a row per key and pane, see ``sluice.subtask.operators.panes``, which is written when it
changes and not when it fires.  Its timer, ``_timer_ms``, is the end of its first window and, after
its last window has fired, the end of the lateness.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.core.watermarks import MIN_WATERMARK
from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.subtask.operators.aggregates import Fold, kernels
from sluice.subtask.operators.operator import (
    ROW_COUNT,
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
from sluice.subtask.operators.panes import (
    INSTANT,
    WINDOW_END,
    WINDOW_START,
    panes_of,
    require_append_only,
)
from sluice.subtask.operators.row_comparison import differs
from sluice.subtask.state.keyed import KeyedState, StateSchema, newest_per_identity
from sluice.subtask.state.segments import HASH

PANES = "panes"
TIMER = "_timer_ms"


class AlignedWindow:
    """An ``Operator``; see ``sluice.subtask.operators.operator``."""

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        """*schema* is that of the input.

        Raises:
            ConfigurationError: the input cannot be windowed so.
        """
        operation = stage.operation
        assert isinstance(operation, ops.WindowAggregate)
        require_append_only(stage, "a window")
        self._input = input_schema(schema)
        key_columns = key_types(stage.uid, self._input, stage.keys)
        self._keys = stage.keys
        self._panes = panes_of(stage, operation.window, self._input)
        self._lateness_ms = operation.allowed_lateness_ms
        self._fold = Fold(stage.uid, kernels(stage, operation.aggregates, schema))
        bounds = [name for name in (WINDOW_START, WINDOW_END) if name not in self._keys]
        within = [name for name in bounds if name in self._panes.columns]
        require_distinct(stage.uid, [*self._keys, *bounds, *operation.aggregates])
        require_distinct(stage.uid, [*self._keys, *bounds, TIMER, *self._fold.columns])
        self._schema = StateSchema(
            columns=pl.Schema(
                {
                    **key_columns,
                    **dict.fromkeys(within, INSTANT),
                    TIMER: pl.Int64(),
                    **self._fold.states,
                }
            ),
            key_columns=self._keys,
            sub_key_columns=tuple(within),
            time_column=TIMER,
        )
        self.tables = {PANES: self._schema}
        self.output_schema = pl.Schema(
            {**key_columns, **dict.fromkeys(bounds, INSTANT), **self._fold.results}
        )

    @property
    def is_order_sensitive(self) -> bool:
        return self._fold.is_order_sensitive

    def needed_columns(self) -> tuple[str, ...] | None:
        return None  # Late rows keep all their columns.

    def spark_partial(self) -> SparkPartial | None:
        return None  # Spark's groups would not say which rows are late.

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - it has one input
        panes = rows.select(self._panes.of_rows())
        kept_until_ms = self._panes.last_fires_ms() + self._lateness_ms
        is_live = panes.select(kept_until_ms > time.previous_watermark_ms).to_series()
        is_live = is_live.fill_null(value=False)
        late = rows.select(self._input.names()).filter(~is_live)
        live = rows.select(self._fold.reads_of(rows, self._keys)).with_columns(panes)
        if late.height:
            live = live.filter(is_live)
        groups = self._fold.partial(live, self._keys, self._panes.columns)
        counted = groups.select(HASH, ROW_COUNT)
        return Partial(groups={PANES: groups.drop(ROW_COUNT)}, late=late, counted=counted)

    def combine(self, groups: Frames) -> Frames:
        return {PANES: self._combined(groups[PANES])}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        identity = list(self._schema.identity)
        touched = newest_per_identity(groups[PANES], identity)
        before = state[PANES].find(touched)
        after = self._timed(self._fold.merge(touched, before), time)
        due = self._due(state[PANES], time)
        known = before.filter(pl.col(TIMER) <= time.watermark_ms)
        untouched = due.join(known, on=identity, how="anti", nulls_equal=True)
        retimed = self._timed(untouched, time)

        begun = self._panes.first_fires_ms() <= time.watermark_ms
        fired = self._windows(
            pl.concat([retimed, after]).filter(begun),
            time.previous_watermark_ms,
            time.watermark_ms,
        )
        again = retracted = fired.clear()
        if self._lateness_ms:
            again, retracted = self._fired_again(before, after, state[PANES], time)
        names = self.output_schema.names()
        order = [HASH, *self._keys, WINDOW_START, WINDOW_END]

        is_kept = self._kept_until_ms() > time.watermark_ms
        is_changed = differs(after, before, [TIMER, *self._fold.states])
        is_retimed = differs(retimed, untouched, [TIMER])
        written = pl.concat([after.filter(is_changed), retimed.filter(is_retimed)])
        changes = Changes(
            upserts=newest_per_identity(written.filter(is_kept), identity),
            deletes=due.filter(~is_kept).select(identity),
        )
        return Outcome(
            output=pl.concat([fired, again]).sort(order).select(names),
            retracted=retracted.sort(order).select(names) if self._lateness_ms else None,
            changes={PANES: changes},
        )

    def _combined(self, groups: pl.DataFrame) -> pl.DataFrame:
        return self._fold.combine(groups, self._keys, self._panes.columns)

    def _kept_until_ms(self) -> pl.Expr:
        return self._panes.last_fires_ms() + self._lateness_ms

    def _timed(self, panes: pl.DataFrame, time: EpochTime) -> pl.DataFrame:
        """*panes* with their next timer after this epoch, in the columns of the state."""
        has_fired = self._panes.last_fires_ms() <= time.watermark_ms
        first_ms, kept_ms = self._panes.first_fires_ms(), self._kept_until_ms()
        timer = pl.when(has_fired).then(kept_ms).otherwise(first_ms).alias(TIMER)
        return panes.with_columns(timer).select(self._schema.live.names())

    def _due(self, state: KeyedState, time: EpochTime) -> pl.DataFrame:
        """The panes of every window that ends in this epoch, and those whose lateness is over."""
        start_ms, end_ms = time.previous_watermark_ms, time.watermark_ms
        lateness_ms = self._lateness_ms
        if not (
            self._panes.fires(start_ms, end_ms)
            or self._panes.fires(start_ms - lateness_ms, end_ms - lateness_ms)
        ):
            return self._schema.live.to_frame()
        # A pane whose last window had ended has fired; the first window of any other ended at most
        # the overhang earlier.
        return state.due(end_ms, after_ms=max(start_ms - self._panes.overhang_ms, MIN_WATERMARK))

    def _fired_again(
        self, before: pl.DataFrame, after: pl.DataFrame, state: KeyedState, time: EpochTime
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """New results of windows that have fired before, and the former results they replace."""
        watermark_ms = time.previous_watermark_ms
        had_begun = self._panes.first_fires_ms() <= watermark_ms
        is_late = after.select(had_begun).to_series()
        was, now = before.filter(is_late & before[HASH].is_not_null()), after.filter(is_late)
        if now.is_empty():
            nothing = self._windows(now.clear(), watermark_ms, watermark_ms)
            return nothing, nothing
        if self._panes.per_window > 1:
            was = state.lookup(now.select(self._schema.key).unique())
            others = was.join(after, on=self._schema.identity, how="anti", nulls_equal=True)
            keys = now.select(self._schema.key).unique()
            mine = after.join(keys, on=self._schema.key, how="semi", nulls_equal=True)
            now = pl.concat([others, mine])
        kept_ms = watermark_ms - self._lateness_ms
        results = self._windows(now, kept_ms, watermark_ms)
        former = self._windows(was, kept_ms, watermark_ms)
        return _missing_in(former, results), _missing_in(results, former)

    def _windows(self, panes: pl.DataFrame, after_ms: int, until_ms: int) -> pl.DataFrame:
        """The results of the windows that end in between, with the hash."""
        windows = self._panes.windows(panes.drop(TIMER), after_ms, until_ms, self._combined)
        bounds = [pl.col(name) for name in (WINDOW_START, WINDOW_END) if name not in self._keys]
        return self._fold.result(windows, [HASH, *self._keys, *bounds])


def _missing_in(known: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.join(known, on=rows.columns, how="anti", nulls_equal=True)
