"""How many jobs and stages a session has run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_jobs(spark: SparkSession) -> int:
    jvm: Any = spark.sparkContext._jsc  # noqa: SLF001 - the JVM behind the session
    count: int = jvm.sc().statusStore().jobsList(None).size()
    return count


def spark_stages(spark: SparkSession) -> int:
    tracker = spark.sparkContext.statusTracker()
    jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup())
    return sum(len(job.stageIds) for job in jobs if job is not None)


def failed_tasks(spark: SparkSession) -> int:
    """Those that Spark may have tried again."""
    tracker = spark.sparkContext.statusTracker()
    jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup())
    stages = {stage for job in jobs if job is not None for stage in job.stageIds}
    known = (tracker.getStageInfo(stage) for stage in stages)
    return sum(stage.numFailedTasks for stage in known if stage is not None)
