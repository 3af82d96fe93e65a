"""Preloading: imports that are done once, in the scheduler, and not in every stage task.

LocalExecutor forks its workers from the scheduler and each task from a worker, so a module the
scheduler has imported is loaded in every task.  This module only imports and parses: a gRPC channel
or thread from before the fork would make the task hang.
"""

from __future__ import annotations

import importlib
import logging
import time

from sluice.storage.s3_clients import preload_descriptions

log = logging.getLogger(__name__)

# The imports of a stage task before its session exists, and those of Airflow's own task runner
# after the fork.  The stage imports Polars, too: that is safe before a fork as long as it is not
# used there, as its thread pool starts with its first use.
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
    "sluice_airflow.declarations",
    "sluice_airflow.watchdog",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
)


def preload_spark_client() -> None:
    """Import the Spark Connect client, and parse what a client of S3 does.

    A missing module is logged, and the task's error.
    """
    begin = time.perf_counter()
    for name in _MODULES:
        try:
            importlib.import_module(name)
        except ImportError:
            log.warning("preload skipped module=%s", name, exc_info=True)
    preload_descriptions()
    log.info("preload finished duration_ms=%d", (time.perf_counter() - begin) * 1_000)
