"""A person disposes of a savepoint: it is released in the journal, and then deleted.

Flink deletes a savepoint's files when asked (savepoint disposal), though a job may read them.  Here
the release is journaled first, so that no restore begins from what is being deleted, and a crash in
between leaves a duty for the garbage collector, as a claimed savepoint does.
"""

from __future__ import annotations

import logging

from sluice.coordinator.commands import discard_claimed, record
from sluice.core.messages import SavepointsReleased
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.protocol.names import check_savepoint_name

log = logging.getLogger(__name__)


def dispose(job: Job, name: str) -> bool:
    """Delete savepoint *name* of the job's root, whole or not; False if nothing of it is there.

    Jobs of other roots or uids that were restored from it are not asked.

    Raises:
        ConfigurationError: no savepoint may have that name, or the job needs this one.
        RestoreError, ProtocolViolation: a retained checkpoint cannot be read, and may need it.
    """
    folder = job.paths.savepoint(check_savepoint_name(name))
    state = job.state()
    if name not in state.releasing_savepoints:
        if next(iter(job.store.list(folder)), None) is None:
            return False
        _require_unused(job, state, name)
        state = record(
            job,
            lambda current: SavepointsReleased(
                generation=current.generation, savepoints=(name,), is_disposal=True
            ),
        ).state
        if name not in state.releasing_savepoints:
            _require_unused(job, state, name)  # It is used since the first look.
    discard_claimed(job)
    log.info("savepoint disposed of name=%s", name)
    return True


def _require_unused(job: Job, state: CoordinatorState, name: str) -> None:
    used = _use_of(job, state, name)
    if used:
        raise ConfigurationError(f"savepoint {name!r} cannot be disposed of: {used}")


def _use_of(job: Job, state: CoordinatorState, name: str) -> str:
    """What the job needs it for, with what to do; empty if it does not."""
    uid = job.pipeline.uid
    if state.origin is not None and state.origin.savepoint == name:
        return (
            f"job {uid!r} was restored from it, and has completed no checkpoint since; wait for "
            "one, or restore something else"
        )
    if name in state.claimed_savepoints:
        return f"job {uid!r} claimed it, and deletes it when no retained checkpoint reads it"
    if not state.is_free(name):
        return "it is being taken; wait for its end"
    for done in state.completed:
        files = job.metadata(done.checkpoint_id).files
        if any(job.paths.savepoint_of(one.key) == name for one in files if not one.root):
            return f"checkpoint {done.checkpoint_id} reads its files, and is retained"
    return ""
