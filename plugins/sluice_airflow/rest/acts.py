"""Routes that act: each starts the DAG run that a person would start by its form."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from airflow.api_fastapi.app import API_ROOT_PATH
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, Path, Response

from sluice.coordinator.disposal import dispose
from sluice.coordinator.user_abort import abort_checkpoint
from sluice.core.ids import CheckpointId
from sluice.errors import ConfigurationError
from sluice.views.savepoint_requests import savepoint_outcome
from sluice_airflow.rest import access
from sluice_airflow.rest.answers import answer, shows
from sluice_airflow.rest.bodies import (
    CheckpointBody,
    DisposalBody,
    EmptyBody,
    RestoreBody,
    SavepointBody,
    StopBody,
    restore_conf,
    savepoint_conf,
)
from sluice_airflow.rest.checkpoints import Id
from sluice_airflow.rest.jobs import JobDep
from sluice_airflow.rest.mount import PREFIX, VERSION
from sluice_airflow.rest.problems import Refused
from sluice_airflow.rest.runs import StartedRun, find_run, start_run

router = APIRouter(prefix="/pipelines/{uid}", tags=["acts"])

_STARTED: dict[str, Any] = {
    "status_code": 202,
    "responses": shows(StartedRun, status=202, problems=(409, 415)),
}


RUN_ID = r"^[A-Za-z0-9_.~:+-]+$"  # What Airflow allows by default.


class AbortedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that was aborted; ``status`` is the job's, which goes on."""

    id: int
    status: str


class DisposedSavepoint(msgspec.Struct, frozen=True, kw_only=True):
    """``disposed`` is false where nothing of the savepoint was there, or not any more."""

    savepoint: str
    disposed: bool


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Flink's: IN_PROGRESS or COMPLETED, which a failed one is, too."""

    id: str


class FailureCause(msgspec.Struct, frozen=True, kw_only=True):
    message: str


class SavepointOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the savepoint is, or why there is none."""

    location: str | None = None
    failure_cause: FailureCause | None = msgspec.field(name="failure-cause", default=None)


class SavepointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Flink's AsynchronousOperationResult of a savepoint."""

    status: QueueStatus
    operation: SavepointOperation | None


@router.post("/checkpoints", dependencies=[Depends(access.may_checkpoint)], **_STARTED)
def take_checkpoint(job: JobDep, user: GetUserDep, body: CheckpointBody) -> Response:
    """Take a checkpoint now: a run of the checkpoint DAG, whatever its schedule."""
    conf = {} if body == CheckpointBody() else {"checkpoint_type": body.checkpoint_type}
    return _started(start_run(job.pipeline.uid, conf, user))


@router.post("/savepoints", dependencies=[Depends(access.may_save)], **_STARTED)
def take_savepoint(job: JobDep, user: GetUserDep, body: SavepointBody) -> Response:
    """Take a savepoint, and stop the job if asked; `Location` has the request's status."""
    return _saving(job.pipeline.uid, savepoint_conf(body), user)


@router.get(
    "/savepoints/{request_id}",
    responses=shows(SavepointRequest),
    dependencies=[Depends(access.may_read_savepoints)],
)
def show_savepoint_request(
    job: JobDep, request_id: Annotated[str, Path(pattern=RUN_ID, max_length=250)]
) -> Response:
    """What became of a savepoint that was asked for: Flink's status, and where the savepoint is."""
    dag_id = f"{job.pipeline.uid}__savepoint"
    run = find_run(dag_id, request_id)
    if run.state not in ("success", "failed"):
        return answer(SavepointRequest(status=QueueStatus(id="IN_PROGRESS"), operation=None))
    outcome = savepoint_outcome(job, f"airflow:{dag_id}/{request_id}")
    location = outcome.location if outcome is not None else None
    cause = None
    if location is None or run.state == "failed":
        failure = outcome.failure if outcome is not None else None
        cause = FailureCause(message=failure or run.note or f"the run ended as {run.state}")
    operation = SavepointOperation(location=location, failure_cause=cause)
    return answer(SavepointRequest(status=QueueStatus(id="COMPLETED"), operation=operation))


@router.post(
    "/savepoint-disposal",
    responses=shows(DisposedSavepoint, problems=(409, 415)),
    dependencies=[Depends(access.may_save)],
)
def dispose_savepoint(job: JobDep, body: DisposalBody) -> Response:
    """Delete a savepoint of the job's own root, now; refused while the job needs it."""
    name = body.savepoint_name
    try:
        return answer(DisposedSavepoint(savepoint=name, disposed=dispose(job, name)))
    except ConfigurationError as error:
        raise Refused(HTTPStatus.CONFLICT, str(error)) from error


@router.post("/stop", dependencies=[Depends(access.may_save)], **_STARTED)
def stop_with_savepoint(job: JobDep, user: GetUserDep, body: StopBody) -> Response:
    """Stop the job with a savepoint; `drain` fires every window and ends it for good."""
    return _saving(job.pipeline.uid, savepoint_conf(body), user)


@router.post(
    "/checkpoints/{checkpoint_id}/abort",
    responses=shows(AbortedCheckpoint, problems=(409, 415)),
    dependencies=[Depends(access.may_checkpoint)],
)
def abort_pending(
    job: JobDep,
    user: GetUserDep,
    checkpoint_id: Id,
    body: EmptyBody,  # noqa: ARG001
) -> Response:
    """Abort one pending checkpoint, now; the job goes on, and its records are read again."""
    state = abort_checkpoint(job, CheckpointId(checkpoint_id), by=f"airflow:{user.get_name()}")
    return answer(AbortedCheckpoint(id=checkpoint_id, status=state.status.value))


@router.post("/cancel", dependencies=[Depends(access.may_cancel)], **_STARTED)
def cancel_job(job: JobDep, user: GetUserDep, body: EmptyBody) -> Response:  # noqa: ARG001
    """Cancel the job; pending checkpoints are aborted, retained ones stay as the retention says."""
    return _started(start_run(f"{job.pipeline.uid}__cancel", {}, user))


@router.post("/restore", dependencies=[Depends(access.may_restore)], **_STARTED)
def restore_job(job: JobDep, user: GetUserDep, body: RestoreBody) -> Response:
    """Restore the job from a checkpoint or savepoint of its own root; `dry-run` changes nothing."""
    return _started(
        start_run(f"{job.pipeline.uid}__restore", restore_conf(body, job.pipeline), user)
    )


def _saving(uid: str, conf: dict[str, Any], user: GetUserDep) -> Response:
    started = start_run(f"{uid}__savepoint", conf, user)
    path = f"{PREFIX}/api/{VERSION}/pipelines/{uid}/savepoints/{quote(started.request_id, safe='')}"
    return _started(started, location=API_ROOT_PATH.rstrip("/") + path)


def _started(started: StartedRun, *, location: str | None = None) -> Response:
    return answer(started, status=202, headers={"Location": location or started.run})
