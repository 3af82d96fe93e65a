"""Latest, Deduplicate, TopN and WindowTopN against sorting all the rows there are.

Method: as in ``test_aggregate``; over a changelog, whatever was sent and not taken back must be the
ranking of the rows that are there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.declaration.operations import Attached, Hopping, RankedWindow, Stateful, Tumbling
from sluice.declaration.operations import Deduplicate as DeclaredDeduplicate
from sluice.declaration.operations import Latest as DeclaredLatest
from sluice.declaration.operations import TopN as DeclaredTopN
from sluice.declaration.operations import WindowTopN as DeclaredWindowTopN
from sluice.operators.build import build_operator
from sluice.operators.operator import WEIGHT, EpochTime
from sluice.operators.ranking import (
    DeduplicateOperator,
    LatestOperator,
    Ranking,
    TopNOperator,
    WindowTopNOperator,
    descending,
)
from sluice.operators.ranking import ascending as rising
from sluice.state.segments import HASH
from tests.examples import examples
from tests.property.operators.changelogs import applied, changelogs, kept, with_weight
from tests.property.operators.played import (
    EPOCH,
    KEYS,
    MS,
    a_stage,
    ascending,
    at,
    by_key,
    falling,
    histories,
    ids,
    in_order,
    max_timestamp_ms,
    names,
    nulls_last,
    play,
    seeds,
    timed_histories,
)
from tests.property.operators.subtask import INPUT, Epoch, Row, Subtask, check_content_alone_decides

pytestmark = pytest.mark.usefixtures("either_way")


def a_latest(*by: str, ttl_ms: int | None = None) -> LatestOperator:
    return LatestOperator(a_stage(DeclaredLatest(by=by or ("at",)), ttl_ms=ttl_ms), INPUT)


@examples(14)
@given(histories, st.permutations(["at", "value"]), seeds)
def test_latest_is_the_row_with_the_largest_by(
    history: list[Epoch], by: Sequence[str], random: Random
) -> None:
    subtask = Subtask(a_latest(*by), [INPUT])
    seen: list[Row] = []

    def latest() -> dict[Row, Row]:
        columns = [list(INPUT).index(name) for name in by]
        return {
            key: max(group, key=lambda row: ascending(row[index] for index in columns))
            for key, group in by_key(seen).items()
        }

    for epoch in history:
        before = latest()
        seen += epoch
        after = latest()

        outcome = play(subtask, epoch, random)

        changed = [key for key, row in after.items() if before.get(key) != row]
        assert in_order(outcome.output) == in_order(after[key] for key in changed)
        former = [before[key] for key in changed if key in before]
        assert in_order(outcome.retracted) == in_order(former)
        assert in_order(subtask.state()["rows"].scan().drop(HASH)) == in_order(after.values())


@examples(14)
@given(histories, st.sampled_from([None, "value"]), seeds)
def test_deduplicate_keeps_the_first_row_of_a_key(
    history: list[Epoch], by: str | None, random: Random
) -> None:
    operator = DeduplicateOperator(a_stage(DeclaredDeduplicate(by=by)), INPUT)
    subtask = Subtask(operator, [INPUT])
    known: set[Row] = set()

    def order(row: Row) -> tuple[Any, ...]:
        return nulls_last(row[3:1:-1] if by is None else row[2:])

    for epoch in history:
        first = {key: min(group, key=order) for key, group in by_key(epoch).items()}

        outcome = play(subtask, epoch, random)

        news = [row for key, row in first.items() if key not in known]
        known |= first.keys()
        assert in_order(outcome.output) == in_order(news)
        assert outcome.retracted is None
    assert set(subtask.state()["keys"].scan().drop(HASH).rows()) == known


@examples(4)
@given(histories)
def test_latest_and_deduplicate_do_not_depend_on_chunks_order_or_subtasks(
    history: list[Epoch],
) -> None:
    for operator in (a_latest(), DeduplicateOperator(a_stage(DeclaredDeduplicate()), INPUT)):
        check_content_alone_decides(operator, [INPUT], [[epoch] for epoch in history])


def test_a_key_is_a_duplicate_as_long_as_rows_of_it_keep_coming() -> None:
    stage = a_stage(DeclaredDeduplicate(), ttl_ms=10)
    subtask = Subtask(DeduplicateOperator(stage, INPUT), [INPUT])

    found = [
        subtask.play([[(1, "a", 7, None)]], time=EpochTime(processing_time_ms=now_ms)).output.height
        for now_ms in (0, 9, 18, 28)
    ]

    assert found == [1, 0, 0, 1]


@pytest.mark.parametrize("epochs", [1, 3])
def test_of_rows_equal_in_by_the_largest_in_its_other_columns_is_the_latest(epochs: int) -> None:
    for order in permutations([(1, "a", 7), (1, "a", 9), (1, "a", None)]):
        subtask = Subtask(a_latest("at"), [INPUT])
        arriving = [[(*row, at(5))] for row in order]
        for epoch in arriving if epochs > 1 else [[row for one in arriving for row in one]]:
            subtask.play([epoch], time=EpochTime())

        assert subtask.state()["rows"].scan().drop(HASH).rows() == [(1, "a", 9, at(5))]


def test_an_older_row_still_keeps_the_latest_one_alive() -> None:
    subtask = Subtask(a_latest(ttl_ms=10), [INPUT])
    subtask.play([[(1, "a", 7, at(5))]], time=EpochTime())

    outcome = subtask.play([[(1, "a", 7, at(4))]], time=EpochTime(processing_time_ms=9))

    assert outcome.output.is_empty()
    assert subtask.state(18)["rows"].scan()["at"].to_list() == [at(5)]


@pytest.mark.parametrize("is_changelog", [False, True])
def test_a_column_of_the_rows_called_rank_is_left_alone(*, is_changelog: bool) -> None:
    columns = {"id": pl.Int64(), "rank": pl.Int32(), "value": pl.Int64()}
    schema = pl.Schema({**columns, WEIGHT: pl.Int8()} if is_changelog else columns)
    rows = [(1, 1, 5), (1, 2, 7), (1, 2, 6)]
    epoch = [(*row, 1) for row in rows] if is_changelog else rows
    expected: dict[Stateful, list[tuple[int, int, int]]] = {
        DeclaredLatest(by=("value",)): [(1, 1, 5), (1, 2, 7)]
    }
    if not is_changelog:
        expected[DeclaredDeduplicate(by="value")] = [(1, 1, 5), (1, 2, 6)]

    for operation, found in expected.items():
        stage = a_stage(operation, keys=["id", "rank"], event_time=None)
        subtask = Subtask(build_operator(stage, [schema]), [schema], key_count=2)
        assert in_order(subtask.play([epoch], time=EpochTime()).output) == found


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


def a_top_n(n: int = 2, ttl_ms: int | None = None) -> TopNOperator:
    operation = DeclaredTopN(n=n, by="by", unique=("item",))
    return TopNOperator(a_stage(operation, event_time=None, ttl_ms=ttl_ms), RANKED)


def ranking(rows: Iterable[Row], n: int, ties: Sequence[int] = (2, 4)) -> set[Row]:
    """The best rows of each key, with their rank; *ties* are the columns that equal ones go by."""

    def order(row: Row) -> tuple[Any, ...]:
        return (falling(row[3]), *ascending(row[column] for column in ties))

    return {
        (*key, rank, *row[2:])
        for key, group in by_key(rows).items()
        for rank, row in enumerate(sorted(group, key=order)[:n], start=1)
    }


def replaced(before: set[Row], after: set[Row]) -> set[Row]:
    """The rows of *before* whose key and rank have another row in *after*."""
    news = {row[:3] for row in after - before}
    return {row for row in before if row[:3] in news}


@examples(14)
@given(growing_histories(), st.integers(1, 3), seeds)
def test_top_n_outputs_the_ranks_that_changed(history: list[Epoch], n: int, random: Random) -> None:
    subtask = Subtask(a_top_n(n), [RANKED])
    latest: dict[Row, Row] = {}

    for epoch in history:
        before = ranking(latest.values(), n)
        latest |= {row[:3]: row for row in epoch}

        outcome = play(subtask, epoch, random)

        after = ranking(latest.values(), n)
        assert in_order(outcome.output) == in_order(after - before)
        assert in_order(outcome.retracted) == in_order(replaced(before, after))
        assert outcome.changes["rows"].upserts.height == len(after - before)
        assert set(subtask.state()["rows"].scan().drop(HASH).rows()) == after


# --- rows that are only appended

appended_rows = st.tuples(
    ids, names, st.sampled_from([None, "u", "v"]), st.none() | st.integers(0, 3), st.integers(0, 1)
)
appended = st.lists(st.lists(appended_rows, max_size=10), min_size=1, max_size=4)


def an_append_only_top_n(n: int = 2) -> TopNOperator:
    return TopNOperator(
        a_stage(DeclaredTopN(n=n, by="by", ties_by=("note",)), event_time=None), RANKED
    )


@examples(14)
@given(appended, st.integers(1, 3), seeds)
def test_without_unique_columns_every_row_has_a_rank(
    history: list[Epoch], n: int, random: Random
) -> None:
    subtask = Subtask(an_append_only_top_n(n), [RANKED])
    seen: list[Row] = []

    for epoch in history:
        before = ranking(seen, n, ties=(4, 2))
        seen += epoch

        outcome = play(subtask, epoch, random)

        after = ranking(seen, n, ties=(4, 2))
        assert in_order(outcome.output) == in_order(after - before)
        assert in_order(outcome.retracted) == in_order(replaced(before, after))


@examples(4)
@given(growing_histories(), appended)
def test_top_n_does_not_depend_on_chunks_order_or_subtasks(
    growing: list[Epoch], rows: list[Epoch]
) -> None:
    for operator, history in ((a_top_n(), growing), (an_append_only_top_n(), rows)):
        check_content_alone_decides(operator, [RANKED], [[epoch] for epoch in history])


def test_touching_a_key_keeps_all_its_ranks_alive() -> None:
    subtask = Subtask(a_top_n(ttl_ms=10), [RANKED])
    subtask.play([[(1, "a", "u", 3, 0), (1, "a", "v", 2, 0)]], time=EpochTime())

    time = EpochTime(processing_time_ms=9)
    outcome = subtask.play([[(1, "a", "w", 1, 0)]], time=time)

    assert outcome.output.is_empty()
    assert subtask.state(18)["rows"].scan().height == 2
    assert subtask.state(19)["rows"].scan().is_empty()


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("is_descending", [False, True])
def test_pruning_loses_none_of_the_best(n: int, has_ties: bool, is_descending: bool) -> None:
    random = Random(n)
    values = [None, float("nan"), *range(50)]
    rows = [(random.randrange(3), random.choice(values), i) for i in range(2_000)]
    rows += [(3, None, i) for i in range(9)] + [(4, float("nan"), i) for i in range(9)]
    schema = {HASH: pl.Int64, "by": pl.Float64, "note": pl.Int64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    order = descending(["by", "note"]) if is_descending else rising(["by", "note"], nulls_last=True)

    found = Ranking(n=n, order=order, has_ties=has_ties).ranked(frame, [HASH])

    everything = Ranking(n=len(rows), order=order, has_ties=has_ties).ranked(frame, [HASH])
    assert found.equals(everything.filter(pl.col("rank") <= n))


# --- in windows


def a_window_top_n(
    window: RankedWindow,
    n: int,
    *,
    ties: bool,
    keys: Sequence[str] = KEYS,
    schema: pl.Schema = INPUT,
) -> Subtask:
    operation = DeclaredWindowTopN(window=window, n=n, by="value", has_ties=ties)
    operator = WindowTopNOperator(a_stage(operation, keys=keys), schema)
    return Subtask(operator, [schema], key_count=len(keys))


def ranked(rows: Iterable[Row], n: int, *, ties: bool) -> list[Row]:
    """The best of a window's rows, with their rank, by SQL's definition."""
    ordered = sorted(rows, key=lambda row: (falling(row[2]), *ascending(row[3:])))
    if not ties:
        return [(*row, rank) for rank, row in enumerate(ordered[:n], start=1)]
    places = [1 + sum(falling(o[2]) < falling(row[2]) for o in ordered) for row in ordered]
    return [(*row, rank) for row, rank in zip(ordered, places, strict=True) if rank <= n]


@examples(25)
@given(
    timed_histories(),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([Tumbling(10 * MS), Hopping(12 * MS, 4 * MS), Hopping(10 * MS, 4 * MS)]),
    seeds,
)
def test_a_window_top_n_has_the_best_rows_of_each_window(
    played: tuple[list[Epoch], list[EpochTime]],
    n: int,
    ties: bool,
    window: Tumbling | Hopping,
    random: Random,
) -> None:
    subtask = a_window_top_n(window, n, ties=ties)
    slide = window.slide if isinstance(window, Hopping) else window.size
    waiting: dict[Row, list[Row]] = defaultdict(list)

    for epoch, time in zip(*played, strict=True):
        late = []
        for row in epoch:
            live = []
            if row[3] is not None:
                last = EPOCH + (row[3] - EPOCH) // slide * slide
                starts = [last - index * slide for index in range(-(-window.size // slide))]
                live = [
                    s
                    for s in starts
                    if s + window.size > row[3]
                    and max_timestamp_ms(s + window.size) > time.previous_watermark_ms
                ]
            for start in live:
                waiting[*row[:2], start, start + window.size].append(row)
            if not live:
                late.append(row)
        ended = [w for w in waiting if max_timestamp_ms(w[3]) <= time.watermark_ms]
        expected = [
            (*row[:-1], *bounds[2:], row[-1])
            for bounds in ended
            for row in ranked(waiting.pop(bounds), n, ties=ties)
        ]

        outcome = play(subtask, epoch, random, time)

        assert in_order(outcome.output) == in_order(expected)
        assert in_order(outcome.late[0]) == in_order(late)
        assert outcome.retracted is None
    assert subtask.state()["rows"].scan().is_empty() == (not waiting)


@pytest.mark.parametrize("ties", [False, True])
@examples(4)
@given(played=timed_histories())
def test_a_window_top_n_does_not_depend_on_chunks_order_or_subtasks(
    ties: bool, played: tuple[list[Epoch], list[EpochTime]]
) -> None:
    history, times = [[epoch] for epoch in played[0]], played[1]
    operator = a_window_top_n(Hopping(12 * MS, 4 * MS), 2, ties=ties).operator

    check_content_alone_decides(operator, [INPUT], history, times)


def test_without_keys_attached_windows_are_ranked_over_all_rows() -> None:
    schema = pl.Schema(
        {"window_start": INPUT["at"], "window_end": INPUT["at"], "value": pl.Int32()}
    )
    subtask = a_window_top_n(Attached(), 1, ties=True, keys=(), schema=schema)
    early, later = (at(0), at(10)), (at(2), at(12))
    time = EpochTime(watermark_ms=9)

    first = subtask.play([[(*early, 3), (*later, 9)], [(*early, 5), (*early, 5)]], time=time)
    second = subtask.play(
        [[(*later, 8), (*early, 7)]],
        time=EpochTime(previous_watermark_ms=9, watermark_ms=MAX_WATERMARK),
    )

    assert first.output.columns == ["window_start", "window_end", "value", "rank"]
    assert first.output.rows() == [(*early, 5, 1), (*early, 5, 1)]
    assert second.output.rows() == [(*later, 9, 1)]
    assert second.late[0].rows() == [(*early, 7)]


@pytest.mark.parametrize("window", [Tumbling(4 * MS), Hopping(4 * MS, 2 * MS)])
def test_without_keys_windows_of_event_time_are_ranked_over_all_rows(window: RankedWindow) -> None:
    subtask = a_window_top_n(window, 1, ties=False, keys=())
    rows = [(1, "a", 3, at(0)), (2, "b", 5, at(1)), (3, "c", 4, at(3)), (4, "d", 1, at(9))]

    outcomes = [
        subtask.play([rows], time=EpochTime(watermark_ms=2)),
        subtask.play([[]], time=EpochTime(previous_watermark_ms=2, watermark_ms=3)),
    ]

    assert outcomes[-1].output.rows() == [(2, "b", 5, at(1), at(0), at(4), 1)]


def test_rows_that_lose_their_rank_to_a_tie_of_the_best_leave_the_state() -> None:
    subtask = a_window_top_n(Tumbling(10 * MS), 1, ties=True)
    time = EpochTime(previous_watermark_ms=MIN_WATERMARK, watermark_ms=0)
    subtask.play([[(1, "a", 3, at(1)), (1, "a", 3, at(2))]], time=time)

    subtask.play([[(1, "a", 4, at(3))]], time=time)

    assert subtask.state()["rows"].scan()["value"].to_list() == [4]


# --- over changelogs

CHANGELOG = with_weight(
    pl.Schema(
        {
            "id": pl.Int64(),
            "name": pl.String(),
            "item": pl.String(),
            "by": pl.Int64(),
            "tags": pl.List(pl.Int64()),
        }
    )
)

items, scores = st.sampled_from([None, "u", "v"]), st.none() | st.integers(0, 4)
lists = st.sampled_from([None, (), (1,), (1, None)]).map(lambda tags: tags and list(tags))
nested_rows = st.tuples(ids, names, items, scores, lists)
flat_rows = st.tuples(ids, names, items, scores, st.none())
# One key and many rows, so that its best rows are often taken back.
crowded_rows = st.tuples(
    st.just(1), st.just("a"), st.sampled_from("uvw"), st.integers(0, 9), st.none()
)
flat_histories = st.one_of(changelogs(flat_rows), changelogs(crowded_rows, most_rows=12))


def a_changelog_top_n(
    n: int, *, unique: tuple[str, ...] = ("item",), ttl_ms: int | None = None
) -> TopNOperator:
    operation = DeclaredTopN(n=n, by="by", unique=unique)
    return TopNOperator(a_stage(operation, event_time=None, ttl_ms=ttl_ms), CHANGELOG)


def a_changelog_latest() -> LatestOperator:
    return LatestOperator(a_stage(DeclaredLatest(by=("by",)), event_time=None), CHANGELOG)


def latest(present: Counter[Row]) -> Counter[Row]:
    groups = by_key(present.elements()).values()
    return Counter(max(group, key=lambda row: ascending((row[3], row[2]))) for group in groups)


@examples(30)
@given(flat_histories, st.integers(1, 3), st.sampled_from([(), ("item",)]), seeds)
def test_the_best_rows_that_are_there_have_the_ranks(
    history: list[Epoch], n: int, unique: tuple[str, ...], random: Random
) -> None:
    subtask = Subtask(a_changelog_top_n(n, unique=unique), [CHANGELOG])

    for present, sent in sent_of(subtask, history, random):
        assert sent == Counter(ranking(present.elements(), n))
        state = subtask.state()
        assert in_order(state["rows"].scan().drop(HASH)) == in_order(list(sent.elements()))
        assert in_order(state["bag"].scan().drop(HASH)) == in_order(
            [(*row, copies) for row, copies in present.items()]
        )


@examples(30)
@given(flat_histories, seeds)
def test_the_latest_of_the_rows_that_are_there_is_sent(
    history: list[Epoch], random: Random
) -> None:
    subtask = Subtask(a_changelog_latest(), [CHANGELOG])

    for present, sent in sent_of(subtask, history, random):
        assert sent == latest(present)


def sent_of(
    subtask: Subtask, history: list[Epoch], random: Random
) -> Iterator[tuple[Counter[Row], Counter[Row]]]:
    """After each epoch the rows that are there, and what was sent and not taken back."""
    present: Counter[Row] = Counter()
    sent: Counter[Row] = Counter()
    for epoch in history:
        present = applied(present, epoch)
        outcome = play(subtask, epoch, random)
        assert outcome.retracted is not None
        assert not set(outcome.output.rows()) & set(outcome.retracted.rows())
        sent = kept(sent, outcome.output.rows(), outcome.retracted.rows())
        yield present, sent


A_NESTED_HISTORY = [
    [(1, "a", "u", 3, [1, None], 1), (1, "a", "u", 3, [1], 1)],
    [(1, "a", "u", 3, [1, None], -1)],
]


@examples(5)
@given(changelogs(nested_rows))
@example(A_NESTED_HISTORY)
def test_neither_chunks_nor_order_nor_subtasks_decide_anything(history: list[Epoch]) -> None:
    for operator in (a_changelog_top_n(2), a_changelog_top_n(1, unique=()), a_changelog_latest()):
        check_content_alone_decides(operator, [CHANGELOG], [[epoch] for epoch in history])


def test_a_value_that_falls_makes_room_for_the_next_best() -> None:
    for operator in (a_changelog_top_n(1), a_changelog_latest()):
        subtask = Subtask(operator, [CHANGELOG])
        rich, poor, second = (
            (1, "a", item, by, None) for item, by in (("u", 100), ("u", 10), ("v", 50))
        )
        subtask.play([[(*rich, 1), (*second, 1)]], time=EpochTime())

        outcome = subtask.play([[(*rich, -1), (*poor, 1)]], time=EpochTime())

        assert outcome.output["by"].to_list() == [50]
        assert outcome.retracted is not None
        assert outcome.retracted["by"].to_list() == [100]


def test_a_row_that_is_not_there_is_not_taken_back_twice() -> None:
    subtask = Subtask(a_changelog_top_n(1, ttl_ms=10), [CHANGELOG])
    row, other = (1, "a", "u", 3, None), (1, "a", "v", 2, None)
    subtask.play([[(*row, 1)]], time=EpochTime())

    subtask.play([[(*row, -1)]], time=EpochTime(processing_time_ms=10))
    outcome = subtask.play([[(*other, 1)]], time=EpochTime(processing_time_ms=11))

    assert outcome.output.rows() == [(1, "a", 1, *other[2:])]
    assert subtask.state(11)["bag"].scan().height == 1
