"""A job over a folder to which a test adds files, an epoch after the other; and what jobs share."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.connectors.files_table.table import ManifestTable
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered
from sluice.core.completed import CheckpointMetadata, StageState
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.job.job import Job, open_job
from sluice.job.places import open_sinks
from sluice.local.driver import Epoch, EpochDriver
from sluice.sources import Files
from sluice.state.segments import to_frame
from sluice.store.open import StoreLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Function = Callable[[pl.DataFrame, pl.DataFrame], tuple[pl.DataFrame, pl.DataFrame]]


class FolderJob:
    """``files`` is the folder that a declaration's source reads."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.files = folder / "files"
        self.files.mkdir(parents=True)
        self.pipeline = Pipeline("folder_job", checkpointing=Checkpointing(interval=None))
        self._spark, self._root = spark, folder / "root"
        self._job: Job | None = None
        self._max_records: int | None = None

    def rows(self, *, event_time: str | None = None) -> Stream:
        """The source ``rows``, of the Parquet in ``files``."""
        spec = Files(str(self.files), format="parquet", bounded=False)
        return self.pipeline.source("rows", spec, event_time=event_time)

    def limit(self, max_records: int) -> None:
        self._max_records = max_records

    def write(self, name: str, rows: pl.DataFrame | pa.Table) -> None:
        if isinstance(rows, pl.DataFrame):
            rows = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
        pq.write_table(rows, self.files / name)

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows as lines of JSON to a file."""
        with (self.files / name).open("a") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)

    def epoch(self, *, drain: bool = False) -> CheckpointMetadata:
        """Take one checkpoint of what there is now."""
        epoch = self._take(drain=drain)
        assert epoch.completed is not None, epoch.failure
        return self.job.metadata(epoch.completed.checkpoint_id)

    def failure(self) -> str:
        epoch = self._take(drain=False)
        assert epoch.failure is not None
        return epoch.failure

    def _take(self, *, drain: bool) -> Epoch:
        with EpochDriver(self.job, self._spark) as driver:
            epoch = driver.take(drain=drain)
        assert epoch is not None, "there was nothing to read"
        return epoch

    @property
    def job(self) -> Job:
        if self._job is None:
            self._job = a_submitted_job(
                self.pipeline, self._root, parallelism=2, max_records_per_epoch=self._max_records
            )
        return self._job

    def table(self, sink: str) -> pl.DataFrame:
        table = open_sinks(self.job, {})[sink]
        assert isinstance(table, ManifestTable)
        return to_frame(table.read())


def stage_of(metadata: CheckpointMetadata, uid: str) -> StageState:
    stage = metadata.stage(uid)
    assert stage is not None
    return stage


def a_submitted_job(
    pipeline: Pipeline,
    folder: Path,
    params: Mapping[str, str] | None = None,
    *,
    parallelism: int | None = None,
    max_records_per_epoch: int | None = None,
) -> Job:
    """A job whose root is *folder*."""
    job = open_job(pipeline, StoreLocation(root=f"file://{folder}"))
    configuration = configure(
        pipeline,
        params or {},
        parallelism=parallelism,
        max_records_per_epoch=max_records_per_epoch,
    )
    submit(job, configuration)
    return job


def no_failure(epoch: Epoch) -> None:
    assert epoch.failure is None, epoch.failure


def completed_epochs(job: Job, spark: SparkSession, *, drain: bool) -> list[CheckpointMetadata]:
    """The checkpoints of all that there is to read now."""
    completed = []
    with EpochDriver(job, spark) as driver:
        while isinstance(driver.begin(drain=drain), Triggered):
            epoch = driver.end_oldest()
            assert epoch.completed is not None, epoch.failure
            completed.append(job.metadata(epoch.completed.checkpoint_id))
    return completed


def losing(lost: Path, pattern: str, *columns: str) -> Function:
    """A function that yields *columns*; called first, it has Spark's local folders lose files.

    No call ends before they are lost, so a task that begins later cannot read them.
    """

    def function(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        with lost.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not lost.stat().st_size:
                lose()
                file.write("lost")
        return rows.select(columns), state

    def lose() -> None:
        for folder in os.environ["SPARK_LOCAL_DIRS"].split(","):
            for file in Path(folder).glob(pattern):
                file.unlink(missing_ok=True)

    return function
