"""How far the sources of a job are behind, and how fast rows flow, from what the bucket has.

No source's place is asked: what it had was seen when a checkpoint was triggered, and is in the plan
of a pending checkpoint, and in the statistics of one that has ended.
"""

from __future__ import annotations

import msgspec

from sluice.core.completed import CompletedCheckpoint
from sluice.core.state import CoordinatorState
from sluice.job.job import Job
from sluice.statistics.checkpoints import SourceStats
from sluice.statistics.flow import Rates, rates_of
from sluice.statistics.history import CheckpointStatistics
from sluice.statistics.lag import Look, SourceLag, lags_of, measured_sources
from sluice.storage.statistics import StatisticsStore


class JobLag(msgspec.Struct, frozen=True, kw_only=True):
    """The lag of each source, and the rates of each node, as far as they are known.

    ``checkpoint`` is the completed checkpoint that they are of, ``age_ms`` ago.
    """

    checkpoint: int | None
    age_ms: int | None
    sources: tuple[SourceLag, ...]
    rates: Rates | None


def job_lag(job: Job) -> JobLag:
    """A LIST and two GETs; one more for each checkpoint that is pending, or failed since."""
    state = job.state()
    done = newest_of(state)
    kept = None if done is None else StatisticsStore(job.store, job.paths).read(done.checkpoint_id)
    return JobLag(
        checkpoint=None if done is None else done.checkpoint_id,
        age_ms=None if done is None else max(0, job.clock() - done.completed_at_ms),
        sources=lags(job, state, done, kept),
        rates=rates(job, kept),
    )


def newest_of(state: CoordinatorState) -> CompletedCheckpoint | None:
    """The newest completed checkpoint, or savepoint."""
    return max(state.completed, key=lambda one: one.checkpoint_id, default=None)


def lags(
    job: Job,
    state: CoordinatorState,
    done: CompletedCheckpoint | None,
    kept: CheckpointStatistics | None,
) -> tuple[SourceLag, ...]:
    """Of each source; *done* is the newest completed checkpoint, *kept* its statistics.

    A GET for each pending checkpoint, or for each that failed since.
    """
    completed = None
    if done is not None:
        completed = Look(at_ms=done.triggered_at_ms, sources=_sources(job, done, kept))
    newest = 0 if done is None else done.checkpoint_id
    if any(one.checkpoint_id > newest for one in state.pending):
        later = _pending(job, state, newest)
    else:
        later = _failed(job, state, newest)
    return lags_of(completed, later)


def rates(job: Job, kept: CheckpointStatistics | None) -> Rates | None:
    return None if kept is None else rates_of(kept.flow, job.clock())


def _sources(
    job: Job, done: CompletedCheckpoint, kept: CheckpointStatistics | None
) -> tuple[SourceStats, ...]:
    """Its statistics, or as much as its plan says where there are none."""
    if kept is not None and kept.sources:
        return kept.sources
    plan = job.plan(done.checkpoint_id)
    return () if plan is None else measured_sources(plan)


def _pending(job: Job, state: CoordinatorState, newest: int) -> list[Look]:
    """Each continues the one before it."""
    plans = [job.plan(one.checkpoint_id) for one in state.pending if one.checkpoint_id > newest]
    known = sorted((one for one in plans if one is not None), key=lambda one: one.checkpoint_id)
    return [Look(at_ms=one.triggered_at_ms, sources=measured_sources(one)) for one in known]


def _failed(job: Job, state: CoordinatorState, newest: int) -> list[Look]:
    """The newest one that failed since, and the failed ones that it continued."""
    found: list[Look] = []
    looked_at = max((one.checkpoint_id for one in state.failed), default=0)
    while looked_at > newest:
        kept = StatisticsStore(job.store, job.paths).read(looked_at)
        if kept is None:
            break
        found.insert(0, Look(at_ms=kept.checkpoint.trigger_timestamp, sources=kept.sources))
        looked_at = min(kept.parent or 0, looked_at - 1)
    return found
