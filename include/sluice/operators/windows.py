"""``AlignedWindow`` and ``SessionWindow``: aggregates per key and window of event time.

A window [start, end) ends, and fires, at the first barrier whose watermark reaches its last
millisecond, ``end`` - 1 (Flink's maxTimestamp()), if it has a row.  A row is late, and goes to the
late rows unchanged, if it has no time, or if all its windows ended before the epoch began and are
not kept any more; no row is late for a window that ends at the row's own barrier.

With ``allowed_lateness`` a window is kept that much longer.  A row that arrives in this time and
changes the result fires the window again, and the former result is retracted.  A TTL does not
apply: a window deletes its own state.

State is a row per key and pane (``Panes``), or session, which is written when it changes and not
when it fires.  The timer of a pane, ``_timer_ms``, is the end of its first window and, after its
last window has fired, the end of the lateness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import gcd
from typing import assert_never

import polars as pl

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import Attached, Hopping, Session, Tumbling, Window
from sluice.operators.aggregate import Fold, FoldedGroups, kernels
from sluice.operators.kernels import Argument, extreme
from sluice.operators.operator import (
    ROW_COUNT,
    EpochTime,
    Frames,
    Outcome,
    Partial,
    column_type,
    differs,
    differs_from_previous,
    input_schema,
    key_types,
    require_distinct,
    wrong_type,
)
from sluice.state.at_once import chosen, passing, without
from sluice.state.key_hash import with_hash
from sluice.state.keyed import Changes, KeyedState
from sluice.state.runs import newest_per_identity
from sluice.state.segments import HASH, StateSchema

PANES = "panes"
SESSIONS = "sessions"
SUSPECTS = "suspects"  # Rows that are late unless a newer row joins their session.
TIMER = "_timer_ms"
WINDOW_START = "window_start"
WINDOW_END = "window_end"
WINDOW = (WINDOW_START, WINDOW_END)
INSTANT = pl.Datetime("us", "UTC")

_STRETCH = "_stretch"
_SESSION = "_session"  # Numbers the sessions of an epoch.
_IS_STORED = "_is_stored"

US = timedelta(microseconds=1)
US_PER_MS = 1_000

# The most panes of a window for which each pane is added to every window it is part of.  Doubling
# is faster for more: it folds a pane 2 * log2(panes) times, with the sums of several panes.
_FEW_PANES = 8

Combine = Callable[[pl.DataFrame], pl.DataFrame]


class AlignedWindow(FoldedGroups):
    """Aggregates per key and tumbling, hopping or attached window."""

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        operation = stage.operation
        assert isinstance(operation, ops.WindowAggregate)
        self._input = input_schema(schema)
        key_columns = key_types(stage.uid, self._input, stage.keys)
        self._keys = stage.keys
        self._panes = panes_of(stage, operation.window, self._input)
        self._lateness_ms = operation.allowed_lateness_ms
        self._fold = Fold(stage.uid, kernels(stage, operation.aggregates, schema))
        # Windows of the rows may be keys; of others a key would be hidden by the bound.
        of_rows = self._keys if self._panes.event_time is None else ()
        bounds = [name for name in WINDOW if name not in of_rows]
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

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - it has one input
        panes = rows.select(self._panes.of_rows())
        kept_until_ms = self._kept_until_ms()
        is_live = panes.select(kept_until_ms > time.previous_watermark_ms).to_series()
        is_live = is_live.fill_null(value=False)
        late = passing(chosen(rows, self._input), ~is_live)
        live = chosen(rows, self._fold.reads_of(rows, self._keys)).with_columns(panes)
        if late.height:
            live = live.filter(is_live)
        groups = self._fold.partial(live, self._keys, self._panes.columns)
        counted = chosen(groups, (HASH, ROW_COUNT))
        panes_alone = without(groups, (ROW_COUNT,))
        return Partial(groups={PANES: panes_alone}, late=late, counted=counted)

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
        order = [HASH, *self._keys, *WINDOW]

        is_kept = self._kept_until_ms() > time.watermark_ms
        is_changed = differs(after, before, [TIMER, *self._fold.states])
        is_retimed = differs(retimed, untouched, [TIMER])
        written = pl.concat([passing(after, is_changed), passing(retimed, is_retimed)])
        changes = Changes(
            upserts=newest_per_identity(written.filter(is_kept), identity),
            deletes=chosen(due.filter(~is_kept), identity),
        )
        return Outcome(
            output=chosen(pl.concat([fired, again]).sort(order), names),
            retracted=chosen(retracted.sort(order), names) if self._lateness_ms else None,
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
        return chosen(panes.with_columns(timer), self._schema.live)

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
            keys = now.select(self._schema.key).unique()
            was = state.lookup(keys)
            others = was.join(after, on=self._schema.identity, how="anti", nulls_equal=True)
            touched = after.join(keys, on=self._schema.key, how="semi", nulls_equal=True)
            now = pl.concat([others, touched])
        kept_ms = watermark_ms - self._lateness_ms
        results = self._windows(now, kept_ms, watermark_ms)
        former = self._windows(was, kept_ms, watermark_ms)
        return _missing_in(former, results), _missing_in(results, former)

    def _windows(self, panes: pl.DataFrame, after_ms: int, until_ms: int) -> pl.DataFrame:
        """The results of the windows that end in between, with the hash."""
        windows = self._panes.windows(panes.drop(TIMER), after_ms, until_ms, self._combined)
        bounds = [pl.col(name) for name in WINDOW if name not in self._keys]
        return self._fold.result(windows, [HASH, *self._keys, *bounds])


def _missing_in(known: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.join(known, on=rows.columns, how="anti", nulls_equal=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panes:
    """The intervals of event time by which rows of one input are grouped, and their windows.

    A tumbling window is one pane.  A hopping window consists of several, each as long as the
    greatest common divisor of size and slide, so that a row is kept once and not in every window it
    belongs to (Flink SQL's slices); a pane is identified by its start.  An attached window is one
    pane, identified by its start and its end; ``event_time`` is then None.
    """

    event_time: str | None = None
    size_us: int = 0
    slide_us: int = 0

    @property
    def length_us(self) -> int:
        return gcd(self.size_us, self.slide_us)

    @property
    def is_even(self) -> bool:
        """Whether a window starts with every pane."""
        return self.slide_us == self.length_us

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that identify a pane of a key."""
        return WINDOW if self.event_time is None else (WINDOW_START,)

    @property
    def per_window(self) -> int:
        return 1 if self.event_time is None else self.size_us // self.length_us

    @property
    def overhang_ms(self) -> int:
        """The most time between the ends of a pane's first window and its last one."""
        return (self.size_us - self.length_us) // US_PER_MS

    def of_rows(self) -> list[pl.Expr]:
        """Expressions for ``columns`` of rows; null in a row that is in no window."""
        if self.event_time is None:
            is_window = pl.col(WINDOW_START).is_not_null() & pl.col(WINDOW_END).is_not_null()
            return [pl.when(is_window).then(pl.col(name)).alias(name) for name in self.columns]
        us = pl.col(self.event_time).dt.epoch("us")
        # Polars rounds towards -infinity, so this is right before 1970, too.
        return [(us // self.length_us * self.length_us).cast(INSTANT).alias(WINDOW_START)]

    def end(self) -> pl.Expr:
        """The end of the window that starts with a pane."""
        if self.event_time is None:
            return pl.col(WINDOW_END)
        end_us = pl.col(WINDOW_START).dt.epoch("us") + self.size_us
        return end_us.cast(INSTANT).alias(WINDOW_END)

    def last_fires_ms(self) -> pl.Expr:
        """The last millisecond of a pane's last window, for frames that have ``columns``."""
        return max_timestamp_ms(self.end()) - self._since_a_start_us() // US_PER_MS

    def first_fires_ms(self) -> pl.Expr:
        """The same of its first window, which ends with the pane, or up to a slide later."""
        fires_ms = max_timestamp_ms(self.end()) - self.overhang_ms
        if self.is_even:
            return fires_ms
        to_an_end_us = self.size_us - self.length_us - pl.col(WINDOW_START).dt.epoch("us")
        return fires_ms + to_an_end_us % self.slide_us // US_PER_MS

    def fires(self, after_ms: int, until_ms: int) -> bool:
        """Whether some window may end after *after_ms* and not after *until_ms*."""
        if self.event_time is None:
            return True
        slide_ms, size_ms = self.slide_us // US_PER_MS, self.size_us // US_PER_MS
        return (after_ms + 1 - size_ms) // slide_ms < (until_ms + 1 - size_ms) // slide_ms

    def windows(
        self, panes: pl.DataFrame, after_ms: int, until_ms: int, combine: Combine
    ) -> pl.DataFrame:
        """The windows that end after *after_ms* and not after *until_ms*, with their bounds.

        *combine* folds rows of one key and window.
        """
        after_ms, until_ms = max(after_ms, MIN_WATERMARK), min(until_ms, MAX_WATERMARK)
        if self.per_window <= _FEW_PANES:
            parts = [
                self._useful(self._started(self._earlier(panes, index)), after_ms, until_ms, 0)
                for index in range(self.per_window)
            ]
            windows = parts[0] if len(parts) == 1 else combine(pl.concat(parts))
        else:
            windows = self._doubled(panes, after_ms, until_ms, combine)
        return self._started(windows).with_columns(self.end())

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
        return block.with_columns(pl.col(WINDOW_START) - panes * self.length_us * US)

    def _started(self, block: pl.DataFrame) -> pl.DataFrame:
        """The rows of *block* with whose pane a window starts."""
        return block if self.is_even else block.filter(self._since_a_start_us() == 0)

    def _since_a_start_us(self) -> pl.Expr:
        """The time from the start of the last window that a pane is part of to its own."""
        if self.is_even:
            return pl.lit(0)
        return pl.col(WINDOW_START).dt.epoch("us") % self.slide_us

    def _useful(
        self, block: pl.DataFrame, after_ms: int, until_ms: int, panes_later: int
    ) -> pl.DataFrame:
        """The rows of *block* in a window that ends in time and starts at most so much earlier."""
        last_ms = min(until_ms + panes_later * self.length_us // US_PER_MS, MAX_WATERMARK)
        ends_ms = max_timestamp_ms(self.end())
        return block.filter((ends_ms > after_ms) & (ends_ms <= last_ms))


def panes_of(stage: StageNode, window: Window, schema: pl.Schema) -> Panes:
    """The panes of *window* over the stage's input, whose columns are *schema*.

    Raises:
        ConfigurationError: the rows cannot be windowed so.
    """
    match window:
        case Attached():
            for name in WINDOW:
                if column_type(stage.uid, schema, name, "of an attached window") != INSTANT:
                    raise wrong_type(
                        stage.uid, schema, name, "as a bound of a window, which is a timestamp"
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
    event_time = event_time_column(stage, schema)
    return Panes(event_time=event_time, size_us=size // US, slide_us=slide // US)


def event_time_column(stage: StageNode, schema: pl.Schema) -> str:
    """The column of event time of a stage's one input.

    Raises:
        ConfigurationError: it does not hold instants.
    """
    event_time = stage.inputs[0].event_time
    assert event_time is not None, "the declaration has refused a window without one"
    if column_type(stage.uid, schema, event_time, "for its event time") != INSTANT:
        raise wrong_type(stage.uid, schema, event_time, "as event time, which is a timestamp")
    return event_time


def max_timestamp_ms(end: pl.Expr) -> pl.Expr:
    """The last millisecond of a window with that *end*."""
    return (end.dt.epoch("us") - 1) // US_PER_MS


class SessionWindow(FoldedGroups):
    """Aggregates per key and session; a session ends with a gap without rows.

    Flink's EventTimeSessionWindows: a row at t opens a window [t, t + gap), and windows of a key
    that overlap or touch are merged, also with those of earlier epochs.  So ``window_start`` is the
    time of the first row, and ``window_end`` the time of the last row plus the gap.

    A row is late if its session was over before the epoch began and is not kept any more; a row
    that joins an open session is not late, however old it is.  A session that has fired is kept for
    its ``allowed_lateness``, and fires again as an aligned window does.

    Rows are first folded by key and by intervals of event time as long as the gap, as the rows of
    one such interval always belong to one session.
    """

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        operation = stage.operation
        assert isinstance(operation, ops.WindowAggregate)
        assert isinstance(operation.window, Session)
        self._input = input_schema(schema)
        key_columns = key_types(stage.uid, self._input, stage.keys)
        self._keys = stage.keys
        self._time = event_time_column(stage, self._input)
        self._gap_us = operation.window.gap // US
        self._lateness_ms = operation.allowed_lateness_ms
        aggregated = kernels(stage, operation.aggregates, schema)
        first, last = (Argument(name=n, label=n, column=self._time, dtype=INSTANT) for n in WINDOW)
        bounds = (extreme(first, smallest=True), extreme(last, smallest=False))
        self._fold = Fold(stage.uid, (*bounds, *aggregated))
        require_distinct(stage.uid, [*self._keys, *WINDOW, *operation.aggregates])
        reserved = (TIMER, _STRETCH, _SESSION, _IS_STORED)
        require_distinct(stage.uid, [*self._keys, *reserved, *self._fold.columns])
        self._schema = StateSchema(
            columns=pl.Schema({**key_columns, TIMER: pl.Int64(), **self._fold.states}),
            key_columns=self._keys,
            sub_key_columns=(WINDOW_START,),
            time_column=TIMER,
        )
        self.tables = {SESSIONS: self._schema}
        self.output_schema = pl.Schema({**key_columns, **self._fold.results})

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - it has one input
        has_time = rows[self._time].is_not_null()
        late = passing(chosen(rows, self._input), ~has_time)
        if late.height:
            rows = rows.filter(has_time)
        names = self._fold.reads_of(rows, self._keys)
        stretched = rows.select(*names, self._stretch().alias(_STRETCH))
        folded = self._fold.partial(stretched, self._keys, [_STRETCH])
        minis = without(folded, (ROW_COUNT,))
        end = pl.col(self._time) + self._gap_us * US
        is_suspect = max_timestamp_ms(end) + self._lateness_ms <= time.previous_watermark_ms
        suspects = rows.filter(is_suspect)
        if HASH not in suspects.columns:
            suspects = with_hash(suspects, self._keys)
        return Partial(
            groups={
                SESSIONS: minis.with_columns(pl.col(WINDOW_END) + self._gap_us * US),
                SUSPECTS: chosen(suspects, (HASH, *self._input)),
            },
            late=late,
            counted=chosen(folded, (HASH, ROW_COUNT)),
        )

    def combine(self, groups: Frames) -> Frames:
        minis = self._fold.combine(groups[SESSIONS], self._keys, [_STRETCH])
        return {SESSIONS: minis, SUSPECTS: groups[SUSPECTS]}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        sessions = state[SESSIONS]
        rows = self._numbered(groups[SESSIONS], sessions)
        merged = self._merged(rows, time)
        is_late = self._kept_until_ms() <= time.previous_watermark_ms
        columns = self._schema.live.names()
        after = chosen(merged.filter(~is_late), columns)
        before = sessions.find(after)  # The merged session with the same start.
        stored = rows.filter(_IS_STORED).join(merged, on=_SESSION, how="semi")
        replaced = chosen(stored, columns)
        due = sessions.due(time.watermark_ms, after_ms=time.previous_watermark_ms)
        due = self._without(due, replaced)
        waiting = due.filter(~_has_fired())

        results = list(self._fold.results)
        is_repeated = before.select(_has_fired().fill_null(value=False)).to_series()
        is_repeated &= ~differs(self._result(after), self._result(before), results)
        fires = _max_timestamp_ms() <= time.watermark_ms
        fired = pl.concat([after.filter(~is_repeated, fires), waiting])
        revoked = self._without(replaced.filter(_has_fired()), after.filter(is_repeated))

        is_kept = self._kept_until_ms() > time.watermark_ms
        written = [passing(after, differs(after, before, columns)), self._timed(waiting, time)]
        gone = [self._without(replaced, after.filter(is_kept)), due.filter(~is_kept)]
        identity = self._schema.identity
        changes = Changes(
            upserts=newest_per_identity(pl.concat(written).filter(is_kept), identity),
            deletes=newest_per_identity(chosen(pl.concat(gone), identity), identity),
        )
        names = self.output_schema.names()
        return Outcome(
            output=chosen(self._result(newest_per_identity(fired, identity)), names),
            retracted=(
                chosen(self._result(newest_per_identity(revoked, identity)), names)
                if self._lateness_ms
                else None
            ),
            changes={SESSIONS: changes},
            late={0: self._late(groups[SUSPECTS], rows, merged.filter(is_late))},
        )

    def _numbered(self, minis: pl.DataFrame, state: KeyedState) -> pl.DataFrame:
        """*minis* and the stored sessions of their keys, numbered by their merged session."""
        key = self._schema.key
        # A stored session and a mini may begin together: they are two rows.
        order = [*self._schema.identity, _IS_STORED]
        no, yes = (pl.lit(value).alias(_IS_STORED) for value in (False, True))
        rows = newest_per_identity(minis.with_columns(no), order)
        stored = state.lookup(rows.select(key).filter(differs_from_previous(key)))
        rows = pl.concat([rows, stored.with_columns(yes)], how="diagonal")
        rows = newest_per_identity(rows, order) if stored.height else rows
        is_first = differs_from_previous(key)
        key_number = is_first.cum_sum()

        def reach(counts: pl.Expr) -> pl.Expr:
            """The latest end of the earlier rows of this key, of those that *counts* selects.

            Stored sessions do not overlap, nor do minis: the last one of each kind ends latest.
            """
            last_end = pl.when(counts).then(WINDOW_END).forward_fill().shift()
            last_key = pl.when(counts).then(key_number).forward_fill().shift()
            return pl.when(last_key == key_number).then(last_end)

        reached = pl.max_horizontal(reach(pl.col(_IS_STORED)), reach(~pl.col(_IS_STORED)))
        begins = is_first | (pl.col(WINDOW_START) > reached)
        return rows.with_columns(begins.cum_sum().set_sorted().alias(_SESSION))

    def _merged(self, rows: pl.DataFrame, time: EpochTime) -> pl.DataFrame:
        """The merged sessions that have a row of this epoch, with their numbers."""
        first = pl.col(self._schema.key).first()
        groups = rows.group_by(_SESSION, maintain_order=True).agg(
            first, *self._fold.combining(), pl.col(_IS_STORED).all()
        )
        return self._timed(groups.filter(~pl.col(_IS_STORED)), time, _SESSION)

    def _late(self, suspects: pl.DataFrame, rows: pl.DataFrame, late: pl.DataFrame) -> pl.DataFrame:
        """The rows of *suspects* that belong to *late* sessions."""
        on = [*self._schema.key, _STRETCH]
        stretches = rows.filter(~pl.col(_IS_STORED)).join(late, on=_SESSION, how="semi").select(on)
        stretched = suspects.with_columns(self._stretch().alias(_STRETCH))
        found = stretched.join(stretches, on=on, how="semi", nulls_equal=True)
        return chosen(found, self._input)

    def _stretch(self) -> pl.Expr:
        return pl.col(self._time).dt.epoch("us") // self._gap_us

    def _kept_until_ms(self) -> pl.Expr:
        return _max_timestamp_ms() + self._lateness_ms

    def _timed(self, sessions: pl.DataFrame, time: EpochTime, *others: str) -> pl.DataFrame:
        """*sessions* with their next timer after this epoch, in the columns of the state."""
        has_fired = _max_timestamp_ms() <= time.watermark_ms
        timer = pl.when(has_fired).then(self._kept_until_ms()).otherwise(_max_timestamp_ms())
        return chosen(sessions.with_columns(timer.alias(TIMER)), (*others, *self._schema.live))

    def _result(self, sessions: pl.DataFrame) -> pl.DataFrame:
        return self._fold.result(sessions, self._keys)

    def _without(self, sessions: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
        return sessions.join(
            others, on=self._schema.identity, how="anti", nulls_equal=True, maintain_order="left"
        )


def _max_timestamp_ms() -> pl.Expr:
    return max_timestamp_ms(pl.col(WINDOW_END))


def _has_fired() -> pl.Expr:
    """Whether a stored session has fired: its timer is then the end of its lateness."""
    return pl.col(TIMER) > _max_timestamp_ms()
