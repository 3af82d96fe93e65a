"""Interval and window joins against a few lines of Python, whatever the cuts and the hashes.

Method: as in ``test_aggregate``, with two inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from random import Random
from typing import Any

import polars as pl
from hypothesis import assume, given
from hypothesis import strategies as st

from sluice.core.event_time import MAX_WATERMARK
from sluice.declaration import operations as ops
from sluice.declaration.operations import Attached, Hopping, Tumbling, Window
from sluice.operators.joins import IntervalJoinOperator, WindowJoinOperator, interval_pairs
from tests.examples import examples
from tests.property.operators.joining import (
    INSTANT,
    LEFT,
    RIGHT,
    SCHEMAS,
    History,
    Played,
    a_stage,
    bag,
    is_pair,
    joined,
    key_of,
    ms_of,
    play,
    timed_histories,
)
from tests.property.operators.played import EPOCH, MS, seeds, times_of
from tests.property.operators.subtask import Row, Subtask, check_content_alone_decides

# --- interval -------------------------------------------------------------------------------------


bounds = st.tuples(st.integers(-12, 12), st.integers(0, 12)).map(lambda b: (b[0], b[0] + b[1]))
intervals = st.one_of(
    bounds.map(lambda b: ops.IntervalJoin(lower_ms=b[0], upper_ms=b[1])),
    bounds.map(lambda b: ops.IntervalJoin(lower_ms=b[0], upper_ms=b[1], how="left")),
    st.builds(
        ops.IntervalJoin,
        lower_ms=st.integers(-12, 12),
        upper_column=st.just("until"),
        how=st.sampled_from(["inner", "left"]),
    ),
)


def an_interval_join(declared: ops.IntervalJoin) -> IntervalJoinOperator:
    return IntervalJoinOperator(a_stage(declared), LEFT, RIGHT)


def end_of(declared: ops.IntervalJoin, left: Row) -> datetime | None:
    at: datetime = left[3]
    end: datetime | None = left[4]
    return at + declared.upper_ms * MS if declared.upper_column is None else end


def fits(declared: ops.IntervalJoin, left: Row, right: Row) -> bool:
    end = end_of(declared, left)
    start = left[3] + declared.lower_ms * MS
    return is_pair(left, right) and end is not None and start <= right[3] <= end


def without_late(rows: Iterable[Row], watermark_ms: int) -> tuple[list[Row], list[Row]]:
    """The rows in time, and the late ones."""
    timely: list[Row] = []
    late: list[Row] = []
    for row in rows:
        is_late = row[3] is None or ms_of(row[3]) <= watermark_ms
        (late if is_late else timely).append(row)
    return timely, late


@examples(24)
@given(timed_histories(), intervals, seeds)
def test_an_interval_join_emits_each_pair_once_and_who_stays_alone_when_that_is_certain(
    played: Played, declared: ops.IntervalJoin, random: Random
) -> None:
    subtask = Subtask(an_interval_join(declared), SCHEMAS)
    seen: tuple[list[Row], list[Row]] = ([], [])
    emitted: Counter[Row] = Counter()

    for epoch, time in zip(*played, strict=True):
        late: list[list[Row]] = []
        for side, rows in enumerate(epoch):
            timely, too_late = without_late(rows, time.previous_watermark_ms)
            seen[side].extend(timely)
            late.append(too_late)
        total = Counter(joined(a, b) for a in seen[0] for b in seen[1] if fits(declared, a, b))
        if declared.how == "left":
            total += Counter(
                joined(row, None)
                for row in seen[0]
                if not any(fits(declared, row, other) for other in seen[1])
                and ms_of(end_of(declared, row) or row[3]) <= time.watermark_ms
            )

        outcome = play(subtask, epoch, time, random)

        emitted += bag(outcome.output)
        assert emitted == total
        assert [bag(outcome.late[side]) for side in (0, 1)] == [Counter(rows) for rows in late]
        waiting = [
            sum(
                key_of(row) is not None or (declared.how == "left" and row in seen[0])
                for row in seen[0]
                if ms_of(end_of(declared, row) or row[3]) > time.watermark_ms
            ),
            sum(
                key_of(row) is not None and ms_of(row[3]) - declared.lower_ms > time.watermark_ms
                for row in seen[1]
            ),
        ]
        state = subtask.state()
        assert [state[name].scan().height for name in ("left", "right")] == waiting


@examples(14)
@given(timed_histories(), intervals, st.integers(1, 4), seeds)
def test_an_interval_join_does_not_depend_on_where_epochs_end(
    played: Played, declared: ops.IntervalJoin, count: int, random: Random
) -> None:
    history, _ = played
    rows = [[row for epoch in history for row in epoch[side] if row[3]] for side in (0, 1)]
    assume(all(rows))
    at_once = Subtask(an_interval_join(declared), SCHEMAS)
    in_parts = Subtask(an_interval_join(declared), SCHEMAS)

    whole = play(at_once, (rows[0], rows[1]), times_of([MAX_WATERMARK])[0], random)
    parts, ends = cut_by_time(rows, count, random)
    outcomes = [
        play(in_parts, epoch, time, random)
        for epoch, time in zip(parts, times_of(ends), strict=True)
    ]

    assert sum((bag(outcome.output) for outcome in outcomes), Counter()) == bag(whole.output)
    assert all(frame.is_empty() for outcome in outcomes for frame in outcome.late.values())


def cut_by_time(rows: list[list[Row]], count: int, random: Random) -> tuple[History, list[int]]:
    """Epochs with watermarks such that no row is late: a row comes before its time is reached."""
    ends = [*sorted(random.randint(-40, 40) for _ in range(count)), MAX_WATERMARK]
    parts: History = [([], []) for _ in ends]
    for side in (0, 1):
        for row in rows[side]:
            latest = next(i for i, end in enumerate(ends) if ms_of(row[3]) <= end)
            parts[random.randint(0, latest)][side].append(row)
    return parts, ends


@examples(8)
@given(timed_histories(), intervals)
def test_an_interval_join_does_not_depend_on_chunks_order_or_subtasks(
    played: Played, declared: ops.IntervalJoin
) -> None:
    check_content_alone_decides(an_interval_join(declared), SCHEMAS, *played)


WINDOWS = (Tumbling(10 * MS), Hopping(12 * MS, 4 * MS), Hopping(10 * MS, 4 * MS))
kinds = st.sampled_from(["inner", "left", "semi", "anti"])


def a_window_join(window: Window, how: Any) -> WindowJoinOperator:
    return WindowJoinOperator(a_stage(ops.WindowJoin(window=window, how=how)), LEFT, RIGHT)


def windows_of(window: Any, at: datetime | None) -> list[tuple[int, int]]:
    if at is None:
        return []
    size = window.size // MS
    slide = window.slide // MS if isinstance(window, Hopping) else size
    first = ms_of(at) - size
    return [
        (start, start + size)
        for start in range(first, ms_of(at) + 1)
        if start % slide == 0 and start + size > ms_of(at)
    ]


def window_result(
    how: str, rows: tuple[list[Row], list[Row]], window: tuple[int, int]
) -> list[Row]:
    bounds = tuple(EPOCH + ms * MS for ms in window)
    found: list[Row] = []
    for left in rows[0]:
        partners = [right for right in rows[1] if is_pair(left, right)]
        match how:
            case "inner" | "left":
                alone = [None] if how == "left" and not partners else []
                found += [(*joined(left, right), *bounds) for right in [*partners, *alone]]
            case _:  # Semi and anti.
                if bool(partners) == (how == "semi"):
                    found.append((*left, *bounds))
    return found


@examples(24)
@given(timed_histories(), st.sampled_from(WINDOWS), kinds, seeds)
def test_a_window_is_joined_once_with_every_row_that_was_not_late(
    played: Played, window: Window, how: str, random: Random
) -> None:
    subtask = Subtask(a_window_join(window, how), SCHEMAS)
    waiting: dict[tuple[int, int], tuple[list[Row], list[Row]]] = {}

    for epoch, time in zip(*played, strict=True):
        late: list[list[Row]] = [[], []]
        for side, rows in enumerate(epoch):
            for row in rows:
                open_windows = [
                    bounds
                    for bounds in windows_of(window, row[3])
                    if bounds[1] - 1 > time.previous_watermark_ms
                ]
                for bounds in open_windows:
                    waiting.setdefault(bounds, ([], []))[side].append(row)
                if not open_windows:
                    late[side].append(row)
        fired = [bounds for bounds in waiting if bounds[1] - 1 <= time.watermark_ms]
        expected: Counter[Row] = Counter()
        for bounds in fired:
            expected.update(window_result(how, waiting.pop(bounds), bounds))

        outcome = play(subtask, epoch, time, random)

        assert bag(outcome.output) == expected
        assert [bag(outcome.late[side]) for side in (0, 1)] == [Counter(rows) for rows in late]
    if not waiting:
        assert all(table.scan().is_empty() for table in subtask.state().values())


@examples(8)
@given(timed_histories(), st.sampled_from(WINDOWS), kinds)
def test_a_window_join_does_not_depend_on_chunks_order_or_subtasks(
    played: Played, window: Window, how: str
) -> None:
    check_content_alone_decides(a_window_join(window, how), SCHEMAS, *played)


# --- attached windows -----------------------------------------------------------------------------


@examples(14)
@given(timed_histories(), kinds, seeds)
def test_attached_windows_are_joined_as_those_computed_from_event_time(
    played: Played, how: str, random: Random
) -> None:
    tumbling = Tumbling(10 * MS)
    computed = Subtask(a_window_join(tumbling, how), SCHEMAS)
    bounds = {"window_start": INSTANT, "window_end": INSTANT}
    windowed = [pl.Schema({**schema, **bounds}) for schema in SCHEMAS]
    operation = ops.WindowJoin(window=Attached(), how=how)  # type: ignore[arg-type]
    attached = Subtask(WindowJoinOperator(a_stage(operation), *windowed), windowed)

    for epoch, time in zip(*played, strict=True):
        with_windows = tuple(
            [(*row, *bounds_of(windows_of(tumbling, row[3]))) for row in side] for side in epoch
        )

        expected = play(computed, epoch, time, random)
        outcome = play(attached, with_windows, time, random)  # type: ignore[arg-type]

        assert outcome.output.schema == expected.output.schema
        assert bag(outcome.output) == bag(expected.output)
        for side in (0, 1):
            late = outcome.late[side].drop("window_start", "window_end")
            assert bag(late) == bag(expected.late[side])


def bounds_of(windows: list[tuple[int, int]]) -> tuple[datetime | None, datetime | None]:
    return (EPOCH + windows[0][0] * MS, EPOCH + windows[0][1] * MS) if windows else (None, None)


# --- pairs of an interval -------------------------------------------------------------------------

WITH_BOUNDS = pl.Schema(
    {"id": pl.Int64(), "name": pl.String(), "lower": pl.Int64(), "upper": pl.Int64()}
)
WITH_TIME = pl.Schema({"id": pl.Int64(), "name": pl.String(), "at": pl.Int64()})

few_ids = st.integers(0, 2)
numbers = st.integers(-4, 4)
ends = st.none() | numbers


@examples(150)
@given(
    st.lists(st.tuples(few_ids, st.sampled_from(["", "a", None]), ends, ends), max_size=12),
    st.lists(st.tuples(few_ids, st.sampled_from(["", "a"]), numbers), max_size=30),
)
def test_pairs_are_those_of_two_loops(
    left: list[tuple[int, str | None, int | None, int | None]], right: list[tuple[int, str, int]]
) -> None:
    right.sort()

    which, where = interval_pairs(
        pl.DataFrame(left, WITH_BOUNDS, orient="row"),
        pl.DataFrame(right, WITH_TIME, orient="row"),
        ("id", "name"),
        lower=pl.col("lower"),
        upper=pl.col("upper"),
        at=pl.col("at"),
    )

    assert list(zip(which.tolist(), where.tolist(), strict=True)) == [
        (row, place)
        for row, (key, name, lower, upper) in enumerate(left)
        for place, (other, other_name, at) in enumerate(right)
        if (key, name) == (other, other_name)
        and lower is not None
        and upper is not None
        and lower <= at <= upper
    ]
