"""The page of metrics for a scraper, of the pipelines whose DAG the scraper's user may read."""

from __future__ import annotations

from itertools import chain
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse, Response

from sluice.statistics.samples import unreadable
from sluice.views.metrics import metrics
from sluice.views.prometheus import CONTENT_TYPE, text_of
from sluice_airflow.rest.access import Readable, readable
from sluice_airflow.rest.jobs import DeclaredDep, read_each

router = APIRouter(tags=["metrics"])


@router.get("/metrics", response_class=PlainTextResponse)
def scrape(declarations: DeclaredDep, allowed: Annotated[Readable, Depends(readable)]) -> Response:
    """The figures of every pipeline whose DAG you may read, in Prometheus' text format."""
    shown = [one for uid, one in declarations.pipelines.items() if uid in allowed.uids]
    found = read_each(shown, metrics, lambda pipeline, _: (unreadable(pipeline.uid),))
    return Response(text_of(chain.from_iterable(found)), media_type=CONTENT_TYPE)
