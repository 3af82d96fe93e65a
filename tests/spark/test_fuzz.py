"""Random pipelines on a real Spark: each sink holds what batch SQL says, whichever way rows took.

A sample of what ``tests/fuzz`` plays in one process: a seed through the JVM, and two past it where
that can be: of tasks that all run at once, and with Spark's shuffle.
``python -m tests.fuzz --spark 200`` plays more.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.fuzz.on_spark import WAYS, play_on_spark, spark_plan
from tests.fuzz.plans import from_json, to_json

SEEDS = range(len(WAYS))
FOUND = sorted(Path(__file__).parents[1].joinpath("fuzz", "found", "on_spark").glob("*.json"))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_sink_holds_what_batch_sql_says(spark: SparkSession, seed: int) -> None:
    plan = spark_plan(seed)

    failure = play_on_spark(plan, spark)

    assert failure is None, f"seed {seed}: {failure}\n{to_json(plan)}"


@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.stem)
def test_what_was_found_on_spark_once_stays_right(spark: SparkSession, file: Path) -> None:
    assert play_on_spark(from_json(file.read_text()), spark) is None
