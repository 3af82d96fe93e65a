"""The questions of the triggers to the bucket: how far a stage is, and whether a run is due.

``StageWatch``: the progress of one stage of one checkpoint.

    Outstanding --every subtask acknowledged--> Acknowledged
       |
       +----a decline, the timeout, or the checkpoint gone----> Lost

A poll is one LIST.  The journal is read before the first, for the checkpoint that the DAG run owns,
and again before a verdict, because only it has the current execution attempt.

``DueWatch``: says when a run of a checkpoint DAG is to be started, once for each checkpoint.

    poll --Due, and no run of the DAG is under way--> PollResult(event=...)

A run is asked for again when none came of it: the DAG was just paused, or the run failed before it
triggered anything.  An error of a poll is not raised.  One that lasts starts a run, whose note says
what it is; the next runs for it come ever more seldom, so that an outage does not fill the grid.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

from sluice.coordinator.next_checkpoint import Due, DueOrWaiting, NextCheckpoint, Waiting
from sluice.core.configuration import JobStatus
from sluice.core.events import AlignmentTimedOut
from sluice.core.ids import CheckpointId
from sluice.core.pending import PendingCheckpoint
from sluice.declaration.pipeline import Pipeline
from sluice.errors import FencedError
from sluice.job.clock import JobClock
from sluice.job.job import open_job
from sluice.protocol.keys import PipelinePaths
from sluice.protocol.records import decode_plan
from sluice.store.checkpoints import Answers, AnswerStore
from sluice.store.journal import Journal, jittered_pause
from sluice.store.object_store import ObjectStore, machine_clock_ms
from sluice.store.open import StoreLocation, open_store
from sluice_airflow.runs import completed_of, pending_of
from sluice_airflow.settings import Settings

# An abort that died before it deleted the plan shows only in the journal.
POLLS_PER_JOURNAL_READ = 20


@dataclass(frozen=True, slots=True)
class Outstanding:
    """The stage has not ended; ``progress`` is for people: "its 12 subtasks run"."""

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
        self._store = shared_store(location)
        self._journal = Journal(self._store, PipelinePaths(pipeline), pause=jittered_pause)
        self._clock = JobClock(machine_clock_ms, self._journal, self._store)
        self._stage = stage
        self._cause = cause
        self._pending: PendingCheckpoint | None = None
        self._polls = 0
        self._aligned_timeout_ms = 0

    def poll(self) -> StageProgress:
        try:
            return self._look()
        except FencedError as error:  # The root was emptied.
            return Lost(str(error))

    def _look(self) -> StageProgress:
        pending = self._pending or self._read_journal()
        if not isinstance(pending, PendingCheckpoint):
            return pending
        answering = AnswerStore(self._store, self._journal.paths)
        answers = answering.observe(pending.checkpoint_id, pending.token)
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
        declined = ((subtask.stage, attempt) for subtask, attempt in answers.declined)
        return any(
            stage == self._stage and attempt > known
            for stage, attempt in (*answers.answered, *declined)
        )

    def _judge(self, pending: PendingCheckpoint, answers: Answers) -> StageProgress:
        task = next((task for task in pending.tasks if task.uid == self._stage), None)
        if task is None:
            return self._without_part(pending)
        attempt = pending.attempt_of(self._stage)
        declined = sorted(
            subtask
            for subtask, of_attempt in answers.declined
            if subtask.stage == self._stage and pending.awaits_answer(subtask, of_attempt)
        )
        if self._stage in pending.overtaken:
            return Acknowledged("overtaken: its input stays in flight")
        if declined:
            return Lost(f"subtask {declined[0]} declined checkpoint {pending.checkpoint_id}")
        if (self._stage, attempt) in answers.answered:
            return Acknowledged(f"{task.parallelism} of {task.parallelism}")
        if not answers.has_plan:
            return Lost(f"the plan of checkpoint {pending.checkpoint_id} is gone")
        now_ms = self._clock.now_ms()
        waited_ms = now_ms - pending.triggered_at_ms
        if now_ms >= pending.expires_at_ms:
            waited_s = (pending.expires_at_ms - pending.triggered_at_ms) // 1_000
            return Lost(
                f"checkpoint {pending.checkpoint_id} expired after {waited_s} s; stage "
                f"{self._stage!r} did not acknowledge"
            )
        is_late = task.may_be_overtaken and waited_ms >= self._aligned_timeout_ms
        if is_late and self._overtake(pending):
            return Acknowledged("overtaken: its input stays in flight")
        count = task.parallelism
        return Outstanding("its subtask runs" if count == 1 else f"its {count} subtasks run")

    def _without_part(self, pending: PendingCheckpoint) -> StageProgress:
        key = self._journal.paths.plan(pending.checkpoint_id)
        plan = self._store.get(key)
        if plan is not None and self._stage in decode_plan(plan, key).finished:
            return Acknowledged("it has finished: its sources ended at an earlier checkpoint")
        return Lost(
            f"checkpoint {pending.checkpoint_id} was triggered before stage {self._stage!r} was "
            "declared, or its plan is gone"
        )

    def _overtake(self, pending: PendingCheckpoint) -> bool:
        """Have the coordinator overtake the stage after the aligned timeout; whether it did."""
        transition = self._journal.append(
            lambda state: AlignmentTimedOut(
                generation=state.generation,
                at_ms=self._clock.now_ms(),
                checkpoint_id=pending.checkpoint_id,
                stages=(self._stage,),
            )
        )
        after = transition.state.pending_checkpoint(pending.checkpoint_id)
        return after is not None and self._stage in after.overtaken


@cache
def shared_store(location: StoreLocation) -> ObjectStore:
    """One client for all watches of a triggerer, as building one costs more than a look.

    It repeats nothing: a watch asks again anyway, and says meanwhile that the store is away.
    """
    return open_store(replace(location, patience_s=0))


POLL_S = 1.0
ERROR_S = 3.0  # An error that is over sooner is not reported; Airflow starts a run in 2 to 5 s.
LONGEST_PATIENCE_S = 600.0  # Between two runs for the same error.
PATIENCE_S = 15.0  # An event is repeated after this, or the interval if that is longer.
FIRST_PATIENCE_S = 60.0  # The timetable has at least this long to start the first run.
LEAD_MS = 2_000  # What Airflow takes from the event to the request, at the least.
REST_FACTOR = 60  # A poll rests sixty times as long as it took: a second of CPU in a minute.
LONGEST_REST_S = 10.0  # However long a poll took: two that import in a row would rest for minutes.
OF_ALL = 0.25  # The part of one core that all polls of a process together may take.


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """The answer of a poll: with an ``event`` a run is to be started; ``pause_s`` to the next."""

    message: str
    event: dict[str, str] | None
    pause_s: float


class DueWatch:
    """A watch of one pipeline.

    *declared* gives its declaration, *active_runs* the number of its DAG's runs that are queued or
    run, and *latest_tick_ms* the moment that a cron names last.
    """

    def __init__(
        self,
        *,
        declared: Callable[[], Pipeline],
        interval_s: float,
        max_concurrent: int,
        active_runs: Callable[[], int],
        latest_tick_ms: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._declared = declared
        self._interval_s = interval_s
        self._max_concurrent = max_concurrent
        self._active_runs = active_runs
        self._latest_tick_ms = latest_tick_ms
        self._clock = clock
        self._next_checkpoint: tuple[Pipeline, NextCheckpoint] | None = None
        self._failing_since: float | None = None
        self._error_events = 0
        self._cpu_s = 0.0
        # The timetable starts the run of a job's first checkpoint, unless it takes too long.
        ahead_s = max(0.0, FIRST_PATIENCE_S - max(PATIENCE_S, interval_s))
        self._event_for, self._event_at = CheckpointId(1), clock() + ahead_s

    def poll(self, *, watches: int = 1) -> PollResult:
        """*watches* is the number of watches that share this process."""
        began, began_at = time.thread_time(), self._clock()
        try:
            answer: DueOrWaiting = self._open().poll()
            self._failing_since, self._error_events = None, 0
        except Exception as error:  # noqa: BLE001 - a user's source may raise anything
            answer = self._failed(error, began_at)
        event = self._event(answer)
        last_s, self._cpu_s = self._cpu_s, time.thread_time() - began
        cpu_s = min(last_s, self._cpu_s)  # A poll that imports, or reads a parent, is an exception.
        rest_s = min(cpu_s * REST_FACTOR, LONGEST_REST_S)
        pause_s = max(POLL_S, rest_s, cpu_s * watches / OF_ALL)
        return PollResult(message=answer.message, event=event, pause_s=pause_s)

    def _open(self) -> NextCheckpoint:
        """The next checkpoint of the job; a new one once the declaration has changed."""
        pipeline = self._declared()
        if self._next_checkpoint is None or self._next_checkpoint[0] is not pipeline:
            location = replace(Settings.from_environment().location, patience_s=0)
            interval_ms = int(self._interval_s * 1_000)
            opened = NextCheckpoint(
                open_job(pipeline, location, store=shared_store(location)),
                interval_ms=interval_ms,
                lead_ms=min(LEAD_MS, interval_ms // 2),
                latest_tick_ms=self._latest_tick_ms,
            )
            self._next_checkpoint = pipeline, opened
        return self._next_checkpoint[1]

    def _failed(self, error: Exception, began_at: float) -> DueOrWaiting:
        """Due once the error has lasted for ``ERROR_S``.  That counts from the begin of its first
        poll, as a client that repeats what failed has waited for a while already.
        """
        if self._failing_since is None:
            self._failing_since = began_at
        message = f"{type(error).__name__}: {error}"
        if self._clock() - self._failing_since < ERROR_S:
            return Waiting(message=message)
        return Due(message=message, next_id=CheckpointId(0))

    def _event(self, answer: DueOrWaiting) -> dict[str, str] | None:
        if not isinstance(answer, Due):
            return None
        now, patience_s = self._clock(), max(PATIENCE_S, self._interval_s)
        if self._error_events:
            patience_s = max(
                patience_s, min(patience_s * 2**self._error_events, LONGEST_PATIENCE_S)
            )
        is_repeated = answer.next_id == self._event_for and now - self._event_at < patience_s
        if is_repeated or self._active_runs() >= self._max_concurrent:
            return None
        self._event_for, self._event_at = answer.next_id, now
        self._error_events += self._failing_since is not None
        return {"due": answer.message}
