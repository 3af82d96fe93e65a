"""Routes of what differs between two snapshots of a job: its figures, and the keys of its state."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import APIRouter, Depends, Query, Response

from sluice.job.retained import LATEST
from sluice.protocol.names import SAVEPOINT_NAME, UID
from sluice.views.snapshot_differences import (
    SnapshotDifference,
    SnapshotName,
    chosen_table,
    open_pair,
    snapshot_difference,
)
from sluice.views.state_differences import (
    PLACE,
    Asked,
    ChangeKind,
    TableDifference,
    table_difference,
)
from sluice_airflow.rest.access import may_read, may_read_data
from sluice_airflow.rest.answers import answer, shows
from sluice_airflow.rest.checkpoints import Stage
from sluice_airflow.rest.jobs import JobDep

router = APIRouter(prefix="/pipelines/{uid}")

MOST_CHANGES = 1_000
MOST_ROWS = 1_000_000  # Compared by one request: a second or two.
MOST_KEYS = 16  # Columns of a key.

Before: TypeAlias = Annotated[
    str,
    Query(alias="from", pattern=f"^{SAVEPOINT_NAME}$", description="An id, or a savepoint's name"),
]
After: TypeAlias = Annotated[
    str,
    Query(
        alias="to",
        pattern=f"^{SAVEPOINT_NAME}$",
        description="`latest`, an id, or a savepoint's name",
    ),
]


@router.get(
    "/snapshots/difference",
    tags=["snapshots"],
    responses=shows(SnapshotDifference),
    dependencies=[Depends(may_read)],
)
def show_difference(job: JobDep, before: Before, after: After = LATEST) -> Response:
    """What differs between two snapshots but rows: positions, watermarks, parallelism, tables."""
    pair = open_pair(job, SnapshotName(named=before), SnapshotName(named=after))
    return answer(snapshot_difference(pair))


@router.get(
    "/state/{stage}/difference",
    tags=["state"],
    responses=shows(TableDifference),
    dependencies=[Depends(may_read_data)],
)
def list_changes(
    job: JobDep,
    stage: Stage,
    before: Before,
    after: After = LATEST,
    table: Annotated[str | None, Query(pattern=f"^{UID}$")] = None,
    kind: Annotated[list[ChangeKind] | None, Query()] = None,
    key: Annotated[
        list[str] | None,
        Query(max_length=MOST_KEYS, description="`column=value`; `column` alone is null"),
    ] = None,
    limit: Annotated[int, Query(ge=0, le=MOST_CHANGES, description="0 only counts")] = 100,
    after_place: Annotated[
        str | None,
        Query(alias="after", pattern=f"^{PLACE.pattern}$", description="The `next` of a page"),
    ] = None,
) -> Response:
    """The keys of a stage's state that were added, removed or changed, with both rows of each."""
    pair = open_pair(job, SnapshotName(named=before), SnapshotName(named=after))
    tables = pair.table(stage, chosen_table(pair, stage, table))
    asked = Asked(
        limit=limit,
        after=after_place,
        kinds=frozenset(kind or ChangeKind),
        key=tuple(key or ()),
        most_rows=MOST_ROWS,
    )
    return answer(table_difference(*tables, asked))
