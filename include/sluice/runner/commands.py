"""Carries out what a transition asks for.  Every command may be repeated, and may be lost: what a
lost one leaves behind is listed in the state, or is garbage that its key gives away.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import assert_never

from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
from sluice.core.ids import CheckpointId
from sluice.core.invariants import require
from sluice.core.messages import (
    CommitCheckpoint,
    DiscardCompleted,
    DiscardPending,
    FinalizeCheckpoint,
    RestartJob,
    SnapshotsDiscarded,
    TriggerCheckpoint,
)
from sluice.core.state import CoordinatorState
from sluice.core.transition import Transition
from sluice.errors import ProtocolViolation, RestoreError
from sluice.runner.early import abort_staged
from sluice.runner.holds import release
from sluice.runner.in_use import files_in_use, files_named
from sluice.runner.job import Job
from sluice.runner.savepoints import discard_claimed

log = logging.getLogger(__name__)


def carry_out(job: Job, transition: Transition) -> None:
    """Discard what ended.  Triggering, finalizing, committing, restarting are acts of their own."""
    state = transition.state
    for command in transition.commands:
        match command:
            case DiscardPending():
                discard_pending(job, state, command.checkpoint_id)
            case (
                DiscardCompleted() | TriggerCheckpoint() | FinalizeCheckpoint()
                | CommitCheckpoint() | RestartJob()
            ):  # fmt: skip
                pass
            case _:
                assert_never(command)
    if any(isinstance(command, DiscardCompleted) for command in transition.commands):
        clean_up(job, state)


def discard_pending(job: Job, state: CoordinatorState, checkpoint_id: CheckpointId) -> None:
    """Delete everything the aborted checkpoint wrote; its plan goes last, as the sign it is over.

    Segments and staged files are named by their checkpoint, so nothing of another one is touched.
    """
    doomed: list[str] = []
    prefixes = [job.paths.streams(stage, checkpoint_id) for stage in job.pipeline.stages]
    prefixes += [
        job.paths.shared_segments(uid, checkpoint_id)
        for uid in (*job.pipeline.stages, *job.pipeline.sources)
    ]
    for prefix in prefixes:
        doomed.extend(listed.key for listed in job.store.list(prefix))
    abort_staged(job, checkpoint_id, job.sinks(state.configuration.params))
    release(job, state, str(checkpoint_id))
    own = [listed.key for listed in job.store.list(job.paths.checkpoint(checkpoint_id))]
    plan = job.paths.plan(checkpoint_id)
    job.store.delete([*doomed, *(key for key in own if key != plan)])
    job.store.delete([plan])
    log.info(
        "checkpoint discarded checkpoint_id=%d files=%d", checkpoint_id, len(doomed) + len(own)
    )


def clean_up(job: Job, state: CoordinatorState) -> None:
    """Delete what the state lists to be deleted, and journal that it is gone."""
    gone = discard_subsumed(job, state)
    transition = job.journal.append(
        lambda current: SnapshotsDiscarded(generation=current.generation, checkpoints=gone)
    )
    require(not transition.commands, "what is gone asks for nothing")
    if transition.state.claimed_savepoints:
        discard_claimed(job)


def discard_subsumed(
    job: Job, state: CoordinatorState, *, known: CheckpointMetadata | None = None
) -> tuple[CheckpointId, ...]:
    """Delete the files of the checkpoints that left the store, but those still in use.  A *known*
    checkpoint is not read again.

    Fails closed: when a ``_metadata`` cannot be read nothing is deleted, and what is left behind is
    the garbage collector's to find.  It does not hold up the job.
    """
    if not state.discarding:
        return ()
    try:
        retained = [
            known
            if known is not None and known.checkpoint_id == c.checkpoint_id
            else job.metadata(c.checkpoint_id)
            for c in state.completed
        ]
        if state.origin is not None:
            retained.append(job.origin_metadata(state.origin))
        for checkpoint in state.discarding:
            _discard_completed(job, checkpoint, retained)
            release(job, state, str(checkpoint.checkpoint_id))
    except (RestoreError, ProtocolViolation) as error:
        log.error("nothing was discarded, as a retained checkpoint cannot be read: %s", error)  # noqa: TRY400
    return tuple(checkpoint.checkpoint_id for checkpoint in state.discarding)


def _discard_completed(
    job: Job, checkpoint: CompletedCheckpoint, retained: Sequence[CheckpointMetadata]
) -> None:
    try:
        gone = job.metadata(checkpoint.checkpoint_id)
    except RestoreError:
        return  # Discarded before; whoever did it read the files' names first.
    named = _own_files(job, gone)
    used = files_in_use(job, retained, doomed=named)
    shared = used.register_all(named, gone.checkpoint_id)
    files = shared.release({gone.checkpoint_id}).to_delete
    own = [listed.key for listed in job.store.list(job.paths.checkpoint(gone.checkpoint_id))]
    metadata_key = job.paths.metadata(gone.checkpoint_id)
    job.store.delete([*files, *(key for key in own if key != metadata_key)])
    job.store.delete([metadata_key])
    log.info("checkpoint subsumed checkpoint_id=%d files=%d", gone.checkpoint_id, len(files))


def _own_files(job: Job, metadata: CheckpointMetadata) -> list[str]:
    """What the job itself wrote: what it inherited of a savepoint or another root is not its."""
    inherited = {handle.key for handle in metadata.files if handle.root}
    return [
        key
        for key in dict.fromkeys(files_named(metadata))
        if key not in inherited and job.paths.checkpoint_of(key) is not None
    ]
