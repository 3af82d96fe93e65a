"""The stages of an epoch under way, and what is told of them."""

from __future__ import annotations

from sluice.core.plan import TaskPlan
from sluice.local.driver import Ran, seconds_by_chain
from tests.builders import a_plan


def ran(seconds: float | None) -> Ran:
    future: Ran = Ran()
    future.set_result(seconds)
    return future


def test_the_stages_of_a_chain_are_told_together() -> None:
    reads = {"a": (), "b": ("a",), "other": (), "c": ("b",), "late": ("other",)}
    tasks = tuple(
        TaskPlan(uid=uid, parallelism=1, max_parallelism=1, reads=read)
        for uid, read in reads.items()
    )
    took = {"a": 3.0, "b": None, "other": 1.0, "c": None}

    told = seconds_by_chain(
        a_plan(tasks=tasks), {uid: ran(seconds) for uid, seconds in took.items()}
    )

    assert told == {"a > b > c": 3.0, "other": 1.0}
