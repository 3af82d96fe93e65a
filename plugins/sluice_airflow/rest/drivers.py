"""The drivers of a job: its DAGs' switches, Airflow's processes by heartbeat, its newest run, and
what is wrong with its declaration.

The journal says what the job is; whether anything can go on, only Airflow knows.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec
from airflow.jobs.job import Job as AirflowJob
from airflow.jobs.job import health_check_threshold
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.errors import ParseImportError
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from sluice.declaration.schedules import Cron
from sluice.surface.acts import CHECKPOINT, RESTORE
from sluice.surface.health import NextTrigger, next_trigger
from sluice_airflow.dags import problem_in
from sluice_airflow.due import latest_ticks
from sluice_airflow.rest.answers import Uid, answer, describe_responses, may_read
from sluice_airflow.rest.jobs import JobDep, dag_path, run_path
from sluice_airflow.rest.readings import ReaderDep

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
