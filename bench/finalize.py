"""The time of a finalize, and the requests and bytes of a checkpoint.

    python -m bench.finalize [--rounds N]

For 26 and 1,000 subtasks over two stages, on a store in memory and on a real S3 server, rounds
interleaved: wall and CPU time of ``finalize``.  The peer is the store itself: the same number of
bare requests, one after another, in the same round; the ratio is what Sluice adds.
Flink's own log for a job of 26 subtasks says 6 ms for finalization, in one process's memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.counting_store import CountingStore
from harness.jobs import ManualClock, a_pipeline, answer_with
from harness.s3_server import running_s3_server
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.answers import Ack
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.plan import CheckpointPlan
from sluice.job.job import Job, open_job
from sluice.store.journal import Journal
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation

INLINE_BYTES = 1_000  # State of a subtask that is stored in its ack.


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    wall_ms: float
    cpu_ms: float
    requests: int
    bare_ms: float


def a_job(location: StoreLocation, subtasks: int) -> tuple[Job, CountingStore]:
    pipeline = a_pipeline(max_records_per_epoch=10)
    pipeline.parallelism = subtasks // 2
    job = open_job(pipeline, location, clock=ManualClock())
    store = CountingStore(job.store)
    return replace(job, store=store, journal=Journal(store, job.names)), store


def acknowledge(job: Job, plan: CheckpointPlan) -> int:
    """Answer for every stage; return the bytes of the answers by subtask."""
    segment = SegmentHandle(
        key="", size_bytes=INLINE_BYTES, rows=1, checksum="0" * 32, inline=os.urandom(INLINE_BYTES)
    )
    size = 0
    for task in plan.tasks:
        acks = [
            Ack(
                checkpoint_id=plan.checkpoint_id,
                subtask=subtask,
                attempt=1,
                state=(StateHandle(segment=segment),),
                watermark_ms=0,
            )
            for subtask in task.subtasks
        ]
        answer_with(job, plan, acks)
        key = job.paths.answer(plan.checkpoint_id, task.uid, 1, plan.token)
        size += len(job.store.get(key) or b"")
    return size // sum(task.parallelism for task in plan.tasks)


def one_round(job: Job, store: CountingStore) -> Measured:
    outcome = trigger(job, is_periodic=False)
    assert isinstance(outcome, Triggered), outcome
    acknowledge(job, outcome.plan)
    wall, cpu = time.perf_counter(), time.process_time()
    with store.counted() as asked:
        finalize(job, outcome.plan.checkpoint_id)
    wall_ms, cpu_ms = (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3
    requests = asked.total()
    bare_ms = bare(store, job.paths.plan(outcome.plan.checkpoint_id), requests)
    commit(job, outcome.plan.checkpoint_id)
    return Measured(wall_ms=wall_ms, cpu_ms=cpu_ms, requests=requests, bare_ms=bare_ms)


def bare(store: ObjectStore, key: str, requests: int) -> float:
    started = time.perf_counter()
    for _ in range(requests):
        store.get(key)
    return (time.perf_counter() - started) * 1e3


def row(name: str, rounds: list[Measured]) -> str:
    def both(pick: Callable[[Measured], float]) -> str:
        values = [pick(one) for one in rounds]
        return f"{min(values):.1f} / {statistics.median(values):.1f}"

    ratio = both(lambda one: one.wall_ms / max(one.bare_ms, 1e-9))
    return (
        f"| {name} | {rounds[0].requests} | {both(lambda o: o.wall_ms)} | "
        f"{both(lambda o: o.cpu_ms)} | {both(lambda o: o.bare_ms)} | {ratio} |"
    )


def sizes(job: Job, subtasks: int) -> str:
    outcome = trigger(job, is_periodic=False)
    assert isinstance(outcome, Triggered)
    plan = outcome.plan
    ack = acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)
    entries = [len(job.store.get(one.key) or b"") for one in job.store.list(job.paths.journal())]
    plan_bytes = len(job.store.get(job.paths.plan(plan.checkpoint_id)) or b"")
    metadata = len(job.store.get(job.paths.metadata(plan.checkpoint_id)) or b"")
    return f"| {subtasks:,} | {plan_bytes:,} | {ack:,} | {metadata:,} | {max(entries):,} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--subtasks", type=int, nargs="+", default=[26, 1_000])
    given = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    with tempfile.TemporaryDirectory() as folder, running_s3_server(Path(folder)) as endpoint:
        create_bucket(endpoint)
        jobs = {}
        for subtasks in given.subtasks:
            for name, root in (("memory", "memory://bench"), ("S3 server", "s3://bench/bench")):
                job, store = a_job(StoreLocation(f"{root}/{subtasks}", endpoint), subtasks)
                submit(job, configure(job.pipeline, {}))
                jobs[f"{subtasks:,} subtasks, {name}"] = (job, store)
        results: dict[str, list[Measured]] = {}
        for _ in range(given.rounds):
            for name, (job, store) in jobs.items():
                results.setdefault(name, []).append(one_round(job, store))
        print("min / median of", given.rounds, "rounds\n")
        print("| finalize | requests | wall ms | CPU ms | bare requests ms | ratio |")
        print("|---|---|---|---|---|---|")
        for label, rounds in results.items():
            print(row(label, rounds))
        print("\n| subtasks | plan bytes | ack bytes | `_metadata` bytes | largest journal entry |")
        print("|---|---|---|---|---|")
        for subtasks in given.subtasks:
            job, _ = jobs[f"{subtasks:,} subtasks, memory"]
            print(sizes(job, subtasks))
    return 0


def create_bucket(endpoint: str) -> None:
    import boto3

    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="bench")


if __name__ == "__main__":
    sys.exit(main())
