"""What the watchdog does: it reads only the bucket, and makes certain what callbacks make fast.

A pending checkpoint past its timeout is expired; one with a decline is aborted; a completed one
whose commit never came is committed; a job that is to restart is restored once its pause is over.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sluice.core.properties import JobStatus
from sluice.core.reasons import CheckpointFailureReason
from sluice.errors import FencedError
from sluice.runner.completion import commit
from sluice.runner.job import Job
from sluice.runner.recovery import Latest, fail_checkpoint, restore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Watched:
    """What one look found and did, in words; empty when all is well."""

    actions: tuple[str, ...]


def watch(job: Job, *, commit_grace_ms: int = 60_000) -> Watched:
    """One look at one job.  Every action is idempotent: two watchdogs change nothing more."""
    actions: list[str] = []
    state = job.state()
    for pending in state.pending:
        now_ms = job.clock()
        declined = any(
            attempt == pending.attempt_of(subtask.stage)
            for subtask, attempt in job.answers.observe(pending.checkpoint_id).declined
        )
        if now_ms < pending.expires_at_ms and not declined:
            continue
        reason = (
            CheckpointFailureReason.CHECKPOINT_DECLINED
            if declined
            else CheckpointFailureReason.CHECKPOINT_EXPIRED
        )
        message = f"found by the watchdog after {now_ms - pending.triggered_at_ms} ms"
        state = fail_checkpoint(job, pending.checkpoint_id, reason, message)
        actions.append(f"aborted checkpoint {pending.checkpoint_id}: {reason.value}")
    latest = state.latest_completed
    if (
        state.status is JobStatus.RUNNING
        and latest is not None
        and not latest.is_committed
        and job.clock() - latest.completed_at_ms >= commit_grace_ms
    ):
        state = commit(job, latest.checkpoint_id)
        actions.append(f"committed checkpoint {latest.checkpoint_id}, whose own task did not")
    if state.status is JobStatus.RESTARTING and job.clock() >= (state.restart_at_ms or 0):
        actions.append(_restart(job, state.generation))
    for action in actions:
        log.warning("watchdog pipeline=%s action=%s", job.pipeline.uid, action)
    return Watched(tuple(actions))


def _restart(job: Job, generation: int) -> str:
    try:
        restored = restore(job, Latest(), only_generation=generation)
    except FencedError:
        return "found that somebody else restored the job"
    return f"restored the job from checkpoint {restored.checkpoint_id}"
