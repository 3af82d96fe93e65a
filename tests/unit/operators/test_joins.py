"""The rules that the joins document, one by one, and the declarations that they refuse by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from sluice.core.transitions import Adoption
from sluice.declaration import operations as ops
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import Attached, Hopping, Session, Tumbling, Window
from sluice.errors import ConfigurationError
from sluice.operators.build import build_operator
from sluice.operators.joins import ChangelogJoin, RegularJoinOperator, WindowJoinOperator
from sluice.operators.operator import WEIGHT, EpochTime, Frames, Operator, Outcome
from sluice.state.keyed import KeyedState
from tests.property.operators.subtask import Subtask
from tests.unit.operators.auctions import INSTANT, LEFT, RIGHT, Played, a_stage, interval
from tests.unit.operators.keyed import MS, at

# A left row of the key 1, beside that of a test.
COMES_AND_GOES = (1, at(7), None)


class Adopting(ChangelogJoin):
    """A join whose state is that of a join that *was* another."""

    def __init__(self, operator: Operator, was: Adoption) -> None:
        self.__dict__.update(vars(operator))
        self._was = was

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        return self.adopted(groups, state, time, self._was)


# --- regular --------------------------------------------------------------------------------------


def a_regular_join(how: str, ttl_ms: int | None = None) -> Played:
    stage = replace(a_stage(ops.RegularJoin(how=how)), ttl_ms=ttl_ms)  # type: ignore[arg-type]
    return Played(build_operator(stage, [LEFT, RIGHT]))


def test_equal_rows_are_as_many_pairs() -> None:
    played = a_regular_join("inner")
    left, right = (1, at(0), None), (1, at(1), 10)

    played.epoch([left, left], [], 0)
    outcome = played.epoch([], [right, right], 0)

    assert outcome.output.rows() == [(*left, *right)] * 4
    assert outcome.output.columns == ["id", "at", "until", "item", "seen", "price"]


def test_a_key_column_of_one_name_comes_once_and_others_stay() -> None:
    right = RIGHT.copy()
    right["id"] = right.pop("item")
    operator = RegularJoinOperator(a_stage(ops.RegularJoin(), keys=("id",)), LEFT, right)

    assert operator.output_schema.names() == ["id", "at", "until", "seen", "price"]


def test_a_semi_join_keeps_of_the_left_what_waits_and_of_the_right_its_keys() -> None:
    played = a_regular_join("semi")
    played.epoch([(1, at(0), None), (2, at(0), None)], [(1, at(0), 5)], 0)

    known = played.epoch([(1, at(9), None)], [(1, at(1), 6), (1, at(1), 6)], 0)
    before = (played.kept("left"), played.kept("right"))
    released = played.epoch([], [(2, at(1), 7)], 0)

    assert known.output.rows() == [(1, at(9), None)]
    assert known.changes["right"].upserts.is_empty()
    assert before == (1, 1)
    assert released.output.rows() == [(2, at(0), None)]
    assert (played.kept("left"), played.kept("right")) == (0, 2)


def test_a_null_key_equals_nothing_and_is_not_kept() -> None:
    played = a_regular_join("inner")

    outcome = played.epoch([(None, at(0), None)], [(None, at(0), 5)], 0)

    assert outcome.output.is_empty()
    assert (played.kept("left"), played.kept("right")) == (0, 0)


def test_a_row_is_forgotten_when_its_ttl_has_passed() -> None:
    played = a_regular_join("inner", ttl_ms=100)
    played.epoch([(1, at(0), None)], [], 0, at_ms=1_000)

    in_time = played.epoch([], [(1, at(0), 5)], 0, at_ms=1_099)
    too_late = played.epoch([], [(1, at(0), 6)], 0, at_ms=1_100)

    assert in_time.output.height == 1
    assert too_late.output.is_empty()


# --- regular, of which rows are taken back --------------------------------------------------------


def test_a_row_that_stood_alone_is_taken_back_when_its_partner_comes() -> None:
    played = a_regular_join("full")
    left, right = (1, at(0), None), (1, at(1), 10)

    alone = played.epoch([left], [], 0)
    matched = played.epoch([], [right], 0)

    assert alone.output.rows() == [(*left, None, None, None)]
    assert matched.output.rows() == [(*left, *right)]
    assert matched.retracted is not None
    assert matched.retracted.rows() == [(*left, None, None, None)]
    assert matched.output.schema == {**LEFT, **RIGHT}


def test_a_partner_of_the_same_epoch_takes_nothing_back() -> None:
    for how in ("left", "right", "full", "anti"):
        outcome = a_regular_join(how).epoch([(1, at(0), None)], [(1, at(1), 10)], 0)

        assert outcome.retracted is not None
        assert outcome.retracted.is_empty()
        assert outcome.output.height == (0 if how == "anti" else 1)


def test_null_keys_stand_alone_on_the_outer_sides_and_are_kept_for_them() -> None:
    left, right = (None, at(0), None), (None, at(0), 5)
    expected = {
        "left": ([(*left, None, None, None)], 1),
        "right": ([(None, None, None, *right)], 1),
        "anti": ([left], 0),
    }
    for how, (rows, kept) in expected.items():
        played = a_regular_join(how)

        outcome = played.epoch([left], [right], 0)

        assert outcome.output.rows() == rows
        assert (played.kept("left"), played.kept("right")) == (kept, kept)


def test_what_went_out_of_a_row_stays_when_its_ttl_has_passed() -> None:
    played = a_regular_join("left", ttl_ms=100)
    played.epoch([(1, at(0), None)], [], 0, at_ms=1_000)

    too_late = played.epoch([], [(1, at(0), 6)], 0, at_ms=1_100)

    assert too_late.output.is_empty()
    assert too_late.retracted is not None
    assert too_late.retracted.is_empty()


def came_and_went(played: Played, partner: tuple[Any, ...]) -> tuple[list[Any], ...]:
    """What is yielded, and taken back, when the right row *partner* comes, and when it goes."""
    came = played.epoch([], [(*partner, 1)], 0, at_ms=1_110)
    gone = played.epoch([], [(*partner, -1)], 0, at_ms=1_111)
    assert came.retracted is not None
    assert gone.retracted is not None
    return tuple(
        frame.rows() for frame in (came.output, came.retracted, gone.output, gone.retracted)
    )


def test_a_row_is_told_of_a_partner_once_though_that_one_was_forgotten() -> None:
    """Its first partner is forgotten before it is, and then another one comes, and goes."""
    left, right, other = (1, at(0), None), (1, at(1), 10), (1, at(2), 11)
    weights = [pl.Schema({**schema, WEIGHT: pl.Int8()}) for schema in (LEFT, RIGHT)]
    alone, pair = (*left, None, None, None), (*left, *other)
    expected: dict[str, tuple[list[Any], ...]] = {
        "left": ([pair], [], [alone], [pair]),
        "anti": ([], [], [left], []),
        "semi": ([], [], [], [left]),
    }
    for how, outcomes in expected.items():
        stage = replace(a_stage(ops.RegularJoin(how=how)), ttl_ms=100)  # type: ignore[arg-type]
        played = Played(build_operator(stage, weights), schemas=(weights[0], weights[1]))
        played.epoch([], [(*right, 1)], 0, at_ms=1_000)
        played.epoch([(*left, 1)], [], 0, at_ms=1_090)

        assert came_and_went(played, other) == outcomes, how


def test_a_join_that_is_given_a_ttl_knows_which_rows_had_a_partner() -> None:
    """The partner of before is forgotten before the row; then another one comes, and goes."""
    left, right, other = (1, at(0), None), (1, at(1), 10), (1, at(2), 11)
    weights = [pl.Schema({**schema, WEIGHT: pl.Int8()}) for schema in (LEFT, RIGHT)]
    alone, pair = (*left, None, None, None), (*left, *other)
    expected: dict[str, tuple[list[Any], ...]] = {
        "left": ([pair] * 2, [], [alone] * 2, [pair] * 2),
        "full": ([pair] * 2, [], [alone] * 2, [pair] * 2),
        "anti": ([], [], [left] * 2, []),
        "semi": ([], [], [], [left] * 2),
    }
    for how, outcomes in expected.items():
        stage = a_stage(ops.RegularJoin(how=how))  # type: ignore[arg-type]
        played = Played(build_operator(stage, weights), schemas=(weights[0], weights[1]))
        played.epoch([(*left, 1), (*COMES_AND_GOES, 1)], [(*right, 1)], 0, at_ms=1_000)
        forgetful = build_operator(replace(stage, ttl_ms=100), weights)
        played.subtask.operator = Adopting(forgetful, Adoption(parts={"partners": ""}))
        played.epoch([(*COMES_AND_GOES, -1)], [(*right, 1)], 0, at_ms=1_010)
        played.subtask.operator = forgetful
        played.epoch([(*left, 1)], [], 0, at_ms=1_090)

        assert came_and_went(played, other) == outcomes, how


# --- interval -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "fits"), [(-5, True), (-5.001, False), (3, True), (3.001, False)]
)
def test_both_ends_of_an_interval_belong_to_it(offset: float, *, fits: bool) -> None:
    played = Played(interval(-5, 3))

    outcome = played.epoch([(1, at(10), None)], [(1, at(10 + offset), 7)], 20)

    assert (outcome.output.height == 1) is fits


def test_rows_go_when_no_partner_can_come_any_more() -> None:
    played = Played(interval(-5, 3))
    played.epoch([(1, at(10), None)], [(1, at(10), 7)], 12)
    before = (played.kept("left"), played.kept("right"))

    played.epoch([], [], 13)
    between = (played.kept("left"), played.kept("right"))
    played.epoch([], [], 15)

    assert before == (1, 1)
    assert between == (0, 1)
    assert (played.kept("left"), played.kept("right")) == (0, 0)


def test_a_left_join_emits_a_lonely_row_when_it_goes_and_a_matched_one_never_again() -> None:
    played = Played(interval(0, 5, how="left"))
    lonely, matched = (1, at(10), None), (2, at(10), None)

    pairs = played.epoch([lonely, matched], [(2, at(12), 7)], 11)
    nobody = played.epoch([], [(2, at(13), 8)], 14)
    alone = played.epoch([], [], 15)

    assert pairs.output.rows() == [(*matched, 2, at(12), 7)]
    assert nobody.output.rows() == [(*matched, 2, at(13), 8)]
    assert alone.output.rows() == [(*lonely, None, None, None)]
    assert played.kept("left") == 0


def test_a_left_join_knows_who_was_matched_in_the_epoch_in_which_it_goes() -> None:
    played = Played(interval(0, 5, how="left"))
    matched, missed = (1, at(10), None), (2, at(10), None)
    played.epoch([matched, missed], [], 11)

    outcome = played.epoch([], [(1, at(12), 7), (2, at(16), 8)], 16)

    assert outcome.output.rows() == [
        (*missed, None, None, None),  # By hash: even keys first.
        (*matched, 1, at(12), 7),
    ]


def test_a_left_row_without_a_key_stays_alone() -> None:
    played = Played(interval(0, 5, how="left"))

    outcome = played.epoch([(None, at(10), None)], [(None, at(10), 7)], 15)

    assert outcome.output.rows() == [(None, at(10), None, None, None, None)]


def test_the_interval_may_end_at_an_instant_in_a_column() -> None:
    played = Played(interval(0, 0, upper_column="until", how="left"))
    left = [(1, at(10), at(20)), (1, at(11), None), (1, at(12), at(5))]

    outcome = played.epoch(left, [(1, at(20), 7), (1, at(21), 8)], 19)
    afterwards = played.epoch([], [], 20)

    # A null end, or one before the start, makes the interval empty.
    alone = [(*row, None, None, None) for row in left[1:]]
    assert outcome.output.rows() == [(*left[0], 1, at(20), 7), *alone]
    assert afterwards.output.is_empty()
    assert played.kept("left") == 0


def test_a_row_is_late_by_its_own_time_whoever_waits_for_it() -> None:
    played = Played(interval(-10, 10))
    played.epoch([(1, at(10), None)], [(1, at(10), 7)], 5)
    left, right = [(1, at(5), None), (1, None, None)], [(1, at(4), 8)]

    outcome = played.epoch(left, right, 6)

    assert outcome.output.is_empty()
    assert outcome.late[0].rows() == left
    assert outcome.late[1].rows() == right


# --- window ---------------------------------------------------------------------------------------


def a_window_join(window: Window, how: Any) -> Played:
    operation = ops.WindowJoin(window=window, how=how)
    return Played(WindowJoinOperator(a_stage(operation), LEFT, RIGHT))


def test_a_window_join_emits_at_the_end_of_the_window_and_leaves_no_state() -> None:
    played = a_window_join(Tumbling(10 * MS), "inner")
    left, right = (1, at(1), None), (1, at(9), 7)

    early = played.epoch([left], [right, (1, at(10), 8)], 8)
    fired = played.epoch([], [], 9)

    assert early.output.is_empty()
    assert fired.output.rows() == [(*left, *right, at(0), at(10))]
    assert fired.output.columns[-2:] == ["window_start", "window_end"]
    assert (played.kept("left"), played.kept("right")) == (0, 1)


def test_a_row_that_missed_some_of_its_windows_is_in_the_others() -> None:
    played = a_window_join(Hopping(10 * MS, 5 * MS), "anti")
    played.epoch([], [], 9)
    row, late = (1, at(7), None), (1, at(4), None)

    outcome = played.epoch([row, late], [], 14)

    assert outcome.output.rows() == [(*row, at(5), at(15))]
    assert outcome.late[0].rows() == [late]


def test_an_anti_join_emits_rows_without_a_key_and_a_semi_join_does_not_deduplicate() -> None:
    anti, semi = (a_window_join(Tumbling(10 * MS), how) for how in ("anti", "semi"))
    left = [(None, at(1), None), (1, at(1), None), (1, at(1), None)]
    right = [(1, at(2), 7), (1, at(3), 8), (None, at(2), 7)]

    without, having = (played.epoch(left, right, 20) for played in (anti, semi))

    bounds = (at(0), at(10))
    assert without.output.rows() == [(*left[0], *bounds)]
    assert having.output.rows() == [(*left[1], *bounds)] * 2


def test_a_semi_join_keeps_a_key_of_the_right_once_per_window() -> None:
    played = a_window_join(Tumbling(10 * MS), "semi")
    played.epoch([], [(1, at(2), 7), (1, at(3), 8), (1, at(13), 8)], 0)

    outcome = played.epoch([], [(1, at(4), 9)], 0)

    assert played.kept("right") == 2
    assert outcome.changes["right"].upserts.is_empty()


# --- what is refused ------------------------------------------------------------------------------

WINDOWED = pl.Schema({**LEFT, "window_start": INSTANT, "window_end": INSTANT})
REGULAR = ops.RegularJoin()
TUMBLING = ops.WindowJoin(window=Tumbling(MS), how="inner")
ATTACHED = ops.WindowJoin(window=Attached(), how="inner")

Declare = Callable[[], object]


def a_join(
    operation: ops.Operation, left: pl.Schema = LEFT, right: pl.Schema = RIGHT, **changed: Any
) -> Declare:
    """A join of *left* with *right*, whose input is *changed*."""
    return lambda: build_operator(a_stage(operation, **changed), [left, right])


def keyed_by_the_window() -> object:
    given = Input(producer="windows", keys=("window_start",))
    stage = StageNode(uid="bids", operation=ATTACHED, inputs=(given, given))
    return WindowJoinOperator(stage, WINDOWED, WINDOWED)


@pytest.mark.parametrize(
    ("message", "declare"),
    [
        (
            r"'bids' joins 'id' of '\w+', which is bigint, with 'item' of '\w+', which is int, so ",
            a_join(REGULAR, right=pl.Schema({**RIGHT, "item": pl.Int32()})),
        ),
        (
            r"; cast both, for example 'CAST\(id AS decimal\(22,2\)\) AS id', in a select",
            a_join(REGULAR, right=pl.Schema({**RIGHT, "item": pl.Decimal(12, 2)})),
        ),
        (
            "column 'until' on both sides",
            a_join(REGULAR, right=pl.Schema({**RIGHT, "until": pl.Int64()})),
        ),
        (
            "cannot use column 'price' of type bigint as event time",
            a_join(TUMBLING, event_time="price"),
        ),
        (
            "no column 'untill'.*did you mean 'until'",
            a_join(ops.IntervalJoin(lower_ms=0, upper_column="untill")),
        ),
        (
            "cannot join in session windows",
            a_join(ops.WindowJoin(window=Session(MS), how="inner")),
        ),
        ("no column 'window_start'", a_join(ATTACHED, left=WINDOWED)),
        ("cannot be keyed by 'window_start'", keyed_by_the_window),
        (
            "column 'window_start' that is there twice",
            a_join(ops.WindowJoin(window=Tumbling(MS), how="semi"), left=WINDOWED),
        ),
    ],
)
def test_a_join_that_the_inputs_cannot_satisfy_is_refused(message: str, declare: Declare) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declare()


def test_a_column_on_both_sides_may_stay_if_only_the_left_goes_out() -> None:
    right = pl.Schema({**RIGHT, "until": pl.Int64()})
    semi = RegularJoinOperator(a_stage(ops.RegularJoin(how="semi")), LEFT, right)

    assert semi.output_schema == LEFT


# --- what a join is -------------------------------------------------------------------------------


def test_a_join_reads_all_columns_in_any_order_and_leaves_nothing_to_spark() -> None:
    operator = RegularJoinOperator(a_stage(ops.RegularJoin()), LEFT, RIGHT)

    assert operator.needed_columns() is None
    assert not operator.is_order_sensitive
    assert operator.spark_partial() is None  # type: ignore[func-returns-value]


def test_an_epoch_without_groups_has_its_types() -> None:
    for operator in (
        RegularJoinOperator(a_stage(ops.RegularJoin()), LEFT, RIGHT),
        RegularJoinOperator(a_stage(ops.RegularJoin(how="semi")), LEFT, RIGHT),
        interval(0, 1, how="left"),
        WindowJoinOperator(a_stage(ops.WindowJoin(window=Tumbling(MS), how="semi")), LEFT, RIGHT),
    ):
        subtask = Subtask(operator, (LEFT, RIGHT), key_count=1)

        outcome = operator.process({}, subtask.state(), EpochTime(watermark_ms=5))

        assert outcome.output.schema == operator.output_schema
        for name, changes in outcome.changes.items():
            assert changes.upserts.schema == operator.tables[name].live
