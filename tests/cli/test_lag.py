"""``sluice lag``: what is pending, as of when, and how fast rows flow."""

from __future__ import annotations

import msgspec
import pytest

from harness.jobs import ManualClock, a_pipeline, a_running_job, trigger_one
from sluice.cli.show import pending
from sluice.figures.rates import SourceLag
from sluice.job.job import Job
from sluice.surface.checkpoints import job_lag
from tests.cli.conftest import Sluice
from tests.subtasks import take_checkpoint


@pytest.fixture
def job() -> Job:
    """Two completed checkpoints of ten events each, five seconds apart, and a pending one."""
    clock = ManualClock()
    job = a_running_job(a_pipeline(events=65), clock=clock)
    take_checkpoint(job)
    clock.advance(5_000)
    take_checkpoint(job)
    trigger_one(job)
    return job


def test_the_json_is_the_model(job: Job, sluice: Sluice) -> None:
    told = sluice("lag", "auctions", "--json").json

    assert told["sources"] == msgspec.json.decode(msgspec.json.encode(job_lag(job).sources))
    assert told["sources"][0]["pending_records"] == 45
    assert told["rates"]["window"] >= 5_000


def test_people_see_what_is_pending_and_the_rates(sluice: Sluice) -> None:
    printed = sluice("lag", "auctions").out

    assert "checkpoint 2 is the last one that completed" in printed
    assert "45 records" in printed
    assert "over 1 completed checkpoints" in printed


def test_pending_is_said_in_the_words_of_what_the_source_can_count() -> None:
    def said(**given: object) -> str:
        return pending(SourceLag(**{"id": "s", "as_of": 1} | given))  # type: ignore[arg-type]

    assert said() == "unknown"
    assert said(pending_records=1_200) == "1,200 records"
    files = {"pending_bytes": 4_000_000, "pending_splits": 3}
    assert said(**files) == "4.0 MB in 3 files"
    assert said(**files, pending_is_least=True) == "at least 4.0 MB in 3 files"
