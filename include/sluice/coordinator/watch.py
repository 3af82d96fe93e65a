"""The watchdog: it reads the bucket, and makes certain what callbacks make fast.

A pending checkpoint past its timeout is expired; one with a decline is aborted, and so is one whose
owner is known to be gone, which only spares it the rest of its timeout; one past its aligned
checkpoint timeout becomes unaligned; a completed one whose commit never came is committed; what
left the store is deleted; a job that is to restart is restored once its pause is over; the journal
is kept short, and each time it was shortened garbage is collected: about once in a hundred
checkpoints, without a clock or a memory of the last time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from sluice.coordinator.automatic_restart import fail_over_if_damaged
from sluice.coordinator.commands import clean_up
from sluice.coordinator.completion import commit
from sluice.coordinator.garbage import DEFAULT_GRACE_MS, collect_garbage
from sluice.coordinator.recovery import fail_checkpoint, overtake, restore
from sluice.core.completed import CompletedCheckpoint
from sluice.core.pending import PendingCheckpoint
from sluice.core.properties import JobStatus
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.restoring import Latest
from sluice.core.state import CoordinatorState
from sluice.errors import FencedError, ProtocolViolation, RestoreError
from sluice.job.job import Job
from sluice.storage.journal import KEPT_ENTRIES

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Watched:
    """What one look found and did, in words; empty when all is well."""

    actions: tuple[str, ...]


def watch(
    job: Job,
    *,
    commit_grace_ms: int = 60_000,
    kept_entries: int = KEPT_ENTRIES,
    garbage_grace_ms: int = DEFAULT_GRACE_MS,
    is_abandoned: Callable[[str], bool] = lambda cause: False,  # noqa: ARG005
) -> Watched:
    """One look at one job.  Every action is idempotent: two watchdogs change nothing more.

    *is_abandoned* says of a checkpoint's ``cause`` whether the run behind it is known to be
    gone.  A wrong yes costs a failover, a wrong no the rest of the checkpoint's timeout.
    """
    actions: list[str] = []
    state = job.state()
    for pending in state.pending:
        if state.pending_checkpoint(pending.checkpoint_id) is None:
            break  # It went with the one it continues.
        action = _look_at(job, state, pending, is_abandoned)
        if action:
            actions.append(action)
            state = job.state()
    latest = state.latest_completed
    if (
        state.status in (JobStatus.RUNNING, JobStatus.FAILING)
        and latest is not None
        and not latest.is_committed
        and job.clock() - latest.completed_at_ms >= commit_grace_ms
    ):
        actions.append(_commit(job, state, latest))
        state = job.state()
    latest = state.latest_completed
    if state.discarding and (latest is None or latest.is_committed):
        clean_up(job, state)
        actions.append(f"deleted what {len(state.discarding)} subsumed checkpoints left")
    if state.status is JobStatus.RESTARTING and job.clock() >= (state.restart_at_ms or 0):
        actions.append(_restart(job, state.generation))
    if job.journal.truncate(keep=kept_entries):
        actions += _collect(job, garbage_grace_ms)
    for action in actions:
        log.warning("watchdog pipeline=%s action=%s", job.pipeline.uid, action)
    return Watched(tuple(actions))


def _look_at(
    job: Job,
    state: CoordinatorState,
    pending: PendingCheckpoint,
    is_abandoned: Callable[[str], bool],
) -> str | None:
    """Abort what expired, was declined or abandoned; overtake what is behind; None: all is well."""
    now_ms = job.clock()
    answers = job.answers.observe(pending.checkpoint_id)
    waited_ms = now_ms - pending.triggered_at_ms
    is_declined = any(
        attempt == pending.attempt_of(subtask.stage) and subtask.stage not in pending.overtaken
        for subtask, attempt in answers.declined
    )
    if is_declined or now_ms >= pending.expires_at_ms:
        reason = (
            CheckpointFailureReason.CHECKPOINT_DECLINED
            if is_declined
            else CheckpointFailureReason.CHECKPOINT_EXPIRED
        )
        message = f"found by the watchdog after {waited_ms} ms"
        after = fail_checkpoint(job, pending.checkpoint_id, reason, message)
        failed = after.failed_checkpoint(pending.checkpoint_id)
        why = reason if failed is None else failed.reason
        return f"aborted checkpoint {pending.checkpoint_id}: {why.value}"
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
        and answers.missing(task.subtasks, pending.attempt_of(task.uid))
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
        return f"failed the job over: checkpoint {owed.checkpoint_id} is damaged: {error}"
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


def _collect(job: Job, grace_ms: int) -> list[str]:
    try:
        orphans = collect_garbage(job, grace_ms=grace_ms)
    except ProtocolViolation as error:
        return [str(error)]
    count, size = len(orphans.files), orphans.total_bytes
    return [f"collected {count} orphaned files of {size} bytes"] if count else []
