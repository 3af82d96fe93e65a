"""A stage of Spark code beside the plain script: seconds of an epoch that changes 1 % of a result.

    python -m bench.spark_code [--rows 2000000] [--share 0.01] [--rounds 5] [--result replace]

Both add an increment up with the result before, by the same function, in one Spark session, in
turn: the stage with ``previous`` and its result, the script from Parquet to Parquet, whole.  The
first epoch makes the result, and the second warms up.  Both have to have the same rows in the end.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl  # noqa: TID253 - no other module imports a benchmark

from bench.cpu import adopt_orphans, tree_cpu_s
from sluice import Replace, Upsert
from sluice.coordinator.submission import configure, submit
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.results import Result
from sluice.job.job import Job, open_job
from sluice.local.driver import EpochDriver
from sluice.sources import Files
from sluice.spark.session import local_session
from sluice.store.open import StoreLocation
from sluice.surface.state import open_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id bigint, spent bigint, orders bigint, name string"
WARM_UP = 2
FILES = 2  # Of an epoch.


def added_up(orders: DataFrame, previous: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    both = previous.unionByName(orders.select("id", "spent", F.lit(1).alias("orders"), "name"))
    sums = [F.sum(name).alias(name) for name in ("spent", "orders")]
    return both.groupBy("id").agg(*sums, F.max("name").alias("name"))


def merged(orders: DataFrame, previous: DataFrame) -> DataFrame:
    """The rows of ``added_up`` that change."""
    before = previous.join(orders.select("id").distinct(), "id", "left_semi")
    return added_up(orders, before)


FORMS: Mapping[str, tuple[Callable[..., DataFrame], Result]] = {
    "replace": (added_up, Replace("id")),
    "upsert": (merged, Upsert("id")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--result", default=",".join(FORMS))
    given = parser.parse_args()
    forms: list[str] = given.result.split(",")
    adopt_orphans()
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ("script", *forms)}
    with tempfile.TemporaryDirectory() as at, local_session(cores=2) as spark:
        folder = Path(at)
        (folder / "orders").mkdir()
        jobs = {name: a_job(name, folder) for name in forms}
        for number in range(WARM_UP + given.rounds):
            arrive(number, given.rows, given.share, folder / "orders")
            for name, rounds in spent.items():
                begun, cpu = time.monotonic(), tree_cpu_s()
                if name in jobs:
                    take_epoch(jobs[name], spark)
                else:
                    run_script(spark, folder, number)
                seconds = time.monotonic() - begun, tree_cpu_s() - cpu
                rounds.append(seconds)
                print(f"{number} {name:8} {seconds[0]:6.2f} s, {seconds[1]:6.2f} CPU s", flush=True)
        names = ["id", "spent", "orders", "name"]
        expected = pl.read_parquet(folder / "result/*.parquet").select(names).sort("id")
        for name, job in jobs.items():
            found = open_state(job, "latest", "totals", "rows").frame().select(names).sort("id")
            assert found.equals(expected), f"{name} and the script do not agree"
    script = medians(spent["script"][WARM_UP:])
    for name, all_seconds in spent.items():
        wall, cpu = medians(all_seconds[WARM_UP:])
        print(
            f"{name:8} {wall:6.2f} s {wall / script[0] - 1:+5.0%}, "
            f"{cpu:6.2f} CPU s {cpu / script[1] - 1:+5.0%}, first {all_seconds[0][0]:6.2f} s"
        )


def medians(seconds: list[tuple[float, float]]) -> tuple[float, float]:
    wall, cpu = zip(*seconds, strict=True)
    return statistics.median(wall), statistics.median(cpu)


def a_job(name: str, folder: Path) -> Job:
    function, result = FORMS[name]
    pipeline = Pipeline(f"by_{name}", checkpointing=Checkpointing(interval=None))
    orders = pipeline.source(
        "orders", Files(str(folder / "orders"), format="parquet", bounded=False)
    )
    pipeline.spark("totals", function, reads={"orders": orders}, schema=SCHEMA, result=result)
    job = open_job(pipeline, StoreLocation(root=f"file://{folder / 'jobs'}"))
    submit(job, configure(pipeline, {}, parallelism=2))
    return job


def take_epoch(job: Job, spark: SparkSession) -> None:
    with EpochDriver(job, spark) as driver:
        epoch = driver.take()
        assert epoch is not None, "there are new files"
        assert epoch.completed is not None, epoch.failure


def run_script(spark: SparkSession, folder: Path, number: int) -> None:
    """What the script of a team does, each night: it reads its result and what came, and writes."""
    result = folder / "result"
    orders = spark.read.parquet(*map(str, sorted((folder / "orders").glob(f"{number:04}-*"))))
    previous = (
        spark.read.schema(SCHEMA).parquet(str(result))
        if result.exists()
        else spark.createDataFrame([], SCHEMA)
    )
    added_up(orders, previous).write.parquet(str(folder / "new"))
    shutil.rmtree(result, ignore_errors=True)
    (folder / "new").rename(result)


def arrive(number: int, rows: int, share: float, folder: Path) -> None:
    """Write an epoch's rows: first one for each key, then for a *share* of the keys."""
    came = rows if number == 0 else int(rows * share)
    index = pl.int_range(came, eager=True)
    ids = index if number == 0 else (index + number * rows).hash(1) % rows
    orders = pl.DataFrame({"id": ids, "spent": index.hash(number) % 1000}).cast(pl.Int64)
    orders = orders.with_columns(name=pl.format("customer {}", "id"))
    size = -(-came // FILES)
    for part in range(FILES):
        orders.slice(part * size, size).write_parquet(folder / f"{number:04}-{part}.parquet")


if __name__ == "__main__":
    main()
