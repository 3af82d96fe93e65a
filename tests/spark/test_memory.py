"""An epoch and a state several times larger than a subtask's memory: slower, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing, StateBackend
from sluice.declaration.pipeline import Pipeline
from sluice.local.driver import run_epochs
from sluice.sources import Files
from sluice.surface.state import open_state
from tests.spark.folder_job import a_submitted_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY = 1024**2
KEYS = 300_000
EPOCHS = 2


@pytest.mark.parametrize("format_", ["parquet", "json"])  # In columns, and through Spark's JVM.
def test_an_epoch_of_many_times_the_memory(
    spark: SparkSession, tmp_path: Path, format_: Literal["parquet", "json"]
) -> None:
    events = write_epochs(tmp_path / "events", format_)
    pipeline = Pipeline(
        "large",
        checkpointing=Checkpointing(interval=None, max_records_per_epoch=KEYS),
        state_backend=StateBackend(memory_per_subtask=MEMORY),
    )
    schema: dict[str, Any] = {} if format_ == "parquet" else {"schema": "key BIGINT, value BIGINT"}
    files = Files(str(tmp_path / "events"), format=format_, bounded=False, **schema)
    source = pipeline.source("events", files)
    source.key_by("key").aggregate("totals", n=agg.count(), total=agg.sum("value"))
    job = a_submitted_job(pipeline, tmp_path / "root", parallelism=2)

    run_epochs(job, spark, epochs=EPOCHS, drain=False, report=lambda _: None)

    completed = job.state().latest_completed
    assert completed is not None
    assert completed.full_bytes > 10 * MEMORY
    wanted = events.group_by("key").agg(n=pl.len().cast(pl.Int64), total=pl.col("value").sum())
    found = open_state(job, "latest", "totals", "groups").frame().select(wanted.columns)
    assert_frame_equal(found.sort("key"), wanted.sort("key"))


def write_epochs(folder: Path, format_: str) -> pl.DataFrame:
    folder.mkdir()
    random = np.random.default_rng(20261121)
    epochs = [
        pl.DataFrame({"key": random.permutation(KEYS), "value": random.integers(0, 100, KEYS)})
        for _ in range(EPOCHS)
    ]
    for number, epoch in enumerate(epochs):
        if format_ == "parquet":
            epoch.write_parquet(folder / f"{number}.parquet")
        else:
            epoch.write_ndjson(folder / f"{number}.jsonl")
    return pl.concat(epochs)
