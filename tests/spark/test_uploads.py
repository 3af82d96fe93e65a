"""What a subtask uploads in the background counts once it is durable, and declines if it fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sluice.core.configuration import JobStatus
from sluice.core.ids import CheckpointId
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job
from sluice.job.places import open_result_table
from sluice.local.driver import Epoch, run_epochs
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.surface.checkpoints import details, history
from tests.spark.folder_job import a_submitted_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def a_job(folder: Path) -> Job:
    (folder / "clicks.csv").write_text("ann,1\nbob,2\nann,3\n")
    checkpointing = Checkpointing(data_inline_threshold=0, tolerable_failed_checkpoints=1)
    pipeline = Pipeline("clicks", checkpointing=checkpointing)
    files = Files(str(folder / "clicks.csv"), format="csv", schema="name string, n long")
    rows = pipeline.source("clicks", files)
    rows.key_by("name").aggregate("totals", n=agg.sum("n")).sink(
        "out", FilesTable(upsert_key=("name",))
    )
    return a_submitted_job(pipeline, folder / "root", parallelism=1)


def test_a_failed_upload_declines_the_checkpoint_and_the_next_one_has_its_rows(
    tmp_path: Path, spark: SparkSession
) -> None:
    job = a_job(tmp_path)
    folder = (tmp_path / "root" / job.paths.shared_segment("totals", 1, "x")).parent
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where a folder is needed")

    def mend(_: Epoch) -> None:
        if folder.is_file():
            folder.unlink()

    status = run_epochs(job, spark, epochs=None, drain=False, report=mend)

    failed, completed = history(job)[:2]
    assert failed.reason == "CHECKPOINT_ASYNC_EXCEPTION"
    assert "totals/0: cannot use the folder" in str(failed.message)
    assert (completed.status, status) == ("COMPLETED", JobStatus.FINISHED)
    asked = details(job, CheckpointId(completed.id)).stages[0].requests
    assert asked is not None
    assert asked.puts == 2  # Its state and its rows for the sink.
    rows = open_result_table(job, {}).read().to_pylist()
    assert sorted((row["name"], row["n"]) for row in rows) == [("ann", 4), ("bob", 2)]
