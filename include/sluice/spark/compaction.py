"""Compaction of a stage's state: a small Spark job behind its acks, off the critical path.

It reads what the acks name and records what it merged; a later epoch takes that over if it still
has all of it.  Crashing at any moment leaves garbage, doing it twice leaves it twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from sluice.core.acks import Ack
from sluice.core.compaction import Compaction, Merges, sorted_runs
from sluice.core.handles import StateHandle
from sluice.protocol.records import decode_merged_runs
from sluice.runner.compactions import compactions_of, record_compaction
from sluice.runner.job import Job
from sluice.runtime.compaction import CompactionSpec, DueMerge, run_merges
from sluice.runtime.state.policy import runs_to_merge
from sluice.runtime.state.schema import StateSchema
from sluice.spark.stage_run import StageRun

log = logging.getLogger(__name__)


def compact_state(run: StageRun, acks: Sequence[Ack], tables: Mapping[str, StateSchema]) -> int:
    """Merge what the stage's state, as *acks* name it, has too many runs of; return how many merges
    were recorded.
    """
    merges = tuple(
        merge
        for ack in acks
        for name, schema in tables.items()
        if (merge := _due(ack, name, schema)) is not None
    )
    if not merges:
        return 0
    spec = CompactionSpec(
        location=run.job.location,
        pipeline=run.job.pipeline.uid,
        stage=run.node.uid,
        checkpoint_id=run.plan.checkpoint_id,
        now_ms=run.plan.processing_time_ms,
        merges=merges,
    )
    numbers = run.spark.range(0, len(merges), 1, len(merges))
    rows = numbers.mapInArrow(lambda batches: run_merges(spec, batches), "merged binary").collect()
    merged = tuple(decode_merged_runs(bytes(row["merged"]), "merged runs") for row in rows)
    compaction = Compaction(stage=run.node.uid, checkpoint_id=run.plan.checkpoint_id, merged=merged)
    if record_compaction(run.job, compaction):
        log.info(
            "state compacted checkpoint_id=%d stage=%s merges=%d rows=%d",
            run.plan.checkpoint_id,
            run.node.uid,
            len(merged),
            sum(segment.rows for segment in compaction.files),
        )
    return len(merged)


def take_over_compactions(
    job: Job, stage: str, state: tuple[tuple[StateHandle, ...], ...]
) -> tuple[tuple[StateHandle, ...], ...]:
    """Each subtask's state with the runs merged that a compaction has merged meanwhile.

    Nothing is looked up while no subtask has anything to merge.
    """
    if not any(_is_due(handles) for handles in state):
        return state
    merges = Merges(compactions_of(job, stage))
    return tuple(merges.applied_to(handles) for handles in state)


def _is_due(handles: Sequence[StateHandle]) -> bool:
    tables = {handle.table for handle in handles}
    return any(
        runs_to_merge([run.rows for run in sorted_runs(h for h in handles if h.table == name)]) > 1
        for name in tables
    )


def _due(ack: Ack, table: str, schema: StateSchema) -> DueMerge | None:
    runs = sorted_runs(handle for handle in ack.state if handle.table == table)
    count = runs_to_merge([run.rows for run in runs])
    newest = runs[len(runs) - count :]
    if count < 2 or not any(h.segment.key for run in newest for h in run.handles):
        return None
    return DueMerge(
        subtask=ack.subtask.index,
        table=table,
        schema=schema,
        runs=tuple(newest),
        is_oldest=count == len(runs),
    )
