"""The retained checkpoint that a person names, ``latest`` or an id; of one that is gone, why."""

from __future__ import annotations

from sluice.core.ids import CheckpointId
from sluice.core.properties import JobStatus
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError
from sluice.job.job import Job

LATEST = "latest"


def retained_checkpoint(job: Job, named: str) -> CheckpointId:
    """The id of the retained checkpoint that is *named* by its number, or as ``latest``.

    Raises:
        ConfigurationError: it is not retained; the message says what became of it.
    """
    state = job.state()
    retained = [done.checkpoint_id for done in state.completed]
    if named == LATEST and retained:
        return max(retained)
    checkpoint_id = None if named == LATEST else numbered(named)
    if checkpoint_id is None or checkpoint_id not in retained:
        raise ConfigurationError(why_not_retained(job, state, named))
    return checkpoint_id


def numbered(named: str) -> CheckpointId:
    """Raises ConfigurationError: *named* is no number."""
    if not (named.isascii() and named.isdecimal()):
        raise ConfigurationError(f"checkpoint {named!r} is no number; write {LATEST!r}, or an id")
    return CheckpointId(int(named))


def why_not_retained(job: Job, state: CoordinatorState, named: str) -> str:
    """What became of a checkpoint that cannot be looked at, or restored."""
    uid = job.pipeline.uid
    number = None if named == LATEST else int(named)
    failed = None if number is None else state.failed_checkpoint(number)
    if failed is not None:
        return str(failed)
    if number is not None and state.pending_checkpoint(number) is not None:
        return f"checkpoint {number} is pending; look again once it has completed"
    if state.completed:
        retained = ", ".join(str(done.checkpoint_id) for done in state.completed)
        return f"checkpoint {named} is not retained; retained are: {retained}"
    what = "no checkpoint" if number is None else f"no checkpoint {number}"
    if state.status is JobStatus.FINISHED:
        return (
            f"job {uid!r} has {what} any more: it is FINISHED, and a job that has read all of its "
            f"input discards its checkpoints; 'sluice run {uid} --epochs N' stops after N of them "
            "and keeps them"
        )
    if state.status.is_terminal:
        return (
            f"job {uid!r} has {what}: it is {state.status.value}, and its retention is "
            f"{state.configuration.retention.value}; Checkpointing("
            "externalized_checkpoint_retention=...) says what an ended job keeps"
        )
    return f"job {uid!r} has {what}: it has completed none in {job.store.root} yet"
