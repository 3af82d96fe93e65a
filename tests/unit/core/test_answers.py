"""Requests to stores add up, and what was read of other executions, or drivers, is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.answers import (
    Ack,
    Execution,
    LateRows,
    Mixture,
    StageAnswer,
    StoreRequests,
    mixture_in,
    mixture_of_drivers,
)
from sluice.core.ids import CheckpointId, SubtaskId


def test_requests_add_up_by_kind_and_in_all() -> None:
    one = StoreRequests(gets=1, puts=2, lists=3, deletes=4, bytes_read=50, bytes_written=60)

    assert one + one == StoreRequests(
        gets=2, puts=4, lists=6, deletes=8, bytes_read=100, bytes_written=120
    )
    assert (one.total, (one + one).total) == (10, 20)


CHAIN = ("parse", "count", "rank")


def execution(stage: str, index: int, token: str, *read: str) -> Execution:
    subtask = SubtaskId(stage, index)
    ack = Ack(checkpoint_id=CheckpointId(1), subtask=subtask, attempt=1)
    return Execution(ack=ack, token=token, read=read)


PARSED = [execution("parse", index, f"p{index}") for index in range(11)]
COUNTED = [
    execution("count", 0, "c0", *(one.token for one in PARSED)),
    execution("count", 1, "c1", *(one.token for one in PARSED)),
]
RANKED = [execution("rank", index, f"r{index}", "c0", "c1") for index in range(3)]
ALL = [*reversed(RANKED), *COUNTED, *reversed(PARSED)]


def test_a_chain_is_whole_when_all_have_read_what_is_acknowledged() -> None:
    assert mixture_in(CHAIN, ALL) is None


def test_a_stage_alone_and_rows_that_are_undecided_have_nothing_to_compare() -> None:
    assert mixture_in(("parse",), PARSED) is None
    assert mixture_in(CHAIN, ()) is None


@pytest.mark.parametrize(
    ("stage", "index", "changed", "mixture"),
    [
        ("count", 1, {"read": ("again", *COUNTED[1].read[1:])}, Mixture("parse", "count")),
        ("count", 1, {"read": COUNTED[1].read[:-1]}, Mixture("parse", "count")),
        ("count", 1, {"read": ()}, Mixture("parse", "count")),
        ("count", 1, {"read": (*COUNTED[1].read, "again")}, Mixture("parse", "count")),
        # All have read the same, but it is not what would be acknowledged.
        ("parse", 10, {"token": "again"}, Mixture("parse", "count")),
        ("count", 0, {"token": "again"}, Mixture("count", "rank")),
        ("rank", 2, {"read": ("c1", "c0")}, Mixture("count", "rank")),
    ],
)
def test_another_execution_anywhere_is_a_mixture(
    stage: str, index: int, changed: dict[str, object], mixture: Mixture
) -> None:
    subtask = SubtaskId(stage, index)
    executions = [
        replace(one, **changed) if one.ack.subtask == subtask else one  # type: ignore[arg-type]
        for one in ALL
    ]
    assert mixture_in(CHAIN, executions) == mixture


def test_a_stage_in_the_middle_that_ran_again_over_other_rows_is_found() -> None:
    """Its own readers are of one mind, and its token is the one that they read."""
    again = replace(COUNTED[0], token="c0-2", read=("p0-2", *COUNTED[0].read[1:]))  # noqa: S106
    ranked = [replace(one, read=("c0-2", "c1")) for one in RANKED]
    assert mixture_in(CHAIN, [*PARSED, again, COUNTED[1], *ranked]) == Mixture("parse", "count")


def test_the_last_of_a_chain_may_run_again() -> None:
    ranked = [replace(one, token=f"{one.token}-2") for one in RANKED]
    assert mixture_in(CHAIN, [*PARSED, *COUNTED, *ranked]) is None


def an_answer(stage: str, driver: str, *, attempt: int = 1, **read: str) -> StageAnswer:
    return StageAnswer(
        checkpoint_id=CheckpointId(1),
        stage=stage,
        attempt=attempt,
        plan="plan",
        driver=driver,
        acks=(Ack(checkpoint_id=CheckpointId(1), subtask=SubtaskId(stage, 0), attempt=1),),
        read=read,
    )


def test_a_stage_that_read_what_another_driver_answered_is_a_mixture() -> None:
    parsed, ranked = an_answer("parse", "one"), an_answer("rank", "three", count="two")

    assert mixture_of_drivers([]) is None
    assert mixture_of_drivers([parsed, an_answer("count", "two", parse="one"), ranked]) is None
    # A stage that has not answered is none to compare with.
    assert mixture_of_drivers([parsed, ranked]) is None
    assert mixture_of_drivers([parsed, an_answer("count", "two", parse="other")]) == Mixture(
        "parse", "count"
    )


def test_an_answer_holds_the_acks_of_its_own_attempt_alone() -> None:
    with pytest.raises(ValueError, match="of its checkpoint, stage and attempt"):
        an_answer("parse", "one", attempt=2)


def test_late_rows_of_several_subtasks_are_added_and_the_latest_stands() -> None:
    one = LateRows(rows=3, most_ms=9_000, within=(1, 3, 3, 3, 3, 3))
    other = LateRows(rows=2, most_ms=70_000, within=(0, 0, 1, 2, 2, 2))

    assert one + other == LateRows(rows=5, most_ms=70_000, within=(1, 3, 4, 5, 5, 5))
