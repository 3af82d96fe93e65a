"""Pages of keyed state: every row once, whatever the size of a page, in values that JSON has."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from harness.jobs import a_running_job, trigger_one
from harness.no_spark import stages_without_spark
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.spark.stage import run_stage
from sluice.surface.state import json_value, state_page

STAGE = "per_auction"


@pytest.fixture(autouse=True)
def _without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "cache"))
    with stages_without_spark():
        yield


def a_counted_job() -> Job:
    pipeline = Pipeline("bids", Checkpointing(max_records_per_epoch=100), parallelism=2)
    bids = pipeline.source("events", Nexmark(200, columns=("bid_auction",)))
    counted = bids.key_by("bid_auction").aggregate(STAGE, bids=agg.count())
    counted.sink("counts", FilesTable(upsert_key=("bid_auction",)))
    job = a_running_job(pipeline)
    plan = trigger_one(job)
    run_stage(job, None, plan.checkpoint_id, STAGE, attempt=1)  # type: ignore[arg-type]
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)
    return job


def test_pages_of_any_size_have_every_row_once() -> None:
    job = a_counted_job()
    whole = state_page(job, "latest", STAGE, table=None, offset=0, limit=1_000)
    rows: list[dict[str, object]] = []
    offset: int | None = 0

    while offset is not None:
        page = state_page(job, "1", STAGE, table=whole.table, offset=offset, limit=7)
        rows += page.rows
        offset = page.next

    assert len(rows) > 14
    assert rows == [*whole.rows]
    assert whole.next is None
    assert (whole.checkpoint, whole.stored_rows) == (1, len(rows))
    assert {one.name: one.is_key for one in whole.columns}["bid_auction"]
    assert msgspec.json.decode(msgspec.json.encode(whole))["rows"] == [*whole.rows]


def test_a_table_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match=f"the state of stage '{STAGE}' has no table 'x'"):
        state_page(a_counted_job(), "latest", STAGE, table="x", offset=0, limit=1)


def test_what_json_has_no_value_for_is_text() -> None:
    row = {"b": b"\xff", "d": Decimal("1.50"), "t": timedelta(milliseconds=1500), "l": [b"a"]}

    assert json_value(row) == {"b": "/w==", "d": "1.50", "t": 1.5, "l": ["YQ=="]}
