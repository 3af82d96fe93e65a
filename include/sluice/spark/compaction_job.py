"""Compaction of a stage's state: a small Spark job behind its acks, off the critical path.

It reads the runs that the acks name and records the merged ones; a later epoch uses these if it
still has all of the runs that they replace.  A crash, or a second compaction, leaves only garbage.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from sluice.core.acks import Ack
from sluice.core.compaction import Compaction, Merges, sorted_runs
from sluice.core.handles import StateHandle
from sluice.epoch.compactions import compactions_of, record_compaction
from sluice.job.collector import uncollected
from sluice.job.job import Job
from sluice.protocol.records import decode_merged_runs
from sluice.spark.numbered import numbered
from sluice.spark.stage_run import StageRun
from sluice.subtask.run_merging import MERGED_SCHEMA, CompactionSpec, DueMerge, run_merges
from sluice.subtask.state.policy import runs_to_merge
from sluice.subtask.state.schema import StateSchema

log = logging.getLogger(__name__)


def compact_state(run: StageRun, acks: Sequence[Ack], tables: Mapping[str, StateSchema]) -> int:
    """Merge the stage's state, named by *acks*, where it has too many runs; return the merges."""
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
    numbers = numbered(run.spark, len(merges))
    merging = numbers.mapped(lambda batches: run_merges(spec, batches), MERGED_SCHEMA)
    merged = tuple(
        decode_merged_runs(bytes(body), "merged runs") for (body,) in merging.collected()
    )
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


@uncollected
def take_over_compactions(
    job: Job, stage: str, state: tuple[tuple[StateHandle, ...], ...]
) -> tuple[tuple[StateHandle, ...], ...]:
    """The state of each subtask, with merged runs in the place of those that they replace.

    Records of compactions are read only if some subtask has runs to merge.
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
