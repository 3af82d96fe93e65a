"""Operators against a few lines of Python, whatever the cuts, the order and the hashes.

Method: a history of epochs is played through partial, combine and process, every epoch's changes
becoming a run of state; keys are few and hashes fewer.  A second play cuts the same epochs into
other chunks, in another order: every frame must be the same, row by row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from random import Random

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice import aggregates as agg
from sluice.runtime.operators.aggregate import KeyedAggregate
from sluice.runtime.operators.operator import MAX_WATERMARK, MIN_WATERMARK, Operator, Watermarks
from sluice.runtime.operators.top_n import TopN
from sluice.runtime.operators.windows import TumblingWindow
from sluice.runtime.state.segments import HASH
from tests.property.subtask import (
    INPUT,
    Epoch,
    Row,
    Subtask,
    check_cuts_decide_nothing,
    check_subtasks_share_the_work,
    in_chunks,
)

AGGREGATES = {
    "rows": agg.count(),
    "values": agg.count("value"),
    "total": agg.sum("value"),
    "least": agg.min("value"),
    "last_seen": agg.max("at"),
    "different": agg.count_distinct("value"),
}
SIZE_MS = 10
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ids = st.sampled_from([None, 0, 1])
names = st.sampled_from([None, "a", "b"])
values = st.none() | st.integers(-3, 3)
instants = st.integers(-35_000, 35_000).map(lambda us: EPOCH + timedelta(microseconds=us))
rows = st.tuples(ids, names, values, st.none() | instants)
histories = st.lists(st.lists(rows, max_size=8), min_size=1, max_size=4)
seeds = st.integers(0, 2**32).map(Random)


def an_aggregate() -> KeyedAggregate:
    return KeyedAggregate(uid="agg", keys=["id", "name"], aggregates=AGGREGATES, schema=INPUT)


def a_window(size_ms: int = SIZE_MS) -> TumblingWindow:
    return TumblingWindow(
        uid="win",
        keys=["id", "name"],
        size_ms=size_ms,
        event_time="at",
        aggregates=AGGREGATES,
        schema=INPUT,
    )


def a_result(group: Iterable[Row]) -> Row:
    """What ``AGGREGATES`` are of these rows, by definition."""
    group = list(group)
    numbers = [row[2] for row in group if row[2] is not None]
    times = [row[3] for row in group if row[3] is not None]
    return (
        len(group),
        len(numbers),
        sum(numbers) if numbers else None,
        min(numbers, default=None),
        max(times, default=None),
        len(set(numbers)),
    )


# --- aggregate ------------------------------------------------------------------------------------


@settings(max_examples=14, deadline=None)
@given(histories, seeds)
def test_an_aggregate_outputs_the_result_of_every_key_whose_result_changed(
    history: list[Epoch], random: Random
) -> None:
    subtask = Subtask(an_aggregate(), INPUT)
    seen: dict[Row, list[Row]] = defaultdict(list)

    for epoch in history:
        before = {key: a_result(group) for key, group in seen.items()}
        for row in epoch:
            seen[row[:2]].append(row)
        after = {key: a_result(group) for key, group in seen.items()}

        outcome = subtask.play(in_chunks(epoch, random), Watermarks(), merge=random.random() < 0.3)

        changed = {(*key, *res) for key, res in after.items() if before.get(key) != res}
        assert set(outcome.output.rows()) == changed
        assert outcome.output.height == outcome.upserts.height == len(changed)
        assert outcome.deletes.is_empty()
    assert subtask.state.scan().height == len(seen)


@settings(max_examples=8, deadline=None)
@given(histories)
def test_an_aggregate_does_not_depend_on_chunks_order_or_subtasks(history: list[Epoch]) -> None:
    marks = [Watermarks()] * len(history)

    check_cuts_decide_nothing(an_aggregate(), INPUT, history, marks)
    check_subtasks_share_the_work(an_aggregate(), INPUT, history, marks)


def test_rows_that_change_nothing_write_nothing() -> None:
    least = KeyedAggregate(
        uid="agg", keys=["id"], aggregates={"least": agg.min("value")}, schema=INPUT
    )
    subtask = Subtask(least, INPUT)

    first = subtask.play([[(1, "a", 3, None), (2, "b", None, None)]], Watermarks())
    outcome = subtask.play([[(1, "a", 5, None), (2, "b", None, None)]], Watermarks())

    assert sorted(first.output.rows()) == [(1, 3), (2, None)]  # A new key is news, even of nulls.
    assert outcome.output.is_empty()
    assert outcome.upserts.is_empty()


# --- windows --------------------------------------------------------------------------------------


@st.composite
def windowed_histories(draw: st.DrawFn) -> tuple[list[Epoch], list[Watermarks]]:
    history = draw(histories)
    ends = sorted(draw(st.integers(-40, 40)) for _ in history)
    if draw(st.booleans()):
        ends[-1] = MAX_WATERMARK
    starts = [MIN_WATERMARK, *ends[:-1]]
    return history, [
        Watermarks(previous_ms=start, current_ms=end)
        for start, end in zip(starts, ends, strict=True)
    ]


@settings(max_examples=14, deadline=None)
@given(windowed_histories(), seeds)
@example(([[(None, None, 1, EPOCH)]], [Watermarks(current_ms=9)]), Random(0))
@example(([[(None, None, 1, EPOCH)]], [Watermarks(current_ms=8)]), Random(0))
def test_a_window_fires_once_with_every_row_that_was_not_late(
    played: tuple[list[Epoch], list[Watermarks]], random: Random
) -> None:
    subtask = Subtask(a_window(), INPUT)
    waiting: dict[tuple[Row, int], list[Row]] = defaultdict(list)

    for epoch, marks in zip(*played, strict=True):
        late = []
        for row in epoch:
            start = row[3] and (row[3] - EPOCH) // timedelta(milliseconds=SIZE_MS) * SIZE_MS
            if start is None or start + SIZE_MS - 1 <= marks.previous_ms:
                late.append(row)
            else:
                waiting[row[:2], start].append(row)
        fired = [w for w in waiting if w[1] + SIZE_MS - 1 <= marks.current_ms]
        expected = {window_row(*window, waiting.pop(window)) for window in fired}

        outcome = subtask.play(in_chunks(epoch, random), marks, merge=random.random() < 0.3)

        assert set(outcome.output.rows()) == expected
        assert outcome.output.height == len(expected)
        assert outcome.output.equals(outcome.output.sort("window_start", "id", "name"))
        assert sorted(outcome.late.rows(), key=repr) == sorted(late, key=repr)
    assert subtask.state.scan().height == len(waiting)


def window_row(key: Row, start_ms: int, group: list[Row]) -> Row:
    start = EPOCH + timedelta(milliseconds=start_ms)
    return (*key, start, start + timedelta(milliseconds=SIZE_MS), *a_result(group))


@settings(max_examples=8, deadline=None)
@given(windowed_histories())
def test_windows_do_not_depend_on_chunks_order_or_subtasks(
    played: tuple[list[Epoch], list[Watermarks]],
) -> None:
    check_cuts_decide_nothing(a_window(), INPUT, *played)
    check_subtasks_share_the_work(a_window(), INPUT, *played)


def test_a_window_fires_in_an_epoch_without_rows_and_leaves_no_state() -> None:
    subtask = Subtask(a_window(), INPUT)
    subtask.play([[(1, "a", 7, EPOCH)]], Watermarks(current_ms=8))

    outcome = subtask.play([[]], Watermarks(previous_ms=8, current_ms=9))

    assert outcome.output.rows() == [window_row((1, "a"), 0, [(1, "a", 7, EPOCH)])]
    assert subtask.state.scan().is_empty()


# --- top n ----------------------------------------------------------------------------------------

RANKED = pl.Schema(
    {
        "id": pl.Int64(),
        "name": pl.String(),
        "item": pl.String(),
        "by": pl.Int64(),
        "note": pl.Int32(),
    }
)


@st.composite
def growing_histories(draw: st.DrawFn) -> list[Epoch]:
    """Upserts on (id, name, item) in which ``by`` never decreases."""
    reached: dict[Row, int] = defaultdict(int)
    history = []
    for _ in range(draw(st.integers(1, 4))):
        epoch = []
        for key in draw(st.lists(st.tuples(ids, names, st.sampled_from("uvwx")), max_size=10)):
            reached[key] += draw(st.integers(0, 2))
            epoch.append((*key, reached[key], reached[key] % 2))
        history.append(epoch)
    return history


def a_top_n(n: int = 2) -> TopN:
    return TopN(uid="top", keys=["id", "name"], n=n, by="by", unique=["item"], schema=RANKED)


def ranking(latest: dict[Row, Row], n: int) -> set[Row]:
    by_key: dict[Row, list[Row]] = defaultdict(list)
    for row in latest.values():
        by_key[row[:2]].append(row)
    return {
        (*key, rank, *row[2:])
        for key, group in by_key.items()
        for rank, row in enumerate(sorted(group, key=lambda r: (-r[3], r[2]))[:n], start=1)
    }


@settings(max_examples=14, deadline=None)
@given(growing_histories(), st.integers(1, 3), seeds)
def test_top_n_outputs_the_ranks_that_changed(history: list[Epoch], n: int, random: Random) -> None:
    subtask = Subtask(a_top_n(n), RANKED)
    latest: dict[Row, Row] = {}

    for epoch in history:
        before = ranking(latest, n)
        latest |= {row[:3]: row for row in epoch}

        outcome = subtask.play(in_chunks(epoch, random), Watermarks(), merge=random.random() < 0.3)

        after = ranking(latest, n)
        assert set(outcome.output.rows()) == after - before
        assert outcome.output.height == outcome.upserts.height == len(after - before)
        assert set(subtask.state.scan().drop(HASH).rows()) == after


@settings(max_examples=8, deadline=None)
@given(growing_histories())
def test_top_n_does_not_depend_on_chunks_order_or_subtasks(history: list[Epoch]) -> None:
    marks = [Watermarks()] * len(history)

    check_cuts_decide_nothing(a_top_n(), RANKED, history, marks)
    check_subtasks_share_the_work(a_top_n(), RANKED, history, marks)


@pytest.mark.parametrize("operator", [an_aggregate(), a_window()])
def test_an_empty_epoch_has_the_types_of_a_full_one(operator: Operator) -> None:
    subtask = Subtask(operator, INPUT)

    outcome = subtask.play([[], []], Watermarks(current_ms=MAX_WATERMARK))

    assert outcome.output.is_empty()
    assert outcome.output.schema == operator.output_schema
