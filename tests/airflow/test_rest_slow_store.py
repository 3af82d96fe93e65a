"""What a request is told whose store does not answer as soon as it prefers, and what afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from harness.s3_server import S3Server, as_environment
from sluice_airflow.rest.readings import NotReadYet, ViewReading, ViewReadings
from tests.airflow.rest import Api, auctions_in, found, refused
from tests.subtasks import take_checkpoint

READ = ["", "/checkpoints", "/changes", "/skew", "/exceptions", "/snapshots", "/journal", "/next"]


@pytest.fixture(name="store")
def _store(tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The root of the requests is in it."""
    server = S3Server(tmp_path)
    server.start()
    monkeypatch.setenv("SLUICE_ROOT", "s3://slow/jobs")
    with as_environment(server, "slow"):
        yield server
    server.kill()


def asked(api: Api, path: str, wait_s: int) -> Any:
    url = f"/sluice/api/v1/pipelines/auctions{path}"
    return api.client.get(url, headers=api.headers | {"Prefer": f"wait={wait_s}"})


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def taken(readings: ViewReadings, reading: ViewReading[str]) -> str:
    reading.task.exception(timeout=120)
    return readings.take(reading)


@pytest.mark.timeout(600)
def test_a_silent_store_is_said_and_what_was_asked_is_there_once_it_answers(
    store: S3Server, viewer: Api
) -> None:
    take_checkpoint(auctions_in("s3://slow/jobs"))

    with store.frozen():
        meanwhile = {path: asked(viewer, path, 0) for path in READ}
        without_store = [asked(viewer, path, 0) for path in ("/drivers", "/notice")]
    afterwards = [asked(viewer, path, 120) for path in READ]

    assert [found(one) is not None for one in without_store] == [True, True]
    for path, answer in meanwhile.items():
        assert "the store s3://slow/jobs has not answered all of what was asked" in refused(
            answer, 503
        ), path
        assert answer.headers["retry-after"] == "2"
    assert [one.status_code for one in afterwards] == [200] * len(READ)
    assert afterwards[0].json()["last_completed"]["id"] == 1


def test_a_question_that_takes_long_is_read_once_for_all_who_ask() -> None:
    readings, answers, calls = ViewReadings(), Event(), list[str]()

    def view(question: str) -> str:
        calls.append(question)
        answers.wait(120)
        return f"{question}: {len(calls)}"

    first = readings.begin(view, "a")
    with pytest.raises(NotReadYet, match="has not answered all"):
        readings.take(first)
    until(lambda: calls == ["a"])
    second, other = readings.begin(view, "a"), readings.begin(view, "b")
    with pytest.raises(NotReadYet):
        readings.take(second)
    until(lambda: calls == ["a", "b"])
    answers.set()

    assert second is first
    assert taken(readings, other) == "b: 2"
    assert taken(readings, second) == "a: 2"
    assert taken(readings, readings.begin(view, "a")) == "a: 3"
    assert calls == ["a", "b", "a"]


def test_a_view_that_nobody_took_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    readings, answers, calls = ViewReadings(), Event(), list[int]()

    def view() -> str:
        calls.append(1)
        answers.wait(120)
        return f"{len(calls)}"

    forgotten = readings.begin(view)
    with pytest.raises(NotReadYet):
        readings.take(forgotten)
    answers.set()
    forgotten.task.result(timeout=120)
    monkeypatch.setattr("sluice_airflow.rest.readings.KEPT_S", -1.0)
    until(lambda: forgotten.ended_s is not None)

    assert taken(readings, readings.begin(view)) == "2"
