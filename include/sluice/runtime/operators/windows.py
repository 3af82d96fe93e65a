"""``TumblingWindow``: aggregates per key and fixed stretch of event time.

Flink's ``TumblingEventTimeWindows`` without allowed lateness.  Windows are aligned to 1970, before
it, too.  A window [start, end) fires once, at the first barrier whose watermark is at least end - 1
ms; then its state goes.  A row whose window fired in an earlier epoch is late, and so is a row
without an event time: late rows leave as they came.  No row is late for a window that fires at the
barrier of the row's own epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from sluice.aggregates import Aggregate
from sluice.errors import ConfigurationError
from sluice.runtime.operators.aggregates import changed_groups, group_rows, kernels
from sluice.runtime.operators.operator import (
    Outcome,
    Partial,
    Watermarks,
    column_type,
    input_schema,
    key_types,
    require_distinct,
    wrong_type,
)
from sluice.runtime.state.keyed import KeyedState, StateSchema

WINDOW_START = "window_start"
WINDOW_END = "window_end"
_MAX_TIMESTAMP_MS = "window_max_timestamp_ms"  # Flink's maxTimestamp(): end - 1.
_INSTANT = pl.Datetime("us", "UTC")
_US_PER_MS = 1_000


class TumblingWindow:
    """An ``Operator``; see ``sluice.runtime.operators.operator``."""

    def __init__(
        self,
        uid: str,
        keys: Sequence[str],
        size_ms: int,
        event_time: str,
        aggregates: Mapping[str, Aggregate],
        schema: pl.Schema,
    ) -> None:
        """*schema* is that of the input.

        Raises:
            ConfigurationError: the input cannot be windowed so.
        """
        if size_ms < 1:
            raise ConfigurationError(f"stage {uid!r} needs a window of 1 ms or more, not {size_ms}")
        self._input = input_schema(schema)
        if column_type(uid, self._input, event_time, "for its event time") != _INSTANT:
            raise wrong_type(uid, self._input, event_time, f"as event time, which is {_INSTANT}")
        key_columns = key_types(uid, self._input, keys)
        require_distinct(uid, [*keys, WINDOW_START, WINDOW_END, _MAX_TIMESTAMP_MS, *aggregates])
        self._size_ms = size_ms
        self._event_time = event_time
        self._keys = tuple(keys)
        self._kernels = kernels(uid, aggregates, self._input)
        states = {k.name: k.state_type for k in self._kernels}
        results = {k.name: k.result_type for k in self._kernels}
        self.state_schema = StateSchema(
            columns=pl.Schema(
                {**key_columns, WINDOW_START: _INSTANT, _MAX_TIMESTAMP_MS: pl.Int64(), **states}
            ),
            key_columns=self._keys,
            sub_key_columns=(WINDOW_START,),
            time_column=_MAX_TIMESTAMP_MS,
        )
        self.output_schema = pl.Schema(
            {**key_columns, WINDOW_START: _INSTANT, WINDOW_END: _INSTANT, **results}
        )

    def partial(self, rows: pl.DataFrame, watermarks: Watermarks) -> Partial:
        rows = rows.with_columns(self._window_start().alias(WINDOW_START))
        live = self._max_timestamp_ms() > watermarks.previous_ms
        is_live = rows.select(live.fill_null(value=False)).to_series()
        return Partial(
            groups=self._grouped(rows.filter(is_live), [k.partial for k in self._kernels]),
            late=rows.filter(~is_live).select(self._input.names()),
        )

    def combine(self, groups: pl.DataFrame) -> pl.DataFrame:
        return self._grouped(groups, [k.combine for k in self._kernels])

    def process(self, groups: pl.DataFrame, state: KeyedState, watermarks: Watermarks) -> Outcome:
        changed = changed_groups(self._kernels, groups, state)
        due = state.due(watermarks.current_ms)
        untouched = due.join(changed, on=self.state_schema.identity, how="anti", nulls_equal=True)
        fires = pl.col(_MAX_TIMESTAMP_MS) <= watermarks.current_ms
        return Outcome(
            output=self._results(pl.concat([untouched, changed.filter(fires)])),
            upserts=changed.filter(~fires),
            deletes=due.select(self.state_schema.identity),
            late=self._input.to_frame(),
        )

    def _window_start(self) -> pl.Expr:
        size_us = self._size_ms * _US_PER_MS
        instant = pl.col(self._event_time).dt.epoch("us")
        return (instant // size_us * size_us).cast(_INSTANT)  # Polars divides towards -infinity.

    def _max_timestamp_ms(self) -> pl.Expr:
        start_ms = pl.col(WINDOW_START).dt.epoch("us") // _US_PER_MS
        return (start_ms + self._size_ms - 1).alias(_MAX_TIMESTAMP_MS)

    def _grouped(self, rows: pl.DataFrame, expressions: Sequence[pl.Expr]) -> pl.DataFrame:
        groups = group_rows(rows, [*self._keys, WINDOW_START], expressions)
        return groups.with_columns(self._max_timestamp_ms()).select(self.state_schema.live.names())

    def _results(self, windows: pl.DataFrame) -> pl.DataFrame:
        end_us = (pl.col(_MAX_TIMESTAMP_MS) + 1) * _US_PER_MS
        return windows.sort(WINDOW_START, *self._keys).select(
            *self._keys,
            WINDOW_START,
            end_us.cast(_INSTANT).alias(WINDOW_END),
            *(k.final for k in self._kernels),
        )
