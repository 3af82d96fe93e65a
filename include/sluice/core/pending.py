"""A checkpoint that has been triggered and is still collecting acks.

A ``PendingCheckpoint`` has two ends and no third: every subtask acknowledges and it becomes a
``CompletedCheckpoint``, or it is aborted with a ``CheckpointFailureReason``.  The journal holds it
without the subtasks' acks: those are objects in the bucket, and are folded in where they matter.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from sluice.core.answers import Ack, Decline
from sluice.core.configuration import CheckpointType
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, SavepointId, SubtaskId
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.errors import require

FIRST_ATTEMPT = 1


class AckResult(Enum):
    """The outcome of an acknowledgement.  None of these is an error."""

    SUCCESS = auto()
    DUPLICATE = auto()  # The same subtask acknowledged again: a retried Spark task.
    UNKNOWN = auto()  # Another execution attempt, or not a participant; its files are garbage.
    DISCARDED = auto()  # Late: the checkpoint already ended; its files are garbage.


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """A pending checkpoint and its acks.

    ``overtaken`` stages did not answer before the aligned checkpoint timeout: the coordinator
    acknowledged for them with their previous state, and their own acks are UNKNOWN from then on.
    ``token`` is the plan's.
    """

    checkpoint_id: CheckpointId
    token: str = ""
    parent: CheckpointId | None
    type: CheckpointType
    triggered_at_ms: int
    expires_at_ms: int
    drains: bool
    records: int
    tasks: tuple[TaskPlan, ...]
    processing_time_ms: int = 0
    savepoint_name: str | None = None
    savepoint_token: str = ""
    cause: str = ""
    request_id: str = ""
    queued_ms: int = 0  # How long its request had waited in the queue.
    attempts: Mapping[str, int] = field(default_factory=dict[str, int])
    overtaken: tuple[str, ...] = ()
    acks: Mapping[str, Ack] = field(default_factory=dict[str, Ack])  # By str(subtask).

    @classmethod
    def of(
        cls,
        plan: CheckpointPlan,
        *,
        savepoint_name: str | None = None,
        request_id: str = "",
        queued_ms: int = 0,
    ) -> PendingCheckpoint:
        return cls(
            checkpoint_id=plan.checkpoint_id,
            token=plan.token,
            parent=plan.parent,
            type=plan.type,
            triggered_at_ms=plan.triggered_at_ms,
            expires_at_ms=plan.expires_at_ms,
            drains=plan.drains,
            records=plan.records,
            tasks=plan.tasks,
            processing_time_ms=plan.processing_time_ms,
            savepoint_name=savepoint_name,
            savepoint_token=plan.savepoint_token,
            cause=plan.cause,
            request_id=request_id,
            queued_ms=queued_ms,
        )

    @property
    def savepoint(self) -> SavepointId | None:
        """The savepoint that it becomes."""
        name = self.savepoint_name
        return None if name is None else SavepointId(name, self.savepoint_token)

    @property
    def not_yet_acknowledged(self) -> tuple[SubtaskId, ...]:
        return tuple(
            subtask
            for task in self.tasks
            if task.uid not in self.overtaken
            for subtask in task.subtasks
            if str(subtask) not in self.acks
        )

    @property
    def is_fully_acknowledged(self) -> bool:
        """Every subtask has answered; the plan has the answers of sources and hooks already."""
        return not self.not_yet_acknowledged

    @property
    def current_attempts(self) -> dict[str, int]:
        """By stage that answers itself, the attempt whose acks count."""
        stages = (task.uid for task in self.tasks if task.uid not in self.overtaken)
        return {stage: self.attempt_of(stage) for stage in stages}

    @property
    def can_be_subsumed(self) -> bool:
        """Flink's canBeSubsumed: a savepoint never, forced or not."""
        return not self.type.is_savepoint

    @property
    def ends_the_job(self) -> bool:
        """No checkpoint can follow it: the input ended, or a person stops the job with it."""
        return self.drains or self.type.stops_the_job

    def can_be_aborted(self, reason: CheckpointFailureReason) -> bool:
        """Any reason may abort it, but a newer checkpoint only if it can be subsumed."""
        return self.can_be_subsumed or reason is not CheckpointFailureReason.CHECKPOINT_SUBSUMED

    def awaits(self, decline: Decline) -> bool:
        """Whether a decline counts: none of another plan, of a fenced attempt, of an overtaken
        stage, or of a subtask that takes no part.
        """
        return decline.plan == self.token and self.awaits_answer(decline.subtask, decline.attempt)

    def awaits_answer(self, subtask: SubtaskId, attempt: int) -> bool:
        """Whether an answer to its plan, of that subtask and attempt, counts."""
        is_current = attempt == self.attempt_of(subtask.stage)
        is_overtaken = subtask.stage in self.overtaken
        return is_current and not is_overtaken and self.is_participant(subtask)

    def is_participant(self, subtask: SubtaskId) -> bool:
        return any(
            task.uid == subtask.stage and 0 <= subtask.index < task.parallelism
            for task in self.tasks
        )

    def attempt_of(self, stage: str) -> int:
        """The execution attempt of *stage* whose acks count."""
        return self.attempts.get(stage, FIRST_ATTEMPT)

    def start_attempt(self, stage: str, attempt: int) -> PendingCheckpoint:
        """Fence every earlier execution attempt of *stage*: its acks become UNKNOWN.

        All stages behind it begin their next attempt, too: they may have read what the fenced one
        wrote, and a transform need not give the same rows twice.
        """
        require(attempt > self.attempt_of(stage), "a stage's attempts only grow")
        again = {stage: attempt}
        for task in self.tasks:  # In topological order.
            if task.uid not in again and _reads_any(task, again):
                again[task.uid] = self.attempt_of(task.uid) + 1
        return replace(self, attempts={**self.attempts, **again}, acks=self._acks_without(again))

    def overtake(self, stages: Iterable[str]) -> PendingCheckpoint:
        """Acknowledge with its previous state for each of *stages* that may be overtaken.

        The output of an overtaken stage in this epoch is not part of the checkpoint, so the stages
        that read it are overtaken with it, even if they have acknowledged.
        """
        wanted, overtaken = set(stages), [*self.overtaken]
        for task in self.tasks:  # In topological order.
            is_behind = task.may_be_overtaken and task.uid in wanted
            if (is_behind or _reads_any(task, overtaken)) and task.uid not in overtaken:
                overtaken.append(task.uid)
        return replace(self, overtaken=tuple(overtaken), acks=self._acks_without(overtaken))

    def acknowledge(self, acks: Iterable[Ack]) -> tuple[PendingCheckpoint, tuple[AckResult, ...]]:
        """Return the checkpoint with *acks* added, and the result of each.

        One ack or thousands: the work grows with their number alone.
        """
        known, results = {**self.acks}, list[AckResult]()
        for ack in acks:
            result = self._result_of(ack, known)
            if result is AckResult.SUCCESS:
                known[str(ack.subtask)] = ack
            results.append(result)
        return replace(self, acks=known), tuple(results)

    def _result_of(self, ack: Ack, known: Container[str]) -> AckResult:
        require(ack.checkpoint_id == self.checkpoint_id, "an ack is of the same checkpoint")
        if not self.awaits_answer(ack.subtask, ack.attempt):
            return AckResult.UNKNOWN
        return AckResult.DUPLICATE if str(ack.subtask) in known else AckResult.SUCCESS

    def _acks_without(self, stages: Container[str]) -> dict[str, Ack]:
        return {key: ack for key, ack in self.acks.items() if ack.subtask.stage not in stages}


def _reads_any(task: TaskPlan, stages: Container[str]) -> bool:
    """Whether the task reads the output of one of *stages* in this epoch."""
    return not task.is_unaligned and any(producer in stages for producer in task.reads)
