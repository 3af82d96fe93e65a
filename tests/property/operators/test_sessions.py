"""Session windows against a few lines of Python that merge them one by one, as Flink does."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.declaration import aggregates as agg
from sluice.declaration.operations import Session, WindowAggregate
from sluice.operators.operator import EpochTime
from sluice.operators.windows import SessionWindow
from tests.examples import examples
from tests.property.operators.played import (
    AGGREGATES,
    MS,
    WHERES,
    WithColumns,
    a_result,
    a_stage,
    at,
    between,
    in_order,
    latenesses,
    max_timestamp_ms,
    names,
    play,
    rows_at,
    seeds,
    timed_histories,
    values,
)
from tests.property.operators.subtask import INPUT, Epoch, Row, Subtask, check_content_alone_decides

# Few keys and round instants, so that sessions touch, overlap and bridge.
moments = st.integers(-35, 35).map(at) | st.integers(-350, 350).map(lambda tenth: at(tenth / 10))
rows = st.tuples(st.sampled_from([None, 0]), names, values, st.none() | moments)
histories = st.lists(st.lists(rows, max_size=9), min_size=1, max_size=5)


def a_session(gap_ms: int = 5, lateness_ms: int = 0) -> Subtask:
    operation = WindowAggregate(
        window=Session(gap_ms * MS), aggregates=AGGREGATES, allowed_lateness_ms=lateness_ms
    )
    return Subtask(WithColumns(SessionWindow(a_stage(operation), INPUT), WHERES), [INPUT])


@dataclass
class OneSession:
    start: datetime
    end: datetime
    rows: list[Row]
    fired: list[Row] = field(default_factory=list)  # What it yielded, and those it was merged of.

    @property
    def max_timestamp_ms(self) -> int:
        return max_timestamp_ms(self.end)

    def touches(self, other: OneSession) -> bool:
        return self.start <= other.end and other.start <= self.end


@dataclass
class Sessions:
    """The model of session windows, by definition."""

    gap_ms: int
    lateness_ms: int
    kept: dict[Row, list[OneSession]] = field(default_factory=lambda: defaultdict(list))
    late: list[Row] = field(default_factory=list)

    def play(self, epoch: Epoch, time: EpochTime) -> tuple[list[Row], list[Row]]:
        """The rows that the epoch yields and retracts."""
        self.late = [row for row in epoch if row[3] is None]
        for row in epoch:
            if row[3] is not None:
                self.merge(row)
        output: list[Row] = []
        retracted: list[Row] = []
        for key, sessions in self.kept.items():
            late = [s for s in sessions if self.kept_until_ms(s) <= time.previous_watermark_ms]
            self.late += [row for session in late for row in session.rows]
            live = [session for session in sessions if session not in late]
            for session in live:
                result = (*key, session.start, session.end, *a_result(session.rows))
                stale = [former for former in session.fired if former != result]
                retracted += stale
                session.fired = [former for former in session.fired if former == result]
                if session.max_timestamp_ms <= time.watermark_ms and not session.fired:
                    output.append(result)
                    session.fired = [result]
            self.kept[key] = [s for s in live if self.kept_until_ms(s) > time.watermark_ms]
        return output, retracted

    def kept_until_ms(self, session: OneSession) -> int:
        return session.max_timestamp_ms + self.lateness_ms

    def merge(self, row: Row) -> None:
        sessions = self.kept[row[:2]]
        merged = OneSession(row[3], row[3] + self.gap_ms * MS, [row])
        for session in [session for session in sessions if session.touches(merged)]:
            sessions.remove(session)
            merged.start = min(merged.start, session.start)
            merged.end = max(merged.end, session.end)
            merged.rows += session.rows
            merged.fired += session.fired
        sessions.append(merged)


@examples(20)
@given(timed_histories(histories), st.sampled_from([1, 5, 12]), latenesses, seeds)
def test_sessions_merge_across_epochs_and_rows_that_join_one_are_not_late(
    played: tuple[list[Epoch], list[EpochTime]], gap_ms: int, lateness_ms: int, random: Random
) -> None:
    subtask = a_session(gap_ms, lateness_ms)
    definition = Sessions(gap_ms, lateness_ms)

    for epoch, time in zip(*played, strict=True):
        output, retracted = definition.play(epoch, time)

        outcome = play(subtask, epoch, random, time)

        assert in_order(outcome.output) == in_order(output)
        assert in_order(outcome.late[0]) == in_order(definition.late)
        assert (outcome.retracted is not None) == (lateness_ms > 0)
        if outcome.retracted is not None:
            assert in_order(outcome.retracted) == in_order(retracted)
        kept = sum(len(sessions) for sessions in definition.kept.values())
        assert subtask.state()["sessions"].scan().height == kept


@examples(4)
@given(timed_histories(histories), latenesses)
def test_sessions_do_not_depend_on_chunks_order_or_subtasks(
    played: tuple[list[Epoch], list[EpochTime]], lateness_ms: int
) -> None:
    history, times = [[epoch] for epoch in played[0]], played[1]
    operator = a_session(lateness_ms=lateness_ms).operator

    check_content_alone_decides(operator, [INPUT], history, times)


# --- by hand --------------------------------------------------------------------------------------


def counting(gap_ms: int = 5, lateness_ms: int = 0) -> Subtask:
    operation = WindowAggregate(
        window=Session(gap_ms * MS), aggregates={"n": agg.count()}, allowed_lateness_ms=lateness_ms
    )
    stage = a_stage(operation, keys=["id"])
    return Subtask(SessionWindow(stage, INPUT), [INPUT], key_count=1)


def test_a_session_ends_a_gap_after_its_last_row() -> None:
    subtask = counting()

    early = between(MIN_WATERMARK, 11, rows_at(0, 4, 7), of=subtask)
    outcome = between(11, 12, of=subtask)

    assert early.output.rows() == [(1, at(0), at(12), 3)]
    assert outcome.output.is_empty()


def test_rows_exactly_a_gap_apart_are_of_one_session() -> None:
    subtask = counting()

    outcome = between(MIN_WATERMARK, MAX_WATERMARK, rows_at(0, 5, 10.001), of=subtask)

    assert outcome.output.rows() == [(1, at(0), at(10), 2), (1, at(10.001), at(15.001), 1)]


def test_a_row_bridges_two_sessions_that_wait() -> None:
    subtask = counting()
    between(MIN_WATERMARK, -9, rows_at(0, 8), of=subtask)

    outcome = between(-9, 12, rows_at(4), of=subtask)

    assert outcome.output.rows() == [(1, at(0), at(13), 3)]
    assert outcome.changes["sessions"].deletes["window_start"].to_list() == [at(0), at(8)]
    assert subtask.state()["sessions"].scan().is_empty()


def test_an_old_row_that_joins_an_open_session_is_not_late() -> None:
    subtask = counting()
    between(MIN_WATERMARK, 8, rows_at(5), of=subtask)

    outcome = between(8, 9, rows_at(1), rows_at(-4), of=subtask)

    assert outcome.output.rows() == [(1, at(-4), at(10), 3)]  # By way of the row at 1.
    assert outcome.late[0].is_empty()


def test_a_row_whose_own_session_is_over_is_late() -> None:
    subtask = counting()
    between(MIN_WATERMARK, 8, rows_at(5), of=subtask)

    outcome = between(8, 9, rows_at(-1), of=subtask)

    assert outcome.output.rows() == [(1, at(5), at(10), 1)]
    assert outcome.late[0].rows() == rows_at(-1)


def test_a_session_that_fired_and_goes_on_is_taken_back_at_once() -> None:
    subtask = counting(lateness_ms=20)
    between(MIN_WATERMARK, 4, rows_at(0), of=subtask)

    longer = between(4, 5, rows_at(3), of=subtask)
    done = between(5, 7, of=subtask)

    assert longer.output.is_empty()
    assert longer.retracted is not None
    assert longer.retracted.rows() == [(1, at(0), at(5), 1)]
    assert done.output.rows() == [(1, at(0), at(8), 2)]
