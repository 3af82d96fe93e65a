"""Restore: what is asked for is resolved, planned, verified, fenced, and what the job owes is done.

Whoever asks, be it a form, the command line or a failure, asks with a ``RestoreRequest``.  It is
parsed once, where it enters, and resolved once, to a checkpoint of the job, a savepoint, or a
snapshot in another root; from there on all restores are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sluice.coordinator.duties import resume_duties
from sluice.coordinator.record import record
from sluice.coordinator.restore_plan import (
    DEFAULT_OPTIONS,
    give_up,
    plan_restore,
    require_generation,
)
from sluice.coordinator.submission import configure, parse_parallelism, reconfigure
from sluice.core.configuration import ClaimMode, JobConfiguration, JobStatus
from sluice.core.events import JobRestored, JobStopped, Verdict
from sluice.core.ids import NO_GENERATION, CheckpointId, Generation
from sluice.core.lifecycle import next_generation
from sluice.core.plan import SnapshotOrigin
from sluice.core.restoring import (
    Choice,
    Latest,
    RestoreApproval,
    RestoreOptions,
    RestoreTarget,
    Stop,
)
from sluice.core.state import CoordinatorState, ServedRestore
from sluice.core.tables import TableAhead
from sluice.errors import ConfigurationError, FencedError, RestoreError
from sluice.job.job import Job, never_submitted_message, new_life
from sluice.job.places import verify_tables
from sluice.job.snapshots import LATEST, why_not_retained
from sluice.protocol.keys import PipelinePaths, SnapshotPath, parse_snapshot_path
from sluice.store.journal import Head, Journal

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredJob:
    """``checkpoint_id`` None: the job starts from empty state; ``passed_over`` were damaged.

    ``generation`` is that which the restore began; of one that an earlier try of its request did,
    ``state`` may be of a later one.
    """

    checkpoint_id: CheckpointId | None
    origin: SnapshotOrigin | None
    generation: Generation
    state: CoordinatorState
    tables_ahead: tuple[TableAhead, ...] = ()
    warnings: tuple[str, ...] = ()
    passed_over: tuple[CheckpointId, ...] = ()

    @property
    def named(self) -> str:
        """The snapshot that the job was restored from, in words."""
        base = Choice(self.checkpoint_id, self.origin)
        return str(base) + "".join(
            f", past damaged checkpoint {other}" for other in self.passed_over
        )

    @property
    def has_moved_on(self) -> bool:
        """Whether the job was restored or submitted again since."""
        return self.state.generation != self.generation


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """The wish of a person, or of a failure, for a restore.

    Without ``checkpoint`` and ``savepoint`` it is of the latest checkpoint.  ``root`` is where the
    snapshot lies, if not in the job's own root, and ``pipeline`` its uid there, if another.  With a
    ``token`` the savepoint is to be that incarnation of the name.
    ``pointer`` says all of that in one path, of the snapshot's folder or its ``_metadata``.
    ``parallelism`` (``"8"``, or ``"stage=8"``) and ``params`` change the job's configuration.
    ``only_generation`` marks a failure's own restart, of the generation that failed.  With
    ``may_submit`` a job that was never submitted begins with the empty state: Airflow's form has no
    other way to say what becomes of its tables.

    Raises:
        ConfigurationError: fields contradict each other.
    """

    checkpoint: CheckpointId | None = None
    savepoint: str | None = None
    token: str | None = None
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
            value = getattr(self, name)
            if value is not None:
                raise ConfigurationError(
                    f"{pointer!r} names the snapshot to restore already; leave out {name} {value!r}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRestore:
    """The meaning of a request for the job as it is.  ``configuration`` None keeps the job's."""

    target: RestoreTarget
    options: RestoreOptions
    configuration: JobConfiguration | None
    only_generation: int | None = None


def restore(
    job: Job,
    target: RestoreTarget,
    options: RestoreOptions = DEFAULT_OPTIONS,
    *,
    only_generation: int | None = None,
    configuration: JobConfiguration | None = None,
    cause: str = "",
) -> RestoredJob:
    """Continue the job from *target* under the next generation.

    Everything it needs is verified first; then the fence is journaled, and what the job owes from
    before, as an unfinished commit, is done before anything new.  *configuration* replaces the
    job's, for another parallelism.  With *only_generation* nothing happens unless the job is still
    of that generation: a repeated or late restore is harmless.  *cause* is the id of a request:
    a request that was already served returns its earlier result, and restores nothing.

    ``Latest`` with *only_generation* is a restart: it may pass damaged checkpoints over, or stop
    the job, as configured.

    Raises:
        RestoreError: the target does not exist, something it needs is gone, or a table does not
            agree with it; all are named.
        FencedError: the job moved on to another generation.
        ConfigurationError: the job, or a table, begins in a store that ignores conditional writes.
    """
    head = job.journal.load()
    if (served := head.state.served_restore(cause)) is not None:
        return restored_job(job, head.state, served)
    decision = plan_restore(
        job, target, options, configuration=configuration, only_generation=only_generation,
        state=head.state,
    )  # fmt: skip
    if isinstance(decision, Stop):
        if decision.message:
            give_up(job, head.state, decision.message)
            raise RestoreError(f"the job is FAILED: {decision.message}")
        raise RestoreError("the job cannot be restored: " + "; ".join(decision.problems))
    return _carry_out(job, head, decision, configuration, cause)


def _carry_out(
    job: Job,
    head: Head,
    decision: RestoreApproval,
    configuration: JobConfiguration | None,
    cause: str,
) -> RestoredJob:
    """Log what is lost or passed over, journal the fence, and do what the job owes from before."""
    state, choice, options = head.state, decision.choice, decision.options
    if decision.passed_over:
        log.error("damaged checkpoints are passed over: %s", decision.message)
    if decision.ignores_in_flight:
        log.error(
            "IN-FLIGHT DATA IS DROPPED AS ASKED FOR, AND ITS ROWS ARE LOST checkpoint_id=%s",
            choice.checkpoint_id,
        )
    for change in decision.changes:
        log.info("state %s", change)
    for warning in (*decision.tables_ahead, *decision.warnings):
        log.warning("%s", warning)
    if decision.tables is not None:
        verify_tables(job, (configuration or state.configuration).params)
    event = JobRestored(
        at_ms=job.now_ms(),
        generation=next_generation(state),
        checkpoint_id=choice.checkpoint_id,
        origin=choice.origin,
        claim_mode=options.claim_mode,
        ignores_in_flight=decision.ignores_in_flight,
        dropped_stages=decision.dropped_stages,
        consent=decision.consent,
        has_hooks=bool(job.pipeline.hooks),
        is_latest=decision.is_latest,
        tables=decision.tables,
        life="" if state.life else new_life(),
        place=job.location.name,
        configuration=configuration,
        cause=cause,
        processing_time_ms=decision.processing_time_ms,
        passed_over=decision.passed_over,
        message=decision.message,
        releases=state.num_releases,
    )
    transition = record(job, lambda _: event, head)
    if (served := transition.state.served_restore(cause)) is not None and (
        transition.verdict is not Verdict.APPLIED
    ):
        return restored_job(job, transition.state, served)
    if transition.verdict is Verdict.FENCED:
        raise FencedError(f"another coordinator restored job {job.pipeline.uid!r} first")
    if transition.verdict is not Verdict.APPLIED:
        raise RestoreError(
            "a checkpoint completed or was committed while the one to restore was chosen, or a "
            "snapshot was disposed of or discarded; restore the job again"
        )
    resume_duties(job, job.journal.load_on())
    after = job.journal.load_on().state
    if after.generation != event.generation:
        raise FencedError(f"another coordinator restored job {job.pipeline.uid!r} meanwhile")
    log.info(
        "job restored pipeline=%s generation=%d checkpoint_id=%s origin=%s",
        job.pipeline.uid, event.generation, event.checkpoint_id, event.origin,
    )  # fmt: skip
    return RestoredJob(
        checkpoint_id=choice.checkpoint_id,
        origin=choice.origin,
        generation=event.generation,
        state=after,
        passed_over=decision.passed_over,
        warnings=decision.warnings,
        tables_ahead=() if options.roll_back_tables else decision.tables_ahead,
    )


def restored_job(job: Job, state: CoordinatorState, served: ServedRestore) -> RestoredJob:
    """The result of an earlier try of the request.  If that died before it had done what the job
    owed, and the job is still as it was restored then, that is done now.
    """
    if state.generation == served.generation:
        resume_duties(job, job.journal.load())
    return RestoredJob(
        checkpoint_id=served.checkpoint_id,
        origin=served.origin,
        generation=served.generation,
        state=job.state(),
    )


def resolve(job: Job, state: CoordinatorState, request: RestoreRequest) -> ResolvedRestore:
    """Find what *request* names.

    Raises:
        FencedError: the job moved on from the generation that failed.
        ConfigurationError: the job was never submitted, the parallelism or the parameters are not
            those of the pipeline, or the pointer is not the path of a snapshot.
        RestoreError: there is no such savepoint, or nothing to restore in the other root.
    """
    require_generation(job, state, request.only_generation)
    request = _by_names(job, request)
    target = _target(job, request)
    is_own = isinstance(target, Latest) or target.origin is None
    if is_own and state.status is JobStatus.FINISHED and not state.completed:
        name = LATEST if request.checkpoint is None else str(request.checkpoint)
        raise ConfigurationError(why_not_retained(job, state, name))
    return ResolvedRestore(
        target=target,
        options=request.options,
        configuration=_configuration(job, state, target, request),
        only_generation=request.only_generation,
    )


def plan(job: Job, state: CoordinatorState, resolved: ResolvedRestore) -> RestoreApproval | Stop:
    """The plan of a resolved request; see ``plan_restore``."""
    return plan_restore(
        job,
        resolved.target,
        resolved.options,
        configuration=resolved.configuration,
        only_generation=resolved.only_generation,
        state=state,
    )


def _by_names(job: Job, request: RestoreRequest) -> RestoreRequest:
    """The request with the names of what its pointer points at."""
    if request.pointer is None:
        return request
    path = pointed_at(job, request.pointer)
    return replace(
        request,
        pointer=None,
        checkpoint=path.checkpoint_id,
        savepoint=path.savepoint,
        token=path.token,
        root=path.root,
        pipeline=path.pipeline,
    )


def pointed_at(job: Job, pointer: str) -> SnapshotPath:
    """The snapshot whose folder, or whose ``_metadata``, the *pointer* is: a URI, an absolute path
    of a file system, or a path below the job's own root (Flink's resolveCheckpoint).

    Raises:
        ConfigurationError: it has not the form of a snapshot's path.
    """
    found = parse_snapshot_path(pointer)
    if found is None or found.checkpoint_id == 0:
        raise ConfigurationError(
            f"{pointer!r} is not the path of a snapshot; write ROOT/PIPELINE/checkpoints/ID or "
            "ROOT/PIPELINE/savepoints/NAME, or the _metadata below it; a copy needs such a path, "
            "too"
        )
    return replace(found, root=_as_uri(found.root, job.store.root))


def _as_uri(root: str | None, own: str) -> str:
    if root is None:
        return own
    if root in ("", "file://"):
        return "file:///"
    if root.startswith("/"):
        return f"file://{root}"
    return root if "://" in root else f"{own.rstrip('/')}/{root}"


def _target(job: Job, request: RestoreRequest) -> RestoreTarget:
    """A root that is the job's own, in whatever spelling, is no other one."""
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
                token=request.token,
            )
    if request.savepoint is not None:
        return savepoint_target(job, request.savepoint, token=request.token)
    require_journal(job.journal, request.token, job.store.root)
    return Latest() if request.checkpoint is None else Choice(request.checkpoint)


def savepoint_target(job: Job, name: str, *, token: str | None = None) -> Choice:
    """Raises RestoreError when there is no such savepoint, or another *token* is meant."""
    return Choice.of(job.savepoint_origin(name, token=token))


def foreign_target(
    job: Job,
    root: str,
    *,
    pipeline: str | None = None,
    checkpoint_id: CheckpointId | None = None,
    savepoint: str | None = None,
    token: str | None = None,
) -> Choice:
    """A checkpoint of another *root*, by default its latest completed one, or a savepoint there.

    Only that root's journal says which checkpoints are completed: a ``_metadata`` is written
    before, and that of one which is aborted then may be there for a while.

    Raises:
        RestoreError: there is none, or it is not completed there, or not retained any more.
    """
    uid = pipeline or job.pipeline.uid
    if savepoint is not None:
        origin = job.savepoint_origin(savepoint, root=root, pipeline=uid, token=token)
        return Choice.of(origin)
    journal = Journal(job.store_at(root), PipelinePaths(uid))
    there = journal.load().state
    require_journal(journal, token, root)
    if checkpoint_id is None:
        latest = there.latest_completed
        if latest is None:
            raise RestoreError(f"job {uid!r} has no completed checkpoint in {root}")
        checkpoint_id = latest.checkpoint_id
    if there.completed_checkpoint(checkpoint_id) is None:
        retained = ", ".join(str(done.checkpoint_id) for done in there.completed) or "none"
        raise RestoreError(
            f"job {uid!r} in {root} has not completed checkpoint {checkpoint_id}, or does not "
            f"retain it any more; retained there are: {retained}"
        )
    return Choice.of(job.checkpoint_origin(checkpoint_id, root, journal.paths))


def require_journal(journal: Journal, token: str | None, root: str) -> None:
    """Raises RestoreError where the checkpoints of journal *token* are asked for, and the job's in
    *root* is another one.
    """
    if token not in (None, journal.paths.token):
        raise RestoreError(
            f"journal {token} is not that of job {journal.paths.pipeline!r} in {root}, which is "
            f"{journal.paths.token}: the root was emptied since; restore a checkpoint of this one"
        )


def _configuration(
    job: Job, state: CoordinatorState, target: RestoreTarget, request: RestoreRequest
) -> JobConfiguration | None:
    """The configuration that replaces the job's; None if it stays.

    A job that was never submitted here gets its first.  A person's restore takes the options of the
    declaration as it is now (Flink: those of the program that is submitted with the snapshot); a
    failure's own restart changes none.
    """
    of_all, of_stages = parse_parallelism(request.parallelism)
    params = request.params
    if state.generation == NO_GENERATION:
        is_elsewhere = isinstance(target, Choice) and target.origin is not None
        if not (request.may_submit or is_elsewhere):
            raise ConfigurationError(never_submitted_message(job))
        return configure(job.pipeline, params, parallelism=of_all, stage_parallelism=of_stages)
    if request.only_generation is not None and not (params or request.parallelism):
        return None
    changed = reconfigure(
        job.pipeline, state.configuration, params, parallelism=of_all, stage_parallelism=of_stages
    )
    return None if changed == state.configuration else changed


def stop(job: Job, status: JobStatus) -> CoordinatorState:
    """Cancel or suspend the job; what is pending is aborted, retention applies."""
    transition = record(
        job,
        lambda state: JobStopped(at_ms=job.now_ms(), generation=state.generation, status=status),
    )
    return transition.state
