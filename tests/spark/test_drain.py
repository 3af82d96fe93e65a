"""An unbounded job ends only when it is drained; then every window fires."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.ssh_threats import parse_sshd
from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.declaration import aggregates as agg
from sluice.declaration.operations import Tumbling
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import open_job
from sluice.job.places import open_result_table
from sluice.local.driver import run_epochs
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.store.open import StoreLocation
from sluice.surface.checkpoints import history
from tests.spark.sshd_log import write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_windows_wait_for_the_watermark_until_the_job_is_drained(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_log(tmp_path / "auth.log", lines=50, seed=2)
    pipeline = Pipeline("unbounded", parallelism=1)
    log = pipeline.source("log", Files(str(tmp_path / "auth.log"), bounded=False), event_time="at")
    failures = (
        log.transform("parse", parse_sshd, since="2015-03-01")
        .key_by("source_ip")
        .window("all_day", Tumbling(timedelta(days=1)), failed=agg.sum("failures"))
    )
    failures.sink("failures", FilesTable())
    job = open_job(pipeline, StoreLocation(root=f"file://{tmp_path / 'root'}"))
    submit(job, configure(pipeline, {}))

    assert run_epochs(job, spark, epochs=None, drain=False, report=_ok) is JobStatus.RUNNING
    assert open_result_table(job, {}).row_count() == 0
    assert run_epochs(job, spark, epochs=None, drain=True, report=_ok) is JobStatus.FINISHED

    assert open_result_table(job, {}).row_count() > 0
    last = history(job)[-1]
    assert (last.type, last.records) == (CheckpointType.SAVEPOINT_TERMINATE.value, 0)


def _ok(epoch: object) -> None:
    assert getattr(epoch, "failure", None) is None
