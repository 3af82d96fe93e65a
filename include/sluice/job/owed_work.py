"""The plan of a pending checkpoint, and the commit that is owed; an error says why it is gone."""

from __future__ import annotations

from sluice.core.completed import CompletedCheckpoint
from sluice.core.ids import CheckpointId
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan
from sluice.core.state import CoordinatorState
from sluice.errors import FencedError, ProtocolViolation
from sluice.job.job import Job


def plan_of(job: Job, checkpoint_id: CheckpointId) -> CheckpointPlan:
    """The plan of a pending checkpoint.

    An abort is journaled before the plan is deleted.  So a plan that is gone while its checkpoint
    is pending was deleted by something other than sluice.

    Raises:
        FencedError: the checkpoint has ended.
        ProtocolViolation: it has not, and the plan is gone.
    """
    plan = job.plan(checkpoint_id)
    if plan is not None:
        return plan
    state = job.state()  # Not before: an abort between the two would look like a loss.
    if state.pending_checkpoint(checkpoint_id) is None:
        raise FencedError(why_gone(state, checkpoint_id))
    raise ProtocolViolation(
        f"checkpoint {checkpoint_id} is lost: it is pending, but its plan, "
        f"{job.store.root}/{job.paths.plan(checkpoint_id)}, is gone; it will be aborted, and the "
        "next one goes on from its parent; find out who else deletes in that bucket"
    )


def still_owed(state: CoordinatorState, checkpoint_id: CheckpointId) -> CompletedCheckpoint:
    """The checkpoint that is to be committed, or was.

    Raises:
        FencedError: a restore left it behind.
    """
    completed = state.completed_checkpoint(checkpoint_id)
    if completed is None:
        raise FencedError(why_gone(state, checkpoint_id))
    if not completed.is_committed and completed is not state.latest_completed:
        raise FencedError(
            f"checkpoint {checkpoint_id} was left behind by a restore before it was committed; "
            "restore it to publish its rows"
        )
    return completed


def still_pending(state: CoordinatorState, checkpoint_id: CheckpointId) -> PendingCheckpoint:
    """The pending checkpoint; raises FencedError when it has ended."""
    pending = state.pending_checkpoint(checkpoint_id)
    if pending is None:
        raise FencedError(why_gone(state, checkpoint_id))
    return pending


def why_gone(state: CoordinatorState, checkpoint_id: CheckpointId) -> str:
    """Why a checkpoint that is not pending needs no more work, in a sentence."""
    failed = state.failed_checkpoint(checkpoint_id)
    if failed is not None:
        return str(failed)
    return (
        f"checkpoint {checkpoint_id} is neither pending nor retained under generation "
        f"{state.generation}; a newer coordinator owns the job"
    )
