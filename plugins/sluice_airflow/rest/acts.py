"""Routes that act: most start the DAG run that a person would start by its form.

Bodies have the fields that ``sluice.surface.acts`` declares, some with Flink's names; those of an
act that a run carries out fill in the form of its DAG.

An abort of a checkpoint, a disposal of a savepoint, and a change of checkpointing (pause, resume,
times) start no DAG run, as for the command line: they are in force at once, for every coordinator,
also where no worker is free.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from airflow.api_fastapi.app import API_ROOT_PATH
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, Path, Response
from pydantic import BaseModel, ConfigDict, Field, create_model

from sluice.coordinator import requests
from sluice.coordinator.backfill import BackfillPlan, plan_backfill
from sluice.coordinator.failure import abort_checkpoint
from sluice.coordinator.savepoints import dispose
from sluice.core.ids import CheckpointId
from sluice.core.state import CoordinatorState
from sluice.declaration.params import require_declared
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.protocol.keys import SAVEPOINT_NAME
from sluice.surface import acts
from sluice.surface.acts import (
    ABORT,
    BACKFILL,
    CANCEL,
    CHECKPOINT,
    DISPOSE,
    PAUSE,
    RESTORE,
    RESUME_CHECKPOINTING,
    RETIME,
    SAVEPOINT,
    STOP,
    Act,
    Face,
    Kind,
    new_times,
)
from sluice.surface.journal import RequestStatus, request_progress, savepoint_outcome
from sluice.surface.options import CheckpointConfig, checkpoint_config
from sluice_airflow.acts import request_of
from sluice_airflow.forms import parameter_field
from sluice_airflow.rest import answers
from sluice_airflow.rest.answers import LARGEST, Id, RequestRefused, answer, describe_responses
from sluice_airflow.rest.jobs import (
    FoundRun,
    JobDep,
    StartedRun,
    find_run,
    find_started,
    run_path,
    start_run,
)
from sluice_airflow.runs import completed_of, failed_of, pending_of
from sluice_airflow.settings import PREFIX, VERSION

offered_router = APIRouter(tags=["acts"])
acts_router = APIRouter(prefix="/pipelines/{uid}", tags=["acts"])

RUN_ID = r"^[A-Za-z0-9_.~:+-]+$"  # What Airflow allows by default.
MOST_MS = 1_000 * 365 * 86_400_000  # A thousand years; what is more does not fit a timedelta.

Name = Annotated[str, Field(pattern=f"^{SAVEPOINT_NAME}$")]


class OfferedField(msgspec.Struct, frozen=True, kw_only=True):
    """A field of an act in the body of its route, by its ``name`` there."""

    name: str
    kind: str
    label: str
    says: str
    default: bool | str | None
    choices: tuple[str, ...]


class OfferedAct(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    says: str
    details: str
    fields: tuple[OfferedField, ...]


class OfferedActs(msgspec.Struct, frozen=True, kw_only=True):
    """Every act on a pipeline."""

    acts: tuple[OfferedAct, ...]


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
    """The place of the savepoint, or the reason why there is none."""

    location: str | None = None
    failure_cause: FailureCause | None = msgspec.field(name="failure-cause", default=None)


class SavepointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Flink's AsynchronousOperationResult of a savepoint."""

    status: QueueStatus
    operation: SavepointOperation | None


class OutcomeStatus(StrEnum):
    PENDING = "pending"  # Its run waits or runs, or its request is queued.
    DONE = "done"
    REFUSED = "refused"  # Or it failed: ``says`` why.


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an act; ``says`` is the note of its run, or why it was refused.

    ``checkpoint`` is the one that it became, or that was restored; ``run`` its path in Airflow.
    """

    request_id: str = msgspec.field(name="request-id")
    status: OutcomeStatus
    says: str
    checkpoint: int | None
    run: str | None


_OF_RUN = {"success": OutcomeStatus.DONE, "failed": OutcomeStatus.REFUSED}
_OF_PROGRESS = {
    RequestStatus.WAITING: OutcomeStatus.PENDING,
    RequestStatus.IN_PROGRESS: OutcomeStatus.PENDING,
    RequestStatus.COMPLETED: OutcomeStatus.DONE,
    RequestStatus.FAILED: OutcomeStatus.REFUSED,
    RequestStatus.REJECTED: OutcomeStatus.REFUSED,
}


class Body(BaseModel):
    """The body of a request; a field that it does not know is refused, as it may be misspelt."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# The type of a field of a body that may be left out, for each kind.
_HINTS: dict[Kind, Any] = {
    Kind.FLAG: bool,
    Kind.TEXT: Annotated[str, Field(max_length=1_000)] | None,
    Kind.LIST: Annotated[str, Field(max_length=1_000)] | None,
    Kind.NAME: Name | None,
    Kind.ID: Annotated[int, Field(ge=1, le=LARGEST)] | None,
    Kind.COUNT: Annotated[int, Field(ge=0, le=2**31 - 1)] | None,
    Kind.PERIOD: Annotated[int, Field(ge=0, le=MOST_MS, description="Milliseconds")] | None,
    Kind.PARAMETERS: dict[str, str],
}


def body_of(act: Act) -> type[Body]:
    """The body of the route of *act*: a field for each that the act has there."""
    fields: dict[str, Any] = {}
    for field in act.on(Face.ROUTE):
        choices = act.choices_on(Face.ROUTE, field)
        hint = Literal[choices] if choices else _HINTS[field.kind]
        default: Any = None if field.kind is Kind.LIST else field.empty
        if field.is_required:
            hint, default = _HINTS[field.kind].__args__[0], ...
        fields[field.name] = (hint, Field(default, alias=_named(field), description=field.says))
    return create_model(f"{act.name.capitalize()}Body", __base__=Body, **fields)


def _named(field: acts.Field) -> str:
    return field.route or field.name.replace("_", "-")


def _act_route(
    act: Act,
    path: str,
    **kwargs: Any,  # noqa: ANN401 - FastAPI's
) -> Callable[[Callable[..., Response]], Callable[..., Response]]:
    """A POST route for those who may do *act*, with its body, and what it says as description."""

    def decorate(route: Callable[..., Response]) -> Callable[..., Response]:
        route.__annotations__["body"] = body_of(act)
        route.__doc__ = f"{act.says}\n\n{act.details}".strip()
        return acts_router.post(path, dependencies=[Depends(answers.may_do(act))], **kwargs)(route)

    return decorate


def _given(act: Act, body: Body) -> dict[str, Any]:
    """The values of *body*; what the act would refuse is refused as a body."""
    try:
        return act.given(body.model_dump(by_alias=False))
    except ConfigurationError as error:
        raise RequestRefused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error


_STARTED: dict[str, Any] = {
    "status_code": 202,
    "responses": describe_responses(StartedRun, status=202, problems=(409, 415)),
}
_CHANGES: dict[str, Any] = {"responses": describe_responses(CheckpointConfig, problems=(409, 415))}


@offered_router.get(
    "/acts",
    responses=describe_responses(OfferedActs),
    dependencies=[Depends(answers.visible_pipelines)],
)
def list_acts() -> Response:
    """The acts on a pipeline and their fields, as the pages ask for them."""
    return answer(OfferedActs(acts=tuple(_offered(act) for act in acts.ACTS)))


def _offered(act: Act) -> OfferedAct:
    fields = (
        OfferedField(
            name=_named(field),
            kind=field.kind.value,
            label=field.label,
            says=field.says,
            default=field.empty if field.kind in (Kind.FLAG, Kind.CHOICE) else None,
            choices=act.choices_on(Face.ROUTE, field),
        )
        for field in act.on(Face.ROUTE)
    )
    return OfferedAct(name=act.name, says=act.says, details=act.details, fields=tuple(fields))


@_act_route(CHECKPOINT, "/checkpoints", **_STARTED)
def take_checkpoint(job: JobDep, user: GetUserDep, body: Body) -> Response:
    return _started(start_run(CHECKPOINT.dag_id(job.pipeline.uid), _filled_in(body, job), user))


@_act_route(SAVEPOINT, "/savepoints", **_STARTED)
def take_savepoint(job: JobDep, user: GetUserDep, body: Body) -> Response:
    return _saving(job.pipeline.uid, _filled_in(body, job), user)


@acts_router.get(
    "/savepoints/{request_id}",
    responses=describe_responses(SavepointRequest),
    dependencies=[Depends(answers.may_read_savepoints)],
)
def show_savepoint_request(
    job: JobDep, request_id: Annotated[str, Path(pattern=RUN_ID, max_length=250)]
) -> Response:
    """The outcome of a savepoint that was asked for: Flink's status, and where the savepoint is."""
    dag_id = SAVEPOINT.dag_id(job.pipeline.uid)
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


@acts_router.get(
    "/requests/{request_id}",
    responses=describe_responses(RequestOutcome),
    dependencies=[Depends(answers.may_read)],
)
def show_request(
    job: JobDep, request_id: Annotated[str, Path(pattern=RUN_ID, max_length=250)]
) -> Response:
    """The outcome of an act that was asked for: pending, done, or refused and why."""
    started = find_started(job.pipeline.uid, request_id)
    if started is not None:
        return answer(_of_run(job, request_id, *started))
    progress = request_progress(job, request_id)
    if progress.status is RequestStatus.UNKNOWN:
        raise RequestRefused(
            HTTPStatus.NOT_FOUND,
            f"nothing is known of request {request_id!r}; it was never made, or its run was "
            "deleted, or it ended long ago",
        )
    return answer(
        RequestOutcome(
            request_id=request_id,
            status=_OF_PROGRESS[progress.status],
            says=progress.message or progress.reason or "",
            checkpoint=progress.checkpoint,
            run=None,
        )
    )


def _of_run(job: Job, request_id: str, dag_id: str, run: FoundRun) -> RequestOutcome:
    """The journal says what the run came to, whatever Airflow made of it since."""
    cause, state = f"airflow:{dag_id}/{request_id}", job.state()
    failed = failed_of(state, cause)
    taken = pending_of(state, cause) or completed_of(state, cause) or failed
    served = state.served_restore(cause)
    status, says = _OF_RUN.get(run.state, OutcomeStatus.PENDING), run.note or ""
    if failed is not None and taken is failed:
        status, says = OutcomeStatus.REFUSED, str(failed)
    elif served is not None:
        status = OutcomeStatus.DONE
        says = says or f"restored under generation {served.generation}"
    checkpoint = served.checkpoint_id if served is not None else None
    return RequestOutcome(
        request_id=request_id,
        status=status,
        says=says or f"its run is {run.state}",
        checkpoint=checkpoint if taken is None else taken.checkpoint_id,
        run=run_path(dag_id, request_id),
    )


@_act_route(
    DISPOSE,
    "/savepoint-disposal",
    responses=describe_responses(DisposedSavepoint, problems=(409, 415)),
)
def dispose_savepoint(job: JobDep, body: Body) -> Response:
    name = _given(DISPOSE, body)["name"]
    try:
        return answer(DisposedSavepoint(savepoint=name, disposed=dispose(job, name)))
    except ConfigurationError as error:
        raise RequestRefused(HTTPStatus.CONFLICT, str(error)) from error


@_act_route(STOP, "/stop", **_STARTED)
def stop_with_savepoint(job: JobDep, user: GetUserDep, body: Body) -> Response:
    conf = _filled_in(body, job)
    stop = "drain" if conf.pop("drain", False) else "suspend"
    return _saving(job.pipeline.uid, conf | {"stop": stop}, user)


@_act_route(
    ABORT,
    "/checkpoints/{checkpoint_id}/abort",
    responses=describe_responses(AbortedCheckpoint, problems=(409, 415)),
)
def abort_pending(job: JobDep, user: GetUserDep, checkpoint_id: Id, body: Body) -> Response:
    because = _given(ABORT, body)["because"]
    by = _person(user) if because is None else f"{_person(user)}: {because}"
    state = abort_checkpoint(job, CheckpointId(checkpoint_id), by=by)
    return answer(AbortedCheckpoint(id=checkpoint_id, status=state.status.value))


@_act_route(CANCEL, "/cancel", **_STARTED)
def cancel_job(job: JobDep, user: GetUserDep, body: Body) -> Response:  # noqa: ARG001
    return _started(start_run(CANCEL.dag_id(job.pipeline.uid), {}, user))


@_act_route(RESTORE, "/restore", **_STARTED)
def restore_job(job: JobDep, user: GetUserDep, body: Body) -> Response:
    conf = _filled_in(body, job)
    try:  # What the first task of the run would refuse is refused now.
        request_of(conf, job.pipeline)
    except ConfigurationError as error:
        raise RequestRefused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
    return _started(start_run(RESTORE.dag_id(job.pipeline.uid), conf, user))


def _filled_in(body: Body, job: Job) -> dict[str, Any]:
    """The values of *body*, as the form of a DAG is filled in."""
    conf, uid = body.model_dump(by_alias=False, exclude_unset=True), job.pipeline.uid
    params = conf.pop("params", {})
    try:
        require_declared((param.name for param in job.pipeline.params), params, uid)
    except ConfigurationError as error:
        raise RequestRefused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
    return conf | {parameter_field(name): value for name, value in params.items()}


def _saving(uid: str, conf: dict[str, Any], user: GetUserDep) -> Response:
    started = start_run(SAVEPOINT.dag_id(uid), conf, user)
    path = f"{PREFIX}/api/{VERSION}/pipelines/{uid}/savepoints/{quote(started.request_id, safe='')}"
    return _started(started, location=API_ROOT_PATH.rstrip("/") + path)


def _started(started: StartedRun, *, location: str | None = None) -> Response:
    return answer(started, status=202, headers={"Location": location or started.run})


class AcceptedBackfill(msgspec.Struct, frozen=True, kw_only=True):
    """``request_id`` is that of the queued request, None after a dry run."""

    plan: BackfillPlan
    request_id: str | None


@_act_route(
    BACKFILL, "/backfill", responses=describe_responses(AcceptedBackfill, problems=(409, 415))
)
def backfill(job: JobDep, user: GetUserDep, body: Body) -> Response:
    given = _given(BACKFILL, body)
    try:
        plan = plan_backfill(job, given["input"])
        if given["dry_run"]:
            return answer(AcceptedBackfill(plan=plan, request_id=None))
        request = requests.UserRequest(by=_person(user), again=given["input"])
        queued = requests.request_checkpoint(job, request)
    except ConfigurationError as error:
        raise RequestRefused(HTTPStatus.CONFLICT, str(error)) from error
    return answer(AcceptedBackfill(plan=plan, request_id=queued.request_id))


@_act_route(PAUSE, "/pause", **_CHANGES)
def pause_checkpointing(job: JobDep, user: GetUserDep, body: Body) -> Response:  # noqa: ARG001
    _carry_out(lambda: requests.pause(job, by=_person(user)))
    return answer(checkpoint_config(job))


@_act_route(RESUME_CHECKPOINTING, "/resume", **_CHANGES)
def resume_checkpointing(job: JobDep, user: GetUserDep, body: Body) -> Response:  # noqa: ARG001
    _carry_out(lambda: requests.resume(job, by=_person(user)))
    return answer(checkpoint_config(job))


@_act_route(RETIME, "/checkpoints/config", **_CHANGES)
def change_times(job: JobDep, user: GetUserDep, body: Body) -> Response:
    given = _given(RETIME, body)
    if given == RETIME.given({}):
        raise RequestRefused(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "nothing is to change; give an interval, min-pause, timeout or "
            "tolerable-failed-checkpoints, or reset",
        )
    try:
        times = new_times(given)
    except ConfigurationError as error:
        raise RequestRefused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
    _carry_out(lambda: requests.retime(job, times, by=_person(user)))
    return answer(checkpoint_config(job))


def _person(user: Any) -> str:  # noqa: ANN401 - whatever user Airflow's auth manager has
    return f"airflow:{user.get_name()}"


def _carry_out(change: Callable[[], CoordinatorState]) -> None:
    """A job that takes no change is not missing: its status conflicts."""
    try:
        change()
    except ConfigurationError as error:
        raise RequestRefused(HTTPStatus.CONFLICT, str(error)) from error
