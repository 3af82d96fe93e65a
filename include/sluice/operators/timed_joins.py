"""Joins bounded by event time: ``IntervalJoin`` and ``WindowJoin``, as in Flink.

Late rows go to the late rows of their input unchanged.  A TTL does not apply: event time bounds the
state.  Output is sorted by hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import numpy as np
import numpy.typing as npt
import polars as pl

from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import Attached, Session, Window
from sluice.errors import ConfigurationError
from sluice.operators.joins import LEFT, RIGHT, SIDES, JoinColumns, require_instant
from sluice.operators.operator import (
    SEQUENCE,
    EpochTime,
    Frames,
    Outcome,
    Partial,
    RawRows,
    by_hash,
    differs_from_previous,
    sequenced,
)
from sluice.operators.windows import (
    INSTANT,
    US,
    US_PER_MS,
    WINDOW,
    WINDOW_END,
    WINDOW_START,
    max_timestamp_ms,
    panes_of,
)
from sluice.state.keyed import Changes, KeyedState
from sluice.state.segments import HASH, StateSchema

Indices = npt.NDArray[np.int64]

_EXPIRES_MS = "_expires_ms"  # The watermark after which no partner can arrive.
_MATCHED = "_matched"  # Of a left join: whether a partner has arrived.
_STRETCH = "_stretch"
_MAX_TIMESTAMP_MS = "window_max_timestamp_ms"  # Flink's maxTimestamp(): end - 1.


class IntervalJoinOperator(RawRows):
    """The pairs of a left row and the right rows of its key whose time lies in its interval.

    The interval goes from the left row's time plus the lower bound to its time plus the upper
    bound, or to the instant in one of its columns; both ends are included.  A null there makes it
    empty.  Each pair is emitted once, in the epoch in which the second of the two arrives.

    A row leaves the state as soon as no partner can arrive any more; a left join then emits it with
    nulls if none did.  A row is late if its own time is null or not after the watermark at the
    epoch's start.  So as long as no row is late, the result does not depend on where epochs end.
    """

    def __init__(self, stage: StageNode, left: pl.Schema, right: pl.Schema) -> None:
        """*left* and *right* are the schemas of the inputs.

        Raises:
            ConfigurationError: the inputs cannot be joined so.
        """
        declared = stage.operation
        assert isinstance(declared, ops.IntervalJoin)
        reserved = [_EXPIRES_MS, _MATCHED, SEQUENCE]
        columns = JoinColumns(stage, left, right, declared.how, reserved=reserved)
        self._columns = columns
        self._times = [
            require_instant(stage.uid, columns.inputs[side], node.event_time, "as event time")
            for side, node in enumerate(stage.inputs)
        ]
        if declared.upper_column is not None:
            require_instant(
                stage.uid, columns.inputs[0], declared.upper_column, "as the end of its interval"
            )
        self._right_time = columns.kept_name(self._times[1])
        self._declared = declared
        self._is_left = declared.how == "left"
        matched = {_MATCHED: pl.Boolean()} if self._is_left else {}
        self.tables = {
            name: StateSchema(
                columns=pl.Schema({**kept, _EXPIRES_MS: pl.Int64(), **more, SEQUENCE: pl.Int64()}),
                key_columns=columns.keys,
                sub_key_columns=(SEQUENCE,),
                time_column=_EXPIRES_MS,
                is_written_once=not more,  # A match is noted in the left row of a left join.
            )
            for name, kept, more in zip(SIDES, columns.kept, (matched, {}), strict=True)
        }
        self.output_schema = columns.result

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:
        at_ms = pl.col(self._times[side]).dt.epoch("us") // US_PER_MS
        is_open = (at_ms > time.previous_watermark_ms).fill_null(value=False)
        is_live = rows.select(is_open).to_series()
        expires_ms = at_ms - self._declared.lower_ms if side else self._left_expires_ms(at_ms)
        kept = self._columns.of_input(rows.filter(is_live), side, expires_ms.alias(_EXPIRES_MS))
        if side or not self._is_left:
            kept = kept.drop_nulls(self._columns.keys)
        return Partial(
            groups={SIDES[side]: kept},
            late=rows.filter(~is_live).select(self._columns.inputs[side].names()),
        )

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        columns = self._columns
        left, right = (self._new(groups, side, time) for side in range(len(SIDES)))
        old_left = state[LEFT].lookup(columns.distinct_keys(right))
        old_right = state[RIGHT].lookup(columns.distinct_keys(left))
        # Sorted as ``interval_pairs`` needs it; state is sorted by sequence.
        old_right = old_right.sort(*columns.key, self._right_time, SEQUENCE)
        which, where = self._pairs(left, right)
        which_before, where_before = self._pairs(left, old_right)
        old_which, old_where = self._pairs(old_left, right)
        frames = [
            self._joined(left, right, which, where),
            self._joined(left, old_right, which_before, where_before),
            self._joined(old_left, right, old_which, old_where),
        ]
        waits = pl.col(_EXPIRES_MS) > time.watermark_ms
        due_left, due_right = (
            state[name].due(time.watermark_ms, after_ms=time.previous_watermark_ms)
            for name in SIDES
        )
        if self._is_left:
            left = _marked(left, np.append(which, which_before))
            was_alone = ~old_left[_MATCHED]
            newly = _marked(old_left, old_which).filter(was_alone & pl.col(_MATCHED))
            alone = ~pl.col(_MATCHED)
            due_alone = due_left.filter(alone).join(
                newly,
                on=self.tables[LEFT].identity,
                how="anti",
                nulls_equal=True,
                maintain_order="left",
            )
            frames.append(columns.without_right(due_alone))
            frames.append(columns.without_right(left.filter(~waits & alone)))
            left = by_hash([left, newly])
        return Outcome(
            output=by_hash(frames).drop(HASH),
            changes={
                LEFT: Changes(upserts=left.filter(waits), deletes=due_left),
                RIGHT: Changes(upserts=right.filter(waits), deletes=due_right),
            },
        )

    def _left_expires_ms(self, at_ms: pl.Expr) -> pl.Expr:
        if self._declared.upper_column is None:
            return at_ms + self._declared.upper_ms
        upper_ms = pl.col(self._declared.upper_column).dt.epoch("us") // US_PER_MS
        return upper_ms.fill_null(at_ms)  # An empty interval: no partner to wait for.

    def _pairs(self, left: pl.DataFrame, right: pl.DataFrame) -> tuple[Indices, Indices]:
        """All pairs whose times fit, to the microsecond."""
        left_us = pl.col(self._times[0]).dt.epoch("us")
        upper_us = (
            left_us + self._declared.upper_ms * US_PER_MS
            if self._declared.upper_column is None
            else pl.col(self._declared.upper_column).dt.epoch("us")
        )
        return interval_pairs(
            left,
            right,
            self._columns.key,
            lower=left_us + self._declared.lower_ms * US_PER_MS,
            upper=upper_us,
            at=pl.col(self._right_time).dt.epoch("us"),
        )

    def _joined(
        self, left: pl.DataFrame, right: pl.DataFrame, which: Indices, where: Indices
    ) -> pl.DataFrame:
        left = left[which].select(HASH, *self._columns.kept[0])
        return pl.concat([left, self._columns.of_right(right[where])], how="horizontal")

    def _new(self, groups: Frames, side: int, time: EpochTime) -> pl.DataFrame:
        schema = self.tables[SIDES[side]]
        if SIDES[side] not in groups:
            return schema.live.to_frame()
        then = (self._right_time,) if side else ()
        rows = sequenced(groups[SIDES[side]], schema.key, time, then=then)
        if _MATCHED in schema.columns:
            rows = rows.with_columns(pl.lit(False).alias(_MATCHED))  # noqa: FBT003 - a value
        return rows.select(schema.live.names())


def _marked(left: pl.DataFrame, which: Indices) -> pl.DataFrame:
    """*left* with the rows at the places *which* marked as matched."""
    is_matched = np.zeros(left.height, np.bool_)
    is_matched[which] = True
    return left.with_columns(pl.Series(_MATCHED, is_matched))


def interval_pairs(
    left: pl.DataFrame,
    right: pl.DataFrame,
    key: Sequence[str],
    *,
    lower: pl.Expr,
    upper: pl.Expr,
    at: pl.Expr,
) -> tuple[Indices, Indices]:
    """All pairs of equal *key* with ``lower <= at <= upper``, as places in *left* and in *right*.

    *right* is sorted by *key*, and the rows of a key by *at*, so nothing is sorted here: the cost
    follows the left rows and the pairs.  The pairs are in the order of *left*, then of *right*.
    *lower* and *upper*, of left rows, and *at*, of right rows, are int64.  A null, in a key or a
    bound, matches nothing.
    """
    if left.is_empty() or right.is_empty():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    starts, ends = _stretches(left, right, key)
    times = right.select(at).to_series().to_numpy()
    bounds = left.select(lower.alias("lower"), upper.alias("upper"))
    is_bounded = bounds.select(pl.all_horizontal(pl.all().is_not_null())).to_series().to_numpy()
    filled = bounds.fill_null(0)
    first = _places(times, filled["lower"].to_numpy(), starts, ends, after_equals=False)
    end = _places(times, filled["upper"].to_numpy(), starts, ends, after_equals=True)
    counts = np.where(is_bounded, np.maximum(end - first, 0), 0)  # An interval may be empty.
    offsets = np.cumsum(counts) - counts
    found = np.repeat(first - offsets, counts) + np.arange(counts.sum())
    return np.repeat(np.arange(left.height), counts), found


def _stretches(
    left: pl.DataFrame, right: pl.DataFrame, key: Sequence[str]
) -> tuple[Indices, Indices]:
    """For each left row, the first place of its key in *right*, and the one behind its last."""
    heads = right.select(differs_from_previous(key)).to_series().to_numpy(writable=True)
    heads[0] = True
    starts = np.flatnonzero(heads)
    numbered = right[starts].select(key).with_row_index(_STRETCH)
    joined = left.select(key).join(numbered, on=list(key), how="left", maintain_order="left")
    stretch = joined[_STRETCH].cast(pl.Int64).fill_null(len(starts)).to_numpy()
    # The last stretch, of keys that are missing on the right, is empty.
    firsts = np.append(starts, right.height)
    ends = np.append(firsts[1:], right.height)
    return firsts[stretch], ends[stretch]


def _places(
    times: Indices, sought: Indices, starts: Indices, ends: Indices, *, after_equals: bool
) -> Indices:
    """The places where each time *sought* would be inserted between its start and its end."""
    low, high = starts.copy(), ends.copy()
    while len(still := np.flatnonzero(low < high)):
        middle = (low[still] + high[still]) // 2
        found, wanted = times[middle], sought[still]
        is_before = found <= wanted if after_equals else found < wanted
        low[still[is_before]] = middle[is_before] + 1
        high[still[~is_before]] = middle[~is_before]
    return low


class WindowJoinOperator(RawRows):
    """Pairs of rows with equal keys in the same window, emitted when it has ended.

    Rows are kept in state until the watermark reaches the last millisecond of their window; then
    the window is joined, once, and its rows are deleted.  An inner join pairs them; a left join
    pairs them, and emits left rows without a partner with nulls; a semi or anti join emits the left
    rows that have or do not have a partner, and keeps only the keys of right rows.

    A row is late if it has no time, or if all its windows ended before the epoch began.  Output
    ends with ``window_start`` and ``window_end``.
    """

    def __init__(self, stage: StageNode, left: pl.Schema, right: pl.Schema) -> None:
        """*left* and *right* are the schemas of the inputs.

        Raises:
            ConfigurationError: the inputs cannot be joined so.
        """
        assert isinstance(stage.operation, ops.WindowJoin)
        self._how = stage.operation.how
        window = stage.operation.window
        bounds = dict.fromkeys(WINDOW, INSTANT)
        columns = JoinColumns(
            stage,
            left,
            right,
            self._how,
            apart=WINDOW if isinstance(window, Attached) else (),
            added=bounds,
            reserved=[_MAX_TIMESTAMP_MS, SEQUENCE],
        )
        self._columns = columns
        self._windows = [
            _windows(stage, side, window, schema) for side, schema in enumerate(columns.inputs)
        ]
        self._keeps_null_keys = (self._how in ("left", "anti"), False)
        self._counts = (True, self._how in ("inner", "left"))  # Whether duplicate rows count.
        self.tables = {
            name: StateSchema(
                columns=pl.Schema(
                    {
                        **kept,
                        **bounds,
                        _MAX_TIMESTAMP_MS: pl.Int64(),
                        **({SEQUENCE: pl.Int64()} if counts else {}),
                    }
                ),
                key_columns=columns.keys,
                sub_key_columns=(*WINDOW, SEQUENCE) if counts else WINDOW,
                time_column=_MAX_TIMESTAMP_MS,
                is_written_once=True,
            )
            for name, kept, counts in zip(SIDES, columns.kept, self._counts, strict=True)
        }
        self.output_schema = columns.result

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:
        windows = self._windows[side]
        is_open = max_timestamp_ms(windows[0][1]) > time.previous_watermark_ms  # The last one.
        is_live = rows.select(is_open.fill_null(value=False)).to_series()
        live = rows.filter(is_live)
        kept = pl.concat(
            self._columns.of_input(
                live,
                side,
                start.alias(WINDOW_START),
                end.alias(WINDOW_END),
                max_timestamp_ms(end).alias(_MAX_TIMESTAMP_MS),
            )
            for start, end in windows
        ).filter(pl.col(_MAX_TIMESTAMP_MS) > time.previous_watermark_ms)
        if not self._keeps_null_keys[side]:
            kept = kept.drop_nulls(self._columns.keys)
        return Partial(
            groups=self.combine({SIDES[side]: kept}),
            late=rows.filter(~is_live).select(self._columns.inputs[side].names()),
        )

    def combine(self, groups: Frames) -> Frames:
        if self._counts[1] or RIGHT not in groups:
            return groups
        return {**groups, RIGHT: groups[RIGHT].unique()}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        fires = pl.col(_MAX_TIMESTAMP_MS) <= time.watermark_ms
        fired: dict[str, pl.DataFrame] = {}
        changes: dict[str, Changes] = {}
        for side, name in enumerate(SIDES):
            new = self._new(groups, side, time)
            due = state[name].due(time.watermark_ms, after_ms=time.previous_watermark_ms)
            fired[name] = pl.concat([due, new.filter(fires)])
            kept = self._unknown(new.filter(~fires), state[name])
            changes[name] = Changes(upserts=kept, deletes=due)
        pairs = self._joined(fired[LEFT], fired[RIGHT])
        return Outcome(output=by_hash([pairs]).select(self.output_schema.names()), changes=changes)

    def _joined(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        match self._how:
            case "inner" | "left" as how:
                return self._columns.joined(left, right, how, also_on=WINDOW)
            case "semi" | "anti" as how:
                return self._columns.matched(left, right, how, also_on=WINDOW)
            case _:
                assert_never(self._how)

    def _new(self, groups: Frames, side: int, time: EpochTime) -> pl.DataFrame:
        schema = self.tables[SIDES[side]]
        if SIDES[side] not in groups:
            return schema.live.to_frame()
        if not self._counts[side]:
            return groups[SIDES[side]].sort(schema.identity)
        return sequenced(groups[SIDES[side]], (*schema.key, *WINDOW), time)

    def _unknown(self, rows: pl.DataFrame, state: KeyedState) -> pl.DataFrame:
        """*rows* without keys that are in state already."""
        if SEQUENCE in rows.columns:
            return rows
        return rows.filter(state.find(rows)[HASH].is_null())


def _windows(
    stage: StageNode, side: int, window: Window, schema: pl.Schema
) -> list[tuple[pl.Expr, pl.Expr]]:
    """Start and end of each window that a row of the input is in; the last to end comes first.

    Raises:
        ConfigurationError: the rows cannot be windowed so.
    """
    if isinstance(window, Session):
        raise ConfigurationError(
            f"stage {stage.uid!r} cannot join in session windows, which differ from side to side; "
            "use Tumbling, Hopping or Attached"
        )
    panes = panes_of(replace(stage, inputs=(stage.inputs[side],)), window, schema)
    if panes.event_time is None:
        start, end = panes.of_rows()
        return [(start, end)]
    (last,) = replace(panes, size_us=panes.slide_us).of_rows()
    slide, size = panes.slide_us * US, panes.size_us * US
    starts = [last - earlier * slide for earlier in range(-(-panes.size_us // panes.slide_us))]
    if not panes.is_even:  # The first one may have ended before a row: then it is null.
        at = pl.col(panes.event_time)
        starts[-1] = pl.when(starts[-1] + size > at).then(starts[-1])
    return [(start, start + size) for start in starts]
