"""What acks say of requests adds up.

Whether all subtasks of a chain have read the executions whose acks there are.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.answers import Ack, Execution, Mixture, StoreRequests, mixture_in
from sluice.core.ids import CheckpointId, SubtaskId


def test_requests_add_up_by_kind_and_in_all() -> None:
    one = StoreRequests(gets=1, puts=2, lists=3, deletes=4, bytes_read=50, bytes_written=60)

    assert one + one == StoreRequests(
        gets=2, puts=4, lists=6, deletes=8, bytes_read=100, bytes_written=120
    )
    assert (one.total, (one + one).total) == (10, 20)


CHAIN = ("said", "heard", "told")


def execution(stage: str, index: int, token: str, *read: str) -> Execution:
    subtask = SubtaskId(stage, index)
    ack = Ack(checkpoint_id=CheckpointId(1), subtask=subtask, attempt=1)
    return Execution(ack=ack, token=token, read=read)


SAID = [execution("said", index, f"s{index}") for index in range(11)]
HEARD = [
    execution("heard", 0, "h0", *(one.token for one in SAID)),
    execution("heard", 1, "h1", *(one.token for one in SAID)),
]
TOLD = [execution("told", index, f"t{index}", "h0", "h1") for index in range(3)]
ALL = [*reversed(TOLD), *HEARD, *reversed(SAID)]


def test_a_chain_is_whole_when_all_have_read_what_is_acknowledged() -> None:
    assert mixture_in(CHAIN, ALL) is None


def test_a_stage_alone_and_rows_that_are_undecided_have_nothing_to_compare() -> None:
    assert mixture_in(("said",), SAID) is None
    assert mixture_in(CHAIN, ()) is None


@pytest.mark.parametrize(
    ("stage", "index", "changed", "mixture"),
    [
        ("heard", 1, {"read": ("again", *HEARD[1].read[1:])}, Mixture("said", "heard")),
        ("heard", 1, {"read": HEARD[1].read[:-1]}, Mixture("said", "heard")),
        ("heard", 1, {"read": ()}, Mixture("said", "heard")),
        ("heard", 1, {"read": (*HEARD[1].read, "again")}, Mixture("said", "heard")),
        # All have read the same, but it is not what would be acknowledged.
        ("said", 10, {"token": "again"}, Mixture("said", "heard")),
        ("heard", 0, {"token": "again"}, Mixture("heard", "told")),
        ("told", 2, {"read": ("h1", "h0")}, Mixture("heard", "told")),
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
    again = replace(HEARD[0], token="h0-2", read=("s0-2", *HEARD[0].read[1:]))  # noqa: S106
    told = [replace(one, read=("h0-2", "h1")) for one in TOLD]
    assert mixture_in(CHAIN, [*SAID, again, HEARD[1], *told]) == Mixture("said", "heard")


def test_the_last_of_a_chain_may_run_again() -> None:
    told = [replace(one, token=f"{one.token}-2") for one in TOLD]
    assert mixture_in(CHAIN, [*SAID, *HEARD, *told]) is None
