"""The growth of a checkpoint's cost, for coordinator and drivers, with subtasks and files.

    python -m bench.scaling [--subtasks N ...] [--files N ...] [--stores memory file]

Each row is one checkpoint of one new record, a few after the input was read: CPU seconds of this
process (no Spark, no subtasks) in trigger, in what a driver computes for its stage, in finalize and
in commit, and the bytes of the plan, the journal's entries, the stage's acks and ``_metadata``.

Subtasks: a keyed stage; each subtask has four runs of state, takes over a merge of them and
acknowledges a change.  Files: a folder of text files of one line, all read.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from harness.jobs import a_pipeline, a_running_job, answer_with, trigger_one
from harness.many_files import Folder, a_files_job, size_of
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.core.answers import Ack
from sluice.core.compaction import Compaction, MergedRuns, replaced_segment
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.job.job import Job
from sluice.job.lineage import (
    assigned_state,
    entries_of,
    lineage_of,
    record_compaction,
    stage_clock,
)
from sluice.spark.deployment import take_over_compactions

RUNS = 4
SUBTASKS = (10, 100, 1_000, 10_000)
FILES = (100, 1_000, 10_000, 100_000)
ACTS = ("trigger", "driver", "finalize", "commit")


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_s: dict[str, float] = field(default_factory=dict[str, float])
    sizes: dict[str, int] = field(default_factory=dict[str, int])

    @contextmanager
    def act(self, name: str) -> Iterator[None]:
        gc.collect()
        gc.freeze()  # In production the store's memory and earlier acks are in another process.
        started = time.process_time()
        yield
        self.cpu_s[name] = time.process_time() - started
        gc.unfreeze()

    @property
    def row(self) -> str:
        acts = " | ".join(f"{self.cpu_s[act]:.2f}" for act in ACTS)
        sizes = " | ".join(f"{size / 1000:,.1f}" for size in self.sizes.values())
        return f"{acts} | {sum(self.cpu_s.values()):.2f} | {sizes}"


def checkpoint(job: Job, acks_of: Callable[[Job, CheckpointPlan, TaskPlan], list[Ack]]) -> Cost:
    """Take a checkpoint with empty caches, as each Airflow task is a new process."""
    cost = Cost()
    entries = {listed.key for listed in job.store.list(job.paths.journal())}
    entries_of.cache_clear()
    with cost.act("trigger"):
        plan = trigger_one(job, is_periodic=False)
    (task,) = plan.tasks
    with cost.act("driver"):
        drive(job, plan, task)
    acks = acks_of(job, plan, task)
    answer_with(job, plan, acks)
    with cost.act("finalize"):
        finalize(job, plan.checkpoint_id)
    with cost.act("commit"):
        commit(job, plan.checkpoint_id)
    cost.sizes["plan"] = size_of(job, job.paths.plan(plan.checkpoint_id))
    cost.sizes["journal"] = sum(
        listed.size_bytes
        for listed in job.store.list(job.paths.journal())
        if listed.key not in entries
    )
    answer = job.paths.answer(plan.checkpoint_id, task.uid, 1, plan.token)
    cost.sizes["acks"] = size_of(job, answer)
    cost.sizes["metadata"] = size_of(job, job.paths.metadata(plan.checkpoint_id))
    return cost


def drive(job: Job, plan: CheckpointPlan, task: TaskPlan) -> None:
    """Compute what ``spark/deployment.py`` does before the Spark job starts."""
    read = job.plan(plan.checkpoint_id)
    assert read is not None
    state = job.state()
    before = lineage_of(job, state, read).stage(task.uid)
    take_over_compactions(job, task.uid, assigned_state(before, task), plan.processing_time_ms)
    measured = {f"events/{piece.partition}": 1 for piece in read.source("events").slices}
    stage_clock(job, read, task.uid, None, before).watermark_ms(measured)


def keyed_acks(job: Job, plan: CheckpointPlan, task: TaskPlan) -> list[Ack]:
    """Acks where each subtask adds a run to its state, up to ``RUNS``; then one replaces all."""
    before = lineage_of(job, job.state(), plan).stage(task.uid)
    assigned = assigned_state(before, task)
    states = take_over_compactions(job, task.uid, assigned, plan.processing_time_ms)
    return [
        Ack(
            checkpoint_id=plan.checkpoint_id,
            subtask=subtask,
            attempt=1,
            state=(*state[-RUNS + 1 :], new_run(job, plan.checkpoint_id, task, subtask.index)),
        )
        for subtask, state in zip(task.subtasks, states, strict=True)
    ]


def new_run(job: Job, checkpoint_id: CheckpointId, task: TaskPlan, index: int) -> StateHandle:
    groups = key_group_range(task.max_parallelism, task.parallelism, index)
    first, last = hash_range(task.max_parallelism, groups)
    digest = hashlib.blake2b(f"{checkpoint_id}-{index}".encode(), digest_size=16).hexdigest()
    key = job.paths.shared_segment(task.uid, checkpoint_id, digest)
    segment = SegmentHandle(key=key, size_bytes=50_000, rows=1_000, checksum=digest)
    return StateHandle(segment=segment, first_hash=first, last_hash=last, run=checkpoint_id)


def of_subtasks(subtasks: int) -> Cost:
    pipeline = a_pipeline(stages=("count_bids",), max_records_per_epoch=1)
    pipeline.parallelism = subtasks
    job = a_running_job(pipeline)
    for _ in range(RUNS):
        checkpoint(job, keyed_acks)
    latest = job.state().latest_completed
    assert latest is not None
    stage = job.metadata(latest.checkpoint_id).stages[0]
    merged = tuple(
        MergedRuns(replaced=tuple(map(replaced_segment, one.state)), merged=one.state[-1:])
        for one in stage.subtasks
    )
    record_compaction(
        job, Compaction(stage=stage.uid, checkpoint_id=latest.checkpoint_id, merged=merged)
    )
    return checkpoint(job, keyed_acks)


def plain_acks(_: Job, plan: CheckpointPlan, task: TaskPlan) -> list[Ack]:
    times = {f"events/{piece.partition}": 1 for piece in plan.source("events").slices}
    return [
        Ack(
            checkpoint_id=plan.checkpoint_id,
            subtask=subtask,
            attempt=1,
            event_times_ms=times if subtask.index == 0 else {},
        )
        for subtask in task.subtasks
    ]


def of_files(files: int, store: str) -> Cost:
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(files, root=None if store == "memory" else f"file://{path}")
        job = a_files_job(folder, event_time="at")
        for _ in range(6):  # Until the first, which read all of them, is subsumed.
            checkpoint(job, plain_acks)
            folder.add()
        return checkpoint(job, plain_acks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subtasks", type=int, nargs="*", default=SUBTASKS)
    parser.add_argument("--files", type=int, nargs="*", default=FILES)
    parser.add_argument("--stores", nargs="*", default=["memory", "file"])
    given = parser.parse_args()
    head = (
        "trigger s | driver s | finalize s | commit s | CPU s | plan kB | journal kB | acks kB | "
    )
    rule = "|---|" + "---|" * 10
    for subtasks in given.subtasks:
        if subtasks == given.subtasks[0]:
            print(f"| subtasks | {head}`_metadata` kB |\n{rule[:-4]}")
        print(f"| {subtasks:,} | {of_subtasks(subtasks).row} |", flush=True)
    for store in given.stores if given.files else ():
        print(f"\n| files, {store} | {head}`_metadata` kB |\n{rule[:-4]}")
        for files in given.files:
            print(f"| {files:,} | {of_files(files, store).row} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
