"""The cut of each source: where the next checkpoint's barrier is, and what lies before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sluice.connectors.contracts.source import Barrier, Source
from sluice.core.epoch_size import records_of_next_epoch
from sluice.core.idleness import with_idleness
from sluice.core.plan import Slice, SourceCut
from sluice.core.position import Position, with_layers, with_whole
from sluice.core.state import CoordinatorState
from sluice.epoch.lineage import Lineage
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.places import open_source
from sluice.job.positions import layer_of, load_position

Barriers: TypeAlias = Mapping[str, Mapping[str, int]]
"""An end offset per source and partition."""


def cut_sources(
    job: Job,
    state: CoordinatorState,
    lineage: Lineage,
    barriers: Barriers,
    *,
    shares_files: bool,
) -> tuple[SourceCut, ...]:
    """Where the checkpoint's barrier is in each source of the pipeline.

    *barriers* are those that were decided elsewhere.  With *shares_files* a position may continue
    layers that an earlier checkpoint wrote.

    Raises:
        ConfigurationError: a source cannot be read as declared, or a barrier is for none.
    """
    _check_barriers(job, barriers)
    left, streams = records_of_next_epoch(state), len(job.pipeline.stream_sources())
    cuts: list[SourceCut] = []
    for uid, source in job.pipeline.sources.items():
        share = None if left is None else -(-left // max(1, streams))
        limits = _Limits(_least(share, state.configuration.max_records_per_epoch), shares_files)
        cuts.append(_cut(job, state, uid, lineage, barriers, limits))
        if not source.is_table:  # What one source has not is left for those behind it.
            streams -= 1
            left = None if left is None else max(streams, left - cuts[-1].records)
    return tuple(cuts)


@dataclass(frozen=True, slots=True)
class _Limits:
    max_records: int | None
    shares_files: bool


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _check_barriers(job: Job, barriers: Barriers) -> None:
    streams = [source.uid for source in job.pipeline.stream_sources()]
    for uid in barriers:
        if uid not in streams:
            raise ConfigurationError(
                f"a barrier is given for {uid!r}, which is no stream source of "
                f"{job.pipeline.uid!r}; those are {', '.join(streams)}"
            )


def _cut(
    job: Job,
    state: CoordinatorState,
    uid: str,
    lineage: Lineage,
    barriers: Barriers,
    limits: _Limits,
) -> SourceCut:
    source = open_source(job, uid, state.configuration.params)
    previous = lineage.source(uid)
    if job.pipeline.sources[uid].is_table:
        return SourceCut(uid=uid, position=(), table=previous.table if previous else None)
    node = job.pipeline.sources[uid]
    before = load_position(job, previous)
    barrier = source.plan(
        before.whole,
        max_records=limits.max_records,
        parallelism=_first_parallelism(job, state, uid),
        until=barriers.get(uid, {} if node.is_induced else None),
    )
    cut = SourceCut(
        uid=uid,
        position=barrier.position,
        slices=barrier.slices,
        exhausted=barrier.exhausted,
        is_backlog=barrier.is_backlog,
        waiting=barrier.waiting,
        heads=_heads(source, barrier, before) if node.event_time is not None else (),
        partitions_end=source.partitions_end and node.idle_after_ms is None,
        unread=barrier.unread,
        size_bytes=barrier.size_bytes,
    )
    if node.idle_after_ms is not None:
        after_ms = node.idle_after_ms
        parent = None if previous is None else with_whole(previous, before)
        cut = with_idleness(cut, parent, now_ms=job.clock(), idle_after_ms=after_ms)
    return with_layers(cut, before, shares_files=limits.shares_files, layer_of=layer_of)


def _heads(source: Source, barrier: Barrier, before: Position) -> tuple[Slice, ...]:
    """Of what waits and was not there at the barrier before: each partition is looked at once."""
    unread = {part.partition for part in barrier.position if part.offset == 0}
    new = unread - before.entries.keys()
    return source.heads([name for name in barrier.waiting if name in new])


def _first_parallelism(job: Job, state: CoordinatorState, source: str) -> int:
    return max(
        job.parallelism_of(stage.uid, state.configuration)
        for stage in job.pipeline.stages.values()
        if source in stage.producers
    )
