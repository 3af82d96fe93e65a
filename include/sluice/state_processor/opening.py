"""The job whose state is data here: named by its pipeline and its root."""

from __future__ import annotations

from sluice.declaration.discovery import load_pipeline
from sluice.declaration.pipeline import Pipeline
from sluice.job import job as jobs
from sluice.job.job import Job
from sluice.storage.open import StoreLocation


def open_job(pipeline: Pipeline | str, root: str, *, endpoint_url: str | None = None) -> Job:
    """The job of a pipeline, or of one that the project declares under this uid; nothing is read.

    *endpoint_url* names an S3 server other than AWS.

    Raises:
        ConfigurationError: there is no such pipeline, or *root* is no root.
    """
    declared = load_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    return jobs.open_job(declared, StoreLocation(root=root, endpoint_url=endpoint_url))
