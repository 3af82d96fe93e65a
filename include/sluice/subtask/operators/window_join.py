"""``WindowJoin``: pairs of rows with equal keys in the same window, emitted when it has ended.

Flink's window join.  Rows are kept in state until the watermark reaches the last millisecond of
their window; then the window is joined, once, and its rows are deleted.  An inner join pairs them;
a left join pairs them, and emits left rows without a partner with nulls; a semi or anti join emits
the left rows that have or do not have a partner, and keeps only the keys of right rows.

A row is late, and goes to the late rows unchanged, if it has no time, or if all its windows ended
before the epoch began.  A TTL does not apply: a window deletes its own state.

Output ends with ``window_start`` and ``window_end``, and is sorted by hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

import polars as pl

from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import WindowJoin as Declared
from sluice.declaration.windows import Attached, Session, Window
from sluice.errors import ConfigurationError
from sluice.subtask.operators.join_rows import LEFT, RIGHT, SIDES, JoinColumns
from sluice.subtask.operators.operator import Changes, EpochTime, Frames, Outcome, Partial
from sluice.subtask.operators.panes import (
    INSTANT,
    US,
    WINDOW_END,
    WINDOW_START,
    max_timestamp_ms,
    panes_of,
)
from sluice.subtask.operators.raw_rows import SEQUENCE, RawRows, by_hash, sequenced
from sluice.subtask.state.keyed import KeyedState, StateSchema
from sluice.subtask.state.segments import HASH

WINDOW = (WINDOW_START, WINDOW_END)
_MAX_TIMESTAMP_MS = "window_max_timestamp_ms"  # Flink's maxTimestamp(): end - 1.


class WindowJoin(RawRows):
    """An ``Operator``; see ``sluice.subtask.operators.operator``."""

    def __init__(self, stage: StageNode, left: pl.Schema, right: pl.Schema) -> None:
        """*left* and *right* are the schemas of the inputs.

        Raises:
            ConfigurationError: the inputs cannot be joined so.
        """
        assert isinstance(stage.operation, Declared)
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
            ours=[_MAX_TIMESTAMP_MS, SEQUENCE],
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
    (last,) = panes.of_rows()
    slide, size = panes.slide_us * US, panes.size_us * US
    starts = [last - earlier * slide for earlier in range(panes.per_window)]
    return [(start, start + size) for start in starts]
