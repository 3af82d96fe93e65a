"""The phases of a checkpoint of 26 subtasks with 218 kB of state, on a near store and a far one.

    python -m bench.phases [--rounds N] [--against TREE] [--spark | --protocol]

Two keyed stages of 13 subtasks behind a Parquet file, and a files table; 2,000 keys in each, so
that 218 kB of state change in every checkpoint: the shape of the job in Flink's documentation
(trigger to completed 247 ms, of that 6 ms finalization).  Each store takes the epochs of one
session; rounds are interleaved with those of another tree of Sluice, if one is named.  The far
store is the development S3 server behind a proxy: 30 ms away, 100 MB/s a connection.

Milliseconds, over the measured epochs.  By default the real subtasks run one after the other in
this process; ``--spark`` runs them on Spark.  ``--protocol`` is the checkpoint without work:
trigger, the acks of two stages, finalize and commit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.s3_server import running_s3_server
from harness.slow_network import slow_network

if TYPE_CHECKING:
    from sluice.core.plan import CheckpointPlan
    from sluice.job.job import Job

KEYS = 2_000
PARALLELISM = 13
WARM, MEASURED = 2, 5
ROUND_TRIP_MS = 30
BYTES_PER_SECOND = 100e6
BUCKET = "phases"
STORES = ("file", "near", "far")
REPOSITORY = Path(__file__).parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--against", type=Path, help="another tree of Sluice")
    parser.add_argument("--rows", type=int, default=KEYS, help="of an epoch, each a key of its own")
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--spark", action="store_true", help="on Spark, as in production")
    parser.add_argument("--protocol", action="store_true", help="without work, and without Spark")
    parser.add_argument("--inline", type=int, default=20_480, help="bytes; 0: all state in files")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.child:
        print(json.dumps(_measure(told, *told.child)))
        return
    trees = {"this": REPOSITORY} | ({"other": told.against} if told.against else {})
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with _stores(told.stores.split(",")) as stores:
        for number in range(told.rounds):
            for store, (root, endpoint) in stores.items():
                for name, tree in trees.items():
                    given = [f"{root}/{name}-{number}", endpoint]
                    found.setdefault((store, name), []).extend(_child(tree, given, told))
    for (store, name), epochs in found.items():
        print(f"{store}, {name} tree, {len(epochs)} epochs: minimum / median")
        for what in epochs[0]:
            values = [epoch[what] for epoch in epochs]
            print(f"  {what:32} {min(values):9,.0f} {statistics.median(values):9,.0f}")


def _child(tree: Path, given: list[str], told: argparse.Namespace) -> list[dict[str, float]]:
    paths = [str(tree / "include"), str(tree / "plugins"), str(REPOSITORY)]
    shape = ["--rows", str(told.rows), "--inline", str(told.inline)]
    shape += ["--protocol"] if told.protocol else []
    shape += ["--spark"] if told.spark else []
    done = subprocess.run(
        [sys.executable, "-m", "bench.phases", *shape, "--child", *given],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    epochs: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return epochs


@contextmanager
def _stores(wanted: list[str]) -> Iterator[dict[str, tuple[str, str]]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "SLUICE_CACHE_DIR": str(folder / "cache"),
        }
        near = stack.enter_context(running_s3_server(folder / "s3"))
        far = stack.enter_context(
            slow_network(near, round_trip_ms=ROUND_TRIP_MS, bytes_per_second=BYTES_PER_SECOND)
        )
        import boto3

        boto3.client("s3", endpoint_url=near, region_name="us-east-1").create_bucket(Bucket=BUCKET)
        known = {
            "file": (f"file://{folder}/roots", ""),
            "near": (f"s3://{BUCKET}/near", near),
            "far": (f"s3://{BUCKET}/far", far),
        }
        yield {name: known[name] for name in wanted}


def _measure(told: argparse.Namespace, root: str, endpoint: str) -> list[dict[str, float]]:
    import polars as pl

    from sluice.coordinator.submission import configure, submit
    from sluice.declaration import aggregates as agg
    from sluice.declaration.checkpointing import Checkpointing
    from sluice.declaration.pipeline import Pipeline
    from sluice.job.job import open_job
    from sluice.local.driver import EpochDriver
    from sluice.sinks import FilesTable
    from sluice.sources import Files
    from sluice.spark.session import local_session
    from sluice.store.open import StoreLocation

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        count, rows = WARM + MEASURED, told.rows
        keys = pl.concat([pl.DataFrame({"key": range(rows), "n": range(rows)})] * count)
        keys.write_parquet(folder / "events.parquet", row_group_size=rows)
        options = Checkpointing(max_records_per_epoch=rows, data_inline_threshold=told.inline)
        pipeline = Pipeline("phases", checkpointing=options)
        events = pipeline.source("events", Files(str(folder / "events.parquet"), format="parquet"))
        first = events.key_by("key").aggregate("first", n=agg.sum("n"))
        second = first.key_by("key").aggregate("second", n=agg.sum("n"))
        second.sink("out", FilesTable(upsert_key=("key",)))
        job = open_job(pipeline, StoreLocation(root=root, endpoint_url=endpoint or None))
        submit(job, configure(pipeline, {}, parallelism=PARALLELISM))
        if told.protocol:
            return [_protocol(job) for _ in range(count - 1)][WARM:]
        if not told.spark:
            return [_epoch_without_spark(job) for _ in range(count - 1)][WARM:]
        spark = stack.enter_context(local_session(driver_memory="2g"))
        driver = stack.enter_context(EpochDriver(job, spark))
        epochs = [_epoch(job, driver) for _ in range(count - 1)]
    return epochs[WARM:]


def _epoch(job: Job, driver: object) -> dict[str, float]:
    from sluice.coordinator.trigger import Triggered
    from sluice.local.driver import EpochDriver
    from sluice.surface.checkpoints import details

    assert isinstance(driver, EpochDriver)
    began = time.monotonic()
    assert isinstance(driver.begin(drain=False), Triggered), "there is more to read"
    triggered = time.monotonic()
    epoch = driver.end_oldest()
    ended = time.monotonic()
    assert epoch.completed is not None, epoch.failure
    done = details(job, epoch.completed.checkpoint_id)
    line, stages = done.checkpoint, done.stages
    starts = [min(s.start_timestamp or 0 for s in stage.subtasks) for stage in stages]
    told = [s.checkpoint for stage in stages for s in stage.subtasks if s.checkpoint is not None]
    acknowledged = [stage.latest_ack_timestamp or 0 for stage in stages]
    completed = line.completed_timestamp or 0
    return {
        "trigger": (triggered - began) * 1e3,
        "until a subtask starts": starts[0] - line.trigger_timestamp,
        "first stage": acknowledged[0] - starts[0],
        "between": starts[1] - acknowledged[0],
        "second stage": acknowledged[1] - starts[1],
        "finalization": line.finalization_duration or 0,
        "trigger to completed": completed - line.trigger_timestamp,
        "whole epoch": (ended - began) * 1e3,
        "sync of a subtask": statistics.median(one.sync for one in told),
        "async of a subtask": statistics.median(one.async_ for one in told),
        "kB": (line.checkpointed_size or 0) / 1e3,
    }


def _epoch_without_spark(job: Job) -> dict[str, float]:
    """The real subtasks one after the other, in this process."""
    from harness.no_spark import stages_without_spark
    from sluice.coordinator.completion import finalize
    from sluice.coordinator.publication import commit
    from sluice.coordinator.trigger import Triggered, trigger
    from sluice.spark.stage import run_stage
    from sluice.surface.checkpoints import details

    walls: list[float] = []

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        if what == "subtask":
            walls.append((time.monotonic() - began) * 1e3)

    moments = [time.monotonic()]
    outcome = trigger(job)
    assert isinstance(outcome, Triggered), outcome
    moments.append(time.monotonic())
    with stages_without_spark(timed):
        for stage in job.pipeline.stages:
            run_stage(job, None, outcome.plan.checkpoint_id, stage, attempt=1)  # type: ignore[arg-type]
            moments.append(time.monotonic())
    finalize(job, outcome.plan.checkpoint_id)
    moments.append(time.monotonic())
    commit(job, outcome.plan.checkpoint_id)
    moments.append(time.monotonic())
    done = details(job, outcome.plan.checkpoint_id)
    told = [s.checkpoint for stage in done.stages for s in stage.subtasks if s.checkpoint]
    names = ("trigger", "first stage", "second stage", "finalize", "commit")
    spans = zip(names, moments, moments[1:], strict=False)
    return {name: (end - start) * 1e3 for name, start, end in spans} | {
        "trigger to completed": (moments[4] - moments[0]) * 1e3,
        "a subtask": statistics.median(walls),
        "its sync": statistics.mean(one.sync for one in told),
        "its async": statistics.mean(one.async_ for one in told),
        "kB": (done.checkpoint.checkpointed_size or 0) / 1e3,
    }


def _protocol(job: Job) -> dict[str, float]:
    """A checkpoint of the same job's shape without work, in a root beside it."""
    from dataclasses import replace

    from sluice.coordinator.completion import finalize
    from sluice.coordinator.publication import commit
    from sluice.coordinator.submission import configure, submit
    from sluice.coordinator.trigger import Triggered, trigger
    from sluice.job.job import open_job

    location = replace(job.location, root=f"{job.location.root}-protocol")
    other = open_job(job.pipeline, location)
    if other.journal.load().seq == 0:
        submit(other, configure(job.pipeline, {}, parallelism=PARALLELISM))
    moments = [time.monotonic()]
    outcome = trigger(other)
    assert isinstance(outcome, Triggered), outcome
    moments.append(time.monotonic())
    for stage in job.pipeline.stages:
        _acknowledge(other, outcome.plan, stage)
    moments.append(time.monotonic())
    finalize(other, outcome.plan.checkpoint_id)
    moments.append(time.monotonic())
    commit(other, outcome.plan.checkpoint_id)
    moments.append(time.monotonic())
    names = ("trigger", "acks", "finalize", "commit")
    spans = zip(names, moments, moments[1:], strict=False)
    each = {f"protocol: {name}": (end - start) * 1e3 for name, start, end in spans}
    return each | {"protocol: trigger to completed": (moments[3] - moments[0]) * 1e3}


def _acknowledge(job: Job, plan: CheckpointPlan, stage: str) -> None:
    """As the driver of a stage does that ran alone."""
    from harness.jobs import answer_with
    from sluice.core.answers import Ack
    from sluice.core.handles import SegmentHandle, StateHandle

    body = os.urandom(8_400)
    segment = SegmentHandle(key="", size_bytes=len(body), rows=1, checksum="0" * 32, inline=body)
    acks = [
        Ack(
            checkpoint_id=plan.checkpoint_id,
            subtask=subtask,
            attempt=1,
            state=(StateHandle(segment=segment),),
            watermark_ms=0,
        )
        for subtask in plan.task(stage).subtasks
    ]
    answer_with(job, plan, acks)


if __name__ == "__main__":
    main()
