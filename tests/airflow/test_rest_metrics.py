"""``/sluice/metrics``, as a scraper with a viewer's token reads it."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

from harness.jobs import a_pipeline
from sluice.coordinator.submission import configure, submit
from sluice.job.job import open_job
from sluice.store.open import StoreLocation
from sluice.surface.monitoring import CONTENT_TYPE
from tests.airflow.rest import Api
from tests.subtasks import take_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's whole API is built in this process.


def test_a_viewers_token_reads_the_pipelines_whose_dag_it_may_read(
    everybody: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scraped() -> Any:
        return everybody.client.get("/sluice/metrics", headers=everybody.by("vera").headers)

    def only_demo(_: Any, *, details: Any = None, **__: Any) -> bool:
        return details is not None and details.id == "demo"

    both = scraped()
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", only_demo)
    one = scraped()

    assert both.status_code == one.status_code == 200
    assert both.headers["content-type"] == CONTENT_TYPE
    assert 'sluice_job_isReadable{pipeline="auctions"}' in both.text
    assert 'sluice_job_isReadable{pipeline="demo"}' in one.text
    assert "auctions" not in one.text


def test_sources_have_their_lag_and_rates(everybody: Api, root: str) -> None:
    job = open_job(a_pipeline(events=25), StoreLocation(root=root))
    submit(job, configure(job.pipeline, {}))
    take_checkpoint(job)

    page = everybody.client.get("/sluice/metrics", headers=everybody.by("vera").headers).text

    labels = '{pipeline="auctions",source="events"}'
    assert f"sluice_source_pendingRecords{labels} 15.0" in page
    assert f"sluice_source_numRecordsIn{labels} 10.0" in page
    assert f"sluice_source_numRecordsInPerSecond{labels} " in page
    assert f"sluice_source_pendingBytes{labels}" not in page
