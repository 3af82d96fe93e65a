"""Routes of checkpoints, as Flink's REST API has them below ``/jobs/:jobid/checkpoints``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from sluice.core.ids import CheckpointId
from sluice.core.properties import CheckpointType
from sluice.protocol.names import UID
from sluice.statistics.checkpoints import CheckpointStatus
from sluice.views.checkpoint_pages import (
    CheckpointPage,
    CheckpointWithTasks,
    StageWithSubtasks,
    checkpoint_page,
    checkpoint_with_tasks,
    stage_with_subtasks,
)
from sluice.views.configuration import CheckpointConfig, checkpoint_config
from sluice_airflow.rest.access import may_read
from sluice_airflow.rest.answers import answer, shows
from sluice_airflow.rest.jobs import JobDep

router = APIRouter(
    prefix="/pipelines/{uid}/checkpoints",
    tags=["checkpoints"],
    dependencies=[Depends(may_read)],
)

LARGEST = 2**63 - 1
MOST_CHECKPOINTS = 10_000  # The longest history that is kept.

Id = Annotated[int, Path(ge=1, le=LARGEST, description="A checkpoint's id")]
Stage = Annotated[str, Path(pattern=f"^{UID}$", description="The uid of a stage")]


@router.get("", responses=shows(CheckpointPage))
def list_checkpoints(
    job: JobDep,
    limit: Annotated[int, Query(ge=1, le=MOST_CHECKPOINTS)] = 100,
    before: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
    status: Annotated[list[CheckpointStatus] | None, Query()] = None,
    type: Annotated[list[CheckpointType] | None, Query()] = None,  # noqa: A002 - as it is in the URL
) -> Response:
    """Counts, distributions, the latest of each kind, and a page of the history, newest first."""
    page = checkpoint_page(
        job,
        limit=limit,
        before=before,
        statuses=frozenset(status or CheckpointStatus),
        types=frozenset(one.value for one in type or ()),
    )
    return answer(page)


@router.get("/config", responses=shows(CheckpointConfig))
def show_config(job: JobDep) -> Response:
    """How checkpoints are taken: what is in force, beside what is declared, and the defaults."""
    return answer(checkpoint_config(job))


@router.get("/{checkpoint_id}", responses=shows(CheckpointWithTasks))
def show_checkpoint(job: JobDep, checkpoint_id: Id) -> Response:
    """One checkpoint, pending, completed or failed, with the figures of each stage."""
    return answer(checkpoint_with_tasks(job, CheckpointId(checkpoint_id)))


@router.get("/{checkpoint_id}/subtasks/{stage}", responses=shows(StageWithSubtasks))
def show_subtasks(job: JobDep, checkpoint_id: Id, stage: Stage) -> Response:
    """One stage of a checkpoint, with every subtask."""
    return answer(stage_with_subtasks(job, CheckpointId(checkpoint_id), stage))
