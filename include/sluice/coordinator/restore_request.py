"""What is asked of a restore, however it was asked: by a form, on the command line, by a failure.

A request is parsed once, where it enters, and resolved once; everything behind that is the same for
all who ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sluice.coordinator.automatic_restart import Restart, plan_restart
from sluice.coordinator.observation import as_chosen
from sluice.coordinator.restore_plan import DEFAULT_OPTIONS, plan_restore
from sluice.coordinator.restore_targets import foreign_target, pointed_at, savepoint_target
from sluice.coordinator.submission import configure, parse_parallelism, reconfigure
from sluice.core.configuration import JobConfiguration
from sluice.core.ids import NO_GENERATION, CheckpointId
from sluice.core.properties import ClaimMode, JobStatus
from sluice.core.restoring import (
    FromCheckpoint,
    FromOrigin,
    Latest,
    RestoreOptions,
    RestoreTarget,
)
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError, FencedError
from sluice.job.job import Job
from sluice.job.never_submitted import never_submitted
from sluice.job.retained import LATEST, why_not_retained


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """Without ``checkpoint`` and ``savepoint``: the latest checkpoint.

    ``root``: where it lies, if not in the job's own root; ``pipeline``: its uid there, if another.
    ``pointer`` says all of that in one path, of the snapshot's folder or its ``_metadata``.
    ``parallelism`` and ``params`` change the job's configuration: ``"8"``, or ``"stage=8"``.
    ``only_generation``: a failure's own restart, for the generation that failed.
    ``may_submit``: a job that was never submitted begins with the empty state, where there is no
    other way to say how its tables are taken (Airflow's form).

    Raises:
        ConfigurationError: fields contradict each other.
    """

    checkpoint: CheckpointId | None = None
    savepoint: str | None = None
    root: str | None = None
    pipeline: str | None = None
    pointer: str | None = None
    parallelism: tuple[str, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    options: RestoreOptions = DEFAULT_OPTIONS
    only_generation: int | None = None
    may_submit: bool = False

    def __post_init__(self) -> None:
        if self.pointer is not None:
            self._require_pointer_alone(self.pointer)
            return
        if self.checkpoint is not None and self.savepoint is not None:
            raise ConfigurationError(
                f"checkpoint {self.checkpoint} and savepoint {self.savepoint!r} exclude one "
                "another; give one"
            )
        if self.pipeline is not None and self.root is None:
            raise ConfigurationError(
                f"pipeline {self.pipeline!r} needs the root where its checkpoints are; give one"
            )
        if self.options.claim_mode is ClaimMode.CLAIM and self.savepoint is None:
            what = "the latest one" if self.checkpoint is None else f"checkpoint {self.checkpoint}"
            raise ConfigurationError(
                f"CLAIM is given with {what}, but only a savepoint can be claimed: name one, or "
                "use NO_CLAIM"
            )

    def _require_pointer_alone(self, pointer: str) -> None:
        for name in ("checkpoint", "savepoint", "root", "pipeline"):
            if getattr(self, name) is not None:
                raise ConfigurationError(
                    f"{pointer!r} says which snapshot is restored, and {name} "
                    f"{getattr(self, name)!r} says it once more; give one"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a request means for the job as it is.  ``configuration`` None keeps the job's."""

    target: RestoreTarget
    options: RestoreOptions
    configuration: JobConfiguration | None
    only_generation: int | None = None


def resolve(job: Job, state: CoordinatorState, request: RestoreRequest) -> Resolved:
    """Find what *request* names.

    Raises:
        ConfigurationError: the job was never submitted, the parallelism or the parameters are not
            those of the pipeline, or the pointer is not the path of a snapshot.
        RestoreError: there is no such savepoint, or nothing to restore in the other root.
    """
    request = _by_names(job, request)
    target = _target(job, request)
    is_own = isinstance(target, Latest | FromCheckpoint)
    if is_own and state.status is JobStatus.FINISHED and not state.completed:
        name = LATEST if request.checkpoint is None else str(request.checkpoint)
        raise ConfigurationError(why_not_retained(job, state, name))
    return Resolved(
        target=target,
        options=request.options,
        configuration=_configuration(job, state, target, request),
        only_generation=request.only_generation,
    )


def plan(job: Job, state: CoordinatorState, resolved: Resolved) -> Restart:
    """What a restore would do; for a failure's own restart, what that may choose by itself.

    Raises:
        FencedError: the job moved on from the generation that failed.
    """
    only = resolved.only_generation
    require_generation(job, state, only)
    target, configuration = resolved.target, resolved.configuration
    options = as_chosen(state, target, resolved.options)
    if only is not None and isinstance(target, Latest):
        return plan_restart(job, state, options, configuration=configuration)
    decision = plan_restore(job, target, options, configuration=configuration)
    return Restart(target=target, options=options, decision=decision)


def require_generation(job: Job, state: CoordinatorState, only: int | None) -> None:
    """Raises FencedError when the job moved on from the generation *only*."""
    if only is not None and state.generation != only:
        raise FencedError(
            f"job {job.pipeline.uid!r} is of generation {state.generation} already; "
            f"this restore was for generation {only}"
        )


def _by_names(job: Job, request: RestoreRequest) -> RestoreRequest:
    """The request without its pointer, which is what it points at."""
    if request.pointer is None:
        return request
    found = pointed_at(job, request.pointer)
    return replace(
        request,
        pointer=None,
        checkpoint=found.checkpoint_id,
        savepoint=found.savepoint,
        root=found.root,
        pipeline=found.pipeline,
    )


def _target(job: Job, request: RestoreRequest) -> RestoreTarget:
    """The job's own root, named once more, is not another one."""
    root = request.root
    if root is not None:
        is_own_root = job.store_at(root).root == job.store.root
        if not (is_own_root and request.pipeline in (None, job.pipeline.uid)):
            return foreign_target(
                job,
                root,
                pipeline=request.pipeline,
                checkpoint_id=request.checkpoint,
                savepoint=request.savepoint,
            )
    if request.savepoint is not None:
        return savepoint_target(job, request.savepoint)
    return Latest() if request.checkpoint is None else FromCheckpoint(request.checkpoint)


def _configuration(
    job: Job, state: CoordinatorState, target: RestoreTarget, request: RestoreRequest
) -> JobConfiguration | None:
    """A job that was never submitted here gets its first.  A person's restore takes the options of
    the declaration as it is now (Flink: those of the program that is submitted with the snapshot);
    a failure's own restart changes none.
    """
    of_all, of_stages = parse_parallelism(request.parallelism)
    params = request.params
    if state.generation == NO_GENERATION:
        if not (request.may_submit or isinstance(target, FromOrigin)):
            raise ConfigurationError(never_submitted(job))
        return configure(job.pipeline, params, parallelism=of_all, stage_parallelism=of_stages)
    if request.only_generation is not None and not (params or request.parallelism):
        return None
    changed = reconfigure(
        job.pipeline, state.configuration, params, parallelism=of_all, stage_parallelism=of_stages
    )
    return None if changed == state.configuration else changed
