"""A run's note while the run lasts: what a task says, what does not answer, a paused DAG."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from sluice_airflow.notes import NOTE_KEY, SILENCE_KEY
from sluice_airflow.run_notes import PAUSED, LiveNotes, act_of, write_note, write_notes
from tests.airflow.database import newest_run, set_paused
from tests.airflow.stand_in import StandInSpark

if TYPE_CHECKING:
    from airflow.sdk import DAG

pytestmark = pytest.mark.usefixtures("dags")

SILENT = "Spark at sc://127.0.0.1:1 does not answer"


def note() -> str:
    with newest_run("demo") as run:
        return str(run.note)


def store(key: str, value: str) -> None:
    """As ``xcom_push`` does in the last task."""
    from airflow.models.xcom import XComModel

    with newest_run("demo") as run:
        stored = {"dag_id": "demo", "run_id": run.run_id, "task_id": "commit"}
    XComModel.set(key, value, **stored)


def switch(*, paused: bool) -> None:
    set_paused("demo", paused=paused)
    write_notes()


@pytest.fixture(name="run_id")
def _run_id(dags: dict[str, DAG], root: str, spark: StandInSpark) -> str:
    """A run that has said what it did, and lasts."""
    dags["demo"].test()
    switch(paused=False)
    with newest_run("demo") as run:
        run.state = "running"
        return str(run.run_id)


def test_what_a_task_says_is_the_note_at_once_and_what_is_silent_comes_before_it(
    run_id: str,
) -> None:
    write_note("demo", run_id)
    said = note()
    store(SILENCE_KEY, SILENT)
    write_note("demo", run_id)
    silent = note()
    store(SILENCE_KEY, "")
    write_note("demo", run_id)

    assert said.startswith("checkpoint 1 completed, ")
    assert silent == f"{SILENT}; {said}"
    assert note() == said


def test_a_paused_dag_is_said_by_its_run_until_it_is_switched_on(run_id: str) -> None:
    store(NOTE_KEY, "checkpoint 1 triggered")
    switch(paused=True)
    paused = note()
    switch(paused=False)

    assert paused == f"{PAUSED}; checkpoint 1 triggered"
    assert note() == "checkpoint 1 triggered"


def test_the_page_of_the_pipeline_says_what_stands_still(run_id: str) -> None:
    from sluice_airflow.rest.checkpoints import show_notice

    at_work = json.loads(bytes(show_notice("demo").body))
    store(SILENCE_KEY, SILENT)
    silent = json.loads(bytes(show_notice("demo").body))
    with newest_run("demo") as run:
        run.state = "success"
    ended = json.loads(bytes(show_notice("demo").body))

    path = f"/dags/demo/runs/{quote(run_id, safe='')}"
    assert at_work == ended == {"notice": "", "run": None}
    assert silent == {"notice": SILENT, "run": path}


def test_a_run_that_has_ended_says_its_last_sentence_alone(run_id: str) -> None:
    store(SILENCE_KEY, SILENT)
    store(NOTE_KEY, "checkpoint 1 aborted")
    with newest_run("demo") as run:
        run.state = "failed"
    write_note("demo", run_id)

    assert note() == "checkpoint 1 aborted"


def test_a_note_of_a_person_stays(run_id: str) -> None:
    with newest_run("demo") as run:
        run.note = ("we look into it", "ada")
    write_note("demo", run_id)
    write_note("demo", "no-such-run")

    assert note() == "we look into it"


def a_request(method: str, path: str) -> dict[str, object]:
    return {"type": "http", "method": method, "path": path, "raw_path": path.encode()}


@pytest.mark.parametrize(
    ("method", "path", "acts"),
    [
        ("POST", f"/execution/xcoms/demo/manual__2026%2B00/a.b/{NOTE_KEY}", True),
        ("POST", f"/base/execution/xcoms/demo/run-1/commit/{SILENCE_KEY}", True),
        ("POST", "/execution/xcoms/demo/run-1/commit/return_value", False),
        ("GET", f"/execution/xcoms/demo/run-1/commit/{NOTE_KEY}", False),
        ("PATCH", "/api/v2/dags/demo", True),
        ("PATCH", "/api/v2/dags", True),
        ("PATCH", "/api/v2/dags/demo/dagRuns/run-1", False),
        ("GET", "/api/v2/dags/demo", False),
    ],
)
def test_the_middleware_acts_on_few_requests(method: str, path: str, acts: bool) -> None:
    assert (act_of(a_request(method, path)) is not None) is acts
    assert act_of({"type": "lifespan"}) is None


@pytest.mark.parametrize(("status", "is_written"), [(201, True), (409, False)])
def test_the_middleware_acts_once_airflow_has_accepted_the_request(
    run_id: str, status: int, is_written: bool
) -> None:
    sent: list[Any] = []

    async def airflow(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status})
        await send({"type": "http.response.body"})

    async def send(message: Any) -> None:
        sent.append(message)

    path = f"/execution/xcoms/demo/{run_id}/commit/{NOTE_KEY}".replace("+", "%2B")
    asyncio.run(LiveNotes(airflow)(a_request("POST", path), None, send))  # type: ignore[arg-type]  # not asked

    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert note().startswith("checkpoint 1 completed, ") is is_written


def test_a_note_that_cannot_be_written_does_not_fail_the_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_dag_id: str, _run_id: str) -> None:
        raise RuntimeError("database is locked")

    async def airflow(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201})

    async def send(message: Any) -> None:
        pass

    monkeypatch.setattr("sluice_airflow.run_notes.write_note", fails)
    request = a_request("POST", f"/execution/xcoms/demo/run-1/commit/{NOTE_KEY}")
    asyncio.run(LiveNotes(airflow)(request, None, send))  # type: ignore[arg-type]  # not asked

    assert "run without a live note" in caplog.text
