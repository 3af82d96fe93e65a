"""A restart without a person: from the latest completed checkpoint, unless that is damaged.

The first restart from a checkpoint looks whether its files are there.  A job that fails again
before it completed another one has them read and compared, too: something that it needs is wrong,
and coming back to it for ever would not mend it.  Then the job stops, or goes on from the next
older checkpoint that is whole, as configured.  See docs/adr/0005-damage-and-equal-failures.md.

The dry run: what a restore would do, or everything that stands against it.

What a restore knows before it decides: what was chosen before, and what is seen of the snapshot:
its ``_metadata``, its files, its sources.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sluice.coordinator.compatibility import undeclared_uids
from sluice.coordinator.record import record
from sluice.coordinator.staged import of_sink
from sluice.coordinator.tables import compare_tables_to_restore, undeclared_tables
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import DamagedCheckpoint, JobConfiguration, JobStatus
from sluice.core.events import JobFailed, JobStopped, Verdict
from sluice.core.handles import SegmentHandle
from sluice.core.ids import NO_GENERATION, CheckpointId
from sluice.core.restoring import (
    Choice,
    DeclaredStage,
    FromCheckpoint,
    Latest,
    Observed,
    RestoreApproval,
    RestoreOptions,
    RestoreTarget,
    Stop,
    choose,
    decide_restore,
)
from sluice.core.state import CoordinatorState
from sluice.errors import (
    ConfigurationError,
    CorruptSegment,
    FencedError,
    ProtocolViolation,
    RestoreError,
)
from sluice.job.job import Job
from sluice.job.places import open_sinks, open_source
from sluice.job.positions import position_of
from sluice.job.snapshots import checksums_of, segments_of

log = logging.getLogger(__name__)

NAMED_PROBLEMS = 3  # The journal keeps so many; `sluice restore --dry-run` names all.


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """What to restore, and how; ``passed_over`` are damaged, and ``message`` says how."""

    target: RestoreTarget
    options: RestoreOptions
    decision: RestoreApproval | Stop
    passed_over: tuple[CheckpointId, ...] = ()
    message: str = ""


def plan_restart(
    job: Job,
    state: CoordinatorState,
    options: RestoreOptions,
    *,
    configuration: JobConfiguration | None = None,
) -> Restart:
    """What a restart of *state* would do.  Writes nothing.

    A ``Stop`` that is damaged is final: no restart will do better, and *message* says what to do.
    """
    compares = options.compare_checksums and state.restores_of_base > 0
    options = replace(options, compare_checksums=compares)
    decision = plan_restore(job, Latest(), options, configuration=configuration)
    latest = Restart(target=Latest(), options=options, decision=decision)
    if not isinstance(decision, Stop) or not decision.is_damaged:
        return latest
    goes_back = replace(options, compare_checksums=True, roll_back_tables=True)
    passed, said = [state.base], [_not_restorable_message(state.base, decision)]
    for checkpoint_id in _ancestors(state):
        target = FromCheckpoint(checkpoint_id)
        older = plan_restore(job, target, goes_back, configuration=configuration)
        if isinstance(older, RestoreApproval):
            if state.configuration.on_damaged_checkpoint is DamagedCheckpoint.STOP:
                said.append(_advice(job, checkpoint_id))
                break
            return Restart(
                target=target,
                options=goes_back,
                decision=older,
                passed_over=tuple(one for one in passed if one is not None),
                message="; ".join(said),
            )
        passed.append(checkpoint_id)
        said.append(_not_restorable_message(checkpoint_id, older))
    else:
        said.append("no older checkpoint can be restored: restore a savepoint")
    return replace(latest, message="; ".join(said))


def give_up(job: Job, state: CoordinatorState, message: str) -> None:
    """Stop the job for good, and have the journal say why.

    Raises:
        FencedError: it moved on to another generation.
    """
    stopped = JobStopped(
        at_ms=job.clock(), generation=state.generation, status=JobStatus.FAILED, message=message
    )
    transition = record(job, lambda _: stopped)
    if transition.verdict is Verdict.FENCED:
        raise FencedError(f"another coordinator restored job {job.pipeline.uid!r} first")
    log.error("job stopped pipeline=%s because=%s", job.pipeline.uid, message)


def fail_over_if_damaged(job: Job, state: CoordinatorState) -> bool:
    """Fail the job over if what it continues cannot be read, or what that owes the tables cannot
    be published: then no checkpoint will ever begin.

    False if both can, or the job went on meanwhile, for then something else was wrong.
    """
    damage = _damage_of_base(job, state)
    if not damage:
        return False
    now = job.state()
    if _continued(now) != _continued(state):
        return False  # It was subsumed, or committed, while we read it.
    failed = JobFailed(
        generation=state.generation,
        at_ms=job.clock(),
        message=f"checkpoint {state.base} is damaged: {_shortened(damage)}",
    )
    transition = record(job, lambda _: failed)
    return transition.verdict is Verdict.APPLIED


def _damage_of_base(job: Job, state: CoordinatorState) -> Sequence[str]:
    try:
        metadata = job.base_metadata(state)
        if metadata is None or state.origin is not None:
            return ()
        return damage_of_owed_rows(job, state, metadata, state.configuration)
    except (RestoreError, ProtocolViolation) as error:
        return (str(error),)


def _continued(state: CoordinatorState) -> tuple[object, ...]:
    latest = state.latest_completed
    return state.generation, state.base, state.origin, latest is not None and latest.is_committed


def _ancestors(state: CoordinatorState) -> Iterator[CheckpointId]:
    """What the base continues, and so on, as far as it is retained: not what was left behind."""
    latest = state.latest_completed
    while latest is not None and latest.parent is not None:
        latest = state.completed_checkpoint(latest.parent)
        if latest is not None:
            yield latest.checkpoint_id


def _not_restorable_message(checkpoint_id: CheckpointId | None, stop: Stop) -> str:
    return f"checkpoint {checkpoint_id} cannot be restored: {_shortened(stop.problems)}"


def _advice(job: Job, checkpoint_id: CheckpointId) -> str:
    return (
        f"checkpoint {checkpoint_id} is whole: 'sluice restore {job.pipeline.uid} --checkpoint "
        f"{checkpoint_id} --roll-back-tables' goes back to it"
    )


def _shortened(problems: Sequence[str]) -> str:
    rest = len(problems) - NAMED_PROBLEMS
    named = "; ".join(problems[:NAMED_PROBLEMS])
    return f"{named}; and {rest} more" if rest > 0 else named


DEFAULT_OPTIONS = RestoreOptions()


def plan_restore(
    job: Job,
    target: RestoreTarget,
    options: RestoreOptions = DEFAULT_OPTIONS,
    *,
    configuration: JobConfiguration | None = None,
) -> RestoreApproval | Stop:
    """What ``restore`` would do, and every file it would need: the dry run.  Writes nothing."""
    state = job.state()
    if state.generation == NO_GENERATION and configuration is None:
        problem = (
            f"job {job.pipeline.uid!r} was never submitted in {job.store.root}, so it has no "
            "parameters; submit it first, or restore it with a configuration"
        )
        return Stop(problems=(problem,))
    options = as_chosen(state, target, options)
    choice = choose(state, target, options)
    if isinstance(choice, Stop):
        return choice
    continued = configuration or state.configuration
    try:
        observed = observe(job, choice, state, continued, options)
    except (RestoreError, ConfigurationError) as error:
        return Stop(problems=(str(error),))
    stages = [
        DeclaredStage(
            uid=uid,
            parallelism=job.parallelism_of(uid, continued),
            max_parallelism=job.pipeline.max_parallelism,
            reads=stage.producers,
        )
        for uid, stage in job.pipeline.stages.items()
    ]
    return decide_restore(state, choice, observed, stages, options)


def as_chosen(
    state: CoordinatorState, target: RestoreTarget, options: RestoreOptions
) -> RestoreOptions:
    """A failure before the first checkpoint changes nothing of what a person chose with the origin,
    or chose to drop.
    """
    if not isinstance(target, Latest):
        return options
    ignored = state.base if state.ignores_in_flight else None
    return replace(
        options,
        claim_mode=options.claim_mode if state.origin is None else state.claim_mode,
        ignore_in_flight_of=options.ignore_in_flight_of or ignored,
    )


def observe(
    job: Job,
    choice: Choice,
    state: CoordinatorState,
    configuration: JobConfiguration,
    options: RestoreOptions,
) -> Observed:
    """Look at the snapshot, one LIST per folder of its files, and ask its sources, and its sinks.

    The usual restore, of what the job continues anyway, asks no sink: a database that is down does
    not keep a job from restarting.

    With ``compare_checksums`` every file is read.
    """
    try:
        metadata = _metadata(job, choice)
    except (RestoreError, ProtocolViolation) as error:
        return Observed(unreadable=str(error))
    is_decided = state.continues(choice.checkpoint_id, choice.origin)
    asks = not is_decided or options.roll_back_tables or options.accept_tables
    tables = (
        compare_tables_to_restore(job, state, choice, metadata, configuration) if asks else None
    )
    if metadata is None:
        return Observed(tables=tables)
    return Observed(
        metadata=metadata,
        sizes=_sizes(job, metadata),
        checksums=(checksums_of(job, segments_of(metadata)) if options.compare_checksums else None),
        staged_damage=(
            damage_of_owed_rows(job, state, metadata, configuration)
            if options.compare_checksums and choice.origin is None
            else ()
        ),
        source_problems=_source_problems(job, metadata, configuration),
        left_behind=undeclared_uids(metadata, job.pipeline),
        tables=tables,
        undeclared_tables=undeclared_tables(job, state, choice, metadata),
    )


def _metadata(job: Job, choice: Choice) -> CheckpointMetadata | None:
    if choice.checkpoint_id is None:
        return None
    if choice.origin is not None:
        return job.origin_metadata(choice.origin)
    return job.metadata(choice.checkpoint_id)


def _sizes(job: Job, metadata: CheckpointMetadata) -> dict[SegmentHandle, int | None]:
    found: dict[tuple[str, str], int] = {}
    for root in sorted({handle.root for handle in metadata.files}):
        store = job.store_at(root)
        here = [handle.key for handle in metadata.files if handle.root == root]
        for folder in sorted({key.rpartition("/")[0] for key in here}):
            found |= {(root, listed.key): listed.size_bytes for listed in store.list(f"{folder}/")}
    return {handle: found.get((handle.root, handle.key)) for handle in metadata.files}


def damage_of_owed_rows(
    job: Job, state: CoordinatorState, metadata: CheckpointMetadata, configuration: JobConfiguration
) -> list[str]:
    """Of the rows that a replayed commit would publish; a sink that did has no use for them."""
    own = state.completed_checkpoint(metadata.checkpoint_id)
    if own is None or own.is_committed:
        return []
    found: list[str] = []
    for uid, sink in open_sinks(job, configuration.params).items():
        damage = sink.damage_of(of_sink(uid, metadata.committables))
        if damage and not sink.is_published(metadata.checkpoint_id):
            found += damage
    return found


def _source_problems(
    job: Job, metadata: CheckpointMetadata, configuration: JobConfiguration
) -> list[str]:
    problems: list[str] = []
    for cut in metadata.sources:
        if cut.uid not in job.pipeline.sources or not (cut.position or cut.layers):
            continue
        try:
            source = open_source(job, cut.uid, configuration.params)
            source.plan(position_of(job, cut), max_records=1, parallelism=1)
        except (ConfigurationError, CorruptSegment, RestoreError) as error:
            problems.append(str(error))
    return problems
