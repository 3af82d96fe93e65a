"""Partitions of a DataFrame and of an RDD: the same rows, errors, and tags that end them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sluice.core.causes import root_cause
from sluice.spark.names import Batches
from sluice.spark.partitions import Frame, Objects, Partitions, numbered
from sluice.spark.session import interrupt, tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 3
SCHEMA = pa.schema([("to", pa.int32()), ("from", pa.string()), ("body", pa.binary())])
HEARD = SCHEMA.append(pa.field("here", pa.int64()))
Made = Callable[["SparkSession"], Partitions]


def of_a_frame(spark: SparkSession) -> Partitions:
    return Frame(spark.range(0, PARTITIONS, 1, PARTITIONS))


def of_an_rdd(spark: SparkSession) -> Partitions:
    made = numbered(spark, PARTITIONS)
    assert isinstance(made, Objects)
    return made


either = pytest.mark.parametrize("made", [of_a_frame, of_an_rdd])


def to_each(batches: Batches) -> Iterator[pa.RecordBatch]:
    """A batch with a row for every partition, and one without any."""
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        rows = {
            "to": range(PARTITIONS),
            "from": [f"{number}"] * PARTITIONS,
            "body": [b"", None, bytes(100_000)],
        }
        yield pa.RecordBatch.from_pydict(rows, schema=SCHEMA)
        yield pa.RecordBatch.from_pylist([], schema=SCHEMA)


@either
def test_each_row_comes_once_and_where_it_is_placed(spark: SparkSession, made: Made) -> None:
    from pyspark import TaskContext

    def heard(batches: Batches) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            assert batch.schema.equals(SCHEMA)
            here = pa.array([context.partitionId()] * batch.num_rows)
            yield pa.RecordBatch.from_arrays([*batch.columns, here], schema=HEARD)

    rows = made(spark).mapped(to_each, SCHEMA).placed(PARTITIONS, "to").mapped(heard, HEARD)

    bodies = [b"", None, bytes(100_000)]
    assert sorted(rows.collected()) == [
        (to, f"{number}", bodies[to], to)
        for to in range(PARTITIONS)
        for number in range(PARTITIONS)
    ]


@either
def test_the_cause_of_a_failure_is_what_was_raised(spark: SparkSession, made: Made) -> None:
    def fails(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise ValueError("the price of lot 7 is negative")

    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    with pytest.raises((PySparkException, Py4JError)) as caught:
        made(spark).mapped(fails, pa.schema([("id", pa.int64())])).collected()

    cause = root_cause(str(caught.value))
    assert cause.said == "ValueError: the price of lot 7 is negative"


@either
def test_a_job_is_interrupted_by_its_tag(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def hangs(batches: Batches) -> Iterator[pa.RecordBatch]:
        begun.touch()
        time.sleep(600)
        yield from batches

    def collect() -> None:
        with tagged(spark, "a-stage"):
            made(spark).mapped(hangs, pa.schema([("id", pa.int64())])).collected()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(collect)
        while not begun.exists():
            assert not running.done(), running.exception()
            time.sleep(0.05)
        interrupt(spark, "another-stage")
        time.sleep(0.2)
        assert not running.done()
        interrupt(spark, "a-stage")
        assert "cancelled" in str(running.exception(timeout=60)).lower()


def test_both_run_in_the_same_python_workers(spark: SparkSession) -> None:
    """Two daemons would import everything twice, and keep twice the memory."""

    def daemon(batches: Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"pid": [os.getppid()]})

    schema = pa.schema([("pid", pa.int64())])
    daemons = {
        pid
        for made in (of_a_frame, of_an_rdd)
        for (pid,) in made(spark).mapped(daemon, schema).collected()
    }

    assert len(daemons) == 1
