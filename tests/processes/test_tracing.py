"""The trace of a checkpoint, as a collector of OpenTelemetry receives it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import TracerProvider

from harness.jobs import a_pipeline, a_running_job, trigger_one
from harness.otlp_collector import grpc_collector, http_collector
from sluice.coordinator.failure import fail_checkpoint
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.job.job import Job
from sluice.store.checkpoints import StatisticsStore
from sluice.surface.monitoring import send_trace
from tests.subtasks import take_checkpoint

COLLECTORS = {"http/protobuf": http_collector, "grpc": grpc_collector}


@pytest.fixture
def job() -> Job:
    """One committed checkpoint, whose subtasks took 100 ms each."""
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=9))
    _with_times(job, take_checkpoint(job))
    return job


def _with_times(job: Job, checkpoint_id: CheckpointId) -> None:
    """What subtasks without Spark do not measure."""
    store = StatisticsStore(job.store, job.paths)
    kept = store.read(checkpoint_id)
    assert kept is not None
    began = kept.checkpoint.trigger_timestamp
    took = {"start_timestamp": began + 10, "ack_timestamp": began + 110}
    stages = tuple(
        replace(stage, subtasks=tuple(replace(one, **took) for one in stage.subtasks))
        for stage in kept.stages
    )
    line = replace(kept.checkpoint, latest_ack_timestamp=began + 110)
    job.store.delete([job.paths.statistics(checkpoint_id)])
    store.write(replace(kept, checkpoint=line, stages=stages))


@pytest.fixture(autouse=True)
def _no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "TRACES_ENDPOINT", "PROTOCOL", "TRACES_PROTOCOL"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)


@pytest.mark.parametrize("protocol", COLLECTORS)
def test_a_collector_receives_the_checkpoint_and_its_parts_below_the_task(
    protocol: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    with COLLECTORS[protocol]() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        with TracerProvider().get_tracer("airflow").start_as_current_span("commit") as task:
            assert send_trace(job, CheckpointId(1))

    root, *parts = collector.spans
    assert root.name == "checkpoint auctions"
    assert {span.name.split()[0] for span in parts} == {"trigger", "stage", "subtask", "upload",
                                                        "finalize", "commit"}  # fmt: skip
    assert {span.trace_id for span in parts} == {root.trace_id}
    assert {span.parent_span_id for span in parts} <= {s.span_id for s in collector.spans}
    assert [int.from_bytes(link.trace_id, "big") for link in root.links] == [
        task.get_span_context().trace_id
    ]


def test_a_trace_that_is_sent_again_is_the_same_one(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        assert send_trace(job, CheckpointId(1))
        assert send_trace(job, CheckpointId(1))

    first, second = collector.requests
    assert first == second


def test_a_failed_checkpoint_is_an_error_with_its_reason(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = trigger_one(job).checkpoint_id
    fail_checkpoint(job, failed, CheckpointFailureReason.CHECKPOINT_EXPIRED, "too slow")

    with http_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.endpoint}/v1/traces")
        assert send_trace(job, failed)

    (root,) = collector.spans
    assert root.status.message == "CHECKPOINT_EXPIRED: too slow"


def test_without_a_collector_nothing_is_read(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.store.delete([listed.key for listed in job.store.list("")])

    assert not send_trace(job, CheckpointId(1))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not send_trace(job, CheckpointId(1))


def test_a_checkpoint_that_is_not_there_is_logged(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")

    assert not send_trace(job, CheckpointId(9))
    assert "trace not sent checkpoint_id=9" in caplog.text
