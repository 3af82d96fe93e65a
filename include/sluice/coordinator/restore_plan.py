"""The plan of a restore, or everything that stands against it; and the restart of a failed job,
which chooses by itself.

Planning a restore is the dry run: it looks at the snapshot's ``_metadata`` and files, asks its
sources and tables, and writes nothing.

A restart is planned from the latest completed checkpoint, unless that is damaged.  The first
restart from a checkpoint asks whether its files are there.  If the job fails again before it
completed another one, they are read and compared, too: something that it needs is wrong, and to
come back to it for ever would not mend it.  Then the job stops, or goes on from the next older
checkpoint that is whole, as configured.  See docs/adr/0005-damage-and-equal-failures.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

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
from sluice.declaration.fingerprints import fingerprints
from sluice.declaration.operations import SparkCode
from sluice.errors import (
    ConfigurationError,
    CorruptSegment,
    FencedError,
    ProtocolViolation,
    RestoreError,
    of_pipeline,
)
from sluice.job.job import Job
from sluice.job.lineage import position_of
from sluice.job.places import open_sinks, open_source
from sluice.job.snapshots import checksums_of, segments_of

log = logging.getLogger(__name__)

DEFAULT_OPTIONS = RestoreOptions()
NAMED_PROBLEMS = 3  # The journal keeps so many; `sluice restore --dry-run` names all.


def plan_restore(
    job: Job,
    target: RestoreTarget,
    options: RestoreOptions = DEFAULT_OPTIONS,
    *,
    configuration: JobConfiguration | None = None,
    only_generation: int | None = None,
    state: CoordinatorState | None = None,
) -> RestoreApproval | Stop:
    """The dry run of ``restore``: what it would do to the job in *state*, by default as it is now,
    and every file it would need.  Writes nothing.  See ``restore`` for the arguments.

    Raises:
        FencedError: the job moved on from the generation that failed.
    """
    state = job.state() if state is None else state
    require_generation(job, state, only_generation)
    options = as_chosen(state, target, options)
    if only_generation is not None and isinstance(target, Latest):
        return _plan_restart(job, state, options, configuration)
    decision = _plan(job, state, target, options, configuration)
    if isinstance(decision, RestoreApproval):
        problems = _unreadable_results(job, decision, configuration or state.configuration)
        return _told(job, Stop(problems=problems)) if problems else decision
    return decision


def _unreadable_results(
    job: Job, decision: RestoreApproval, configuration: JobConfiguration
) -> tuple[str, ...]:
    """Types are in no fingerprint, but those of Spark code's result are declared."""
    stages = job.pipeline.stages.values()
    if not any(isinstance(one.operation, SparkCode) and one.is_stateful for one in stages):
        return ()
    from sluice.job.analysis import problems_of_results  # It loads Polars.

    metadata = job.snapshot_metadata(decision.choice.checkpoint_id, decision.choice.origin)
    if metadata is None:
        return ()
    return tuple(problems_of_results(job, metadata, configuration.params))


def require_generation(job: Job, state: CoordinatorState, only: int | None) -> None:
    """Raises FencedError when the job moved on from the generation *only*."""
    if only is not None and state.generation != only:
        raise FencedError(
            f"job {job.pipeline.uid!r} is of generation {state.generation} already; "
            f"this restore was for generation {only}"
        )


def _plan(
    job: Job,
    state: CoordinatorState,
    target: RestoreTarget,
    options: RestoreOptions,
    configuration: JobConfiguration | None,
) -> RestoreApproval | Stop:
    if state.generation == NO_GENERATION and configuration is None:
        problem = (
            f"job {job.pipeline.uid!r} was never submitted in {job.store.root}, so it has no "
            "parameters; submit it first, or restore it with a configuration"
        )
        return Stop(problems=(problem,))
    choice = choose(state, target, options)
    if isinstance(choice, Stop):
        return _told(job, choice)
    continued = configuration or state.configuration
    try:
        observed = observe(job, choice, state, continued, options)
    except (RestoreError, ConfigurationError) as error:
        return _told(job, Stop(problems=(str(error),)))
    stages = [
        DeclaredStage(
            uid=uid,
            parallelism=job.parallelism_of(uid, continued),
            max_parallelism=job.pipeline.max_parallelism,
            reads=stage.producers,
            goes_by_event_time=stage.goes_by_event_time,
        )
        for uid, stage in job.pipeline.stages.items()
    ]
    decision = decide_restore(state, choice, observed, stages, options)
    if isinstance(decision, Stop):
        return _told(job, decision)
    return replace(decision, options=options, is_latest=isinstance(target, Latest))


def _told(job: Job, stop: Stop) -> Stop:
    problems = tuple(of_pipeline(problem, job.pipeline.uid) for problem in stop.problems)
    return replace(stop, problems=problems)


def as_chosen(
    state: CoordinatorState, target: RestoreTarget, options: RestoreOptions
) -> RestoreOptions:
    """The options for the latest checkpoint as a person chose them with the job's origin, or when
    dropping its rows in flight.  A failure before the next checkpoint does not change them.
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
    """Look at the snapshot, one LIST per folder of its files, and ask its sources, and the sinks.

    The usual restore, of what the job continues anyway, asks no sink: a database that is down does
    not keep a job from restarting.  With ``compare_checksums`` every file is read.
    """
    is_decided, origin = state.continues(choice.checkpoint_id, choice.origin), choice.origin
    try:
        if origin is not None and origin.savepoint is not None and not is_decided:
            # Its ``_metadata`` may have come back, by a request that was late.
            job.savepoint_origin(
                origin.savepoint, root=origin.root, pipeline=origin.pipeline, token=origin.token
            )
        metadata = job.snapshot_metadata(choice.checkpoint_id, origin)
    except (RestoreError, ProtocolViolation) as error:
        return Observed(unreadable=str(error))
    tables = None
    is_asked = options.roll_back_tables or options.accept_tables or options.take_over
    if not is_decided or is_asked:
        tables = compare_tables_to_restore(job, state, choice, metadata, configuration)
    if metadata is None:
        return Observed(tables=tables)
    compares = options.compare_checksums
    return Observed(
        metadata=metadata,
        sizes=_sizes(job, metadata),
        checksums=checksums_of(job, segments_of(metadata)) if compares else None,
        staged_damage=(
            damage_of_owed_rows(job, state, metadata, configuration)
            if compares and choice.origin is None
            else ()
        ),
        source_problems=_source_problems(job, metadata, configuration),
        left_behind=undeclared_uids(metadata, job.pipeline),
        tables=tables,
        undeclared_tables=undeclared_tables(job, state, choice, metadata),
        fingerprints=fingerprints(job.pipeline, configuration.params),
    )


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
    """The damage of the staged rows that no sink has published yet, but a commit owes."""
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


def _plan_restart(
    job: Job,
    state: CoordinatorState,
    options: RestoreOptions,
    configuration: JobConfiguration | None,
) -> RestoreApproval | Stop:
    """A failure's own restart of *state*, which may choose an older checkpoint.

    Behind a repaired journal tables are rolled back: they may show what its lost entries completed.
    """
    compares = options.compare_checksums and state.restores_of_base > 0
    rolls_back = options.roll_back_tables or state.is_repaired
    options = replace(options, compare_checksums=compares, roll_back_tables=rolls_back)
    decision = _plan(job, state, Latest(), options, configuration)
    if not isinstance(decision, Stop) or not decision.is_damaged:
        return decision
    goes_back = replace(options, compare_checksums=True, roll_back_tables=True)
    passed, messages = [state.base], [_not_restorable_message(state.base, decision)]
    for checkpoint_id in _ancestors(state):
        older = _plan(job, state, Choice(checkpoint_id), goes_back, configuration)
        if isinstance(older, RestoreApproval):
            if state.configuration.on_damaged_checkpoint is DamagedCheckpoint.STOP:
                messages.append(
                    f"checkpoint {checkpoint_id} is whole: 'sluice restore {job.pipeline.uid} "
                    f"--checkpoint {checkpoint_id} --roll-back-tables' goes back to it"
                )
                break
            return replace(
                older,
                passed_over=tuple(damaged for damaged in passed if damaged is not None),
                message="; ".join(messages),
            )
        passed.append(checkpoint_id)
        messages.append(_not_restorable_message(checkpoint_id, older))
    else:
        messages.append("no older checkpoint can be restored: restore a savepoint")
    return replace(decision, message="; ".join(messages))


def give_up(job: Job, state: CoordinatorState, message: str) -> None:
    """Stop the job for good, and have the journal say why.

    Raises:
        FencedError: it moved on to another generation.
    """
    stopped = JobStopped(
        at_ms=job.now_ms(), generation=state.generation, status=JobStatus.FAILED, message=message
    )
    transition = record(job, lambda _: stopped)
    if transition.verdict is Verdict.FENCED:
        raise FencedError(f"another coordinator restored job {job.pipeline.uid!r} first")
    log.error("job stopped pipeline=%s because=%s", job.pipeline.uid, message)


def fail_over_if_damaged(job: Job, state: CoordinatorState) -> bool:
    """Fail the job over if the checkpoint that it continues cannot be read, or the rows that it
    owes the tables cannot be published: then no other checkpoint could ever begin.  A job that has
    no restart left, and waits for that commit alone, has failed with it.

    False if both can, or the job went on meanwhile: then something else was wrong.
    """
    damage: Sequence[str] = ()
    try:
        metadata = job.base_metadata(state)
        if metadata is not None and state.origin is None:
            damage = damage_of_owed_rows(job, state, metadata, state.configuration)
    except (RestoreError, ProtocolViolation) as error:
        damage = (str(error),)
    if not damage:
        return False
    now = job.state()
    if _continued(now) != _continued(state):
        return False  # The checkpoint was subsumed, or committed, while it was read.
    message = f"checkpoint {state.base} is damaged: {_shortened(damage)}"
    if state.status is JobStatus.FAILING:
        give_up(job, state, f"{message}; put it back, or restore an older checkpoint")
        return True
    failed = JobFailed(generation=state.generation, at_ms=job.now_ms(), message=message)
    transition = record(job, lambda _: failed)
    return transition.verdict is Verdict.APPLIED


def _continued(state: CoordinatorState) -> tuple[object, ...]:
    latest = state.latest_completed
    return state.generation, state.base, state.origin, latest is not None and latest.is_committed


def _ancestors(state: CoordinatorState) -> Iterator[CheckpointId]:
    """The checkpoint that the base continues, and so on, as far as they are retained; none that an
    earlier restore left behind.
    """
    latest = state.latest_completed
    while latest is not None and latest.parent is not None:
        latest = state.completed_checkpoint(latest.parent)
        if latest is not None:
            yield latest.checkpoint_id


def _not_restorable_message(checkpoint_id: CheckpointId | None, stop: Stop) -> str:
    return f"checkpoint {checkpoint_id} cannot be restored: {_shortened(stop.problems)}"


def _shortened(problems: Sequence[str]) -> str:
    rest = len(problems) - NAMED_PROBLEMS
    named = "; ".join(problems[:NAMED_PROBLEMS])
    return f"{named}; and {rest} more" if rest > 0 else named
