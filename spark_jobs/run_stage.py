"""The script for ``spark-submit``, when a stage runs as a Spark application of its own.

    spark-submit spark_jobs/run_stage.py PIPELINE CHECKPOINT_ID STAGE ATTEMPT --root s3://...

The pipeline ``auctions_submitted`` has Airflow submit this file.  The wheel has the same as
sluice/spark/application/run_stage.py, which is submitted where a pipeline names no other.
"""

from __future__ import annotations

import typer

from sluice.spark.application.run_stage import main

if __name__ == "__main__":
    typer.run(main)
