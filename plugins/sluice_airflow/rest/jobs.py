"""The jobs that requests are about, the routes of pipelines, the DAG runs of acts, and who drives.

The drivers of a job are its DAGs' switches, Airflow's processes by heartbeat and its newest run,
with what is wrong with its declaration.  The journal says what the job is; whether anything can go
on, only Airflow knows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
from airflow.api.common.trigger_dag import trigger_dag
from airflow.api_fastapi.app import API_ROOT_PATH
from airflow.configuration import conf
from airflow.exceptions import DagNotFound
from airflow.jobs.job import Job as AirflowJob
from airflow.jobs.job import health_check_threshold
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.errors import ParseImportError
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType
from fastapi import APIRouter, Depends, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import Declarations, find_pipelines
from sluice.declaration.schedules import Cron
from sluice.errors import ConfigurationError, SluiceError
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation
from sluice.surface.acts import ACTS, CHECKPOINT, RESTORE, dag_ids
from sluice.surface.health import NextTrigger, next_trigger
from sluice.surface.pipelines import (
    PipelineDetails,
    PipelineLine,
    pipeline_details,
    pipeline_line,
    unread_line,
)
from sluice_airflow.dags import load_scheduled, problem_in
from sluice_airflow.due import latest_ticks
from sluice_airflow.rest.answers import (
    RequestRefused,
    Uid,
    VisiblePipelines,
    acts_refused,
    answer,
    describe_responses,
    may_read,
    visible_pipelines,
)
from sluice_airflow.rest.readings import READINGS, NotReadYet, ReaderDep
from sluice_airflow.settings import Settings

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser


LOADED_FOR_S = 30.0  # A broken module is imported anew so often; a sound one never.
PATIENCE_S = 5.0  # An S3 server that is not there is reported within 4 s.

pipelines_router = APIRouter(tags=["pipelines"])

Read = TypeVar("Read")


class ListedPipeline(PipelineLine, frozen=True, kw_only=True):
    """A pipeline in a line, with the path of its DAG in Airflow."""

    dag: str


class ShownPipeline(PipelineDetails, frozen=True, kw_only=True):
    """A pipeline with its graph, and the path of its DAG in Airflow; ``refused`` has besides the
    acts that the user may not do, and those whose DAG starts no run.
    """

    dag: str


class BrokenModule(msgspec.Struct, frozen=True, kw_only=True):
    """A module of pipelines that cannot be imported, so that none of its uids is known."""

    module: str
    error: str


class Pipelines(msgspec.Struct, frozen=True, kw_only=True):
    """The pipelines whose DAG the user may read, in the order of their uids."""

    pipelines: tuple[ListedPipeline, ...]
    broken: tuple[BrokenModule, ...]


class StartedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG run that was started; ``run`` is its path in Airflow.  Its id is the request's."""

    request_id: str = msgspec.field(name="request-id")
    dag_id: str
    run: str


class FoundRun(msgspec.Struct, frozen=True, kw_only=True):
    """``state`` is Airflow's: queued, running, success or failed."""

    state: str
    note: str | None


class DeclaredPipelines:
    """The pipelines that this Airflow runs, loaded by the first request.  A module that was changed
    is loaded by the next API server, as a changed plugin is.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: tuple[float, Declarations] | None = None

    def load(self) -> Declarations:
        """Raises ConfigurationError where nothing says where the pipelines are."""
        with self._lock:
            now = time.monotonic()
            if self._loaded is None or now - self._loaded[0] > LOADED_FOR_S:
                folder = Path(conf.get("core", "dags_folder"))
                self._loaded = (now, load_scheduled(find_pipelines(folder)))
            return self._loaded[1]


DECLARED = DeclaredPipelines()


def declared() -> Declarations:
    """The declarations, or 503 where this Airflow's settings do not name their place."""
    try:
        return DECLARED.load()
    except ConfigurationError as error:
        raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error


DeclaredDep = Annotated[Declarations, Depends(declared)]


def job_of(uid: Uid, declarations: DeclaredDep) -> Job:
    """The job of the pipeline in the path, or 404."""
    pipeline = declarations.pipelines.get(uid)
    if pipeline is None:
        raise RequestRefused(
            HTTPStatus.NOT_FOUND,
            f"no pipeline {uid!r} is declared here, or its module is broken; GET "
            "/sluice/api/v1/pipelines lists those that are",
        )
    return open_readable(pipeline)


def open_readable(pipeline: Pipeline) -> Job:
    """The job, opened once for each pipeline.  Its store does not repeat a failed request for a
    minute, as a person waits for the answer.
    """
    try:
        location = Settings.from_environment().location
    except ConfigurationError as error:
        raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
    return _handle(_Declared(pipeline), replace(location, patience_s=0))


class _Declared:
    """A pipeline as a key, which equals no other pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def __hash__(self) -> int:
        return id(self.pipeline)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Declared) and other.pipeline is self.pipeline


@lru_cache(maxsize=1_000)
def _handle(declared: _Declared, location: StoreLocation) -> Job:
    return open_job(declared.pipeline, location)


JobDep = Annotated[Job, Depends(job_of)]


@pipelines_router.get("/pipelines", responses=describe_responses(Pipelines))
def list_pipelines(
    declarations: DeclaredDep, allowed: Annotated[VisiblePipelines, Depends(visible_pipelines)]
) -> Response:
    """Every pipeline whose DAG you may read: its status, its last checkpoint, its watermark.

    One whose bucket does not answer has an `error`, and the others are shown.
    """
    shown = [pipeline for uid, pipeline in declarations.pipelines.items() if uid in allowed.uids]
    lines = read_each(shown, pipeline_line, unread_line)
    problems = declarations.problems if allowed.sees_problems else {}
    return answer(
        Pipelines(
            pipelines=tuple(
                ListedPipeline(**fields_of(line), dag=dag_path(line.uid)) for line in lines
            ),
            broken=tuple(
                BrokenModule(module=name, error=error) for name, error in problems.items()
            ),
        )
    )


@pipelines_router.get(
    "/pipelines/{uid}",
    responses=describe_responses(ShownPipeline),
    dependencies=[Depends(may_read)],
)
def show_pipeline(
    job: JobDep, read: ReaderDep, refused: Annotated[dict[str, str], Depends(acts_refused)]
) -> Response:
    """One pipeline with its declared graph: sources, stages and sinks, who reads whom, and what is
    known of each of them.
    """
    found = read(pipeline_details, job)
    starts = {act.name: act.dag_id(found.uid) for act in ACTS if not act.is_immediate}
    off = reasons_for_no_run([*starts.values()])
    waiting = {act: off[dag_id] for act, dag_id in starts.items() if dag_id in off}
    fields = fields_of(found) | {"refused": found.refused | waiting | refused}
    return answer(ShownPipeline(**fields, dag=dag_path(found.uid)))


def fields_of(record: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def read_each(
    pipelines: Sequence[Pipeline],
    read: Callable[[Job], Read],
    unread: Callable[[Pipeline, str], Read],
) -> list[Read]:
    """*read* of every job at once; *unread* of one that fails, or that has not been read in time:
    its reading goes on, and is there for whoever asks next.
    """
    readings = [READINGS.begin(_opened_and_read, pipeline, read) for pipeline in pipelines]
    wait((reading.task for reading in readings), timeout=PATIENCE_S)
    found: list[Read] = []
    for pipeline, reading in zip(pipelines, readings, strict=True):
        try:
            found.append(READINGS.take(reading))
        except NotReadYet as error:
            found.append(unread(pipeline, f"its bucket {error}"))
        except Exception as error:  # noqa: BLE001 - it is told in the pipeline's line
            found.append(unread(pipeline, _error_message(error)))
    return found


def _opened_and_read(pipeline: Pipeline, read: Callable[[Job], Read]) -> Read:
    return read(open_readable(pipeline))


def _error_message(error: BaseException) -> str:
    is_ours = isinstance(error, SluiceError | RequestRefused)
    return str(error) if is_ours else f"{type(error).__name__}: {error}"


def start_run(dag_id: str, conf: dict[str, Any], user: BaseUser) -> StartedRun:
    """A manual run of *dag_id*, by *user*, with *conf* in the place of its form."""
    _require_ready(dag_id)
    try:
        started = trigger_dag(
            dag_id,
            triggered_by=DagRunTriggeredByType.REST_API,
            triggering_user_name=user.get_name(),
            conf=conf,
        )
    except DagNotFound as error:
        raise RequestRefused(HTTPStatus.NOT_FOUND, _unknown(dag_id)) from error
    except ValueError as error:  # Airflow's, of a field that the form would refuse.
        raise RequestRefused(HTTPStatus.UNPROCESSABLE_ENTITY, f"DAG {dag_id!r}: {error}") from error
    if started is None:
        raise RequestRefused(HTTPStatus.NOT_FOUND, _unknown(dag_id))
    run = run_path(dag_id, started.run_id)
    return StartedRun(request_id=started.run_id, dag_id=dag_id, run=run)


def _require_ready(dag_id: str) -> None:
    """A run of a paused DAG would wait, without a word of what for."""
    for why in reasons_for_no_run([dag_id]).values():
        is_paused = why != _unknown(dag_id)
        raise RequestRefused(HTTPStatus.CONFLICT if is_paused else HTTPStatus.NOT_FOUND, why)


def reasons_for_no_run(dag_ids: Sequence[str]) -> dict[str, str]:
    """By DAG the reason why no run of it would start; of those that are paused or not there."""
    with create_session() as session:
        known = session.scalars(select(DagModel).where(DagModel.dag_id.in_(dag_ids)))
        paused = {dag.dag_id: bool(dag.is_paused) for dag in known if not dag.is_stale}
    return {
        dag_id: f"DAG {dag_id!r} is paused, so that no run starts; unpause it"
        if dag_id in paused
        else _unknown(dag_id)
        for dag_id in dag_ids
        if paused.get(dag_id, True)
    }


def _unknown(dag_id: str) -> str:
    return f"Airflow has no DAG {dag_id!r}; look at its import errors"


def find_run(dag_id: str, run_id: str) -> FoundRun:
    """The run of an earlier request."""
    with create_session() as session:
        query = select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        found = session.scalars(query).one_or_none()
        if found is None:
            raise RequestRefused(
                HTTPStatus.NOT_FOUND,
                f"DAG {dag_id!r} has no run {run_id!r}; it was never requested, or its run was "
                "deleted",
            )
        return FoundRun(state=DagRunState(found.state).value, note=found.note)


def find_started(uid: str, run_id: str) -> tuple[str, FoundRun] | None:
    """The DAG of the pipeline in which *run_id* was started, and the run; None without one."""
    with create_session() as session:
        query = select(DagRun).where(DagRun.dag_id.in_(dag_ids(uid)), DagRun.run_id == run_id)
        found = session.scalars(query.order_by(DagRun.id.desc()).limit(1)).one_or_none()
        if found is None:
            return None
        return found.dag_id, FoundRun(state=DagRunState(found.state).value, note=found.note)


def dag_path(dag_id: str) -> str:
    """The path on which Airflow shows a DAG."""
    return f"{API_ROOT_PATH.rstrip('/')}/dags/{quote(dag_id, safe='')}"


def run_path(dag_id: str, run_id: str) -> str:
    """The path on which Airflow shows a run."""
    return f"{dag_path(dag_id)}/runs/{quote(run_id, safe='')}"


drivers_router = APIRouter(tags=["pipelines"])

# Heartbeats after which a process is late.  A busy machine loses some of one a second, and what is
# late may be well: only behind Airflow's own threshold of health is it silent.
_GRACE = 2.1
_LATE_MS = 10_000

# Airflow's long-running processes: the type of their jobs, and what their silence costs.
_PROCESSES = {
    "scheduler": ("SchedulerJob", "no run and no task starts"),
    "triggerer": ("TriggererJob", "nothing notices that a checkpoint is due or acked"),
    "dag-processor": ("DagProcessorJob", "no change of a declaration is noticed"),
}
_WHILE_OFF = {CHECKPOINT: "no checkpoint starts", RESTORE: "a failed job is not restored"}


class DagSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG of the pipeline; one that Airflow does not know, or not any more, is not ``known``."""

    dag_id: str
    dag: str
    is_known: bool
    is_paused: bool


class AirflowProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One of Airflow's processes, the one of its kind that was heard of last.

    It is late when two heartbeats of it are missing, for 10 s at least; and silent behind
    ``limit_ms``, the threshold of health that Airflow is configured with, or without a heartbeat.
    """

    name: str
    latest_heartbeat: int | None
    silent_ms: int | None
    limit_ms: int | None
    state: Literal["alive", "late", "silent"]


class NewestRun(msgspec.Struct, frozen=True, kw_only=True):
    """The newest run of the checkpoint DAG; ``state`` is Airflow's."""

    run: str
    state: str
    start_timestamp: int | None
    end_timestamp: int | None


class Drivers(msgspec.Struct, frozen=True, kw_only=True):
    """Whether Airflow can go on with the job: ``problems`` say what is in the way, and the cure."""

    problems: tuple[str, ...]
    dags: tuple[DagSwitch, ...]
    processes: tuple[AirflowProcess, ...]
    newest_run: NewestRun | None


@drivers_router.get(
    "/pipelines/{uid}/drivers",
    responses=describe_responses(Drivers),
    dependencies=[Depends(may_read)],
)
def show_drivers(uid: Uid) -> Response:
    """The drivers of the job: whether its DAGs are on, and Airflow's processes alive."""
    with create_session() as session:  # Airflow alone is asked: the store may be what hangs.
        switches = tuple(_switch(act.dag_id(uid), session) for act in _WHILE_OFF)
        processes = tuple(_process(name, session) for name in _PROCESSES)
        newest_run = _newest_run(uid, session)
        import_errors = session.scalars(select(ParseImportError.stacktrace)).all()
    problems = [
        *(problem_in(error or "", uid) for error in import_errors),
        *map(_problem_of_dag, switches, _WHILE_OFF.values()),
        *map(_problem_of_process, processes),
    ]
    return answer(
        Drivers(
            problems=tuple(filter(None, problems)),
            dags=switches,
            processes=processes,
            newest_run=newest_run,
        )
    )


@drivers_router.get(
    "/pipelines/{uid}/next",
    responses=describe_responses(NextTrigger),
    dependencies=[Depends(may_read)],
)
def show_next_trigger(job: JobDep, read: ReaderDep) -> Response:
    """The wait of the next periodic checkpoint; the sources are asked whether they have more."""
    schedule = job.pipeline.checkpointing.schedule
    ticks = None
    if isinstance(schedule, Cron):
        ticks = latest_ticks(schedule.expression, schedule.timezone)
    return answer(read(next_trigger, job, latest_tick_ms=ticks))


def _switch(dag_id: str, session: Session) -> DagSwitch:
    found = session.scalars(select(DagModel).where(DagModel.dag_id == dag_id)).one_or_none()
    is_known = found is not None and not found.is_stale
    return DagSwitch(
        dag_id=dag_id,
        dag=dag_path(dag_id),
        is_known=is_known,
        is_paused=found is not None and is_known and bool(found.is_paused),
    )


def _problem_of_dag(switch: DagSwitch, costs: str) -> str:
    if not switch.is_known:
        return f"Airflow has no DAG {switch.dag_id!r}, so {costs}: look at its import errors."
    if switch.is_paused:
        return f"DAG {switch.dag_id!r} is paused, so {costs}: unpause it."
    return ""


def _process(name: str, session: Session) -> AirflowProcess:
    query = select(AirflowJob).where(
        AirflowJob.job_type == _PROCESSES[name][0], AirflowJob.latest_heartbeat.is_not(None)
    )
    found = session.scalars(query.order_by(AirflowJob.latest_heartbeat.desc()).limit(1)).first()
    if found is None:
        return AirflowProcess(
            name=name, latest_heartbeat=None, silent_ms=None, limit_ms=None, state="silent"
        )
    beat_ms = _ms(found.latest_heartbeat)
    silent_ms = max(0, _ms(datetime.now(UTC)) - beat_ms)
    limit_ms = int(1_000 * health_check_threshold(str(found.job_type), found.heartrate))
    is_late = silent_ms > max(_LATE_MS, _GRACE * found.heartrate * 1_000)
    return AirflowProcess(
        name=name,
        latest_heartbeat=beat_ms,
        silent_ms=silent_ms,
        limit_ms=limit_ms,
        state="silent" if silent_ms > limit_ms else "late" if is_late else "alive",
    )


def _problem_of_process(process: AirflowProcess) -> str:
    if process.state == "alive":
        return ""
    name, costs = process.name, _PROCESSES[process.name][1]
    see = f"see that 'airflow {name}' runs."
    if process.silent_ms is None:
        return f"Airflow's {name} was never heard of, so {costs}: {see}"
    heard = f"{process.silent_ms // 1_000} s"
    if process.state == "silent":
        return f"Airflow's {name} has been silent for {heard}, so {costs}: {see}"
    given = f"{(process.limit_ms or 0) // 1_000} s"
    return (
        f"Airflow's {name} is late: it was heard {heard} ago, and Airflow gives it {given}. Unless "
        f"the machine is busy, {costs}: {see}"
    )


def _newest_run(dag_id: str, session: Session) -> NewestRun | None:
    query = select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.run_after.desc()).limit(1)
    found = session.scalars(query).one_or_none()
    if found is None:
        return None
    return NewestRun(
        run=run_path(dag_id, found.run_id),
        state=str(found.state),
        start_timestamp=None if found.start_date is None else _ms(found.start_date),
        end_timestamp=None if found.end_date is None else _ms(found.end_date),
    )


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)
