"""Sluice: trigger, stages, acks, finalize and commit of every epoch, driven by one process.

Spark is a Connect server as the local stack starts it, which is the way of every DAG, and its CPU
is in the sum; with the engine ``sluice_run`` it is the session of ``sluice run``, and with
``sluice_cluster`` a Connect server of a standalone cluster of two workers, which share no folder
but that of the input.  The root is a folder, or with ``sluice_s3`` and ``sluice_cluster`` the
development S3 server on loopback, in the sum too.  Where a peer writes its rows nowhere, neither
does Sluice: the result is read from the state at the end.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cpu import peak_memory_bytes
from bench.protocol import Meter, Report, Request
from bench.workloads import Workload
from sluice.job.places import open_result_table

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession

    from sluice.declaration.pipeline import Pipeline
    from sluice.job.job import Job
    from sluice.local.driver import EpochDriver
    from sluice.store.open import StoreLocation

# Stages whose state is the result, and what its columns are called there.
IN_THE_STATE = {"q4": ("per_category", {"_sum_sum_final": "sum_final"}), "q18": ("last", {})}

ON_S3 = ("sluice_s3", "sluice_cluster")


def refusal(workload: Workload) -> str | None:  # noqa: ARG001 - it can do them all
    return None


def run(request: Request) -> Report:
    from sluice.coordinator.restore import restore
    from sluice.core.restoring import Latest
    from sluice.local.driver import EpochDriver

    work = Path(request.work)
    arrived = work / "input"
    arrived.mkdir(exist_ok=True)
    before = len(list(arrived.iterdir()))
    os.environ["SLUICE_CACHE_DIR"] = str(work / "cache")
    meter = Meter()
    notes: dict[str, str] = {}
    with ExitStack() as stack:
        location = stack.enter_context(_location(request, notes))
        if request.phase != "restore":  # A session is chosen by the columns that are there.
            _arrive(request.epochs[0], arrived, before)
        job = _job(request, arrived, location)
        spark = stack.enter_context(_session(request, job))
        if request.phase == "restore":
            _rehearse(request, spark)
            _arrive(request.epochs[0], arrived, before)
            with meter.epoch(_count(request.epochs[0])), EpochDriver(job, spark) as driver:
                restore(job, Latest())
                _take(driver)
            return Report(epochs=tuple(meter.records))
        with EpochDriver(job, spark) as driver:
            for number, folder in enumerate(request.epochs, before):
                if number > before:
                    _arrive(folder, arrived, number)
                with meter.epoch(_count(folder)) as measured:
                    measured.uploaded(_take(driver))
            if request.flush is not None:
                _arrive(request.flush, arrived, 99_999)
                _take(driver)
        if request.phase == "prepare":
            return Report(epochs=tuple(meter.records))
        worker_peak_bytes = peak_memory_bytes("sluice.spark.worker_daemon")
        _result(request, job).write_parquet(work / "result.parquet")
    return Report(
        epochs=tuple(meter.records),
        result=str(work / "result.parquet"),
        worker_peak_bytes=worker_peak_bytes,
        notes=notes,
    )


@contextmanager
def _session(request: Request, job: Job) -> Iterator[SparkSession]:
    from sluice.spark.deployment import rows_pass_jvm
    from sluice.spark.session import local_session, remote_session

    if request.engine != "sluice_run":
        server = _cluster_server if request.engine == "sluice_cluster" else _connect_server
        with server(request) as remote, remote_session(remote) as spark:
            yield spark
        return
    rows = rows_pass_jvm(job.pipeline, job.state().configuration.params, None)
    with local_session(cores=request.threads, driver_memory="4g", compiles_for_rows=rows) as spark:
        yield spark


@contextmanager
def _connect_server(request: Request) -> Iterator[str]:
    """The address of a server as the local stack starts it, until the block ends."""
    from sluice.devstack.processes import free_ports
    from sluice.devstack.servers import SparkSettings, spark_launch
    from sluice.spark.session import ask_spark

    port, ui_port = free_ports(2)
    settings = SparkSettings(port=port, ui_port=ui_port, driver_memory="4g", cores=request.threads)
    folder = Path(request.work) / "stack"
    launch = spark_launch(settings, sluice_dir=folder, env=os.environ)
    launch.folder.mkdir(parents=True)
    launch.log_path.parent.mkdir(parents=True)
    remote = f"sc://127.0.0.1:{port}"
    with launch.log_path.open("wb") as log:
        server = subprocess.Popen(
            launch.command, env=dict(launch.env), cwd=launch.folder, stdout=log, stderr=log
        )
    try:
        while True:
            assert server.poll() is None, launch.log_path.read_text()
            try:
                ask_spark(remote)
                break
            except OSError:
                time.sleep(0.2)
        yield remote
    finally:
        server.terminate()
        server.wait()


@contextmanager
def _cluster_server(request: Request) -> Iterator[str]:
    from harness.spark_cluster import running_cluster

    folder = Path(request.work) / "cluster"
    with (
        running_cluster(folder, os.environ, workers=request.threads) as cluster,
        cluster.connect_server() as remote,
    ):
        yield remote


def _take(driver: EpochDriver) -> int:
    """Take one epoch, until it is committed; the bytes that its checkpoint wrote."""
    epoch = driver.take()
    assert epoch is not None, "there are new files"
    assert epoch.completed is not None, epoch.failure
    return epoch.completed.checkpointed_bytes


def _job(request: Request, arrived: Path, location: StoreLocation) -> Job:
    from sluice.coordinator.submission import configure, submit
    from sluice.job.job import open_job

    pipeline = _pipeline(request.spec, arrived)
    job = open_job(pipeline, location)
    if request.phase != "restore":
        params = {
            p.name: str(arrived) if p.name == "events" else "parquet" for p in pipeline.params
        }
        submit(job, configure(pipeline, params, parallelism=request.threads))
    return job


def _pipeline(workload: Workload, arrived: Path) -> Pipeline:
    from sluice.declaration import aggregates as agg
    from sluice.declaration.checkpointing import Checkpointing
    from sluice.declaration.pipeline import Pipeline
    from sluice.declaration.project import load_pipeline
    from sluice.sources import Files

    if workload.kind != "nexmark":
        pipeline = Pipeline("bench", checkpointing=Checkpointing(interval=None))
        events = pipeline.source("events", Files(str(arrived), format="parquet", bounded=False))
        events.key_by("key").aggregate(
            "totals", count=agg.count(), sum=agg.sum("value"), max=agg.max("value")
        )
        return pipeline
    declared = load_pipeline(f"nexmark_{workload.query}")
    source = declared.sources["events"]
    endless = replace(source, spec=replace(source.spec, bounded=False))  # type: ignore[type-var]
    sinks = {} if workload.query in IN_THE_STATE else declared.sinks
    return replace(declared, sources={"events": endless}, sinks=sinks)


def _result(request: Request, job: Job) -> pl.DataFrame:
    import polars as pl

    from sluice.surface.state import open_state

    workload = request.spec
    if workload.kind != "nexmark":
        frame = open_state(job, "latest", "totals", "groups").frame()
    elif workload.query in IN_THE_STATE:
        stage, renames = IN_THE_STATE[workload.query]
        frame = open_state(job, "latest", stage, None).frame().rename(renames)
    else:
        table = pl.from_arrow(open_result_table(job, job.state().configuration.params).read())
        assert isinstance(table, pl.DataFrame)
        frame = table
    instants = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Datetime)]
    rows = frame.with_columns(pl.col(instants).dt.epoch("ms")).select(workload.result)
    return rows if workload.kind != "nexmark" else rows.filter(pl.nth(1) >= 0)  # Without the flush.


@contextmanager
def _location(request: Request, notes: dict[str, str]) -> Iterator[StoreLocation]:
    from sluice.store.open import StoreLocation

    work = Path(request.work)
    if request.engine not in ON_S3:
        yield StoreLocation(root=f"file://{work / 'root'}")
        return
    import boto3

    from harness.s3_server import running_s3_server

    # Spark's workers inherit them; the server checks none.
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    with running_s3_server(work / "s3") as endpoint_url:
        client = boto3.client("s3", endpoint_url=endpoint_url, region_name="us-east-1")
        with suppress(client.exceptions.BucketAlreadyOwnedByYou):  # It outlives ``prepare``.
            client.create_bucket(Bucket="bench")
        location = StoreLocation(root="s3://bench/root", endpoint_url=endpoint_url)
        notes["server uploads"] = f"{_bare_upload_mb_s(location):.0f} MB/s"
        yield location


def _bare_upload_mb_s(location: StoreLocation) -> float:
    """The upload rate of a single client, with 16 MB at a time."""
    from sluice.store.open import open_store

    store, body, times = open_store(location), os.urandom(16_000_000), 4
    started = time.perf_counter()
    for number in range(times):
        store.put(f"probe-{number}", body)
    return times * len(body) / 1e6 / (time.perf_counter() - started)


def _rehearse(request: Request, spark: object) -> None:
    """Run the query on a few rows, so that the session has loaded its classes."""
    import polars as pl

    from sluice.local.driver import EpochDriver
    from sluice.store.open import StoreLocation

    folder = Path(request.work) / "rehearsal"
    (folder / "input").mkdir(parents=True)
    first = sorted(Path(request.epochs[0]).iterdir())[0]
    pl.read_parquet(first).head(10).write_parquet(folder / "input" / "few.parquet")
    location = StoreLocation(root=f"file://{folder / 'root'}")
    job = _job(replace(request, phase="run"), folder / "input", location)
    with EpochDriver(job, spark) as driver:  # type: ignore[arg-type]
        _take(driver)


def _arrive(folder: str, arrived: Path, number: int) -> None:
    """Make the files of an epoch appear at once, with names behind the earlier ones."""
    staged = arrived.parent / f"staged-{number:05}"
    staged.mkdir()
    for file in sorted(Path(folder).iterdir()):
        (staged / file.name).hardlink_to(file)
    staged.rename(arrived / f"{number:05}")


def _count(folder: str) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in Path(folder).iterdir())
