"""Tumbling, hopping and attached windows against a few lines of Python that keep every row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.declaration import aggregates as agg
from sluice.declaration.operations import Attached, Hopping, Tumbling, Window, WindowAggregate
from sluice.operators.operator import EpochTime
from sluice.operators.windows import AlignedWindow
from tests.examples import examples
from tests.property.operators.played import (
    AGGREGATES,
    EPOCH,
    KEYS,
    MS,
    WHERES,
    WithColumns,
    a_result,
    a_stage,
    at,
    between,
    ids,
    in_order,
    instants,
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

pytestmark = pytest.mark.usefixtures("either_way")

TUMBLING = Tumbling(10 * MS)
HOPPING = Hopping(10 * MS, 2 * MS)
WINDOWED = pl.Schema({**INPUT, "window_start": INPUT["at"], "window_end": INPUT["at"]})


def a_window(window: Window, lateness_ms: int = 0, schema: pl.Schema = INPUT) -> Subtask:
    operation = WindowAggregate(
        window=window, aggregates=AGGREGATES, allowed_lateness_ms=lateness_ms
    )
    operator = AlignedWindow(a_stage(operation), schema)
    return Subtask(WithColumns(operator, WHERES), [schema])


@dataclass
class Windows:
    """The model of windows, by definition: each keeps its rows and its last result."""

    window: Tumbling | Hopping | Attached
    lateness_ms: int
    kept: dict[Row, list[Row]] = field(default_factory=lambda: defaultdict(list))
    fired: dict[Row, Row] = field(default_factory=dict)
    late: list[Row] = field(default_factory=list)

    def play(self, epoch: Epoch, time: EpochTime) -> tuple[list[Row], list[Row]]:
        """The rows that the epoch yields and retracts."""
        self.late = []
        for row in epoch:
            windows = [w for w in self.windows_of(row) if self.is_kept(w, time, start=True)]
            for bounds in windows:
                self.kept[*row[:2], *bounds].append(row)
            if not windows:
                self.late.append(row)
        output, retracted = [], []
        for window, rows in self.kept.items():
            result = (*window, *a_result(rows))
            if max_timestamp_ms(window[3]) > time.watermark_ms or self.fired.get(window) == result:
                continue
            output.append(result)
            if window in self.fired:
                retracted.append(self.fired[window])
            self.fired[window] = result
        gone = [window for window in self.kept if not self.is_kept(window[2:], time)]
        for window in gone:
            del self.kept[window]
            self.fired.pop(window, None)
        return output, retracted

    def is_kept(self, bounds: Row, time: EpochTime, *, start: bool = False) -> bool:
        watermark_ms = time.previous_watermark_ms if start else time.watermark_ms
        return max_timestamp_ms(bounds[1]) + self.lateness_ms > watermark_ms

    def windows_of(self, row: Row) -> Iterable[Row]:
        if isinstance(self.window, Attached):
            return [row[4:6]] if None not in row[4:6] else []
        if row[3] is None:
            return []
        size = self.window.size
        slide = getattr(self.window, "slide", size)
        last = EPOCH + (row[3] - EPOCH) // slide * slide
        starts = [last - index * slide for index in range(-(-size // slide))]
        return [(start, start + size) for start in starts if start + size > row[3]]


def check_against_the_definition(
    subtask: Subtask,
    definition: Windows,
    played: tuple[list[Epoch], list[EpochTime]],
    random: Random,
) -> None:
    for epoch, time in zip(*played, strict=True):
        output, retracted = definition.play(epoch, time)

        outcome = play(subtask, epoch, random, time)

        assert in_order(outcome.output) == in_order(output)
        assert in_order(outcome.late[0]) == in_order(definition.late)
        if definition.lateness_ms:
            assert in_order(outcome.retracted) == in_order(retracted)
        else:
            assert outcome.retracted is None
            assert not retracted
    assert subtask.state()["panes"].scan().is_empty() == (not definition.kept)


@examples(12)
@given(timed_histories(), latenesses, seeds)
@example(([[(None, None, 1, EPOCH)]], [EpochTime(watermark_ms=9)]), 0, Random(0))
@example(([[(None, None, 1, EPOCH)]], [EpochTime(watermark_ms=8)]), 0, Random(0))
def test_a_tumbling_window_fires_once_and_again_for_rows_that_are_late_but_allowed(
    played: tuple[list[Epoch], list[EpochTime]], lateness_ms: int, random: Random
) -> None:
    subtask = a_window(TUMBLING, lateness_ms)

    check_against_the_definition(subtask, Windows(TUMBLING, lateness_ms), played, random)


@examples(20)
@given(timed_histories(), st.sampled_from([4, 6, 8, 9, 12, 20, 36, 43, 44]), latenesses, seeds)
def test_a_hopping_window_has_every_row_that_was_not_late_for_it(
    played: tuple[list[Epoch], list[EpochTime]], size: int, lateness_ms: int, random: Random
) -> None:
    hopping = Hopping(size * MS, 4 * MS)
    subtask = a_window(hopping, lateness_ms)

    check_against_the_definition(subtask, Windows(hopping, lateness_ms), played, random)


bounds = st.none() | instants
attached_rows = st.tuples(
    ids, names, values, st.none() | instants, st.sampled_from([None, at(0), at(0.5)]), bounds
)
attached_histories = st.lists(st.lists(attached_rows, max_size=8), min_size=1, max_size=4)


@examples(12)
@given(timed_histories(attached_histories), latenesses, seeds)
def test_attached_windows_are_those_of_the_rows(
    played: tuple[list[Epoch], list[EpochTime]], lateness_ms: int, random: Random
) -> None:
    subtask = a_window(Attached(), lateness_ms, WINDOWED)

    check_against_the_definition(subtask, Windows(Attached(), lateness_ms), played, random)


@pytest.mark.parametrize("window", [TUMBLING, HOPPING])
@examples(4)
@given(played=timed_histories(), lateness_ms=latenesses)
def test_windows_do_not_depend_on_chunks_order_or_subtasks(
    window: Window, played: tuple[list[Epoch], list[EpochTime]], lateness_ms: int
) -> None:
    history, times = [[epoch] for epoch in played[0]], played[1]
    operator = a_window(window, lateness_ms).operator

    check_content_alone_decides(operator, [INPUT], history, times)


# --- by hand --------------------------------------------------------------------------------------


def counting(window: Window, lateness_ms: int = 0, schema: pl.Schema = INPUT) -> Subtask:
    operation = WindowAggregate(
        window=window, aggregates={"n": agg.count()}, allowed_lateness_ms=lateness_ms
    )
    return Subtask(AlignedWindow(a_stage(operation, keys=["id"]), schema), [schema], key_count=1)


def test_a_window_fires_in_an_epoch_without_rows_and_leaves_no_state() -> None:
    subtask = counting(TUMBLING)
    between(MIN_WATERMARK, 8, rows_at(0), of=subtask)

    outcome = between(8, 9, of=subtask)

    assert outcome.output.rows() == [(1, at(0), at(10), 1)]
    assert subtask.state()["panes"].scan().is_empty()


def test_every_hopping_window_that_ended_fires_though_an_epoch_spans_several() -> None:
    subtask = counting(Hopping(6 * MS, 2 * MS))

    outcome = between(MIN_WATERMARK, 5, rows_at(1, 3, 3), of=subtask)
    rest = between(5, MAX_WATERMARK, rows_at(20), of=subtask)

    first, last = [(-4, 1), (-2, 3), (0, 3)], [(2, 2), (16, 1), (18, 1), (20, 1)]
    assert outcome.output.rows() == [(1, at(start), at(start + 6), n) for start, n in first]
    assert rest.output.rows() == [(1, at(start), at(start + 6), n) for start, n in last]
    assert subtask.state()["panes"].scan().is_empty()


def test_a_row_of_a_hopping_window_that_has_fired_counts_in_those_that_have_not() -> None:
    subtask = counting(Hopping(6 * MS, 2 * MS))
    between(MIN_WATERMARK, 5, rows_at(3), of=subtask)

    outcome = between(5, 7, rows_at(3, 1), of=subtask)

    assert outcome.output.rows() == [(1, at(2), at(8), 2)]
    assert outcome.late[0].rows() == rows_at(1)  # Its last window was [0, 6).


def test_a_hopping_window_writes_a_row_once_however_often_it_fires() -> None:
    subtask = counting(Hopping(6 * MS, 2 * MS))
    first = between(MIN_WATERMARK, 0, rows_at(1), of=subtask)

    second = between(0, 1, of=subtask)
    third = between(1, 5, of=subtask)

    assert first.changes["panes"].upserts.height == 1
    assert second.output.height == 1
    assert second.changes["panes"].upserts.is_empty()
    assert third.changes["panes"].upserts.is_empty()
    assert third.changes["panes"].deletes.height == 1


def test_a_late_row_that_is_allowed_replaces_the_result() -> None:
    subtask = counting(TUMBLING, lateness_ms=5)
    between(MIN_WATERMARK, 9, rows_at(0), of=subtask)

    again = between(9, 13, rows_at(3), of=subtask)
    too_late = between(14, 15, rows_at(4), of=subtask)

    assert again.output.rows() == [(1, at(0), at(10), 2)]
    assert again.retracted is not None
    assert again.retracted.rows() == [(1, at(0), at(10), 1)]
    assert too_late.output.is_empty()
    assert too_late.late[0].height == 1


def test_a_window_that_is_allowed_lateness_is_forgotten_after_it() -> None:
    subtask = counting(HOPPING, lateness_ms=5)
    between(MIN_WATERMARK, 9, rows_at(0), of=subtask)

    kept = between(9, 13, of=subtask)
    gone = between(13, 14, of=subtask)

    assert kept.output.is_empty()
    assert (kept.changes["panes"].deletes.height, gone.changes["panes"].deletes.height) == (0, 1)
    assert subtask.state()["panes"].scan().is_empty()


def test_a_window_may_be_part_of_the_key() -> None:
    schema = pl.Schema({name: WINDOWED[name] for name in ("window_start", "window_end", "value")})
    operation = WindowAggregate(window=Attached(), aggregates={"n": agg.count()})
    stage = a_stage(operation, keys=["window_start"], event_time=None)
    subtask = Subtask(AlignedWindow(stage, schema), [schema], key_count=0)

    rows = [(at(0), at(5), 1), (at(0), at(5), 2), (at(0), at(6), 3)]
    outcome = subtask.play([rows], time=EpochTime(watermark_ms=4))

    assert outcome.output.columns == ["window_start", "window_end", "n"]
    assert outcome.output.rows() == [(at(0), at(5), 2)]


def test_output_is_in_the_order_of_hash_key_and_window() -> None:
    subtask = a_window(TUMBLING)
    rows = [(i, n, 1, at(ms)) for ms in (25, 5, 15) for i in (0, 1) for n in KEYS]

    outcome = subtask.play([rows], time=EpochTime(watermark_ms=MAX_WATERMARK))

    found = [row[:3] for row in outcome.output.rows()]
    assert found == sorted(found, key=lambda row: ((row[0] + len(row[1])) % 2, *row))
