"""Routes that show a job: its checkpoints, journal, snapshots and state, metrics and notices.

Checkpoints are as Flink's REST API has them below ``/jobs/:jobid/checkpoints``.
"""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any, TypeAlias

import msgspec
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.responses import PlainTextResponse
from sqlalchemy import select

from sluice.core.configuration import CheckpointType
from sluice.core.ids import CheckpointId
from sluice.figures.metrics import unreadable
from sluice.figures.record import CheckpointStatus
from sluice.job.job import Job
from sluice.job.snapshots import LATEST
from sluice.protocol.keys import SAVEPOINT_NAME, UID
from sluice.surface.checkpoints import (
    CheckpointPage,
    CheckpointWithTasks,
    JobSkew,
    StageWithSubtasks,
    checkpoint_page,
    checkpoint_with_tasks,
    job_skew,
    stage_with_subtasks,
)
from sluice.surface.differences import (
    PLACE,
    ChangeKind,
    DifferenceQuery,
    RestorePreview,
    SnapshotDifference,
    SnapshotName,
    TableDifference,
    chosen_table,
    open_pair,
    restore_preview,
    snapshot_difference,
    table_difference,
)
from sluice.surface.exceptions import ExceptionHistory, exception_history
from sluice.surface.journal import JournalPage, journal_page
from sluice.surface.key_lookup import KeyLookup, look_up_key
from sluice.surface.monitoring import CONTENT_TYPE, metrics, text_of
from sluice.surface.options import CheckpointConfig, checkpoint_config
from sluice.surface.snapshots import Snapshot, snapshots
from sluice.surface.state import StatePage, state_page
from sluice.surface.what_changed import WhatChanged, what_changed
from sluice_airflow.rest.answers import (
    LARGEST,
    Id,
    SeesDataDep,
    Uid,
    VisiblePipelines,
    answer,
    describe_responses,
    may_read,
    may_read_data,
    visible_pipelines,
)
from sluice_airflow.rest.jobs import DeclaredDep, JobDep, fields_of, read_each, run_path
from sluice_airflow.rest.readings import ReaderDep
from sluice_airflow.run_notes import why_run_is_blocked
from sluice_airflow.runs import run_of

checkpoints_router = APIRouter(
    prefix="/pipelines/{uid}/checkpoints",
    tags=["checkpoints"],
    dependencies=[Depends(may_read)],
)
inspection_router = APIRouter(prefix="/pipelines/{uid}")
differences_router = APIRouter(prefix="/pipelines/{uid}")
metrics_router = APIRouter(tags=["metrics"])
notices_router = APIRouter(tags=["pipelines"])

MOST_CHECKPOINTS = 10_000  # The longest history that is kept.
MOST_ENTRIES = 200  # Each is a request to the store.
MOST_PAGE_ROWS = 1_000
FURTHEST = 10_000_000  # Rows before a page are read and skipped.
MOST_CHANGES = 1_000
MOST_COMPARED_ROWS = 1_000_000  # Compared by one request: a second or two.
MOST_KEYS = 16  # Columns of a key.

Stage = Annotated[str, Path(pattern=f"^{UID}$", description="The uid of a stage")]
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


class Snapshots(msgspec.Struct, frozen=True, kw_only=True):
    """Retained checkpoints and savepoints of the job's own root, the newest first."""

    snapshots: tuple[Snapshot, ...]


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """``notice`` says what a run under way waits for in vain, and where it is told what to do; it
    is empty as long as all goes on.  ``run`` is the path of that run in Airflow.
    """

    notice: str
    run: str | None


class ShownCheckpoint(CheckpointWithTasks, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint, and the path of the run that took it in Airflow; None where none did.

    The log of a stage is that of the run's task ``{stage}.snapshot``: below it, ``/tasks/…``.
    """

    run: str | None


@checkpoints_router.get("", responses=describe_responses(CheckpointPage))
def list_checkpoints(
    job: JobDep,
    read: ReaderDep,
    limit: Annotated[int, Query(ge=1, le=MOST_CHECKPOINTS)] = 100,
    before: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
    status: Annotated[list[CheckpointStatus] | None, Query()] = None,
    type: Annotated[list[CheckpointType] | None, Query()] = None,  # noqa: A002 - as it is in the URL
) -> Response:
    """Counts, distributions, the latest of each kind, and a page of the history, newest first."""
    page = read(
        checkpoint_page,
        job,
        limit=limit,
        before=before,
        statuses=frozenset(status or CheckpointStatus),
        types=frozenset(kind.value for kind in type or ()),
    )
    return answer(page)


@checkpoints_router.get("/config", responses=describe_responses(CheckpointConfig))
def show_config(job: JobDep, read: ReaderDep) -> Response:
    """The options of checkpoints: what is in force, beside what is declared, and the defaults."""
    return answer(read(checkpoint_config, job))


@checkpoints_router.get("/{checkpoint_id}", responses=describe_responses(ShownCheckpoint))
def show_checkpoint(job: JobDep, read: ReaderDep, checkpoint_id: Id) -> Response:
    """One checkpoint, pending, completed or failed, with the figures of each stage."""
    found = read(checkpoint_with_tasks, job, CheckpointId(checkpoint_id))
    run = run_of(found.cause)
    return answer(ShownCheckpoint(**fields_of(found), run=None if run is None else run_path(*run)))


@checkpoints_router.get(
    "/{checkpoint_id}/subtasks/{stage}", responses=describe_responses(StageWithSubtasks)
)
def show_subtasks(job: JobDep, read: ReaderDep, checkpoint_id: Id, stage: Stage) -> Response:
    """One stage of a checkpoint, with every subtask."""
    return answer(read(stage_with_subtasks, job, CheckpointId(checkpoint_id), stage))


@inspection_router.get(
    "/journal",
    tags=["journal"],
    responses=describe_responses(JournalPage),
    dependencies=[Depends(may_read)],
)
def list_journal(
    job: JobDep,
    read: ReaderDep,
    limit: Annotated[int, Query(ge=1, le=MOST_ENTRIES)] = 50,
    before: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
) -> Response:
    """The acts of the coordinator, newest first, as far as the journal goes back."""
    return answer(read(journal_page, job, limit=limit, before=before))


@inspection_router.get(
    "/exceptions",
    tags=["checkpoints"],
    responses=describe_responses(ExceptionHistory),
    dependencies=[Depends(may_read)],
)
def list_exceptions(job: JobDep, read: ReaderDep) -> Response:
    """The failures of the last 50 failed checkpoints, grouped by root cause, the newest first."""
    return answer(read(exception_history, job))


@inspection_router.get(
    "/changes",
    tags=["checkpoints"],
    responses=describe_responses(WhatChanged),
    dependencies=[Depends(may_read)],
)
def list_what_changed(job: JobDep, read: ReaderDep) -> Response:
    """Failures, restores, deploys, rescales, savepoints and acts of people, the newest first."""
    return answer(read(what_changed, job))


@inspection_router.get(
    "/skew",
    tags=["checkpoints"],
    responses=describe_responses(JobSkew),
    dependencies=[Depends(may_read)],
)
def show_skew(job: JobDep, read: ReaderDep, sees_data: SeesDataDep) -> Response:
    """The unevenness of each stage's subtasks, over the last 50 completed checkpoints; keys of hot
    key groups for those who may see XComs.
    """
    return answer(read(job_skew, job, names_keys=sees_data))


@inspection_router.get(
    "/snapshots",
    tags=["snapshots"],
    responses=describe_responses(Snapshots),
    dependencies=[Depends(may_read)],
)
def list_snapshots(
    job: JobDep,
    read: ReaderDep,
    checks: Annotated[  # noqa: FBT002 - a field of the query
        bool, Query(description="Ask the files, sources and sinks whether each can be restored")
    ] = False,
) -> Response:
    """The snapshots that the job can be restored from; with `checks` also what is missing."""
    return answer(Snapshots(snapshots=tuple(read(snapshots, job, checks=checks))))


@inspection_router.get(
    "/state/{stage}",
    tags=["state"],
    responses=describe_responses(StatePage),
    dependencies=[Depends(may_read_data)],
)
def list_state(
    job: JobDep,
    read: ReaderDep,
    stage: Stage,
    checkpoint: Annotated[
        str,
        Query(pattern=f"^{SAVEPOINT_NAME}$", description="`latest`, an id, or a savepoint's name"),
    ] = LATEST,
    table: Annotated[str | None, Query(pattern=f"^{UID}$")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_PAGE_ROWS)] = 100,
    offset: Annotated[int, Query(ge=0, le=FURTHEST)] = 0,
) -> Response:
    """The keyed state of a stage in a checkpoint, a page of its rows."""
    return answer(read(state_page, job, checkpoint, stage, table=table, offset=offset, limit=limit))


@inspection_router.get(
    "/state",
    tags=["state"],
    responses=describe_responses(KeyLookup),
    dependencies=[Depends(may_read_data)],
)
def find_key(
    job: JobDep,
    read: ReaderDep,
    key: Annotated[
        list[str],
        Query(
            min_length=1,
            max_length=MOST_KEYS,
            description="Each column as `column=value`; `column` alone is null",
        ),
    ],
    checkpoint: Annotated[
        str | None,
        Query(pattern=f"^{SAVEPOINT_NAME}$", description="`latest`, an id, or a savepoint's name"),
    ] = None,
    stage: Annotated[str | None, Query(pattern=f"^{UID}$")] = None,
) -> Response:
    """One key in the state of every stage, over the newest retained checkpoints, or in one."""
    return answer(read(look_up_key, job, tuple(key), checkpoint=checkpoint, stage=stage))


@differences_router.get(
    "/snapshots/difference",
    tags=["snapshots"],
    responses=describe_responses(SnapshotDifference),
    dependencies=[Depends(may_read)],
)
def show_difference(
    job: JobDep, read: ReaderDep, before: Before, after: After = LATEST
) -> Response:
    """The differences of two snapshots beside rows: positions, watermarks, parallelism, tables."""
    return answer(read(_difference, job, before, after))


def _difference(job: Job, before: str, after: str) -> SnapshotDifference:
    return snapshot_difference(
        open_pair(job, SnapshotName(named=before), SnapshotName(named=after))
    )


@differences_router.get(
    "/restore",
    tags=["snapshots"],
    responses=describe_responses(RestorePreview),
    dependencies=[Depends(may_read)],
)
def show_restore(job: JobDep, read: ReaderDep, before: Before) -> Response:
    """The records that a restore would read again, and what it would abort; it changes nothing."""
    return answer(read(restore_preview, job, before))


@differences_router.get(
    "/state/{stage}/difference",
    tags=["state"],
    responses=describe_responses(TableDifference),
    dependencies=[Depends(may_read_data)],
)
def list_changes(
    job: JobDep,
    read: ReaderDep,
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
    query = DifferenceQuery(
        limit=limit,
        after=after_place,
        kinds=frozenset(kind or ChangeKind),
        key=tuple(key or ()),
        most_rows=MOST_COMPARED_ROWS,
    )
    return answer(read(_changes, job, (before, after), stage, table, query))


def _changes(
    job: Job, snapshots: tuple[str, str], stage: str, table: str | None, query: DifferenceQuery
) -> TableDifference:
    pair = open_pair(job, *(SnapshotName(named=name) for name in snapshots))
    return table_difference(*pair.table(stage, chosen_table(pair, stage, table)), query)


@metrics_router.get("/metrics", response_class=PlainTextResponse)
def scrape(
    declarations: DeclaredDep, allowed: Annotated[VisiblePipelines, Depends(visible_pipelines)]
) -> Response:
    """The figures of every pipeline whose DAG you may read, in Prometheus' text format."""
    shown = [pipeline for uid, pipeline in declarations.pipelines.items() if uid in allowed.uids]
    samples = read_each(shown, metrics, lambda pipeline, _: (unreadable(pipeline.uid),))
    return Response(text_of(chain.from_iterable(samples)), media_type=CONTENT_TYPE)


@notices_router.get(
    "/pipelines/{uid}/notice",
    responses=describe_responses(Notice),
    dependencies=[Depends(may_read)],
)
def show_notice(uid: Uid) -> Response:
    """The services that do not answer, such as Spark or the store, and a run's paused DAG."""
    with create_session() as session:  # Airflow alone is asked, as the store may be what hangs.
        for run in session.scalars(_under_way(uid)):
            if reason := why_run_is_blocked(run, session):
                return answer(Notice(notice=reason, run=run_path(run.dag_id, run.run_id)))
    return answer(Notice(notice="", run=None))


def _under_way(uid: str) -> Any:  # noqa: ANN401 - SQLAlchemy's select
    """The runs of the pipeline's DAGs that have begun, the newest first."""
    dags = [uid, *(f"{uid}__{kind}" for kind in ("savepoint", "restore", "cancel"))]
    return (
        select(DagRun)
        .where(DagRun.dag_id.in_(dags), DagRun.state == DagRunState.RUNNING)
        .order_by(DagRun.id.desc())
    )
