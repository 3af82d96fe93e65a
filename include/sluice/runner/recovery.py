"""Failure and restore: abort, choose, verify, fence, replay the commit, resume."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from sluice.core.completed import CheckpointMetadata
from sluice.core.coordinator import Verdict, next_generation
from sluice.core.ids import NO_GENERATION, CheckpointId
from sluice.core.messages import (
    CheckpointFailed,
    DeclineReceived,
    JobConfiguration,
    JobRestored,
    JobStopped,
)
from sluice.core.properties import JobStatus
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.state import CoordinatorState
from sluice.errors import FencedError, RestoreError
from sluice.runner.commands import carry_out
from sluice.runner.completion import commit
from sluice.runner.job import Job

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest completed checkpoint of this life of the job; from empty when there is none."""


@dataclass(frozen=True, slots=True)
class FromCheckpoint:
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class FromSavepoint:
    name: str


RestoreTarget: TypeAlias = Latest | FromCheckpoint | FromSavepoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """``checkpoint_id`` None: the job starts from empty state."""

    checkpoint_id: CheckpointId | None
    savepoint: str | None
    state: CoordinatorState


def fail_checkpoint(
    job: Job,
    checkpoint_id: CheckpointId,
    reason: CheckpointFailureReason,
    message: str,
    *,
    is_task_failure: bool = False,
) -> CoordinatorState:
    """Abort the pending checkpoint, once, for one reason.  An ended one stays as it ended.

    A decline in the bucket is the better reason than that of the task that noticed it.
    """
    plan = job.plan(checkpoint_id)
    answered = job.answers.declines(checkpoint_id)
    generation = job.state().generation if plan is None else plan.generation

    def decide(state: CoordinatorState) -> CheckpointFailed | DeclineReceived:
        pending = state.pending_checkpoint(checkpoint_id)
        declines = [  # Those of an overtaken attempt mean nothing any more.
            decline
            for decline in answered
            if pending is not None and decline.attempt == pending.attempt_of(decline.subtask.stage)
        ]
        if declines and not is_task_failure:
            return DeclineReceived(generation=generation, at_ms=job.clock(), decline=declines[0])
        detail = f"{declines[0].subtask}: {declines[0].message}" if declines else message
        return CheckpointFailed(
            generation=generation,
            at_ms=job.clock(),
            checkpoint_id=checkpoint_id,
            reason=reason,
            message=detail,
            is_task_failure=is_task_failure,
        )

    transition = job.journal.append(decide)
    if transition.verdict is Verdict.APPLIED:
        log.warning(
            "checkpoint aborted checkpoint_id=%d reason=%s message=%s job_status=%s",
            checkpoint_id, reason.value, message, transition.state.status.value,
        )  # fmt: skip
        carry_out(job, transition)
    return transition.state


def restore(
    job: Job,
    target: RestoreTarget,
    *,
    allow_non_restored_state: bool = False,
    only_generation: int | None = None,
    configuration: JobConfiguration | None = None,
) -> Restored:
    """Continue the job from *target* under the next generation.

    Everything it needs is verified first; then the fence is journaled, and an unfinished commit of
    the chosen checkpoint is replayed before anything new.  *configuration* replaces the job's, for
    another parallelism.  With *only_generation* nothing happens
    unless the job is still of that generation: a repeated or late restore is harmless.

    Raises:
        RestoreError: the target does not exist, or something it needs is gone; all are named.
        FencedError: the job moved on to another generation.
    """
    state = job.state()
    if only_generation is not None and state.generation != only_generation:
        raise FencedError(
            f"job {job.pipeline.uid!r} is of generation {state.generation} already; "
            f"this restore was for generation {only_generation}"
        )
    if state.generation == NO_GENERATION and configuration is None:
        raise RestoreError(
            f"job {job.pipeline.uid!r} was never submitted in {job.store.root}, so it has no "
            "parameters; submit it first, or restore it with a configuration"
        )
    checkpoint_id, savepoint, metadata = _choose(job, state, target)
    if metadata is not None:
        continued = replace(state, configuration=configuration or state.configuration)
        verify(job, metadata, continued, allow_non_restored_state=allow_non_restored_state)
    generation = next_generation(state)
    transition = job.journal.append(
        lambda _: JobRestored(
            at_ms=job.clock(),
            generation=generation,
            checkpoint_id=checkpoint_id,
            savepoint=savepoint,
            configuration=configuration,
        )
    )
    if transition.verdict is Verdict.FENCED:
        raise FencedError(f"another coordinator restored job {job.pipeline.uid!r} first")
    if transition.verdict is not Verdict.APPLIED:
        raise RestoreError(f"checkpoint {checkpoint_id} was discarded while it was chosen")
    carry_out(job, transition)
    chosen = None if checkpoint_id is None else transition.state.completed_checkpoint(checkpoint_id)
    if chosen is not None and savepoint is None and not chosen.is_committed:
        commit(job, chosen.checkpoint_id)
    log.info(
        "job restored pipeline=%s generation=%d checkpoint_id=%s savepoint=%s",
        job.pipeline.uid, generation, checkpoint_id, savepoint,
    )  # fmt: skip
    return Restored(checkpoint_id=checkpoint_id, savepoint=savepoint, state=job.state())


def verify(
    job: Job,
    metadata: CheckpointMetadata,
    state: CoordinatorState,
    *,
    allow_non_restored_state: bool,
) -> None:
    """Raises RestoreError unless every stage, file and source position is there; names all gaps."""
    problems = [
        f"stage {stage.uid!r} has state but is not in the pipeline any more "
        "(allow non-restored state to drop it)"
        for stage in metadata.stages
        if stage.has_state and stage.uid not in job.pipeline.stages and not allow_non_restored_state
    ]
    sizes = {
        listed.key: listed.size_bytes
        for prefix in sorted({handle.key.rpartition("/")[0] for handle in metadata.files})
        for listed in job.store.list(f"{prefix}/")
    }
    for handle in metadata.files:
        found = sizes.get(handle.key)
        if found != handle.size_bytes:
            state_of_it = "is missing" if found is None else f"has {found} bytes"
            problems.append(f"{handle.key} {state_of_it}, expected {handle.size_bytes} bytes")
    for cut in metadata.sources:
        if cut.uid in job.pipeline.sources and cut.position:
            source = job.source(cut.uid, state.configuration.params)
            source.plan(cut.position, max_records=1, parallelism=1)  # Says what is gone.
    if problems:
        raise RestoreError(
            f"checkpoint {metadata.checkpoint_id} cannot be restored: " + "; ".join(problems)
        )


def stop(job: Job, status: JobStatus) -> CoordinatorState:
    """Cancel or suspend the job; what is pending is aborted, retention applies."""
    transition = job.journal.append(
        lambda state: JobStopped(at_ms=job.clock(), generation=state.generation, status=status)
    )
    carry_out(job, transition)
    return transition.state


def _choose(
    job: Job, state: CoordinatorState, target: RestoreTarget
) -> tuple[CheckpointId | None, str | None, CheckpointMetadata | None]:
    match target:
        case Latest():
            return state.base, state.base_savepoint, job.base_metadata(state)
        case FromCheckpoint(checkpoint_id):
            if state.completed_checkpoint(checkpoint_id) is None:
                retained = ", ".join(str(c.checkpoint_id) for c in state.completed) or "none"
                raise RestoreError(
                    f"checkpoint {checkpoint_id} is not retained; retained are: {retained}"
                )
            return checkpoint_id, None, job.metadata(checkpoint_id)
        case FromSavepoint(name):
            metadata = job.savepoint_metadata(name)
            return metadata.checkpoint_id, name, metadata
        case _:
            assert_never(target)
