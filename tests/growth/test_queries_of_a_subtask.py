"""A subtask of few rows has Polars plan few queries, and make few schemas and series: a query takes
0.1 to 0.2 ms, however few the rows are, so an epoch of many subtasks was little else.
"""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import polars as pl
import pytest

from harness.jobs import ManualClock
from harness.no_spark import stages_without_spark
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import open_job
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.stage import run_stage
from sluice.store.open import StoreLocation

ROWS, EPOCHS, PARALLELISM = 500, 3, 5
MOST_QUERIES = 16  # Twelve or fewer when this was written, and sixty before.
MOST_SERIES = 30  # 24 or fewer when this was written, and 40 before.
MOST_SCHEMAS = 32  # 24 or fewer when this was written, and 67 before.


def test_a_subtask_of_a_keyed_aggregate_asks_little_of_polars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "cache"))
    epoch = pl.DataFrame({"key": range(ROWS), "n": range(ROWS)})
    pl.concat([epoch] * EPOCHS).write_parquet(tmp_path / "rows.parquet", row_group_size=ROWS)
    pipeline = Pipeline("queries", Checkpointing(max_records_per_epoch=ROWS))
    events = pipeline.source("events", Files(str(tmp_path / "rows.parquet"), format="parquet"))
    first = events.key_by("key").aggregate("first", n=agg.sum("n"))
    second = first.key_by("key").aggregate("second", n=agg.sum("n"))
    second.sink("out", FilesTable(upsert_key=("key",)))
    location = StoreLocation(root=f"memory://{secrets.token_hex(6)}")
    job = open_job(pipeline, location, clock=ManualClock())
    submit(job, configure(pipeline, {}, parallelism=PARALLELISM))
    asked: list[Counter[str]] = []

    with stages_without_spark(lambda what: _counting(what, asked)):
        for _ in range(EPOCHS - 1):
            asked.clear()
            outcome = trigger(job, is_periodic=False)
            assert isinstance(outcome, Triggered), outcome
            for stage in pipeline.stages:
                run_stage(job, None, outcome.plan.checkpoint_id, stage, attempt=1)  # type: ignore[arg-type]
            finalize(job, outcome.plan.checkpoint_id)
            commit(job, outcome.plan.checkpoint_id)

    assert len(asked) == 2 * PARALLELISM
    assert 0 < max(one["queries"] for one in asked) <= MOST_QUERIES
    assert 0 < max(one["series"] for one in asked) <= MOST_SERIES
    assert 0 < max(one["schemas"] for one in asked) <= MOST_SCHEMAS


@contextmanager
def _counting(what: str, asked: list[Counter[str]]) -> Iterator[None]:
    """Keep in *asked* the queries that a subtask has computed, and what it has made in Python."""
    if what != "subtask":
        yield
        return
    found = Counter[str]()

    def count(frame: FrameType, event: str, called: object) -> None:
        if event == "c_call" and getattr(called, "__name__", "") == "collect":
            found["queries"] += "LazyFrame" in type(getattr(called, "__self__", None)).__name__
        found["series"] += event == "call" and frame.f_code is pl.Series.__init__.__code__
        found["schemas"] += event == "call" and frame.f_code is pl.Schema.__init__.__code__

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
    asked.append(found)
