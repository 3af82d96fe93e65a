"""How many jobs a session has run, and of what: all that it ran, for Spark's own lists forget.

What listeners know of a job comes after its result, so it is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.core.status import SparkJobInfo
    from pyspark.sql import SparkSession

WAIT_MS = 120_000


def spark_jobs(spark: SparkSession) -> int:
    """Those that the session's Spark has begun, which number the next one."""
    count: int = _context(spark).dagScheduler().numTotalJobs()
    return count


def spark_stages(spark: SparkSession, first_job: int) -> int:
    return sum(len(job.stageIds) for job in _jobs(spark, first_job))


def failed_tasks(spark: SparkSession, first_job: int) -> int:
    """Those that Spark may have tried again."""
    tracker = spark.sparkContext.statusTracker()
    stages = {stage for job in _jobs(spark, first_job) for stage in job.stageIds}
    known = (tracker.getStageInfo(stage) for stage in stages)
    return sum(stage.numFailedTasks for stage in known if stage is not None)


def _jobs(spark: SparkSession, first: int) -> Iterator[SparkJobInfo]:
    _context(spark).listenerBus().waitUntilEmpty(WAIT_MS)
    tracker = spark.sparkContext.statusTracker()
    for number in range(first, spark_jobs(spark)):
        job = tracker.getJobInfo(number)
        assert job is not None, f"Spark does not know its job {number}"
        yield job


def _context(spark: SparkSession) -> Any:
    jvm: Any = spark.sparkContext._jsc  # noqa: SLF001 - the JVM behind the session
    return jvm.sc()
