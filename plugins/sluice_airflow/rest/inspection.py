"""Routes of what a job did and remembers: its journal, and the keyed state of its stages."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from sluice.job.retained import LATEST
from sluice.protocol.names import SAVEPOINT_NAME, UID
from sluice.views.journal import JournalPage, journal_page
from sluice.views.snapshots import Snapshot, snapshots
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


class Snapshots(msgspec.Struct, frozen=True, kw_only=True):
    """Retained checkpoints and savepoints of the job's own root, the newest first."""

    snapshots: tuple[Snapshot, ...]


@router.get(
    "/snapshots",
    tags=["snapshots"],
    responses=shows(Snapshots),
    dependencies=[Depends(may_read)],
)
def list_snapshots(
    job: JobDep,
    checks: Annotated[  # noqa: FBT002 - a field of the query
        bool, Query(description="Ask the files, sources and sinks whether each can be restored")
    ] = False,
) -> Response:
    """What the job can be restored from; with `checks` also whether, and what is missing."""
    return answer(Snapshots(snapshots=tuple(snapshots(job, checks=checks))))


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
