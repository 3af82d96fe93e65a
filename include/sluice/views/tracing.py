"""The trace of a checkpoint, sent to an OpenTelemetry collector.

Off unless OpenTelemetry's own variables name one (``OTEL_EXPORTER_OTLP_ENDPOINT`` or
``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``).  The spans are made when the checkpoint has ended, with the
times that were measured; see docs/adr/0017-statistics-lag-and-spans.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sluice.core.ids import CheckpointId
from sluice.core.messages import CheckpointCommitted
from sluice.errors import SluiceError
from sluice.extras import require
from sluice.job.job import Job
from sluice.statistics.spans import Origin, Span, Trace, trace_of
from sluice.views.statistics import details

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
TIMEOUT_S = 2  # A task waits for the collector: not for long.
BATCH = 512  # Spans of a request, as OpenTelemetry's own batches have.
LOOK_BACK = 8  # Journal entries in which the commit is looked for, right after it.


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
        require("opentelemetry.sdk", "opentelemetry.exporter.otlp", who="the trace of a checkpoint")
        trace = _trace(job, checkpoint_id)
        return trace is not None and _export(trace)
    except SluiceError as error:
        log.warning("trace not sent checkpoint_id=%d error=%s", checkpoint_id, error)
        return False


def _trace(job: Job, checkpoint_id: CheckpointId) -> Trace | None:
    told = details(job, checkpoint_id)
    origin = Origin(pipeline=job.pipeline.uid, life=job.state().life)
    return trace_of(origin, told.checkpoint, told.stages, _committed_at_ms(job, checkpoint_id))


def _committed_at_ms(job: Job, checkpoint_id: CheckpointId) -> int | None:
    for entry in job.journal.entries(LOOK_BACK):
        event = entry.event
        if isinstance(event, CheckpointCommitted) and event.checkpoint_id == checkpoint_id:
            return event.at_ms
    return None


def _export(trace: Trace) -> bool:
    from opentelemetry.sdk.trace.export import SpanExportResult

    exporter = _exporter()
    try:
        return all(
            exporter.export(batch) is SpanExportResult.SUCCESS for batch in _batches(_spans(trace))
        )
    finally:
        exporter.shutdown()


def _exporter() -> SpanExporter:
    """The protocol is HTTP unless the environment says ``grpc``."""
    protocol = next((os.environ[name] for name in PROTOCOLS if os.environ.get(name)), "")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as ByGrpc

        return ByGrpc(timeout=TIMEOUT_S)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(timeout=TIMEOUT_S)


def _batches(spans: Sequence[ReadableSpan]) -> Iterator[Sequence[ReadableSpan]]:
    return (spans[start : start + BATCH] for start in range(0, len(spans), BATCH))


def _spans(trace: Trace) -> list[ReadableSpan]:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanKind, get_current_span
    from opentelemetry.trace.status import Status, StatusCode

    named = os.environ.get("OTEL_SERVICE_NAME", "sluice")
    resource = Resource.create({SERVICE_NAME: named})
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
