"""What a subtask uploads in the background counts once it is durable, and declines if it fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from sluice.coordinator.restore import restore
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.configuration import JobStatus
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.keyed_functions import (
    Context,
    KeyedProcessFunction,
    OperatorListState,
    Row,
    SubtaskContext,
    UnionListState,
)
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job
from sluice.job.places import open_result_table
from sluice.local.driver import Epoch, run_epochs
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.surface.checkpoints import details, history
from tests.spark.folder_job import FolderJob, a_submitted_job

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


SCRIPT = Path(__file__).resolve().parents[2] / "spark_jobs" / "run_stage.py"


def test_the_submitted_job_acknowledges_every_subtask_of_its_chain(
    submitted: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a local master its workers run the Python of the application, which has sluice."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    job = submitted("auctions", parallelism=2, max_records=500, events=500)
    outcome = trigger(job)
    assert isinstance(outcome, Triggered)
    arguments = ["auctions", str(outcome.plan.checkpoint_id), "bid_statistics", "1"]

    subprocess.run(
        [sys.executable, str(SCRIPT), *arguments, "--root", job.store.root],
        check=True,
        capture_output=True,
        timeout=300,
    )

    answers = job.answers.observe(outcome.plan.checkpoint_id, outcome.plan.token)
    assert answers.answered == {("bid_statistics", 1), ("category_ranking", 1)}


ROWS = 40


class Holds(KeyedProcessFunction):
    """A row waits for an epoch in its subtask; with it comes how many all subtasks had seen."""

    waiting = OperatorListState(int)
    seen = UnionListState(int)

    def initialize_state(self, context: SubtaskContext) -> None:
        self._before = self.waiting.get()
        self._seen = len(self.seen.get())

    def process(self, row: Row, context: Context) -> None:
        self.waiting.add(row["n"])
        self.seen.add(row["n"])

    def prepare_snapshot_pre_barrier(self, context: SubtaskContext) -> Iterable[Row]:
        self.waiting.update(self.waiting.get()[len(self._before) :])
        for n in self._before:
            yield {"n": n, "seen": self._seen, "subtask": context.subtask}


def test_each_element_stays_once_through_a_rescale(job: FolderJob) -> None:
    rows = job.rows()
    held = rows.key_by("n").process_keyed(
        "held", Holds(), result={"n": int, "seen": int, "subtask": int}
    )
    held.sink("out", FilesTable())

    for epoch, parallelism in enumerate((2, 3, 1)):
        if epoch > 0:
            wanted = replace(job.job.state().configuration, parallelism=parallelism)
            restore(job.job, Latest(), configuration=wanted)
        numbers = range(epoch * ROWS, (epoch + 1) * ROWS)
        job.write(f"{epoch}.parquet", pl.DataFrame({"n": numbers}))
        job.epoch()

    out = job.table("out").sort("n")
    assert out["n"].to_list() == [*range(2 * ROWS)]
    assert out["seen"].to_list() == [ROWS] * ROWS + [2 * ROWS] * ROWS
    # Forty among three subtasks: the odd one of ``seen`` went to the first.  Then one is left.
    dealt = out[:ROWS]["subtask"].value_counts().sort("subtask")["count"].to_list()
    assert dealt == [13, 14, 13]
    assert out[ROWS:]["subtask"].unique().to_list() == [0]
