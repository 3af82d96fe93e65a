"""Routes that act: most start the DAG run that a person would start by its form.

Bodies have Flink's names, and are turned into the fields of the DAGs' forms.

An abort of a checkpoint, a disposal of a savepoint, and a change of checkpointing (pause, resume,
times) start no DAG run, as for the command line: they are in force at once, for every coordinator,
also where no worker is free.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from airflow.api_fastapi.app import API_ROOT_PATH
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from sluice.coordinator import requests
from sluice.coordinator.failure import abort_checkpoint
from sluice.coordinator.requests import NewTimes
from sluice.coordinator.savepoints import dispose
from sluice.core.configuration import ClaimMode
from sluice.core.ids import CheckpointId
from sluice.core.state import CoordinatorState
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.protocol.keys import SAVEPOINT_NAME
from sluice.surface.journal import savepoint_outcome
from sluice.surface.options import CheckpointConfig, checkpoint_config
from sluice_airflow.acts import request_of
from sluice_airflow.rest import answers
from sluice_airflow.rest.answers import LARGEST, Id, Refused, answer, describe_responses
from sluice_airflow.rest.jobs import JobDep, StartedRun, find_run, start_run
from sluice_airflow.settings import PREFIX, VERSION

acts_router = APIRouter(prefix="/pipelines/{uid}", tags=["acts"])
timing_router = APIRouter(prefix="/pipelines/{uid}", tags=["acts"])

RUN_ID = r"^[A-Za-z0-9_.~:+-]+$"  # What Airflow allows by default.
MOST_MS = 1_000 * 365 * 86_400_000  # A thousand years; what is more does not fit a timedelta.

Name = Annotated[str, Field(pattern=f"^{SAVEPOINT_NAME}$")]
CheckpointIdField = Annotated[int, Field(ge=1, le=LARGEST)]
Period = Annotated[int, Field(ge=0, le=MOST_MS, description="Milliseconds")]


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


def _hyphened(name: str) -> str:
    return name.replace("_", "-")


class Body(BaseModel):
    """The body of a request; a field that it does not know is refused, as it may be misspelt."""

    model_config = ConfigDict(extra="forbid", alias_generator=_hyphened, frozen=True, strict=True)


class EmptyBody(Body):
    """An object without fields."""


class CheckpointBody(Body):
    """Flink's: what is written of the state that did not change."""

    checkpoint_type: Annotated[
        Literal["CONFIGURED", "FULL", "INCREMENTAL"], Field(alias="checkpointType")
    ] = "CONFIGURED"


class StopBody(Body):
    savepoint_name: Name | None = None
    format_type: Literal["native", "canonical"] = "native"
    drain: bool = False
    forced: bool = False


class SavepointBody(StopBody):
    stop: bool = False


class DisposalBody(Body):
    savepoint_name: Name


class RestoreBody(Body):
    """As the form of the restore DAG, but for other roots, which that alone takes."""

    target: Literal["latest", "checkpoint", "savepoint"] = "latest"
    checkpoint_id: CheckpointIdField | None = None
    savepoint: Name | None = None
    parallelism: Annotated[str, Field(max_length=1_000)] | None = None
    allow_non_restored_state: bool = False
    begin: Annotated[str, Field(max_length=1_000)] | None = None
    keep: Annotated[str, Field(max_length=1_000)] | None = None
    roll_back_tables: bool = False
    accept_tables: bool = False
    take_over: Annotated[str, Field(max_length=1_000)] | None = None
    compare_checksums: bool = True
    claim_mode: Literal["NO_CLAIM", "CLAIM"] = ClaimMode.NO_CLAIM.value
    then: Literal["resume", "stay suspended"] = "resume"
    ignore_in_flight_of: CheckpointIdField | None = None
    dry_run: bool = False


class TimesBody(Body):
    """As the options of `sluice checkpoints config`; what is left out stays as it is."""

    interval: Period | None = None
    min_pause: Period | None = None
    timeout: Period | None = None
    tolerable_failed_checkpoints: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    reset: bool = False


_STARTED: dict[str, Any] = {
    "status_code": 202,
    "responses": describe_responses(StartedRun, status=202, problems=(409, 415)),
}
_CHANGES: dict[str, Any] = {
    "responses": describe_responses(CheckpointConfig, problems=(409, 415)),
    "dependencies": [Depends(answers.may_checkpoint)],
}


@acts_router.post("/checkpoints", dependencies=[Depends(answers.may_checkpoint)], **_STARTED)
def take_checkpoint(job: JobDep, user: GetUserDep, body: CheckpointBody) -> Response:
    """Take a checkpoint now: a run of the checkpoint DAG, whatever its schedule."""
    conf = {} if body == CheckpointBody() else {"checkpoint_type": body.checkpoint_type}
    return _started(start_run(job.pipeline.uid, conf, user))


@acts_router.post("/savepoints", dependencies=[Depends(answers.may_save)], **_STARTED)
def take_savepoint(job: JobDep, user: GetUserDep, body: SavepointBody) -> Response:
    """Take a savepoint, and stop the job if asked; `Location` has the request's status."""
    return _saving(job.pipeline.uid, savepoint_conf(body), user)


@acts_router.get(
    "/savepoints/{request_id}",
    responses=describe_responses(SavepointRequest),
    dependencies=[Depends(answers.may_read_savepoints)],
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


@acts_router.post(
    "/savepoint-disposal",
    responses=describe_responses(DisposedSavepoint, problems=(409, 415)),
    dependencies=[Depends(answers.may_save)],
)
def dispose_savepoint(job: JobDep, body: DisposalBody) -> Response:
    """Delete a savepoint of the job's own root, now; refused while the job needs it."""
    name = body.savepoint_name
    try:
        return answer(DisposedSavepoint(savepoint=name, disposed=dispose(job, name)))
    except ConfigurationError as error:
        raise Refused(HTTPStatus.CONFLICT, str(error)) from error


@acts_router.post("/stop", dependencies=[Depends(answers.may_save)], **_STARTED)
def stop_with_savepoint(job: JobDep, user: GetUserDep, body: StopBody) -> Response:
    """Stop the job with a savepoint; `drain` fires every window and ends it for good."""
    return _saving(job.pipeline.uid, savepoint_conf(body), user)


@acts_router.post(
    "/checkpoints/{checkpoint_id}/abort",
    responses=describe_responses(AbortedCheckpoint, problems=(409, 415)),
    dependencies=[Depends(answers.may_checkpoint)],
)
def abort_pending(
    job: JobDep,
    user: GetUserDep,
    checkpoint_id: Id,
    body: EmptyBody,  # noqa: ARG001
) -> Response:
    """Abort one pending checkpoint, now; the job goes on, and its records are read again."""
    state = abort_checkpoint(job, CheckpointId(checkpoint_id), by=_person(user))
    return answer(AbortedCheckpoint(id=checkpoint_id, status=state.status.value))


@acts_router.post("/cancel", dependencies=[Depends(answers.may_cancel)], **_STARTED)
def cancel_job(job: JobDep, user: GetUserDep, body: EmptyBody) -> Response:  # noqa: ARG001
    """Cancel the job; pending checkpoints are aborted, retained ones stay as the retention says."""
    return _started(start_run(f"{job.pipeline.uid}__cancel", {}, user))


@acts_router.post("/restore", dependencies=[Depends(answers.may_restore)], **_STARTED)
def restore_job(job: JobDep, user: GetUserDep, body: RestoreBody) -> Response:
    """Restore the job from a checkpoint or savepoint of its own root; `dry-run` changes nothing."""
    return _started(
        start_run(f"{job.pipeline.uid}__restore", restore_conf(body, job.pipeline), user)
    )


def _saving(uid: str, conf: dict[str, Any], user: GetUserDep) -> Response:
    started = start_run(f"{uid}__savepoint", conf, user)
    path = f"{PREFIX}/api/{VERSION}/pipelines/{uid}/savepoints/{quote(started.request_id, safe='')}"
    return _started(started, location=API_ROOT_PATH.rstrip("/") + path)


def savepoint_conf(body: StopBody) -> dict[str, Any]:
    """The savepoint DAG's form, filled in."""
    stops = not isinstance(body, SavepointBody) or body.stop
    if body.drain and not stops:
        raise Refused(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "drain ends the job for good, and stop is false; set stop, too, or leave drain out",
        )
    return {
        "name": body.savepoint_name,
        "stop": "drain" if body.drain else "suspend" if stops else "none",
        "format": body.format_type,
        "forced": body.forced,
        "target": None,
    }


def restore_conf(body: RestoreBody, pipeline: Pipeline) -> dict[str, Any]:
    """The restore DAG's form, filled in; a form that its first task would refuse is refused now."""
    conf = body.model_dump(by_alias=False) | {"only_generation": None}
    try:
        request_of(conf, pipeline)
    except ConfigurationError as error:
        raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
    return conf


def _started(started: StartedRun, *, location: str | None = None) -> Response:
    return answer(started, status=202, headers={"Location": location or started.run})


@timing_router.post("/pause", **_CHANGES)
def pause_checkpointing(job: JobDep, user: GetUserDep, body: EmptyBody) -> Response:  # noqa: ARG001
    """Take no periodic checkpoint until a person resumes; what is pending completes, and what a
    person asks for is taken.
    """
    _carry_out(lambda: requests.pause(job, by=_person(user)))
    return answer(checkpoint_config(job))


@timing_router.post("/resume", **_CHANGES)
def resume_checkpointing(job: JobDep, user: GetUserDep, body: EmptyBody) -> Response:  # noqa: ARG001
    """Take periodic checkpoints again."""
    _carry_out(lambda: requests.resume(job, by=_person(user)))
    return answer(checkpoint_config(job))


@timing_router.post("/checkpoints/config", **_CHANGES)
def change_times(job: JobDep, user: GetUserDep, body: TimesBody) -> Response:
    """Change the times from the next checkpoint on; `reset` takes back what was changed before."""
    times = new_times(body)
    _carry_out(lambda: requests.retime(job, times, by=_person(user)))
    return answer(checkpoint_config(job))


def new_times(body: TimesBody) -> NewTimes:
    """The changes of *body*, within the limits of a declaration."""
    if body == TimesBody():
        raise Refused(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "nothing is to change; give an interval, min-pause, timeout or "
            "tolerable-failed-checkpoints, or reset",
        )
    try:
        return NewTimes(
            interval=_period(body.interval),
            min_pause=_period(body.min_pause),
            timeout=_period(body.timeout),
            tolerable_failed_checkpoints=body.tolerable_failed_checkpoints,
            resets=body.reset,
        )
    except ConfigurationError as error:
        raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error


def _period(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


def _person(user: Any) -> str:  # noqa: ANN401 - whatever user Airflow's auth manager has
    return f"airflow:{user.get_name()}"


def _carry_out(change: Callable[[], CoordinatorState]) -> None:
    """A job that takes no change is not missing: its status conflicts."""
    try:
        change()
    except ConfigurationError as error:
        raise Refused(HTTPStatus.CONFLICT, str(error)) from error
