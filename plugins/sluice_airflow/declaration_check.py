"""The check of a declaration before a person's run submits or restores its job.

So a misspelt column of the last stage fails the first task, and not a later epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice_airflow.settings import Settings

if TYPE_CHECKING:
    from sluice.declaration.pipeline import Pipeline


def check_declaration(pipeline: Pipeline, params: Mapping[str, str]) -> None:
    """Analyse every stage with Spark and the operators; no row is read.

    Raises:
        ConfigurationError: a stage cannot compute what it declares; the message names it.
    """
    from sluice.spark.checking import check_pipeline
    from sluice.spark.session import connect

    settings = Settings.from_environment()
    spark = connect(settings.spark_remote, pipeline.uid)
    check_pipeline(pipeline, spark, params, settings.location.endpoint_url)
