"""Whether the stages, as they are declared now, can read the state that their job has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sluice.analysis.declaration import Result
from sluice.core.completed import CheckpointMetadata
from sluice.core.handles import StateHandle
from sluice.core.properties import JobStatus
from sluice.errors import ConfigurationError, RestoreError
from sluice.runner.job import Job
from sluice.runtime.state.cache import SegmentCache
from sluice.runtime.state.evolution import Evolution
from sluice.runtime.state.schema import StateSchema

_GOES_ON = (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.SUSPENDED)


def check_state(job: Job, results: Mapping[str, Result | None]) -> None:
    """Compare types with those in the checkpoint that the next epoch, or run, continues.

    One small file a table of state is read, of a job that goes on.

    Raises:
        ConfigurationError: a stage could not read its state.
        RestoreError: the checkpoint is gone.
    """
    state = job.state()
    metadata = job.base_metadata(state) if state.status in _GOES_ON else None
    if metadata is None:
        return
    problems = [
        problem
        for uid, result in results.items()
        if result is not None
        for problem in _problems(job, metadata, uid, result.tables)
    ]
    if problems:
        raise ConfigurationError(f"{'; '.join(problems)} (checkpoint {metadata.checkpoint_id})")


def _problems(
    job: Job, metadata: CheckpointMetadata, uid: str, tables: Mapping[str, StateSchema]
) -> Iterator[str]:
    stage = metadata.stage(uid)
    newest: dict[str, StateHandle] = {}
    for subtask in stage.subtasks if stage is not None else ():
        for handle in subtask.state:
            if handle.table not in newest or handle.run > newest[handle.table].run:
                newest[handle.table] = handle
    for name, handle in newest.items():
        if name in tables:
            stored = SegmentCache(job.location, job.store).open(handle.segment)
            try:
                Evolution(tables[name], stored, f"stage {uid!r}")
            except RestoreError as error:
                yield str(error)
