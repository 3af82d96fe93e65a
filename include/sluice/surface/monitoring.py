"""The metrics of jobs for Prometheus, and the trace of a checkpoint for OpenTelemetry.

The metrics are read from the bucket: the journal's state, and two or three GETs a job.  Prometheus'
own client library writes them in its text format.

Traces are off unless OpenTelemetry's own variables name a collector
(``OTEL_EXPORTER_OTLP_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``).  The spans are made
when the checkpoint has ended, with the times that were measured; see
docs/adr/0017-statistics-lag-and-spans.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sluice.core.events import CheckpointCommitted
from sluice.core.ids import CheckpointId
from sluice.core.state import CoordinatorState
from sluice.declaration.durations import milliseconds
from sluice.errors import SluiceError
from sluice.extras import require_installed
from sluice.figures.metrics import (
    METRICS,
    JobFigures,
    Metric,
    Origin,
    Sample,
    Span,
    Trace,
    newest_completed,
    samples,
    trace_of,
    unreadable,
)
from sluice.job.job import Job
from sluice.store.checkpoints import StatisticsStore
from sluice.store.redaction import redacted
from sluice.surface.checkpoints import details, lags, newest_of, overview, rates

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import CollectorRegistry

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
TIMEOUT_S = 2  # For which a task waits for the collector.
BATCH = 512  # Spans of a request, as OpenTelemetry's own batches have.
COMMIT_SEARCH_ENTRIES = 8  # Journal entries in which the commit is searched for, right after it.

# Counts the files of a job that nothing names, and their bytes: it takes a LIST of the whole job.
CountOrphans = Callable[[Job], tuple[int, int]]


def metrics(job: Job, count_orphans: CountOrphans | None = None) -> tuple[Sample, ...]:
    """Every metric of the job that is known; without *count_orphans* that is none of orphans.

    Raises:
        SluiceError: the job cannot be read.
    """
    state = job.state()
    figures = overview(job, limit=0, state=state)
    newest = newest_completed(figures.latest)
    kept = None if newest is None else StatisticsStore(job.store, job.paths).read(newest.id)
    retained = state.latest_completed
    orphans = (None, None) if count_orphans is None else count_orphans(job)
    return samples(
        JobFigures(
            pipeline=job.pipeline.uid,
            state=state,
            counts=figures.counts,
            latest=figures.latest,
            stages=() if kept is None else kept.stages,
            lags=lags(job, state, newest_of(state), kept),
            rates=rates(job, kept),
            external_path=None
            if retained is None
            else redacted(f"{job.store.root}/{job.paths.checkpoint(retained.checkpoint_id)}"),
            interval_ms=_interval_ms(job, state),
            orphans=orphans[0],
            orphaned_bytes=orphans[1],
        )
    )


def metrics_of_each(jobs: Iterable[Job], count_orphans: CountOrphans | None = None) -> list[Sample]:
    """The metrics of all *jobs*; a job that cannot be read has a sample that says so."""
    read: list[Sample] = []
    for job in jobs:
        try:
            read += metrics(job, count_orphans)
        except SluiceError as error:
            log.warning("metrics not read pipeline=%s error=%s", job.pipeline.uid, error)
            read.append(unreadable(job.pipeline.uid))
    return read


def metrics_text(jobs: Iterable[Job], count_orphans: CountOrphans | None = None) -> str:
    """The metrics of *jobs* as a page for a scraper, of the type ``CONTENT_TYPE``.

    Raises:
        ConfigurationError: the library is not installed.
    """
    return text_of(metrics_of_each(jobs, count_orphans))


def text_of(found: Iterable[Sample]) -> str:
    """*found* as the page of ``metrics_text``, which raises what that does."""
    registry = registry_of(lambda: found)
    from prometheus_client import generate_latest

    return generate_latest(registry).decode()


def registry_of(read: Callable[[], Iterable[Sample]]) -> CollectorRegistry:
    """A registry that calls *read* at every scrape; it raises what ``metrics_text`` does."""
    require_installed("prometheus_client", who="the page of metrics")
    from prometheus_client.registry import Collector, CollectorRegistry

    class BucketCollector(Collector):
        def collect(self) -> Iterator[GaugeMetricFamily]:
            return _families(read())

    registry = CollectorRegistry(auto_describe=False)
    registry.register(BucketCollector())
    return registry


def exposed_name(metric: Metric[Any]) -> str:
    """Flink's name behind Sluice's prefix, as ``sluice_job_numRestarts``."""
    return f"sluice_{metric.scope}_{metric.name}"


def is_tracing() -> bool:
    """Whether the environment names a collector, and does not switch the traces off."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return any(os.environ.get(name) for name in ENDPOINTS)


def send_trace(job: Job, checkpoint_id: CheckpointId) -> bool:
    """Send the trace of a checkpoint that has ended; whether a collector took it.

    Best effort: a trace that cannot be made or sent is logged.  It is linked to the span that is
    current, which in Airflow is the task's.
    """
    if not is_tracing():
        return False
    try:
        require_installed(
            "opentelemetry.sdk", "opentelemetry.exporter.otlp", who="the trace of a checkpoint"
        )
        trace = _trace(job, checkpoint_id)
        return trace is not None and _export(trace)
    except SluiceError as error:
        log.warning("trace not sent checkpoint_id=%d error=%s", checkpoint_id, error)
        return False


def _interval_ms(job: Job, state: CoordinatorState) -> int | None:
    """The interval in force; None by a schedule or by hand only, and while the job is paused."""
    declared, changed = job.pipeline.checkpointing, state.timing
    if changed.is_paused:
        return None
    if changed.interval_ms is not None:
        return changed.interval_ms
    if declared.schedule is not None or declared.interval is None:
        return None
    return milliseconds(declared.interval)


def _families(found: Iterable[Sample]) -> Iterator[GaugeMetricFamily]:
    """A family for each metric that has a sample, in the order of ``METRICS``."""
    from prometheus_client.core import GaugeMetricFamily

    by_metric: dict[str, list[Sample]] = {}
    for sample in found:
        by_metric.setdefault(sample.metric.key, []).append(sample)
    for key, metric in METRICS.items():
        if key in by_metric:
            family = GaugeMetricFamily(
                exposed_name(metric), metric.documentation, labels=metric.labels
            )
            for sample in by_metric[key]:
                family.add_metric(sample.labels, sample.value)
            yield family


def _trace(job: Job, checkpoint_id: CheckpointId) -> Trace | None:
    measured = details(job, checkpoint_id)
    origin = Origin(pipeline=job.pipeline.uid, life=job.state().life)
    committed_at_ms = _committed_at_ms(job, checkpoint_id)
    return trace_of(origin, measured.checkpoint, measured.stages, committed_at_ms)


def _committed_at_ms(job: Job, checkpoint_id: CheckpointId) -> int | None:
    for entry in job.journal.entries(COMMIT_SEARCH_ENTRIES):
        event = entry.event
        if isinstance(event, CheckpointCommitted) and event.checkpoint_id == checkpoint_id:
            return event.at_ms
    return None


def _export(trace: Trace) -> bool:
    from opentelemetry.sdk.trace.export import SpanExportResult

    spans, exporter = _spans(trace), _exporter()
    batches = (spans[start : start + BATCH] for start in range(0, len(spans), BATCH))
    try:
        return all(exporter.export(batch) is SpanExportResult.SUCCESS for batch in batches)
    finally:
        exporter.shutdown()


def _exporter() -> SpanExporter:
    """The exporter of spans: by HTTP unless the environment has the protocol ``grpc``."""
    protocol = next((os.environ[name] for name in PROTOCOLS if os.environ.get(name)), "")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as ByGrpc

        return ByGrpc(timeout=TIMEOUT_S)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(timeout=TIMEOUT_S)


def _spans(trace: Trace) -> list[ReadableSpan]:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanKind, get_current_span
    from opentelemetry.trace.status import Status, StatusCode

    resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "sluice")})
    scope = InstrumentationScope("sluice")
    task = get_current_span().get_span_context()

    def made(span: Span) -> ReadableSpan:
        is_root = span.parent_id is None
        return ReadableSpan(
            name=span.name,
            context=_context(trace, span.span_id),
            parent=None if span.parent_id is None else _context(trace, span.parent_id),
            resource=resource,
            attributes=span.attributes,
            links=[Link(task)] if is_root and task.is_valid else [],
            kind=SpanKind.INTERNAL,
            instrumentation_scope=scope,
            status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.start_ms * 1_000_000,
            end_time=span.end_ms * 1_000_000,
        )

    return [made(span) for span in trace.spans]


def _context(trace: Trace, span_id: int) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(trace.trace_id, span_id, is_remote=False, trace_flags=TraceFlags(1))
