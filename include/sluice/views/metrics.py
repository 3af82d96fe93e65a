"""The metrics of a job, read from its bucket: the journal's state, and two or three GETs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from sluice.core.state import CoordinatorState
from sluice.declaration.job_configuration import milliseconds
from sluice.errors import SluiceError
from sluice.job.job import Job
from sluice.statistics.history import CheckpointStatistics
from sluice.statistics.overview import Latest
from sluice.statistics.samples import JobFigures, Sample, newest_completed, samples, unreadable
from sluice.storage.redaction import redacted
from sluice.storage.statistics import StatisticsStore
from sluice.views.lag import lags, newest_of, rates
from sluice.views.statistics import overview

log = logging.getLogger(__name__)

# How many files of a job nothing names, and their bytes: it takes a LIST of the whole job.
CountOrphans = Callable[[Job], tuple[int, int]]


def metrics(job: Job, count_orphans: CountOrphans | None = None) -> tuple[Sample, ...]:
    """Every metric of the job that is known; orphans are looked for by *count_orphans*, if at all.

    Raises:
        SluiceError: the job cannot be read.
    """
    state = job.state()
    seen = overview(job, limit=0, state=state)
    kept = _newest(job, seen.latest)
    retained = state.latest_completed
    orphans = (None, None) if count_orphans is None else count_orphans(job)
    return samples(
        JobFigures(
            pipeline=job.pipeline.uid,
            state=state,
            counts=seen.counts,
            latest=seen.latest,
            stages=() if kept is None else kept.stages,
            lags=lags(job, state, newest_of(state), kept),
            rates=rates(job, kept),
            external_path=None
            if retained is None
            else redacted(f"{job.store.root}/{job.paths.checkpoint(retained.checkpoint_id)}"),
            interval_ms=_interval_ms(job, state),
            orphans=orphans[0],
            orphaned_bytes=orphans[1],
        )
    )


def metrics_of_each(jobs: Iterable[Job], count_orphans: CountOrphans | None = None) -> list[Sample]:
    """The metrics of all *jobs*: one that cannot be read says so, and hides none of the others."""
    found: list[Sample] = []
    for job in jobs:
        try:
            found += metrics(job, count_orphans)
        except SluiceError as error:
            log.warning("metrics not read pipeline=%s error=%s", job.pipeline.uid, error)
            found.append(unreadable(job.pipeline.uid))
    return found


def _newest(job: Job, latest: Latest) -> CheckpointStatistics | None:
    newest = newest_completed(latest)
    return None if newest is None else StatisticsStore(job.store, job.paths).read(newest.id)


def _interval_ms(job: Job, state: CoordinatorState) -> int | None:
    """None where a schedule decides in its place, or a person, and while they pause it."""
    declared, changed = job.pipeline.checkpointing, state.timing
    if changed.is_paused:
        return None
    if changed.interval_ms is not None:
        return changed.interval_ms
    if declared.schedule is not None or declared.interval is None:
        return None
    return milliseconds(declared.interval)
