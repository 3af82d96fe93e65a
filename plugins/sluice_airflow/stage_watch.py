"""``StageWatch``: the progress of one stage of one checkpoint, read from the bucket.

    Outstanding --every subtask acknowledged--> Acknowledged
       |
       +----a decline, the timeout, or the checkpoint gone----> Lost

A poll is one LIST.  The journal is read before the first, for the checkpoint that the DAG run owns,
and again before a verdict, because only it has the current execution attempt.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from sluice.core.configuration import JobStatus
from sluice.core.events import AlignmentTimedOut
from sluice.core.pending import PendingCheckpoint
from sluice.protocol.keys import PipelinePaths
from sluice.store.checkpoints import Answers, AnswerStore
from sluice.store.journal import Journal, jittered_pause
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation, open_store
from sluice_airflow.runs import completed_of, pending_of

# An abort that died before it deleted the plan shows only in the journal.
POLLS_PER_JOURNAL_READ = 20


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Subtasks are outstanding; ``progress`` is for people: "11 of 12, waiting for parse/3"."""

    progress: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """No subtask is waited for any more; ``progress`` says why."""

    progress: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The stage will never be acknowledged in this checkpoint."""

    reason: str


StageProgress: TypeAlias = Outstanding | Acknowledged | Lost


class StageWatch:
    """A watch of one stage, without resources to close; every poll may raise StoreUnavailable."""

    def __init__(self, location: StoreLocation, *, pipeline: str, stage: str, cause: str) -> None:
        store, paths = shared_store(location), PipelinePaths(pipeline)
        self._answers = AnswerStore(store, paths)
        self._journal = Journal(store, paths, pause=jittered_pause)
        self._stage = stage
        self._cause = cause
        self._pending: PendingCheckpoint | None = None
        self._polls = 0
        self._aligned_timeout_ms = 0

    def poll(self) -> StageProgress:
        pending = self._pending or self._read_journal()
        if not isinstance(pending, PendingCheckpoint):
            return pending
        answers = self._answers.observe(pending.checkpoint_id)
        progress = self._judge(pending, answers)
        self._polls += 1
        may_be_wrong = not isinstance(progress, Outstanding)
        may_be_wrong = may_be_wrong or self._has_newer_attempt(pending, answers)
        if may_be_wrong or self._polls % POLLS_PER_JOURNAL_READ == 0:
            pending = self._read_journal()
            if not isinstance(pending, PendingCheckpoint):
                return pending
            progress = self._judge(pending, answers)
        self._pending = pending
        return progress

    def _read_journal(self) -> PendingCheckpoint | StageProgress:
        state = self._journal.load().state
        self._aligned_timeout_ms = state.configuration.aligned_timeout_ms
        pending = pending_of(state, self._cause)
        if pending is not None:
            return pending
        completed = completed_of(state, self._cause)
        if completed is not None:
            return Acknowledged(f"checkpoint {completed.checkpoint_id} is completed")
        was_aborted = any(failed.cause == self._cause for failed in state.failed)
        if state.status is JobStatus.FINISHED and not was_aborted:
            return Acknowledged("the job is FINISHED, and its checkpoints went with it")
        return Lost(f"the checkpoint of {self._cause} was aborted")

    def _has_newer_attempt(self, pending: PendingCheckpoint, answers: Answers) -> bool:
        """Whether *answers* has a newer attempt: it is journaled first, so our state is old."""
        known = pending.attempt_of(self._stage)
        return any(
            subtask.stage == self._stage and attempt > known
            for subtask, attempt in answers.acknowledged | answers.declined
        )

    def _judge(self, pending: PendingCheckpoint, answers: Answers) -> StageProgress:
        task = next(task for task in pending.tasks if task.uid == self._stage)
        attempt = pending.attempt_of(self._stage)
        declined = sorted(
            subtask
            for subtask, of_attempt in answers.declined
            if subtask.stage == self._stage and of_attempt == attempt
        )
        missing = answers.missing(task.subtasks, attempt)
        if self._stage in pending.overtaken:
            return Acknowledged("overtaken: its input stays in flight")
        if declined:
            return Lost(f"subtask {declined[0]} declined checkpoint {pending.checkpoint_id}")
        if not missing:
            return Acknowledged(f"{task.parallelism} of {task.parallelism}")
        if not answers.has_plan:
            return Lost(f"the plan of checkpoint {pending.checkpoint_id} is gone")
        now_ms = time.time_ns() // 1_000_000
        waited_ms = now_ms - pending.triggered_at_ms
        if now_ms >= pending.expires_at_ms:
            waited_s = (pending.expires_at_ms - pending.triggered_at_ms) // 1_000
            names = ", ".join(map(str, missing))
            return Lost(
                f"checkpoint {pending.checkpoint_id} expired after {waited_s} s; {names} did not "
                "acknowledge"
            )
        is_late = task.may_be_overtaken and waited_ms >= self._aligned_timeout_ms
        if is_late and self._overtake(pending):
            return Acknowledged("overtaken: its input stays in flight")
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        done = task.parallelism - len(missing)
        return Outstanding(f"{done} of {task.parallelism}, waiting for {missing[0]}{others}")

    def _overtake(self, pending: PendingCheckpoint) -> bool:
        """Have the coordinator overtake the stage after the aligned timeout; whether it did."""
        transition = self._journal.append(
            lambda state: AlignmentTimedOut(
                generation=state.generation,
                at_ms=time.time_ns() // 1_000_000,
                checkpoint_id=pending.checkpoint_id,
                stages=(self._stage,),
            )
        )
        after = transition.state.pending_checkpoint(pending.checkpoint_id)
        return after is not None and self._stage in after.overtaken


@cache
def shared_store(location: StoreLocation) -> ObjectStore:
    """One client for all watches of a triggerer, as building one costs more than a look."""
    return open_store(location)
