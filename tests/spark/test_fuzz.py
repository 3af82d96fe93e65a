"""Random pipelines on a real Spark: each sink holds what batch SQL says, whichever way rows took.

A sample of what ``tests/fuzz`` plays in one process, odd seeds through the JVM, even ones past it
where that can be.  ``python -m tests.fuzz --spark 200`` plays more.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.fuzz.on_spark import play_on_spark, spark_plan
from tests.fuzz.plans import to_json

SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_sink_holds_what_batch_sql_says(spark: SparkSession, seed: int) -> None:
    plan = spark_plan(seed)

    failure = play_on_spark(plan, spark)

    assert failure is None, f"seed {seed}: {failure}\n{to_json(plan)}"
