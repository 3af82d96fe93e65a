"""A savepoint that is made of another one, and the job that goes on from it, on every store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from harness.jobs import ManualClock
from harness.no_spark import stages_without_spark
from sluice.coordinator.restore import foreign_target, restore, savepoint_target
from sluice.coordinator.submission import configure, submit
from sluice.errors import ConfigurationError
from sluice.job.job import open_job
from sluice.state_processor import SavepointWriter, open_state
from sluice.store.open import StoreLocation
from tests.unit.state_processor.jobs import STAGE, a_pipeline, a_savepoint, counted, take


@pytest.fixture(autouse=True)
def _without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "cache"))
    with stages_without_spark():
        yield


@pytest.mark.parametrize("goes_elsewhere", [False, True])
def test_a_job_goes_on_from_an_edited_savepoint_of_its_own_root_or_another(
    location: StoreLocation, goes_elsewhere: bool
) -> None:
    job = open_job(a_pipeline(), location, clock=ManualClock())
    submit(job, configure(job.pipeline, {}))
    a_savepoint(job, "before")
    root = f"{location.root}-copy" if goes_elsewhere else None
    is_seven = pl.lit(7, pl.Int64).alias("bids")
    writer = SavepointWriter.from_existing_savepoint(job, "before")

    written = writer.transform(STAGE, lambda rows: rows.with_columns(is_seven)).write(
        "sevens", root=root
    )
    with pytest.raises(ConfigurationError, match="savepoint 'sevens' exists"):
        writer.write("sevens", root=root)
    target = (
        savepoint_target(job, "sevens")
        if root is None
        else foreign_target(job, root, savepoint="sevens")
    )
    restore(job, target)
    take(job)

    assert written.uri == f"{root or location.root}/bids/savepoints/sevens/"
    after = counted(open_state(job, "latest", STAGE).frame())
    keys = len(counted(open_state(job, "before", STAGE).frame()))
    assert sum(after.values()) == 7 * keys + 100
