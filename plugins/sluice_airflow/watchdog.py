"""The watchdog DAG: checks every job each minute, for what callbacks have missed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator

from sluice.core.configuration import JobStatus
from sluice.declaration.pipeline import Pipeline
from sluice_airflow.compat import AirflowFailException
from sluice_airflow.notes import note
from sluice_airflow.runs import redact_airflow_logs, run_of
from sluice_airflow.settings import Settings
from sluice_airflow.stats import emit_stats, send_newest_trace
from sluice_airflow.trigger_task import start_runs

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.core.state import CoordinatorState
    from sluice.job.job import Job
    from sluice.store.open import StoreLocation

log = logging.getLogger(__name__)

WATCHDOG_DAG_ID = "sluice__watchdog"
WATCHDOG_INTERVAL = timedelta(minutes=1)
RETRY_DELAY = timedelta(seconds=5)
RUN_TIMEOUT = timedelta(minutes=30)
WATCH_TIMEOUT = timedelta(minutes=29)  # Less, so that the task itself says what hung.
SHORT_PAUSE_MS = 15_000  # The longest that one job delays the others.

DOC = """\
Reads the bucket: expires checkpoints past their timeout, aborts declined ones and those whose DAG
run has ended or was deleted, commits what was completed and not committed, restores a job whose
restart was not carried out; starts a run for what a person asked for outside of Airflow; once in
about 100 checkpoints collects garbage.  Ends submitted Spark applications that no attempt awaits.
Names a paused DAG that has a checkpoint pending.  Every action is idempotent.  Where Airflow's
stats are on it emits each job's metrics.  A job that was never submitted is left alone.
"""


def build_watchdog(load: Callable[[], Mapping[str, Pipeline]]) -> DAG:
    """The watchdog DAG; its task calls *load*, so new pipelines are watched without a change."""
    with DAG(
        WATCHDOG_DAG_ID,
        schedule=WATCHDOG_INTERVAL,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        dagrun_timeout=RUN_TIMEOUT,
        doc_md=DOC,
        tags=["sluice"],
    ) as dag:
        WatchOperator(
            task_id="watch",
            load=load,
            retries=1,
            retry_delay=RETRY_DELAY,
            execution_timeout=WATCH_TIMEOUT,
        )
    return dag


class WatchOperator(BaseOperator):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """Watches each pipeline; errors fail the task only after all have been watched."""

    def __init__(self, *, load: Callable[[], Mapping[str, Pipeline]], **kwargs: object) -> None:
        super().__init__(**kwargs)
        self._load = load

    def execute(self, context: Context) -> list[str]:
        redact_airflow_logs()
        location = Settings.from_environment().location
        actions: list[str] = []
        broken: list[str] = []
        for uid, pipeline in self._load().items():
            try:
                done = _watch(pipeline, location, context["ti"])
            except Exception as error:  # One broken job must not hide the others.
                log.warning("pipeline cannot be watched pipeline=%s", uid, exc_info=True)
                broken.append(f"{uid}: {error}")
            else:
                actions.extend(f"{uid}: {action}" for action in done)
        if actions:
            note(context, "; ".join(actions))
        if broken:
            raise AirflowFailException("cannot watch " + "; ".join(broken))
        return actions


def _watch(pipeline: Pipeline, location: StoreLocation, ti: Any) -> tuple[str, ...]:  # noqa: ANN401
    from sluice.job.job import open_job

    job = open_job(pipeline, location)
    under_way: list[str] = []

    def is_abandoned(cause: str) -> bool:
        is_over = has_ended(ti, cause)
        under_way.extend([] if is_over else [cause])
        return is_over

    actions = _watch_and_restart(job, is_abandoned)
    emit_stats(job)
    if actions:
        send_newest_trace(job)
    reaped: list[str] = []
    if pipeline.orchestration.submit is not None:
        from sluice_airflow.applications import reap

        reaped = [f"ended application {name}" for name in reap(job, pipeline.orchestration.submit)]
    return actions + paused_dags(ti, under_way) + tuple(start_runs(job)) + tuple(reaped)


def has_ended(ti: Any, cause: str) -> bool:  # noqa: ANN401 - Airflow has four classes of them
    """Whether the DAG run behind *cause* has ended; False if Airflow does not answer."""
    run = run_of(cause)
    if run is None:
        return False
    dag_id, run_id = run
    try:
        active = ti.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=["queued", "running"])
    except Exception:  # Any error of Airflow: the checkpoint's timeout decides then.
        log.warning("airflow does not tell of run dag_id=%s run_id=%s", *run, exc_info=True)
        return False
    return bool(active == 0)


def _watch_and_restart(job: Job, is_abandoned: Callable[[str], bool]) -> tuple[str, ...]:
    """Watch once, and after an abort again, when a short pause of the restart strategy is over."""
    from sluice.coordinator.failure import watch

    watched = watch(job, is_abandoned=is_abandoned)
    if not watched.actions:
        return ()
    pause_s = pause_to_wait_out(job.state(), job.now_ms())
    if pause_s is None:
        return watched.actions
    time.sleep(pause_s)
    return watched.actions + watch(job).actions


def pause_to_wait_out(state: CoordinatorState, now_ms: int) -> float | None:
    """The seconds until the job restarts; None if it does not, or only after the next run.

    They may be 0, as the first watch takes time.
    """
    pause_ms = max(0, (state.restart_at_ms or 0) - now_ms)
    if state.status is not JobStatus.RESTARTING or pause_ms > SHORT_PAUSE_MS:
        return None
    return pause_ms / 1000


def paused_dags(ti: Any, causes: Iterable[str]) -> tuple[str, ...]:  # noqa: ANN401 - as has_ended
    """A sentence for each paused DAG that has one of these runs: Airflow starts no task of it."""
    runs = [run for run in map(run_of, causes) if run is not None]
    return tuple(
        f"the DAG {dag_id} is paused, and so is the checkpoint of {run_id}; unpause it in time"
        for dag_id, run_id in runs
        if is_paused(ti, dag_id)
    )


def is_paused(ti: Any, dag_id: str) -> bool:  # noqa: ANN401 - as has_ended
    """Whether the DAG is paused; False if Airflow does not answer."""
    try:
        return bool(ti.get_dag(dag_id=dag_id).is_paused)
    except Exception:  # It is a hint for people.
        log.warning("airflow does not tell of DAG dag_id=%s", dag_id, exc_info=True)
        return False
