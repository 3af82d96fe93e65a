"""Structured Streaming, with its HDFS-backed state or with RocksDB and changelog checkpoints.

One query that keeps running, as in production: an epoch's files appear at once, and the epoch is
over when the micro-batch that read them is committed.  The checkpoint is on the local disk.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.engines.spark_queries import Query, query_of, write_result
from bench.protocol import Meter, Report, Request
from bench.workloads import Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DRIVER_MEMORY = "8g"  # The HDFS-backed store keeps 5 M keys on the heap, twice while it copies.
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def refusal(workload: Workload) -> str | None:
    if workload.query == "q4":
        return "an aggregate without a window cannot follow a join in Structured Streaming"
    return None


def run(request: Request) -> Report:
    work = Path(request.work)
    arrived = work / "input"
    arrived.mkdir(exist_ok=True)
    query = query_of(request.spec)
    meter = Meter()
    before = len(list(arrived.iterdir()))
    with _session(request) as spark:
        _rehearse(spark, query, work)
        if request.phase == "restore":
            _restored(spark, query, request, meter)
            return Report(epochs=tuple(meter.records))
        running = _start(spark, query, work)
        seen: set[tuple[str, int]] = set()
        _written_since(seen, work / "checkpoint")
        for number, folder in enumerate(request.epochs, before):
            rows = _count(folder)
            staged = _stage(folder, arrived, number)
            with meter.epoch(rows):
                staged.rename(arrived / f"{number:05}")
                running.processAllAvailable()
            meter.uploaded_later(_written_since(seen, work / "checkpoint"))
        if request.flush is not None:
            _stage(request.flush, arrived, 99_999).rename(arrived / "99999")
            running.processAllAvailable()
        notes = _notes(running)
        running.stop()
        if request.phase == "prepare":
            return Report(epochs=tuple(meter.records), notes=notes)
        write_result(spark, query, work / "checkpoint", work / "rows", work / "result")
        return Report(epochs=tuple(meter.records), result=str(work / "result"), notes=notes)


def _restored(spark: SparkSession, query: Query, request: Request, meter: Meter) -> None:
    """Measure a restore: from a ready session to the first committed micro-batch."""
    work = Path(request.work)
    [folder] = request.epochs
    rows = _count(folder)
    _stage(folder, work / "input", 99_999).rename(work / "input" / "99999")
    with meter.epoch(rows):
        running = _start(spark, query, work)
        running.processAllAvailable()
    running.stop()


@contextmanager
def _session(request: Request) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{request.threads}]")
        .config("spark.driver.memory", DRIVER_MEMORY)
        .config("spark.sql.shuffle.partitions", request.threads)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", f"{request.work}/local")
        .config("spark.sql.warehouse.dir", f"{request.work}/warehouse")
    )
    if request.engine == "spark_rocksdb":
        store = "spark.sql.streaming.stateStore"
        builder = builder.config(f"{store}.providerClass", ROCKSDB).config(
            f"{store}.rocksdb.changelogCheckpointing.enabled", "true"
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _rehearse(spark: SparkSession, query: Query, work: Path) -> None:
    """Run the query on no rows, so that the session has loaded its classes."""
    for name in ("input/00000", "checkpoint"):
        (work / "rehearsal" / name).mkdir(parents=True, exist_ok=True)
    empty = spark.createDataFrame([], query.schema)
    empty.write.mode("overwrite").parquet(f"{work}/rehearsal/input/00000")
    running = _start(spark, query, work / "rehearsal")
    running.processAllAvailable()
    running.stop()
    shutil.rmtree(work / "rehearsal")


def _start(spark: SparkSession, query: Query, work: Path) -> StreamingQuery:
    rows = query.rows(spark.readStream.schema(query.schema).parquet(f"{work}/input/*"))
    writer = (
        rows.writeStream.outputMode(query.mode)
        .option("checkpointLocation", f"{work}/checkpoint")
        .trigger(processingTime="0 seconds")
    )
    if query.mode == "update":
        return writer.format("noop").start()
    return writer.format("parquet").start(f"{work}/rows")


def _stage(folder: str, arrived: Path, number: int) -> Path:
    """Put the files of an epoch into a folder that is not read until it is renamed."""
    staged = arrived / f".{number:05}"
    staged.mkdir(parents=True)
    for file in sorted(Path(folder).iterdir()):
        # Its own time of modification is old; files of every epoch are younger than those before.
        link = staged / f"{number:05}-{file.name}"
        link.hardlink_to(file)
    return staged


def _written_since(seen: set[tuple[str, int]], folder: Path) -> int:
    """The bytes that were added to the files since the last call."""
    now = {
        (str(path.relative_to(folder)), path.stat().st_size)
        for path in folder.glob("**/*")
        if path.is_file()
    }
    new = now - seen
    seen |= new
    return sum(size for _, size in new)


def _count(folder: str) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in Path(folder).iterdir())


def _notes(running: StreamingQuery) -> dict[str, str]:
    deadline = time.monotonic() + 5
    while running.lastProgress is None and time.monotonic() < deadline:
        time.sleep(0.05)
    progress = running.lastProgress
    return {} if progress is None else {"batches": str(progress["batchId"] + 1)}
