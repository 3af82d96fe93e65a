"""A job's metrics in Airflow's stats, received as packets of StatsD."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from harness.otlp_collector import http_collector
from sluice.core.configuration import JobStatus
from sluice_airflow import compat
from tests.airflow.acts import a_checkpoint, abort, trigger, watch
from tests.airflow.stand_in import a_job, decline

Received = Callable[[], dict[str, str]]


@pytest.fixture(name="received")
def _received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    """What a StatsD server has received since it was asked last, by name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.2)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(server.getsockname()[1]))
        _initialize()
        yield lambda: _drained(server)
    monkeypatch.undo()
    _initialize()


def _initialize() -> None:
    stats = pytest.importorskip("airflow.sdk.observability.stats", reason="Airflow 3.1")
    stats_utils = pytest.importorskip("airflow.sdk.observability.metrics.stats_utils")
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)


def _drained(server: socket.socket) -> dict[str, str]:
    found: dict[str, str] = {}
    while True:
        try:
            name, _, value = server.recv(4096).decode().removeprefix("airflow.").partition(":")
        except TimeoutError:
            return found
        found[name] = value


def test_a_commit_emits_what_the_bucket_says(root: str, received: Received) -> None:
    a_checkpoint("run-1")

    found = received()
    assert found["sluice.job.demo.numberOfCompletedCheckpoints"] == "1.0|g"
    assert found["sluice.job.demo.lastCompletedCheckpointId"] == "1.0|g"
    assert found["sluice.job.demo.RUNNING.jobStatus"] == "1.0|g"
    assert found["sluice.stage.demo.by_auction.stateSize"].endswith("|g")
    assert not [name for name in found if "ExternalPath" in name]


def test_an_abort_and_the_watchdog_emit_too(root: str, received: Received) -> None:
    trigger()
    assert abort(states={"bids.snapshot": "failed"}) == JobStatus.RESTARTING.value
    assert received()["sluice.job.demo.numberOfFailedCheckpoints"] == "1.0|g"

    watch()
    assert received()["sluice.job.demo.totalNumberOfCheckpoints"] == "1.0|g"


def test_stats_that_fail_fail_no_task(
    root: str, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat.airflow_stats(), "gauge", _refuse)

    a_checkpoint("run-1")

    assert received() == {}


def test_what_ended_is_a_trace_by_whichever_task_ended_it(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        a_checkpoint("run-1")
        committed = collector.spans[0]
        trigger(run_id="run-2")
        decline(a_job(root), 2, "bids", 0)
        watch()
        aborted = collector.spans[-1]

    assert committed.name == aborted.name == "checkpoint demo"
    assert committed.status.message == ""
    assert "CHECKPOINT_DECLINED" in aborted.status.message
    assert committed.trace_id != aborted.trace_id


def _refuse(*_: object, **__: object) -> None:
    raise OSError("no route to the host")


def test_where_stats_are_off_nothing_is_read(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.surface.monitoring.metrics", _refuse)
    monkeypatch.setattr("sluice_airflow.stats.log.warning", _refuse)

    a_checkpoint("run-1")
