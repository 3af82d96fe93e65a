"""Every minute, one look at every job: what callbacks make fast, the watchdog makes certain."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from sluice.pipeline import Pipeline
from sluice_airflow.settings import Settings

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

WATCHDOG_DAG_ID = "sluice__watchdog"
WATCHDOG_INTERVAL = timedelta(minutes=1)
RETRY_DELAY = timedelta(seconds=5)

DOC = """\
Reads only the bucket: expires checkpoints past their timeout, aborts declined ones, commits what
was completed and not committed, restores a job whose restart nobody carried out; once in about 100
checkpoints collects garbage.  Every action is idempotent.  A job that was never submitted is left
alone.
"""


class WatchOperator(BaseOperator):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """Looks at each pipeline; those that cannot be watched fail the task after all others."""

    def __init__(self, *, load: Callable[[], Mapping[str, Pipeline]], **kwargs: object) -> None:
        super().__init__(**kwargs)
        self._load = load

    def execute(self, context: Context) -> list[str]:  # noqa: ARG002 - Airflow's signature
        from sluice.runner.job import open_job
        from sluice.runner.watch import watch

        location = Settings.from_environment().location
        actions: list[str] = []
        broken: list[str] = []
        for uid, pipeline in self._load().items():
            try:
                watched = watch(open_job(pipeline, location))
            except Exception as error:  # One broken job must not hide the others.
                log.warning("pipeline cannot be watched pipeline=%s", uid, exc_info=True)
                broken.append(f"{uid}: {error}")
            else:
                actions.extend(f"{uid}: {action}" for action in watched.actions)
        if broken:
            raise AirflowFailException("cannot watch " + "; ".join(broken))
        return actions


def build_watchdog(load: Callable[[], Mapping[str, Pipeline]]) -> DAG:
    """*load* is called in the task, so a new pipeline is watched without a change of the DAG."""
    with DAG(
        WATCHDOG_DAG_ID,
        schedule=WATCHDOG_INTERVAL,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        dagrun_timeout=timedelta(minutes=30),
        doc_md=DOC,
        tags=["sluice"],
    ) as dag:
        WatchOperator(task_id="watch", load=load, retries=1, retry_delay=RETRY_DELAY)
    return dag
