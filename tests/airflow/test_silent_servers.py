"""A real store that hangs, and a Spark that is not there: what the tasks that need them say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread

import pytest

from harness.s3_server import S3Server, as_environment
from sluice.job.job import open_job
from sluice.store.open import StoreLocation
from sluice_airflow.notes import PATIENCE_S, PROBE_INTERVAL_S, report_unanswered
from sluice_airflow.operators import FinalizeOperator
from sluice_airflow.stage import SnapshotOperator
from tests.airflow.acts import PIPELINE, a_context, snapshot, trigger
from tests.airflow.stand_in import StandInSpark, a_job
from tests.contract.s3_stub import error_body, served


class Overloaded(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = error_body("SlowDown")
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(name="store")
def _store(tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The operators' root is in it."""
    server = S3Server(tmp_path)
    server.start()
    monkeypatch.setenv("SLUICE_ROOT", "s3://silent/jobs")
    with as_environment(server, "silent"):
        yield server
    server.kill()


def wait_until(is_true: Callable[[], object]) -> None:
    began = time.monotonic()
    while not is_true():
        assert time.monotonic() - began < 120
        time.sleep(0.01)


def test_a_silence_is_known_in_time_to_be_shown_within_ten_seconds() -> None:
    assert PROBE_INTERVAL_S + PATIENCE_S <= 7  # Airflow shows it within three more.


@pytest.mark.timeout(300)
def test_a_store_that_hangs_is_said_by_the_task_that_waits_for_it(
    store: S3Server, spark: StandInSpark
) -> None:
    trigger()
    for stage in PIPELINE.stages:
        snapshot(stage)
    context = a_context()
    task = FinalizeOperator(task_id="finalize", pipeline=PIPELINE)
    at_work = Thread(target=task.execute, args=(context,))

    with store.frozen():
        at_work.start()
        wait_until(lambda: context["ti"].silences)
    at_work.join(120)

    said = context["ti"].silences
    assert said[0].startswith("the store s3://silent/jobs does not answer since ")
    assert "(no answer within 4 s); see IO_EXCEPTION in" in said[0]
    assert said[-1] == ""
    assert context["ti"].notes[-1].startswith("checkpoint 1 completed, ")


def test_a_store_that_answers_503_is_said_with_what_it_answered(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    said: list[str] = []
    with served(Overloaded) as endpoint_url:
        location = StoreLocation(root="s3://silent/jobs", endpoint_url=endpoint_url)
        task = FinalizeOperator(task_id="finalize", pipeline=PIPELINE)
        with report_unanswered(said.append, task.needed(open_job(PIPELINE, location))):
            wait_until(lambda: "503" in "".join(said))

    assert "answered 503 SlowDown to GetObject" in said[-2]
    assert said[-1] == ""


def test_a_spark_that_is_gone_is_said_at_once(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice_airflow.notes.PATIENCE_S", 60)  # A busy machine is not silent.
    said: list[str] = []
    needed = SnapshotOperator(task_id="snapshot", pipeline=PIPELINE, stage="bids").needed(
        a_job(root)
    )

    with report_unanswered(said.append, needed):
        wait_until(lambda: said)

    assert said[0].startswith("Spark at sc://127.0.0.1:1 fails since ")
    assert "ConnectionRefusedError" in said[0]
    assert "see TASK_FAILURE in" in said[0]
