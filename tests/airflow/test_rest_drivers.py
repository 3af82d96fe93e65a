"""Who drives a job, as Airflow's database says it: switches, heartbeats, the newest run."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.jobs.job import Job as AirflowJob
from airflow.jobs.job import health_check_threshold
from airflow.models.dag import DagModel
from airflow.models.errors import ParseImportError
from airflow.utils.session import create_session
from sqlalchemy import delete, update

from harness.jobs import a_pipeline
from sluice.cli.main import main
from sluice.coordinator.requests import pause
from sluice.coordinator.restore import stop
from sluice.core.configuration import JobStatus
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.schedules import Cron
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice_airflow.dags import require_sound
from sluice_airflow.rest.jobs import show_next_trigger
from sluice_airflow.rest.readings import ViewReader
from tests.airflow.rest import Api, auctions_in, found
from tests.airflow.test_upgrades import a_chain, a_checkpoint, a_running_job, declared
from tests.subtasks import take_checkpoint

TYPES = {
    "scheduler": "SchedulerJob", "triggerer": "TriggererJob", "dag-processor": "DagProcessorJob",
}  # fmt: skip


def beat(name: str, seconds_ago: float) -> None:
    """A process of Airflow whose newest heartbeat is so old."""
    with create_session() as session:
        session.execute(delete(AirflowJob).where(AirflowJob.job_type == TYPES[name]))
        job = AirflowJob(job_type=TYPES[name])
        job.latest_heartbeat = datetime.now(UTC) - timedelta(seconds=seconds_ago)
        session.add(job)


def switch(dag_id: str, *, is_paused: bool) -> None:
    with create_session() as session:
        session.execute(
            update(DagModel).where(DagModel.dag_id == dag_id).values(is_paused=is_paused)
        )


@pytest.fixture(name="job")
def _job(root: str) -> Job:
    return auctions_in(root)


@pytest.fixture
def alive() -> Iterator[None]:
    for name in TYPES:
        beat(name, 1)
    for dag_id in ("auctions", "auctions__restore"):
        switch(dag_id, is_paused=False)
    yield
    with create_session() as session:
        session.execute(delete(AirflowJob))


def drivers(viewer: Api) -> dict[str, Any]:
    return dict(found(viewer.get("/pipelines/auctions/drivers")))


@pytest.mark.usefixtures("alive", "job")
def test_a_job_that_airflow_can_go_on_with_has_no_problem(viewer: Api) -> None:
    shown = drivers(viewer)

    assert shown["problems"] == []
    assert [one["dag_id"] for one in shown["dags"]] == ["auctions", "auctions__restore"]
    assert {one["name"]: one["state"] for one in shown["processes"]} == dict.fromkeys(
        TYPES, "alive"
    )
    assert all(1_000 <= one["silent_ms"] < 60_000 for one in shown["processes"])


@pytest.mark.usefixtures("alive", "job")
@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("scheduler", "no run and no task starts"),
        ("triggerer", "nothing notices that a checkpoint is due or acked"),
        ("dag-processor", "no change of a declaration is noticed"),
    ],
)
def test_a_process_that_misses_two_heartbeats_is_named_with_what_it_costs(
    viewer: Api, name: str, cost: str
) -> None:
    beat(name, 95)

    (problem,) = drivers(viewer)["problems"]

    assert problem.startswith(f"Airflow's {name} has been silent for 9")
    assert problem.endswith(f"so {cost}: see that 'airflow {name}' runs.")


THRESHOLDS = {
    "scheduler": "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD",
    "triggerer": "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD",
    "dag-processor": "AIRFLOW__DAG_PROCESSOR__HEALTH_CHECK_THRESHOLD",
}


@pytest.mark.usefixtures("alive", "job")
@pytest.mark.parametrize("name", TYPES)
def test_a_process_is_late_before_it_is_silent_by_what_airflow_is_configured_with(
    viewer: Api, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a process that is well misses heartbeats."""
    beat(name, 25)

    problems: list[str] = []
    for threshold in ("60", "20"):
        health_check_threshold.cache_clear()  # Airflow reads it once in a process.
        monkeypatch.setenv(THRESHOLDS[name], threshold)
        problems += drivers(viewer)["problems"]
    health_check_threshold.cache_clear()
    late, silent = problems

    assert late.startswith(f"Airflow's {name} is late: it was heard 2")
    assert " ago, and Airflow gives it 60 s. Unless the machine is busy, no" in late
    assert late.endswith(f"see that 'airflow {name}' runs.")
    assert silent.startswith(f"Airflow's {name} has been silent for 2")


@pytest.mark.usefixtures("alive", "job")
def test_a_paused_dag_is_named_with_what_it_costs(viewer: Api) -> None:
    switch("auctions", is_paused=True)
    switch("auctions__restore", is_paused=True)

    assert drivers(viewer)["problems"] == [
        "DAG 'auctions' is paused, so no checkpoint starts: unpause it.",
        "DAG 'auctions__restore' is paused, so a failed job is not restored: unpause it.",
    ]


@pytest.mark.usefixtures("alive", "job")
def test_an_airflow_without_processes_was_never_heard_of(viewer: Api) -> None:
    with create_session() as session:
        session.execute(delete(AirflowJob))

    problems = drivers(viewer)["problems"]

    assert [one.partition(" was never heard of")[0] for one in problems] == [
        f"Airflow's {name}" for name in TYPES
    ]


def test_what_the_next_checkpoint_waits_for_is_what_the_due_watch_asks(
    viewer: Api, job: Job
) -> None:
    due = found(viewer.get("/pipelines/auctions/next"))
    pause(job, by="ada")
    paused = found(viewer.get("/pipelines/auctions/next"))

    assert due["is_due"]
    assert (paused["is_due"], "paused" in paused["says"]) == (False, True)


def test_the_health_says_the_status_since_when_and_the_next_step(viewer: Api, job: Job) -> None:
    running = found(viewer.get("/pipelines/auctions"))["health"]
    stop(job, JobStatus.CANCELED)
    ended = found(viewer.get("/pipelines/auctions"))["health"]

    assert (running["tone"], running["is_late"]) == ("good", False)
    assert ended["since"] >= running["since"] > 0
    assert (ended["tone"], ended["says"]) == ("calm", "A person cancelled it.")
    assert ended["next_step"]["command"].startswith("sluice r")


def parse(changed: Pipeline) -> None:
    """As the DAG processor keeps what importing ``dags/declarations.py`` raises, or forgets it."""
    with create_session() as session:
        session.execute(delete(ParseImportError))
        try:
            require_sound(declared(changed))
        except ConfigurationError:
            session.add(
                ParseImportError(
                    timestamp=datetime.now(UTC),
                    filename="declarations.py",
                    bundle_name="dags-folder",
                    stacktrace=traceback.format_exc(),
                )
            )


def test_a_deploy_that_changed_a_declaration_is_told_with_the_command_that_takes_it(
    viewer: Api, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_running_job(root)
    changed = a_chain(column=agg.max("price"))
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"demo": changed}.__getitem__)

    def about_it() -> list[str]:
        problems = found(viewer.get("/pipelines/demo/drivers"))["problems"]
        return [problem for problem in problems if "changed under its job" in problem]

    parse(job.pipeline)
    sound = about_it()
    parse(changed)
    (told,) = about_it()
    command = re.search(r"restore with (--begin [\w.]*\w)", told)
    assert command is not None, told
    with pytest.raises(SystemExit) as ended:
        main(["restore", "demo", *command[1].split()])
    parse(changed)

    assert sound == []
    assert "column 'n' was count() and is now max(price)" in told
    assert not ended.value.code
    assert about_it() == []
    a_checkpoint(replace(job, pipeline=changed))


def test_a_checkpoint_by_the_clock_waits_for_its_tick(root: str) -> None:
    """A tick of the year: the job has triggered since."""
    job = auctions_in(root, a_pipeline(events=45, schedule=Cron("0 0 1 1 *")))
    take_checkpoint(job)

    shown = json.loads(bytes(show_next_trigger(job, ViewReader(None)).body))

    assert shown == {"is_due": False, "says": "waiting for the next tick of the clock"}
