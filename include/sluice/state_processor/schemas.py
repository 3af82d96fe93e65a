"""The tables of keyed state that the stages of a pipeline keep, as they are declared now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeAlias

from sluice.analysis.stage_results import analyse
from sluice.declaration.params import resolve
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.spark.checking import check_pipeline
from sluice.spark.session import local_session
from sluice.subtask.state.schema import StateSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Session: TypeAlias = "Callable[[], AbstractContextManager[SparkSession]]"
"""Opens the Spark that is asked for columns which Spark alone knows; it reads no row."""

Tables: TypeAlias = Mapping[str, StateSchema]


def state_tables(
    job: Job,
    stages: Iterable[str],
    params: Mapping[str, str] | None = None,
    *,
    session: Session = local_session,
) -> dict[str, Tables]:
    """The tables of each of *stages*, by name.

    *params* are as for a submission; those of a submitted job need not be given.  A Spark is begun
    for what only Spark knows of these stages, and else not.

    Raises:
        ConfigurationError: a stage is not declared, or keeps no state.
    """
    wanted = [*stages]
    for uid in wanted:
        require_stateful(job, uid)
    if not wanted:
        return {}
    given = resolved(job, params or {})
    known = analyse(job.pipeline, given, job.location.endpoint_url)
    found = {uid: _written(one.tables) for uid in wanted if (one := known[uid]) is not None}
    if len(found) < len({*wanted}):
        with session() as spark:
            checked = check_pipeline(job.pipeline, spark, given, job.location.endpoint_url)
        found = {uid: _written(checked[uid].tables) for uid in wanted}
    return found


def require_stateful(job: Job, uid: str) -> None:
    """Raises ConfigurationError unless the pipeline declares *uid* as a stage with keyed state."""
    declared = job.pipeline.stages
    stateful = ", ".join(name for name, stage in declared.items() if stage.is_stateful) or "none"
    if uid not in declared:
        raise ConfigurationError(
            f"pipeline {job.pipeline.uid!r} has no stage {uid!r}; with keyed state it has "
            f"{stateful}"
        )
    if not declared[uid].is_stateful:
        raise ConfigurationError(f"stage {uid!r} keeps no state; with keyed state are {stateful}")


def resolved(job: Job, params: Mapping[str, str]) -> dict[str, str]:
    """The pipeline's parameters: those of the job, and *params* above them."""
    declared = {one.name for one in job.pipeline.params}
    kept = {n: v for n, v in job.state().configuration.params.items() if n in declared}
    return resolve(job.pipeline.params, kept | dict(params), job.pipeline.uid)


def _written(tables: Tables) -> Tables:
    """Those of *tables* that a stage writes."""
    return {name: schema for name, schema in tables.items() if not schema.is_former}
