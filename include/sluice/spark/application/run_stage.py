"""A stage of a pending checkpoint as a Spark application of its own.

    spark-submit .../sluice/spark/application/run_stage.py PIPELINE CHECKPOINT_ID STAGE ATTEMPT \
        --root s3://bucket/jobs

``python -m sluice.spark.application.run_stage`` is the same.  The driver needs sluice, the client
libraries of the pipeline's connectors, and the pipelines.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from sluice.core.ids import CheckpointId
from sluice.declaration.project import PIPELINES_VARIABLE, find_pipelines, load_pipeline
from sluice.extras import SPARK
from sluice.job.job import open_job
from sluice.spark.session import SETTINGS, require_pyspark
from sluice.spark.stage import run_stage
from sluice.store.open import StoreLocation

LOCAL = "local"  # The master of an application that spark-submit did not start.


def main(
    pipeline: str,
    checkpoint_id: int,
    stage: str,
    attempt: int,
    root: Annotated[str, typer.Option(help="Where checkpoints live, e.g. s3://bucket/prefix.")],
    endpoint_url: Annotated[str | None, typer.Option(help="An S3 server other than AWS.")] = None,
    pipelines: Annotated[
        str | None,
        typer.Option(help=f"The folder or package of pipelines, unless ${PIPELINES_VARIABLE} is."),
    ] = None,
) -> None:
    """Run one stage of one pending checkpoint; fails when it does not acknowledge."""
    folder = None if os.environ.get(PIPELINES_VARIABLE) else pipelines
    declared = load_pipeline(pipeline, find_pipelines(setting=folder))
    job = open_job(declared, StoreLocation(root=root, endpoint_url=endpoint_url))
    require_pyspark("a Spark application")
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    if SparkConf().get("spark.master", LOCAL).startswith(LOCAL):  # Else the cluster decides.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.config(map=SETTINGS).getOrCreate()
    SPARK.check(spark.version)
    run_stage(job, spark, CheckpointId(checkpoint_id), stage, attempt=attempt).compact()


if __name__ == "__main__":
    typer.run(main)
