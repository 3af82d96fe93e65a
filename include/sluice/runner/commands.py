"""Carries out what a transition asks for.  Every command may be repeated, and may be lost: what a
lost one leaves behind is garbage, found by its key.
"""

from __future__ import annotations

import logging
from typing import assert_never

from sluice.core.completed import CompletedCheckpoint
from sluice.core.coordinator import Transition
from sluice.core.ids import CheckpointId
from sluice.core.messages import (
    CommitCheckpoint,
    DiscardCompleted,
    DiscardPending,
    FinalizeCheckpoint,
    RestartJob,
)
from sluice.core.state import CoordinatorState
from sluice.errors import RestoreError
from sluice.runner.job import Job

log = logging.getLogger(__name__)


def carry_out(job: Job, transition: Transition) -> None:
    """Discard what ended.  Finalizing, committing and restarting are acts of their own tasks."""
    for command in transition.commands:
        match command:
            case DiscardPending():
                discard_pending(job, transition.state, command.checkpoint_id)
            case DiscardCompleted():
                discard_completed(job, transition.state, command.checkpoint)
            case FinalizeCheckpoint() | CommitCheckpoint() | RestartJob():
                pass
            case _:
                assert_never(command)


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
    for sink in job.sinks(state.configuration.params).values():
        sink.abort(checkpoint_id)
    own = [listed.key for listed in job.store.list(job.paths.checkpoint(checkpoint_id))]
    plan = job.paths.plan(checkpoint_id)
    job.store.delete([*doomed, *(key for key in own if key != plan)])
    job.store.delete([plan])
    log.info(
        "checkpoint discarded checkpoint_id=%d files=%d", checkpoint_id, len(doomed) + len(own)
    )


def discard_completed(job: Job, state: CoordinatorState, checkpoint: CompletedCheckpoint) -> None:
    """Delete a subsumed checkpoint's files, but those that a retained one names.

    Fails closed: when a retained ``_metadata`` cannot be read, nothing is deleted.
    """
    try:
        gone = job.metadata(checkpoint.checkpoint_id)
    except RestoreError:
        return  # Discarded before; whoever did it read the files' names first.
    used = {
        handle.key
        for retained in state.completed
        for handle in job.metadata(retained.checkpoint_id).files
    }
    outputs = [
        handle.key
        for stage in gone.stages
        for subtask in stage.subtasks
        for handle in subtask.output
        if handle.key
    ]
    savepoints = job.paths.savepoints()  # Inherited by a restore, but the user's.
    files = [
        handle.key
        for handle in gone.files
        if handle.key not in used and not handle.key.startswith(savepoints)
    ]
    own = [listed.key for listed in job.store.list(job.paths.checkpoint(gone.checkpoint_id))]
    metadata = job.paths.metadata(gone.checkpoint_id)
    job.store.delete([*files, *outputs, *(key for key in own if key != metadata)])
    job.store.delete([metadata])
    log.info("checkpoint subsumed checkpoint_id=%d files=%d", gone.checkpoint_id, len(files))
