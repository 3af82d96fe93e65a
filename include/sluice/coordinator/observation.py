"""What a restore knows before it decides: what was chosen before, and what is seen of the snapshot:
its ``_metadata``, its files, its sources.
"""

from __future__ import annotations

from dataclasses import replace

from sluice.coordinator.compatibility import left_behind
from sluice.coordinator.sink_checks import of_sink
from sluice.coordinator.table_standings import standings_to_restore, undeclared_tables
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import JobConfiguration
from sluice.core.handles import SegmentHandle
from sluice.core.restoring import (
    Choice,
    Latest,
    Observed,
    RestoreOptions,
    RestoreTarget,
)
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError, CorruptSegment, ProtocolViolation, RestoreError
from sluice.job.contents import checksums_of, segments_of
from sluice.job.job import Job
from sluice.job.places import open_sinks, open_source
from sluice.job.positions import position_of


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
    tables = standings_to_restore(job, state, choice, metadata, configuration) if asks else None
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
        left_behind=left_behind(metadata, job.pipeline),
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
