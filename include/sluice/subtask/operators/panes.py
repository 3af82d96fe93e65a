"""``Panes``: the intervals of event time by which rows are grouped, and the windows made of them.

A tumbling window is one pane.  A hopping window consists of several, each as long as the slide, so
that a row is kept once and not in every window it belongs to (Flink SQL's slices); a pane is
identified by its start, which is also the start of the last window that it is part of.  An attached
window is one pane, identified by its start and its end.

A window [start, end) ends, and fires, when the watermark reaches its last millisecond, ``end`` - 1
(Flink's maxTimestamp()).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never

import polars as pl

from sluice.core.watermarks import MAX_WATERMARK, MIN_WATERMARK
from sluice.declaration.nodes import StageNode
from sluice.declaration.windows import Attached, Hopping, Session, Tumbling, Window
from sluice.errors import ConfigurationError
from sluice.subtask.operators.operator import column_type, wrong_type

WINDOW_START = "window_start"
WINDOW_END = "window_end"
INSTANT = pl.Datetime("us", "UTC")

_US_PER_MS = 1_000
US = timedelta(microseconds=1)

# The most panes of a window for which each pane is added to every window it is part of.  Doubling
# is faster for more: it folds a pane 2 * log2(panes) times, with the sums of several panes.
_FEW_PANES = 8

Combine = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panes:
    """The panes of the rows of one input; ``event_time`` is None for attached windows."""

    event_time: str | None = None
    size_us: int = 0
    slide_us: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that identify a pane of a key."""
        return (WINDOW_START, WINDOW_END) if self.event_time is None else (WINDOW_START,)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.columns if self.event_time is None else (self.event_time,)

    @property
    def per_window(self) -> int:
        return 1 if self.event_time is None else self.size_us // self.slide_us

    @property
    def overhang_ms(self) -> int:
        """The time between the ends of a pane's first window and its last one."""
        return (self.size_us - self.slide_us) // _US_PER_MS

    def of_rows(self) -> list[pl.Expr]:
        """Expressions for ``columns`` of rows; null in a row that is in no window."""
        if self.event_time is None:
            is_window = pl.col(WINDOW_START).is_not_null() & pl.col(WINDOW_END).is_not_null()
            return [pl.when(is_window).then(pl.col(name)).alias(name) for name in self.columns]
        us = pl.col(self.event_time).dt.epoch("us")
        # Polars rounds towards -infinity, so this is right before 1970, too.
        return [(us // self.slide_us * self.slide_us).cast(INSTANT).alias(WINDOW_START)]

    def end(self) -> pl.Expr:
        """The end of the last window that a pane is part of."""
        if self.event_time is None:
            return pl.col(WINDOW_END)
        end_us = pl.col(WINDOW_START).dt.epoch("us") + self.size_us
        return end_us.cast(INSTANT).alias(WINDOW_END)

    def last_fires_ms(self) -> pl.Expr:
        """The last millisecond of a pane's last window, for frames that have ``columns``."""
        return max_timestamp_ms(self.end())

    def first_fires_ms(self) -> pl.Expr:
        return self.last_fires_ms() - self.overhang_ms

    def fires(self, after_ms: int, until_ms: int) -> bool:
        """Whether some window may end after *after_ms* and not after *until_ms*."""
        if self.event_time is None:
            return True
        slide_ms = self.slide_us // _US_PER_MS
        return (after_ms + 1) // slide_ms < (until_ms + 1) // slide_ms

    def windows(
        self, panes: pl.DataFrame, after_ms: int, until_ms: int, combine: Combine
    ) -> pl.DataFrame:
        """The windows that end after *after_ms* and not after *until_ms*, with their bounds.

        *combine* folds rows of one key and window.
        """
        after_ms, until_ms = max(after_ms, MIN_WATERMARK), min(until_ms, MAX_WATERMARK)
        if self.per_window <= _FEW_PANES:
            parts = [
                self._useful(self._earlier(panes, index), after_ms, until_ms, 0)
                for index in range(self.per_window)
            ]
            windows = parts[0] if len(parts) == 1 else combine(pl.concat(parts))
        else:
            windows = self._doubled(panes, after_ms, until_ms, combine)
        return windows.with_columns(self.end())

    def _doubled(
        self, panes: pl.DataFrame, after_ms: int, until_ms: int, combine: Combine
    ) -> pl.DataFrame:
        """Windows of many panes, put together by doubling: 13 panes of blocks of 1, 4 and 8."""
        count = self.per_window
        width, offset = 1, 0
        # A row of *block* at s is the sum of *width* panes from s on.
        block = self._useful(panes, after_ms, until_ms, count - width)
        windows = block.clear()
        while True:
            if count & width:
                part = self._earlier(block, offset)
                windows = combine(pl.concat([windows, part])) if offset else part
                offset += width
            if 2 * width > count:
                return self._useful(windows, after_ms, until_ms, 0)
            block = combine(pl.concat([block, self._earlier(block, width)]))
            width *= 2
            block = self._useful(block, after_ms, until_ms, count - width)

    def _earlier(self, block: pl.DataFrame, panes: int) -> pl.DataFrame:
        if not panes:
            return block
        return block.with_columns(pl.col(WINDOW_START) - panes * self.slide_us * US)

    def _useful(
        self, block: pl.DataFrame, after_ms: int, until_ms: int, panes_later: int
    ) -> pl.DataFrame:
        """The rows of *block* in a window that ends in time and starts at most so much earlier."""
        last_ms = min(until_ms + panes_later * self.slide_us // _US_PER_MS, MAX_WATERMARK)
        ends_ms = self.last_fires_ms()
        return block.filter((ends_ms > after_ms) & (ends_ms <= last_ms))


def panes_of(stage: StageNode, window: Window, schema: pl.Schema) -> Panes:
    """The panes of *window* over the stage's input, whose columns are *schema*.

    Raises:
        ConfigurationError: the rows cannot be windowed so.
    """
    match window:
        case Attached():
            for name in (WINDOW_START, WINDOW_END):
                if column_type(stage.uid, schema, name, "of an attached window") != INSTANT:
                    raise wrong_type(
                        stage.uid, schema, name, f"as a bound of a window, which is {INSTANT}"
                    )
            return Panes()
        case Tumbling(size=size):
            slide = size
        case Hopping(size=size, slide=slide):
            pass
        case Session():
            raise AssertionError("a session has no panes")
        case _:
            assert_never(window)
    event_time = event_time_of(stage, schema)
    return Panes(event_time=event_time, size_us=size // US, slide_us=slide // US)


def event_time_of(stage: StageNode, schema: pl.Schema) -> str:
    """The column of event time of a stage's one input.

    Raises:
        ConfigurationError: it has none, or one that does not hold instants.
    """
    event_time = stage.inputs[0].event_time
    if event_time is None:
        raise ConfigurationError(
            f"stage {stage.uid!r} reads a stream without event time, by which it could be cut into "
            "windows; name the column: source(..., event_time='column')"
        )
    if column_type(stage.uid, schema, event_time, "for its event time") != INSTANT:
        raise wrong_type(stage.uid, schema, event_time, f"as event time, which is {INSTANT}")
    return event_time


def max_timestamp_ms(end: pl.Expr) -> pl.Expr:
    """The last millisecond of a window with that *end*."""
    return (end.dt.epoch("us") - 1) // _US_PER_MS


def require_append_only(stage: StageNode, what: str) -> None:
    """Refuse a stage whose input is not append-only, because *what* cannot take a row back.

    Raises:
        ConfigurationError: the input's rows are replaced by later ones.
    """
    if stage.reads_updates:
        raise ConfigurationError(
            f"stage {stage.uid!r} reads {stage.inputs[0].producer!r}, whose rows replace earlier "
            f"ones, and {what} cannot take a row back; let it read an append-only stream"
        )
