"""A job begins: its parameters are resolved once and journaled."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta

from sluice.config import check_max_records
from sluice.core.key_groups import check_parallelism, default_max_parallelism
from sluice.core.lifecycle import next_generation
from sluice.core.messages import JobConfiguration, JobSubmitted
from sluice.core.state import CoordinatorState
from sluice.core.transition import Verdict
from sluice.errors import ConfigurationError
from sluice.params import resolve
from sluice.pipeline import Pipeline
from sluice.runner.commands import carry_out
from sluice.runner.job import Job

log = logging.getLogger(__name__)


def configure(
    pipeline: Pipeline,
    params: Mapping[str, str],
    *,
    parallelism: int | None = None,
    max_records_per_epoch: int | None = None,
) -> JobConfiguration:
    """Check what a person gave, and fix it for the life of the job.

    Raises:
        ConfigurationError: a value is missing, unknown or out of its limits.
    """
    check_max_records(max_records_per_epoch)
    if parallelism is not None:
        for stage in pipeline.stages:
            maximum = pipeline.max_parallelism or default_max_parallelism(parallelism)
            check_parallelism(stage, parallelism, maximum)
    checkpointing = pipeline.checkpointing
    return JobConfiguration(
        params=resolve(pipeline.params, params, pipeline.uid),
        parallelism=parallelism,
        max_records_per_epoch=max_records_per_epoch or checkpointing.max_records_per_epoch,
        num_retained=checkpointing.num_retained,
        tolerable_failed_checkpoints=checkpointing.tolerable_failed_checkpoints,
        max_concurrent=checkpointing.max_concurrent_checkpoints,
        min_pause_ms=milliseconds(checkpointing.min_pause),
        interval_during_backlog_ms=(
            None
            if checkpointing.interval_during_backlog is None
            else milliseconds(checkpointing.interval_during_backlog)
        ),
        mode=checkpointing.mode,
        unaligned=checkpointing.unaligned,
        aligned_timeout_ms=milliseconds(checkpointing.aligned_checkpoint_timeout),
        checkpoints_after_tasks_finish=checkpointing.checkpoints_after_tasks_finish,
        inline_threshold_bytes=checkpointing.data_inline_threshold,
        retention=checkpointing.externalized_checkpoint_retention,
        restart=checkpointing.restart_strategy,
    )


def milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def check_sources(
    pipeline: Pipeline, configuration: JobConfiguration, endpoint_url: str | None
) -> None:
    """Raises ConfigurationError unless every source can be read from its beginning."""
    for node in pipeline.sources.values():
        source = node.spec.open(configuration.params, endpoint_url)
        source.plan((), max_records=1, parallelism=1)


def submit(job: Job, configuration: JobConfiguration) -> CoordinatorState:
    """Start a new life of the pipeline from empty state; earlier checkpoints stay where they are.

    Raises:
        ConfigurationError: the job runs already, or a source cannot be used.
    """
    check_sources(job.pipeline, configuration, job.location.endpoint_url)
    transition = job.journal.append(
        lambda state: JobSubmitted(
            at_ms=job.clock(), generation=next_generation(state), configuration=configuration
        )
    )
    if transition.verdict is not Verdict.APPLIED:
        raise ConfigurationError(
            f"job {job.pipeline.uid!r} is {transition.state.status.value} in {job.store.root}; "
            f"stop it first: sluice cancel {job.pipeline.uid}"
        )
    carry_out(job, transition)
    log.info(
        "job submitted pipeline=%s generation=%d", job.pipeline.uid, transition.state.generation
    )
    return transition.state
