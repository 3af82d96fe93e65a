"""Routes of what a job did and remembers: its journal, and the keyed state of its stages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from sluice.job.retained import LATEST
from sluice.protocol.names import SAVEPOINT_NAME, UID
from sluice.views.journal import JournalPage, journal_page
from sluice.views.state_pages import StatePage, state_page
from sluice_airflow.rest.access import may_read, may_read_data
from sluice_airflow.rest.answers import answer, shows
from sluice_airflow.rest.checkpoints import LARGEST, Stage
from sluice_airflow.rest.jobs import JobDep

router = APIRouter(prefix="/pipelines/{uid}")

MOST_ENTRIES = 200  # Each is a request to the store.
MOST_ROWS = 1_000
FURTHEST = 10_000_000  # Rows before a page are read and passed over.


@router.get(
    "/journal", tags=["journal"], responses=shows(JournalPage), dependencies=[Depends(may_read)]
)
def list_journal(
    job: JobDep,
    limit: Annotated[int, Query(ge=1, le=MOST_ENTRIES)] = 50,
    before: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
) -> Response:
    """What the coordinator did, newest first, as far as the journal goes back."""
    return answer(journal_page(job, limit=limit, before=before))


@router.get(
    "/state/{stage}",
    tags=["state"],
    responses=shows(StatePage),
    dependencies=[Depends(may_read_data)],
)
def list_state(
    job: JobDep,
    stage: Stage,
    checkpoint: Annotated[
        str,
        Query(pattern=f"^{SAVEPOINT_NAME}$", description="`latest`, an id, or a savepoint's name"),
    ] = LATEST,
    table: Annotated[str | None, Query(pattern=f"^{UID}$")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 100,
    offset: Annotated[int, Query(ge=0, le=FURTHEST)] = 0,
) -> Response:
    """The keyed state of a stage in a checkpoint, a page of its rows."""
    found = state_page(job, checkpoint, stage, table=table, offset=offset, limit=limit)
    return answer(found)
