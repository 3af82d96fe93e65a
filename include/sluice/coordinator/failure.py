"""Failures of checkpoints, new attempts of stages, and the watchdog.

Tasks act at once; the watchdog reads the bucket and does what a task that died left undone:

- a pending checkpoint expires at its timeout, and becomes unaligned at its aligned timeout;
- a pending checkpoint with a decline, or whose owner is known to be gone, is aborted;
- a completed checkpoint that is not committed is committed;
- files of checkpoints that left the store are deleted;
- a job that is to restart is restored once its pause is over;
- a long journal is shortened, and garbage is then collected: about once in 100 checkpoints.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluice.coordinator.garbage import DEFAULT_GRACE_MS, collect_garbage
from sluice.coordinator.publication import commit, is_kept_alive
from sluice.coordinator.record import clean_up, record
from sluice.coordinator.restore import restore
from sluice.coordinator.restore_plan import fail_over_if_damaged
from sluice.core.answers import Decline, TaskFailure
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import JobStatus
from sluice.core.events import (
    AlignmentTimedOut,
    AttemptStarted,
    CheckpointFailed,
    DeclineReceived,
    Verdict,
)
from sluice.core.failures import Cause, CheckpointFailureReason, root_cause, stack_of
from sluice.core.ids import CheckpointId
from sluice.core.pending import FIRST_ATTEMPT, PendingCheckpoint
from sluice.core.restoring import Latest
from sluice.core.state import CoordinatorState
from sluice.core.units import period
from sluice.errors import (
    ConfigurationError,
    FencedError,
    ProtocolViolation,
    RestoreError,
    of_pipeline,
)
from sluice.job.job import Job, require_at_home
from sluice.job.snapshots import LATEST, parsed_checkpoint_id
from sluice.protocol.keys import snapshot_task
from sluice.store.journal import KEPT_ENTRIES

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Watched:
    """The watchdog's findings and acts, in words; empty when all is well."""

    actions: tuple[str, ...]


def fail_checkpoint(
    job: Job,
    checkpoint_id: CheckpointId,
    reason: CheckpointFailureReason,
    message: str,
    *,
    is_task_failure: bool = False,
    raised: str = "",
) -> CoordinatorState:
    """Abort the checkpoint if it is pending, once, for one reason.

    A decline in the bucket replaces *reason*, which is the caller's.  Of several declines a task
    failure is taken first, then a reason that counts.  The root cause is what the failed task
    wrote, so it does not depend on who aborts and when; without it, it is *raised*, the text of the
    caller's exception.
    """
    plan = job.plan(checkpoint_id)
    found, failures = job.answers.problems(checkpoint_id)
    generation = job.state().generation if plan is None else plan.generation

    def decide(state: CoordinatorState) -> CheckpointFailed | DeclineReceived:
        pending = state.pending_checkpoint(checkpoint_id)
        declines = [decline for decline in found if pending is not None and pending.awaits(decline)]
        if declines and not is_task_failure:
            best = min(declines, key=_rank)
            return DeclineReceived(generation=generation, at_ms=job.now_ms(), decline=best)
        recorded = raised if pending is None else _recorded(pending, reason, failures) or raised
        first = min(declines, key=_rank, default=None)
        if first is not None:
            detail = f"{first.subtask}: {first.message}"
        else:
            cause = str(root_cause(recorded)) if recorded else ""
            detail = _with_cause(str(root_cause(message)), cause)
        return CheckpointFailed(
            generation=generation,
            at_ms=job.now_ms(),
            checkpoint_id=checkpoint_id,
            reason=reason,
            message=of_pipeline(detail, job.pipeline.uid),
            is_task_failure=is_task_failure,
        )

    transition = record(job, decide)
    failed = transition.state.failed_checkpoint(checkpoint_id)
    if transition.verdict is Verdict.APPLIED and failed is not None:
        log.warning(
            "checkpoint aborted checkpoint_id=%d reason=%s message=%s job_status=%s",
            checkpoint_id, failed.reason.value, failed.message, transition.state.status.value,
        )  # fmt: skip
    return transition.state


def _rank(decline: Decline) -> tuple[bool, bool]:
    is_failure = decline.reason is CheckpointFailureReason.TASK_FAILURE
    return not is_failure, not decline.reason.counts


# The reasons for which another task than that of a stage is to blame.
_TASKS = {
    CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE: "finalize",
    CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE: "trigger",
}


def _recorded(
    pending: PendingCheckpoint, reason: CheckpointFailureReason, failures: Iterable[TaskFailure]
) -> str:
    """The failure that the task to blame wrote of its newest attempt; empty if there is none."""
    newest = {one.task: one for one in sorted(failures, key=lambda one: one.attempt)}
    if reason in _TASKS:
        own = newest.get(_TASKS[reason])
        return "" if own is None else own.message
    for task in pending.tasks:
        own = newest.get(snapshot_task(task.uid))
        if own is not None and _is_current(pending, task.uid, own.attempt):
            return own.message
    return ""


def _with_cause(noticed: str, cause: str) -> str:
    """The text of *noticed* with the *cause* last, unless it says that already."""
    return noticed if not cause or cause in noticed else f"{noticed}: {cause}"


def cause_of(error: BaseException) -> Cause:
    """The root cause of *error*, which was raised in this process, whoever raised it."""
    return root_cause("".join(traceback.format_exception(error)))


def stack_behind(error: BaseException) -> str:
    """The stack of the error that *error* was raised from first, the user's frames first."""
    while error.__cause__ is not None:
        error = error.__cause__
    return stack_of("".join(traceback.format_exception(error, chain=False)))


def _is_current(pending: PendingCheckpoint, stage: str, attempt: int) -> bool:
    """Whether a decline counts: those of a fenced attempt or an overtaken stage do not."""
    return attempt == pending.attempt_of(stage) and stage not in pending.overtaken


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
    """Acknowledge for those of *stages* that may be overtaken, after the aligned timeout.

    Their running attempts are fenced, and what they have not consumed stays in flight.
    """
    plan = job.plan(checkpoint_id)
    if plan is None:
        return job.state()
    transition = record(
        job,
        lambda _: AlignmentTimedOut(
            generation=plan.generation,
            at_ms=job.now_ms(),
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


def abort_checkpoint(job: Job, checkpoint_id: CheckpointId, *, by: str) -> CoordinatorState:
    """Abort the pending checkpoint, and those that continue it; *by* says who asked, and why.

    The abort does not count towards ``tolerable_failed_checkpoints``, and the job does not fail
    over; the next checkpoint reads the records again.  Acks of subtasks that still run are ignored.

    Raises:
        ConfigurationError: it is not pending; the message says what became of it.
        FencedError: it ended, or the job was restored, at the same moment.
    """
    state = job.state()
    if state.pending_checkpoint(checkpoint_id) is None:
        raise ConfigurationError(why_not_pending(job, state, checkpoint_id))
    transition = record(
        job,
        lambda _: CheckpointFailed(
            generation=state.generation,
            at_ms=job.now_ms(),
            checkpoint_id=checkpoint_id,
            reason=CheckpointFailureReason.CHECKPOINT_ABORTED_BY_USER,
            message=f"aborted by {by}",
        ),
    )
    if transition.verdict is not Verdict.APPLIED:
        raise FencedError(why_not_pending(job, transition.state, checkpoint_id))
    log.warning("checkpoint aborted checkpoint_id=%d by=%s", checkpoint_id, by)
    return transition.state


def why_not_pending(job: Job, state: CoordinatorState, checkpoint_id: CheckpointId) -> str:
    """The reason why a checkpoint cannot be aborted, in a sentence with what became of it."""
    failed = state.failed_checkpoint(checkpoint_id)
    if failed is not None:
        return f"there is nothing to abort: {failed}"
    if state.completed_checkpoint(checkpoint_id) is not None:
        return (
            f"checkpoint {checkpoint_id} has completed, and only a pending one can be aborted; "
            "restore an older one to go back behind it"
        )
    if state.pending:
        pending = ", ".join(str(other.checkpoint_id) for other in state.pending)
        return f"checkpoint {checkpoint_id} is not pending; pending are: {pending}"
    return _none_pending(job, state)


def pending_checkpoint(job: Job, named: str) -> CheckpointId:
    """The id of the pending checkpoint that *named* means: a number, or ``latest`` for the newest.

    Raises:
        ConfigurationError: no such checkpoint is pending, or *named* is neither.
    """
    state = job.state()
    if named != LATEST:
        return parsed_checkpoint_id(named)
    if not state.pending:
        raise ConfigurationError(_none_pending(job, state))
    return state.pending[-1].checkpoint_id


def _none_pending(job: Job, state: CoordinatorState) -> str:
    return f"job {job.pipeline.uid!r} is {state.status.value} and has no pending checkpoint"


def watch(
    job: Job,
    *,
    commit_grace_ms: int = 60_000,
    kept_entries: int = KEPT_ENTRIES,
    garbage_grace_ms: int = DEFAULT_GRACE_MS,
    is_abandoned: Callable[[str], bool] = lambda cause: False,  # noqa: ARG005
) -> Watched:
    """Look after one job, once.  Every action is idempotent, so two watchdogs may run at once.

    *is_abandoned* says of a checkpoint's ``cause`` whether the run behind it is known to be gone.
    A wrong yes costs a failover; after a wrong no the checkpoint waits for its timeout.

    Raises:
        ConfigurationError: the root is a copy of the job's.
    """
    actions: list[str] = []
    state = job.state()
    require_at_home(job, state)
    for pending in state.pending:
        if state.pending_checkpoint(pending.checkpoint_id) is None:
            break  # It was aborted with the one that it continues.
        action = _check_pending(job, state, pending, is_abandoned)
        if action:
            actions.append(action)
            state = job.state()
    owed = state.owed
    if (
        state.status in (JobStatus.RUNNING, JobStatus.FAILING)
        and owed is not None
        and job.now_ms() - owed.completed_at_ms >= commit_grace_ms
        and not is_kept_alive(job, owed.checkpoint_id)
    ):
        actions.append(_commit(job, state, owed))
        state = job.state()
    if state.discarding and state.owed is None:
        clean_up(job, state)
        actions.append(f"deleted what {len(state.discarding)} subsumed checkpoints left")
    if state.status is JobStatus.RESTARTING and job.now_ms() >= (state.restart_at_ms or 0):
        actions.append(_restart(job, state.generation))
    actions += keep_short(job, kept_entries=kept_entries, garbage_grace_ms=garbage_grace_ms)
    for action in actions:
        log.warning("watchdog pipeline=%s action=%s", job.pipeline.uid, action)
    return Watched(tuple(actions))


def _check_pending(
    job: Job,
    state: CoordinatorState,
    pending: PendingCheckpoint,
    is_abandoned: Callable[[str], bool],
) -> str | None:
    """Abort the checkpoint if it expired, was declined or is abandoned, or overtake its stages that
    are behind; None if all is well.
    """
    now_ms = job.now_ms()
    answers = job.answers.observe(pending.checkpoint_id, pending.token)
    waited_ms = now_ms - pending.triggered_at_ms
    is_declined = any(pending.awaits_answer(*declined) for declined in answers.declined)
    if is_declined or now_ms >= pending.expires_at_ms:
        reason = (
            CheckpointFailureReason.CHECKPOINT_DECLINED
            if is_declined
            else CheckpointFailureReason.CHECKPOINT_EXPIRED
        )
        message = f"found by the watchdog after {period(waited_ms)}"
        after = fail_checkpoint(job, pending.checkpoint_id, reason, message)
        failed = after.failed_checkpoint(pending.checkpoint_id)
        reason = reason if failed is None else failed.reason
        return f"aborted checkpoint {pending.checkpoint_id}: {reason.value}"
    if is_abandoned(pending.cause):
        reason = CheckpointFailureReason.TASK_FAILURE
        message = f"{pending.cause} ended, or was deleted, before its checkpoint did"
        fail_checkpoint(job, pending.checkpoint_id, reason, message, is_task_failure=True)
        return f"aborted checkpoint {pending.checkpoint_id}: {message}"
    behind = [
        task.uid
        for task in pending.tasks
        if task.may_be_overtaken
        and task.uid not in pending.overtaken
        and (task.uid, pending.attempt_of(task.uid)) not in answers.answered
    ]
    if behind and waited_ms >= state.configuration.aligned_timeout_ms:
        overtake(job, pending.checkpoint_id, behind)
        return f"made checkpoint {pending.checkpoint_id} unaligned: {', '.join(behind)} is behind"
    return None


def _commit(job: Job, state: CoordinatorState, owed: CompletedCheckpoint) -> str:
    try:
        commit(job, owed.checkpoint_id)
    except (RestoreError, ProtocolViolation) as error:
        if not fail_over_if_damaged(job, state):
            raise
        has_ended = job.state().status is JobStatus.FAILED
        what = "stopped the job for good" if has_ended else "failed the job over"
        return f"{what}: checkpoint {owed.checkpoint_id} is damaged: {error}"
    return f"committed checkpoint {owed.checkpoint_id}, whose own task did not"


def _restart(job: Job, generation: int) -> str:
    try:
        restored = restore(job, Latest(), only_generation=generation)
    except FencedError:
        return "found that another coordinator restored the job"
    except (RestoreError, ProtocolViolation) as error:
        state = job.state()
        if state.status is JobStatus.FAILED:
            return f"stopped the job for good: {error}"
        if state.status is JobStatus.RESTARTING and state.generation > generation:
            return f"restored the job, and it failed over again: {error}"
        raise
    return f"restored the job from {restored.named}"


def keep_short(
    job: Job, *, kept_entries: int = KEPT_ENTRIES, garbage_grace_ms: int = DEFAULT_GRACE_MS
) -> list[str]:
    """Shorten a journal of twice *kept_entries* or more, then collect garbage; say what was done.

    Costs one LIST if the journal is shorter.  A host without a watchdog calls it now and then.
    """
    return _collect(job, garbage_grace_ms) if job.journal.truncate(keep=kept_entries) else []


def _collect(job: Job, grace_ms: int) -> list[str]:
    try:
        orphans = collect_garbage(job, grace_ms=grace_ms)
    except ProtocolViolation as error:
        return [str(error)]
    count, size = len(orphans.files), orphans.total_bytes
    return [f"collected {count} orphaned files of {size} bytes"] if count else []
