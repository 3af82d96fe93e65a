"""A person aborts one pending checkpoint; the job goes on, and reads its records again."""

from __future__ import annotations

import logging

from sluice.coordinator.commands import record
from sluice.core.ids import CheckpointId
from sluice.core.messages import CheckpointFailed
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.state import CoordinatorState
from sluice.core.transition import Verdict
from sluice.errors import ConfigurationError, FencedError
from sluice.job.job import Job
from sluice.job.retained import LATEST, numbered

log = logging.getLogger(__name__)


def abort_checkpoint(job: Job, checkpoint_id: CheckpointId, *, by: str) -> CoordinatorState:
    """Abort the pending checkpoint, and those that continue it; *by* says who asked, and why.

    It does not count towards ``tolerable_failed_checkpoints``, and the job does not fail over.  A
    subtask that still runs acknowledges in vain.

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
            at_ms=job.clock(),
            checkpoint_id=checkpoint_id,
            reason=CheckpointFailureReason.CHECKPOINT_ABORTED_BY_USER,
            message=f"aborted by {by}",
        ),
    )
    if transition.verdict is not Verdict.APPLIED:
        raise FencedError(why_not_pending(job, transition.state, checkpoint_id))
    log.warning("checkpoint aborted checkpoint_id=%d by=%s", checkpoint_id, by)
    return transition.state


def pending_checkpoint(job: Job, named: str) -> CheckpointId:
    """The id of the pending checkpoint that is *named* by its number; the newest is ``latest``.

    Raises:
        ConfigurationError: it is not pending, or no number.
    """
    state = job.state()
    if named != LATEST:
        return numbered(named)
    if not state.pending:
        raise ConfigurationError(_none_pending(job, state))
    return state.pending[-1].checkpoint_id


def why_not_pending(job: Job, state: CoordinatorState, checkpoint_id: CheckpointId) -> str:
    """What became of a checkpoint that cannot be aborted."""
    failed = state.failed_checkpoint(checkpoint_id)
    if failed is not None:
        return f"there is nothing to abort: {failed}"
    if state.completed_checkpoint(checkpoint_id) is not None:
        return (
            f"checkpoint {checkpoint_id} has completed, and only a pending one can be aborted; "
            "restore an older one to go back behind it"
        )
    if state.pending:
        pending = ", ".join(str(one.checkpoint_id) for one in state.pending)
        return f"checkpoint {checkpoint_id} is not pending; pending are: {pending}"
    return _none_pending(job, state)


def _none_pending(job: Job, state: CoordinatorState) -> str:
    return f"job {job.pipeline.uid!r} is {state.status.value} and has no pending checkpoint"
