"""``SessionWindow``: aggregates per key and session; a session ends with a gap without rows.

Flink's EventTimeSessionWindows: a row at t opens a window [t, t + gap), and windows of a key that
overlap or touch are merged, also with those of earlier epochs.  So ``window_start`` is the time of
the first row, and ``window_end`` the time of the last row plus the gap.  A session fires at the
first barrier whose watermark reaches its last millisecond.

A row is late, and goes to the late rows unchanged, if its session was over before the epoch began
and is not kept any more; a row that joins an open session is not late, however old it is.  With
``allowed_lateness`` a session is kept after it has fired, and fires again when a row changes it;
the former result is then retracted.  A TTL does not apply.

Rows are first folded by key and by intervals of event time as long as the gap, as the rows of one
such interval always belong to one session.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import Session
from sluice.operators.aggregate import Fold, FoldedGroups, kernels
from sluice.operators.kernels import Argument, extreme
from sluice.operators.operator import (
    ROW_COUNT,
    EpochTime,
    Frames,
    Outcome,
    Partial,
    differs,
    differs_from_previous,
    input_schema,
    key_types,
    require_distinct,
)
from sluice.operators.windows import (
    INSTANT,
    TIMER,
    US,
    WINDOW,
    WINDOW_END,
    WINDOW_START,
    event_time_column,
    max_timestamp_ms,
    require_append_only,
)
from sluice.state.at_once import chosen, passing, without
from sluice.state.key_hash import with_hash
from sluice.state.keyed import Changes, KeyedState
from sluice.state.runs import newest_per_identity
from sluice.state.segments import HASH, StateSchema

SESSIONS = "sessions"
SUSPECTS = "suspects"  # Rows that are late unless a newer row joins their session.

_STRETCH = "_stretch"
_SESSION = "_session"  # Numbers the sessions of an epoch.
_IS_STORED = "_is_stored"


class SessionWindow(FoldedGroups):
    """An ``Operator``; see ``sluice.operators.operator``."""

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        """*schema* is that of the input.

        Raises:
            ConfigurationError: the input cannot be cut into sessions.
        """
        operation = stage.operation
        assert isinstance(operation, ops.WindowAggregate)
        assert isinstance(operation.window, Session)
        require_append_only(stage, "a window")
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
