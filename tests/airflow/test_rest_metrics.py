"""``/sluice/metrics``, as a scraper with a viewer's token reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.jobs import a_pipeline
from sluice.surface.monitoring import CONTENT_TYPE
from tests.airflow.rest import Api, auctions_in
from tests.subtasks import take_checkpoint


def scraped(viewer: Api) -> Any:
    return viewer.client.get("/sluice/metrics", headers=viewer.headers)


def test_a_viewers_token_reads_the_pipelines_whose_dag_it_may_read(
    viewer: Api, only_demo: Callable[[], None]
) -> None:
    both = scraped(viewer)
    only_demo()
    one = scraped(viewer)

    assert both.status_code == one.status_code == 200
    assert both.headers["content-type"] == CONTENT_TYPE
    assert 'sluice_job_isReadable{pipeline="auctions"}' in both.text
    assert 'sluice_job_isReadable{pipeline="demo"}' in one.text
    assert "auctions" not in one.text


def test_sources_have_their_lag_and_rates(viewer: Api, root: str) -> None:
    take_checkpoint(auctions_in(root, a_pipeline(events=25)))

    page = scraped(viewer).text

    labels = '{pipeline="auctions",source="events"}'
    assert f"sluice_source_pendingRecords{labels} 15.0" in page
    assert f"sluice_source_numRecordsIn{labels} 10.0" in page
    assert f"sluice_source_numRecordsInPerSecond{labels} " in page
    assert f"sluice_source_pendingBytes{labels}" not in page
