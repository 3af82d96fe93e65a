"""The failures of a job's checkpoints, by root cause (Flink's exception history).

Nothing is kept for it: the statistics of a checkpoint that failed, or of which a stage ran again,
have what its tasks and subtasks said, and the history has a line of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from sluice.core.failures import is_equal_cause
from sluice.figures.record import CheckpointStatistics, CheckpointStats, TaskException
from sluice.job.job import Job
from sluice.store.checkpoints import StatisticsStore
from sluice.surface.checkpoints import overview

MAX_FAILURES = 50  # The newest, of which each is a GET.


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of one ``root_cause``, as the newest of them has it.

    ``message`` is what the checkpoint ended with, which names the records where they are known;
    ``task``, ``stage``, ``subtask`` and ``attempt`` failed, as far as one is to blame.  ``stack``
    is empty where nothing raised, and begins with the user's frames.  ``checkpoints`` are ids, the
    newest first; one that completed is among them if a stage of it had to run again.
    """

    root_cause: str
    reason: str | None
    message: str
    task: str | None
    stage: str | None
    subtask: int | None
    attempt: int | None
    stack: str
    count: int
    first_timestamp: int
    last_timestamp: int
    checkpoints: tuple[int, ...]


class ExceptionHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The newest ``failures``, at most 50, in groups, that with the newest failure first."""

    failures: int
    groups: tuple[FailureGroup, ...]


def exception_history(job: Job) -> ExceptionHistory:
    """Two GETs beside the journal's newest entry, and one for each failure."""
    lines = [line for line in overview(job).history if _had_failures(line)][:MAX_FAILURES]
    store = StatisticsStore(job.store, job.paths)
    kept = {one.checkpoint.id: one for one in store.read_each([line.id for line in lines])}
    groups: list[list[_Failure]] = []
    for failure in (_failure(line, kept.get(line.id)) for line in lines):
        equal = (group for group in groups if is_equal_cause(group[0].cause, failure.cause))
        group = next(equal, None)
        if group is None:
            groups.append([failure])
        else:
            group.append(failure)
    return ExceptionHistory(failures=len(lines), groups=tuple(map(_group, groups)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    line: CheckpointStats
    cause: str
    blamed: TaskException | None
    stack: str


def _had_failures(line: CheckpointStats) -> bool:
    """Whether it failed, or a stage of it ran again."""
    ran_again = (line.attempts or 1) > 1 and line.completed_timestamp is not None
    return line.failure_timestamp is not None or ran_again


def _failure(line: CheckpointStats, kept: CheckpointStatistics | None) -> _Failure:
    said = () if kept is None else kept.exceptions
    blamed = _blamed(said)
    if blamed is None:
        cause = line.failure_message or line.failure_reason or "a stage ran again"
        return _Failure(line=line, cause=cause, blamed=None, stack="")
    told = [one for one in said if one.task == blamed.task and one.stack]
    return _Failure(
        line=line,
        cause=blamed.message,
        blamed=blamed,
        stack=max(told, key=lambda one: one.attempt).stack if told else "",
    )


def _blamed(said: Sequence[TaskException]) -> TaskException | None:
    """The newest answer of a subtask, or else of a stage, or else of another task."""

    def rank(one: TaskException) -> tuple[bool, bool, int]:
        return one.index is not None, one.stage is not None, one.attempt

    return max(said, key=rank, default=None)


def _group(failures: Sequence[_Failure]) -> FailureGroup:
    """*failures* are the newest first."""
    newest = failures[0]
    blamed, moments = newest.blamed, [_moment(one.line) for one in failures]
    return FailureGroup(
        root_cause=newest.cause,
        reason=newest.line.failure_reason,
        message=newest.line.failure_message or newest.cause,
        task=None if blamed is None else blamed.task,
        stage=None if blamed is None else blamed.stage,
        subtask=None if blamed is None else blamed.index,
        attempt=None if blamed is None else blamed.attempt,
        stack=next((one.stack for one in failures if one.stack), ""),
        count=len(failures),
        first_timestamp=min(moments),
        last_timestamp=max(moments),
        checkpoints=tuple(one.line.id for one in failures),
    )


def _moment(line: CheckpointStats) -> int:
    return line.failure_timestamp or line.completed_timestamp or line.trigger_timestamp
