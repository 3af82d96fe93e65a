"""Failure and restore: abort, choose, verify, fence, replay the commit, resume."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from sluice.coordinator.automatic_restart import Restart, give_up
from sluice.coordinator.commands import record
from sluice.coordinator.duties import resume
from sluice.coordinator.restore_plan import DEFAULT_OPTIONS
from sluice.coordinator.restore_request import Resolved, plan
from sluice.core.causes import root_cause
from sluice.core.configuration import JobConfiguration
from sluice.core.ids import CheckpointId
from sluice.core.lifecycle import next_generation
from sluice.core.messages import (
    AlignmentTimedOut,
    AttemptStarted,
    CheckpointFailed,
    DeclineReceived,
    JobRestored,
    JobStopped,
)
from sluice.core.pending import FIRST_ATTEMPT
from sluice.core.plan import SnapshotOrigin
from sluice.core.properties import JobStatus
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.restoring import Latest, Restore, RestoreOptions, RestoreTarget, Stop
from sluice.core.state import CoordinatorState
from sluice.core.table_standings import TableAhead
from sluice.core.transition import Verdict
from sluice.errors import FencedError, RestoreError
from sluice.job.job import Job, new_life

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """``checkpoint_id`` None: the job starts from empty state; ``passed_over`` were damaged."""

    checkpoint_id: CheckpointId | None
    origin: SnapshotOrigin | None
    state: CoordinatorState
    tables_ahead: tuple[TableAhead, ...] = ()
    passed_over: tuple[CheckpointId, ...] = ()

    @property
    def named(self) -> str:
        """What it was restored from, in words."""
        return self._base + "".join(f", past damaged checkpoint {one}" for one in self.passed_over)

    @property
    def _base(self) -> str:
        if self.origin is not None:
            return str(self.origin)
        return (
            "the empty state" if self.checkpoint_id is None else f"checkpoint {self.checkpoint_id}"
        )


def fail_checkpoint(
    job: Job,
    checkpoint_id: CheckpointId,
    reason: CheckpointFailureReason,
    message: str,
    *,
    is_task_failure: bool = False,
) -> CoordinatorState:
    """Abort the pending checkpoint, once, for one reason.  An ended one stays as it ended.

    A decline in the bucket is the better reason than that of the task that noticed it, and of
    several declines one that counts.
    """
    cause = root_cause(message)
    plan = job.plan(checkpoint_id)
    answered = job.answers.declines(checkpoint_id)
    generation = job.state().generation if plan is None else plan.generation

    def decide(state: CoordinatorState) -> CheckpointFailed | DeclineReceived:
        pending = state.pending_checkpoint(checkpoint_id)
        declines = [  # Those of an overtaken attempt or stage mean nothing any more.
            decline
            for decline in answered
            if pending is not None
            and decline.attempt == pending.attempt_of(decline.subtask.stage)
            and decline.subtask.stage not in pending.overtaken
        ]
        if declines and not is_task_failure:
            first = min(declines, key=lambda decline: not decline.reason.counts)
            return DeclineReceived(generation=generation, at_ms=job.clock(), decline=first)
        detail = f"{declines[0].subtask}: {declines[0].message}" if declines else str(cause)
        return CheckpointFailed(
            generation=generation,
            at_ms=job.clock(),
            checkpoint_id=checkpoint_id,
            reason=reason,
            message=detail,
            is_task_failure=is_task_failure,
        )

    transition = record(job, decide)
    failed = transition.state.failed_checkpoint(checkpoint_id)
    if transition.verdict is Verdict.APPLIED and failed is not None:
        log.warning(
            "checkpoint aborted checkpoint_id=%d reason=%s message=%s job_status=%s",
            checkpoint_id, failed.reason.value, cause, transition.state.status.value,
        )  # fmt: skip
    return transition.state


def start_attempt(job: Job, checkpoint_id: CheckpointId, stage: str) -> int:
    """Fence the running attempt of *stage*, and return the number of the one to run now.

    Checkpoints that continue this one may have read what the fenced one wrote, so they are aborted.

    Raises:
        FencedError: the checkpoint is not pending any more.
    """

    def decide(state: CoordinatorState) -> AttemptStarted:
        pending = state.pending_checkpoint(checkpoint_id)
        return AttemptStarted(
            generation=state.generation,
            checkpoint_id=checkpoint_id,
            stage=stage,
            attempt=pending.attempt_of(stage) + 1 if pending is not None else FIRST_ATTEMPT,
        )

    transition = record(job, decide)
    pending = transition.state.pending_checkpoint(checkpoint_id)
    if pending is None:
        raise FencedError(f"checkpoint {checkpoint_id} ended before stage {stage!r} ran again")
    return pending.attempt_of(stage)


def overtake(job: Job, checkpoint_id: CheckpointId, stages: Iterable[str]) -> CoordinatorState:
    """The aligned checkpoint timeout passed: acknowledge for *stages* that may be overtaken.

    Their running attempts are fenced, and what they have not consumed stays in flight.
    """
    plan = job.plan(checkpoint_id)
    if plan is None:
        return job.state()
    transition = record(
        job,
        lambda _: AlignmentTimedOut(
            generation=plan.generation,
            at_ms=job.clock(),
            checkpoint_id=checkpoint_id,
            stages=tuple(stages),
        ),
    )
    if transition.verdict is Verdict.APPLIED:
        pending = transition.state.pending_checkpoint(checkpoint_id)
        log.warning(
            "checkpoint became unaligned checkpoint_id=%d overtaken=%s",
            checkpoint_id, pending.overtaken if pending is not None else (),
        )  # fmt: skip
    return transition.state


def restore(
    job: Job,
    target: RestoreTarget,
    options: RestoreOptions = DEFAULT_OPTIONS,
    *,
    only_generation: int | None = None,
    configuration: JobConfiguration | None = None,
    cause: str = "",
) -> Restored:
    """Continue the job from *target* under the next generation.

    Everything it needs is verified first; then the fence is journaled, and what the job owes from
    before, as an unfinished commit, is done before anything new.  *configuration* replaces the
    job's, for another parallelism.  With *only_generation* nothing happens unless the job is still
    of that generation: a repeated or late restore is harmless.  So is one with the *cause* of the
    latest restore: it finds that one done.

    ``Latest`` with *only_generation* is a restart: it may pass damaged checkpoints over, or stop
    the job, as configured.

    Raises:
        RestoreError: the target does not exist, something it needs is gone, or a table does not
            agree with it; all are named.
        FencedError: the job moved on to another generation.
    """
    state = job.state()
    if cause and state.restored_by == cause:
        resume(job, job.journal.load())
        return Restored(checkpoint_id=state.base, origin=state.origin, state=job.state())
    planned = plan(
        job,
        state,
        Resolved(
            target=target,
            options=options,
            configuration=configuration,
            only_generation=only_generation,
        ),
    )
    if isinstance(planned.decision, Stop):
        if planned.message:
            give_up(job, state, planned.message)
            raise RestoreError(f"the job is FAILED: {planned.message}")
        raise RestoreError("the job cannot be restored: " + "; ".join(planned.decision.problems))
    return _carried_out(job, state, planned, planned.decision, configuration, cause)


def _carried_out(
    job: Job,
    state: CoordinatorState,
    planned: Restart,
    decision: Restore,
    configuration: JobConfiguration | None,
    cause: str,
) -> Restored:
    """Say what is lost or passed over, and take the job over."""
    choice, options = decision.choice, planned.options
    if planned.passed_over:
        log.error("damaged checkpoints are passed over: %s", planned.message)
    if decision.ignores_in_flight:
        log.error(
            "IN-FLIGHT DATA IS DROPPED AS ASKED FOR, AND ITS ROWS ARE LOST checkpoint_id=%s",
            choice.checkpoint_id,
        )
    for ahead in decision.tables_ahead:
        log.warning("%s", ahead)
    after = _take_over(
        job,
        JobRestored(
            at_ms=job.clock(),
            generation=next_generation(state),
            checkpoint_id=choice.checkpoint_id,
            origin=choice.origin,
            claim_mode=options.claim_mode,
            ignores_in_flight=decision.ignores_in_flight,
            dropped_stages=decision.dropped_stages,
            has_hooks=bool(job.pipeline.hooks),
            is_latest=isinstance(planned.target, Latest),
            tables=decision.tables,
            life="" if state.life else new_life(),
            configuration=configuration,
            cause=cause,
            passed_over=planned.passed_over,
            message=planned.message,
        ),
    )
    return Restored(
        checkpoint_id=choice.checkpoint_id,
        origin=choice.origin,
        state=after,
        passed_over=planned.passed_over,
        tables_ahead=() if options.roll_back_tables else decision.tables_ahead,
    )


def _take_over(job: Job, event: JobRestored) -> CoordinatorState:
    """Journal the fence, then do what the job owes from before."""
    transition = record(job, lambda _: event)
    if transition.verdict is Verdict.FENCED:
        raise FencedError(f"another coordinator restored job {job.pipeline.uid!r} first")
    if transition.verdict is not Verdict.APPLIED:
        raise RestoreError(
            "a checkpoint completed or was committed while the one to restore was chosen, or that "
            "one was discarded; restore the job again"
        )
    resume(job, job.journal.load())
    after = job.state()
    if after.generation != event.generation:
        raise FencedError(f"another coordinator restored job {job.pipeline.uid!r} meanwhile")
    log.info(
        "job restored pipeline=%s generation=%d checkpoint_id=%s origin=%s",
        job.pipeline.uid, event.generation, event.checkpoint_id, event.origin,
    )  # fmt: skip
    return after


def stop(job: Job, status: JobStatus) -> CoordinatorState:
    """Cancel or suspend the job; what is pending is aborted, retention applies."""
    transition = record(
        job, lambda state: JobStopped(at_ms=job.clock(), generation=state.generation, status=status)
    )
    return transition.state
