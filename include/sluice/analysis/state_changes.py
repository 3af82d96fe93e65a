"""The check that the stages, as they are declared now, can read their job's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sluice.analysis.stage_results import Result
from sluice.core.completed import CheckpointMetadata
from sluice.core.handles import StateHandle
from sluice.core.properties import JobStatus
from sluice.errors import ConfigurationError, RestoreError
from sluice.job.job import Job
from sluice.subtask.state.cache import SegmentCache
from sluice.subtask.state.evolution import Evolution
from sluice.subtask.state.schema import StateSchema

_GOES_ON = (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.SUSPENDED)


def check_state(job: Job, results: Mapping[str, Result | None]) -> None:
    """Compare declared types of state with those in the checkpoint that the job continues.

    Reads one small file for each table of state, or two.

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
    runs: dict[str, dict[int, StateHandle]] = {}
    for subtask in stage.subtasks if stage is not None else ():
        for handle in subtask.state:
            runs.setdefault(handle.table, {}).setdefault(handle.run, handle)
    for name in sorted(tables.keys() & runs.keys()):
        # Where a state migrates, older runs may be of types that it has no migration from.
        oldest = {min(runs[name])} if tables[name].declared else set()
        for run in sorted({max(runs[name])} | oldest, reverse=True):
            stored = SegmentCache(job.location, job.store).open(runs[name][run].segment)
            try:
                Evolution(tables[name], stored, f"stage {uid!r}")
            except RestoreError as error:
                yield str(error)
                break
