"""The stages of a snapshot, and what becomes of each in the savepoint that is made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sluice.core.completed import CheckpointMetadata, StageState, SubtaskState
from sluice.core.configuration import JobConfiguration
from sluice.core.handles import StateHandle
from sluice.core.ids import SubtaskId
from sluice.core.key_groups import check_parallelism, default_max_parallelism
from sluice.core.watermarks import MIN_WATERMARK
from sluice.job.job import Job
from sluice.state_processor.rows import Function, Rows
from sluice.state_processor.tables import NewTable, Place


@dataclass(slots=True)
class StageChanges:
    """Of one stage: its state is removed first; then tables are bootstrapped, or rewritten."""

    is_removed: bool = False
    functions: dict[str, list[Function]] = field(default_factory=dict[str, list[Function]])
    rows: dict[str | None, Rows] = field(default_factory=dict["str | None", Rows])


def with_new_stages(
    job: Job,
    base: CheckpointMetadata,
    changes: Mapping[str, StageChanges],
    configuration: JobConfiguration,
) -> list[StageState]:
    """The snapshot's stages, and empty ones for those that it does not know and that get rows."""
    stages = [*base.stages]
    for uid in job.pipeline.stages:
        if uid not in changes or base.stage(uid) is not None:
            continue
        parallelism = job.parallelism_of(uid, configuration)
        most = job.pipeline.max_parallelism or default_max_parallelism(parallelism)
        check_parallelism(uid, parallelism, most)
        subtasks = (
            SubtaskState(subtask=SubtaskId(uid, index), state=(), output=())
            for index in range(parallelism)
        )
        stages.append(
            StageState(
                uid=uid,
                parallelism=parallelism,
                max_parallelism=most,
                subtasks=tuple(subtasks),
                watermark_ms=MIN_WATERMARK,
            )
        )
    return stages


def kept_stages(
    job: Job, stages: Iterable[StageState], changes: Mapping[str, StageChanges]
) -> Iterable[StageState]:
    """The *stages* with those tables alone that stay as they are."""
    for stage in stages:
        change = changes.get(stage.uid, StageChanges())
        if change.is_removed and stage.uid not in job.pipeline.stages:
            continue
        subtasks = (
            replace(
                one,
                state=tuple(
                    handle
                    for handle in one.state
                    if not change.is_removed and handle.table not in change.functions
                ),
            )
            for one in stage.subtasks
        )
        yield replace(stage, subtasks=tuple(subtasks))


def with_tables(
    metadata: CheckpointMetadata, made: Iterable[tuple[Place, NewTable]]
) -> CheckpointMetadata:
    """*metadata* with the new tables in their stages."""
    added: dict[str, list[NewTable]] = {}
    for place, table in made:
        added.setdefault(place.stage, []).append(table)
    stages = (
        replace(
            stage,
            subtasks=tuple(
                replace(one, state=(*one.state, *_of_subtask(added.get(stage.uid, ()), index)))
                for index, one in enumerate(stage.subtasks)
            ),
        )
        for stage in metadata.stages
    )
    return replace(metadata, stages=tuple(stages))


def _of_subtask(tables: Iterable[NewTable], index: int) -> Iterable[StateHandle]:
    return (handle for table in tables for handle in table.subtasks[index])
