"""Imports paid once, in the scheduler, instead of in every stage task.

LocalExecutor forks its workers from the scheduler and each task from a worker, so a module the
scheduler has imported is there in every task.  Promises to import and nothing else: no gRPC channel
and no thread may exist before the fork, or the task would hang in it.
"""

from __future__ import annotations

import importlib
import logging
import time

log = logging.getLogger(__name__)

# What a stage task would import before its session exists, and what Airflow's own task runner
# imports after the fork.  Polars comes along with the stage: importing it before a fork is safe as
# long as nobody uses it there, for its thread pool starts with its first use.
_MODULES = (
    "pyspark.sql",
    "pyspark.sql.functions",
    "pyspark.sql.connect.session",
    "pyspark.sql.connect.functions",
    "pyspark.sql.connect.dataframe",
    "pyspark.sql.connect.udf",
    "pyarrow.compute",
    "boto3",
    "sluice.spark.stage",
    "sluice.spark.session",
    "sluice_airflow.dag_factory",
    "sluice_airflow.upgrades",
    "sluice_airflow.watchdog",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
)


def preload_spark_client() -> None:
    """Import the Spark Connect client; a missing module is left for the task to complain about."""
    begin = time.perf_counter()
    for name in _MODULES:
        try:
            importlib.import_module(name)
        except ImportError:
            log.warning("preload skipped module=%s", name, exc_info=True)
    log.info("preload finished duration_ms=%d", (time.perf_counter() - begin) * 1_000)
