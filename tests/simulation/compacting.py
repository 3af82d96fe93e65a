"""Compactions: state that is merged behind the acks, and recorded for later epochs."""

from __future__ import annotations

from dataclasses import replace

from sluice.core.compaction import Compaction, MergedRuns, replaced_segment
from sluice.core.pending import PendingCheckpoint
from sluice.job.answers import acks_of
from sluice.job.lineage import record_compaction
from tests.simulation.acts import act
from tests.simulation.dataflow import a_segment, body_of, checksum, live_rows
from tests.simulation.subtasks import body_of_segment
from tests.simulation.world import World


def _not_merged(world: World, pending: PendingCheckpoint) -> list[str]:
    """Its stages that have acknowledged, and behind which no merge is recorded."""
    checkpoint_id = pending.checkpoint_id
    return [
        task.uid
        for task in pending.tasks
        if world.has_acks_of(pending, task.uid)
        and world.witness.paths.compaction(task.uid, checkpoint_id) not in world.witness.compactions
    ]


@act(weight=lambda world: 12 if any(_not_merged(world, p) for p in world.head.pending) else 0.1)
def compacts(world: World) -> str:
    """The driver of a stage merges the newest runs behind its acks; now and then a second does."""
    pending = world.pending()
    stage = world.pick(_not_merged(world, pending) or [task.uid for task in pending.tasks])
    checkpoint_id, depth = pending.checkpoint_id, world.stages.index(stage)
    merged: list[MergedRuns] = []
    for ack in acks_of(world.job, world.head, checkpoint_id)(stage):
        runs = ack.state[-world.random.randint(2, 4) :]
        if len(runs) < 2:
            continue
        rows = [
            r
            for run in runs
            for r in live_rows(depth, run, body_of_segment(world.job, run.segment))
        ]
        body = body_of(sorted(rows))
        key = world.job.paths.compacted_segment(stage, checkpoint_id, checksum(body))
        world.job.store.put(key, body)
        whole = replace(
            runs[-1],
            segment=a_segment(key, body),
            first_hash=min(run.first_hash for run in runs),
            last_hash=max(run.last_hash for run in runs),
        )
        merged.append(MergedRuns(replaced=tuple(map(replaced_segment, runs)), merged=(whole,)))
    if not merged:
        return "nothing to merge"
    compaction = Compaction(stage=stage, checkpoint_id=checkpoint_id, merged=tuple(merged))
    is_ours = record_compaction(world.job, compaction)
    return f"{len(merged)} merges behind {checkpoint_id} {stage}, recorded: {is_ours}"
