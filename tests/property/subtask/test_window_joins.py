"""Window joins against a few lines of Python, whatever the cuts, the order and the hashes."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from random import Random
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sluice.declaration import operations as ops
from sluice.declaration.operations import Attached, Hopping, Tumbling, Window
from sluice.operators.timed_joins import WindowJoinOperator
from tests.examples import examples
from tests.property.subtask.joining import (
    EPOCH,
    INSTANT,
    LEFT,
    MS,
    RIGHT,
    SCHEMAS,
    Played,
    a_stage,
    bag,
    check_everything_is_decided_by_content,
    is_pair,
    joined,
    ms_of,
    play,
    seeds,
    timed_histories,
)
from tests.property.subtask.subtask import Row, Subtask

WINDOWS = (Tumbling(10 * MS), Hopping(12 * MS, 4 * MS))
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
    check_everything_is_decided_by_content(a_window_join(window, how), played)


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
