"""An epoch under way in this process: its plan, and the threads that run its stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from typing import TypeAlias

from sluice.core.plan import CheckpointPlan
from sluice.errors import NotYetAcknowledged, StageFailed

# Ends with the seconds that a stage took; None if it ran chained to another.
Ran: TypeAlias = Future[float | None]

ABORT_POLL_S = 2.0  # The interval at which the journal is asked whether a person aborted it.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEpoch:
    plan: CheckpointPlan
    stages: dict[str, Ran]
    started: float = field(default_factory=time.monotonic)


def wait_for(stages: Iterable[Ran], seconds: float, *, gives_up: Callable[[], bool]) -> None:
    """Wait until all are done or one failed, for *seconds*, or until *gives_up* says so."""
    deadline, waited_for = time.monotonic() + seconds, tuple(stages)
    while True:
        rest_s = max(0.0, deadline - time.monotonic())
        ended, others = wait(waited_for, min(rest_s, ABORT_POLL_S), return_when=FIRST_EXCEPTION)
        has_failed = any(stage.cancelled() or stage.exception() for stage in ended)
        if not others or has_failed or rest_s == 0 or gives_up():
            return


def seconds_by_chain(plan: CheckpointPlan, stages: dict[str, Ran]) -> dict[str, float]:
    """The seconds of each Spark job of an epoch, by the stages that it ran: ``a > b``."""
    chains: dict[str, list[str]] = {}
    seconds: dict[str, float] = {}
    for task in plan.tasks:
        if task.uid not in stages:
            continue
        took = stages[task.uid].result()
        if took is None:
            (producer,) = task.reads
            chains[task.uid] = chains[producer]
            chains[producer].append(task.uid)
        else:
            chains[task.uid], seconds[task.uid] = [task.uid], took
    return {" > ".join(chains[first]): took for first, took in seconds.items()}


def first_failure(stages: dict[str, Ran]) -> StageFailed | None:
    """The error of the first stage that failed; those behind it failed because of it.

    Raises:
        Exception: an error of sluice itself, and not of a stage.
    """
    for uid, stage in stages.items():
        error = stage.exception() if stage.done() else None
        if isinstance(error, StageFailed):
            return error
        # Another coordinator has started a new attempt of a stage.
        if isinstance(error, NotYetAcknowledged):
            return StageFailed(str(error), stage=uid)
        if error is not None:
            raise error
    return None
