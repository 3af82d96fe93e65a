"""What Spark is handed when a stage runs as an application of its own (``spark-submit``).

spark-submit spark_jobs/run_stage.py PIPELINE CHECKPOINT_ID STAGE ATTEMPT --root s3://...
"""

from __future__ import annotations

from typing import Annotated

import typer
from pyspark.sql import SparkSession

from sluice.core.ids import CheckpointId
from sluice.declarations import load_pipeline
from sluice.runner.job import open_job
from sluice.spark.session import SETTINGS
from sluice.spark.stage import run_stage
from sluice.storage.open import StoreLocation


def main(
    pipeline: str,
    checkpoint_id: int,
    stage: str,
    attempt: int,
    root: Annotated[str, typer.Option(help="Where checkpoints live, e.g. s3://bucket/prefix.")],
    endpoint_url: Annotated[str | None, typer.Option(help="An S3 server other than AWS.")] = None,
) -> None:
    """Run one stage of one pending checkpoint; fails when it does not acknowledge."""
    job = open_job(load_pipeline(pipeline), StoreLocation(root=root, endpoint_url=endpoint_url))
    spark = SparkSession.builder.config(map=SETTINGS).getOrCreate()
    run_stage(job, spark, CheckpointId(checkpoint_id), stage, attempt=attempt).compact()


if __name__ == "__main__":
    typer.run(main)
