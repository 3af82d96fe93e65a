"""Spans of a checkpoint that has ended: trigger, stages, subtasks, uploads, finalization, commit.

They are made of its statistics, so their times are the measured ones.  Ids are derived from the job
and the checkpoint, so the same trace and the same spans are made each time.

    checkpoint -+- trigger
                +- stage -- subtask -- upload
                +- finalize
                +- commit
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from sluice.figures.record import (
    CheckpointStats,
    CheckpointStatus,
    Scope,
    StageStats,
    SubtaskStats,
    figures_of,
)

Attribute = str | int | bool


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """``error`` is why it failed, None if it did not."""

    name: str
    span_id: int
    parent_id: int | None
    start_ms: int
    end_ms: int
    attributes: Mapping[str, Attribute]
    error: str | None = None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The first of the ``spans`` is the checkpoint's."""

    trace_id: int
    spans: tuple[Span, ...]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The job of a checkpoint: its pipeline, and the life in which the id was given."""

    pipeline: str
    life: str


def trace_of(
    origin: Origin,
    checkpoint: CheckpointStats,
    stages: Sequence[StageStats],
    committed_at_ms: int | None = None,
) -> Trace | None:
    """The trace of a checkpoint; None while it is pending."""
    ended = checkpoint.completed_timestamp or checkpoint.failure_timestamp
    if ended is None:
        return None
    seed = f"{origin.pipeline}/{origin.life}/{checkpoint.id}"
    root = Span(
        name=f"checkpoint {origin.pipeline}",
        span_id=_id(f"{seed}/span", 8),
        parent_id=None,
        start_ms=checkpoint.trigger_timestamp,
        end_ms=max(ended, committed_at_ms or 0),
        attributes=_of_checkpoint(origin, checkpoint),
        error=_error(checkpoint),
    )
    parts = [
        *_trigger(seed, root, stages),
        *(span for stage in stages for span in _stage(seed, root, stage)),
        *_finalize(seed, root, checkpoint),
        *_commit(seed, root, checkpoint, committed_at_ms),
    ]
    return Trace(trace_id=_id(seed, 16), spans=(root, *parts))


def _error(checkpoint: CheckpointStats) -> str | None:
    if checkpoint.status is not CheckpointStatus.FAILED:
        return None
    return ": ".join(filter(None, (checkpoint.failure_reason, checkpoint.failure_message)))


def _of_checkpoint(origin: Origin, checkpoint: CheckpointStats) -> dict[str, Attribute]:
    """The names are those of Flink's checkpoint spans, where it has them."""
    return _known(
        Scope.CHECKPOINT,
        checkpoint,
        pipeline=origin.pipeline,
        checkpointId=checkpoint.id,
        checkpointStatus=checkpoint.status.value,
        checkpointType=checkpoint.checkpoint_type,
        isUnaligned=checkpoint.unaligned_checkpoint,
        cause=checkpoint.cause or None,
    )


def _of_stage(stage: StageStats) -> dict[str, Attribute]:
    return _known(
        Scope.STAGE,
        stage,
        stage=stage.id,
        numSubtasks=stage.num_subtasks,
        numAcknowledgedSubtasks=stage.num_acknowledged_subtasks,
    )


def _known(scope: Scope, record: object, **attributes: Attribute | None) -> dict[str, Attribute]:
    """*attributes*, and the figures of *record* that spans have."""
    figures = {one.span: one.of(record) for one in figures_of(scope) if one.span}
    known = (attributes | figures).items()
    return {f"sluice.{name}": value for name, value in known if value is not None}


def _id(seed: str, size_bytes: int) -> int:
    """Never 0, which stands for no id."""
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:size_bytes], "big") or 1


def _part(
    seed: str,
    parent: Span,
    name: str,
    start_ms: int,
    end_ms: int,
    attributes: Mapping[str, Attribute] | None = None,
) -> Span:
    """A span that never ends before it begins: its moments may be those of two machines."""
    return Span(
        name=name,
        span_id=_id(f"{seed}/{parent.span_id}/{name}", 8),
        parent_id=parent.span_id,
        start_ms=start_ms,
        end_ms=max(start_ms, end_ms),
        attributes=attributes or {},
    )


def _trigger(seed: str, root: Span, stages: Sequence[StageStats]) -> Iterator[Span]:
    """The span from the trigger until the first subtask started."""
    started = [s.start_timestamp for stage in stages for s in stage.subtasks if s.start_timestamp]
    if started:
        yield _part(seed, root, "trigger", root.start_ms, min(started))


def _stage(seed: str, root: Span, stage: StageStats) -> Iterator[Span]:
    """The spans from the stage's first start until its last ack; none if it did not start."""
    started = [s.start_timestamp for s in stage.subtasks if s.start_timestamp is not None]
    if not started:
        return
    ended = stage.latest_ack_timestamp or min(started)
    span = _part(seed, root, f"stage {stage.id}", min(started), ended, _of_stage(stage))
    yield span
    for subtask in stage.subtasks:
        yield from _subtask(seed, span, subtask)


def _subtask(seed: str, stage: Span, subtask: SubtaskStats) -> Iterator[Span]:
    """The subtask and its upload, of which only the duration is measured: it is the last part."""
    started, ended = subtask.start_timestamp, subtask.ack_timestamp
    if started is None or ended is None:
        return
    about = _known(Scope.SUBTASK, subtask, subtask=subtask.index)
    span = _part(seed, stage, f"subtask {subtask.index}", started, ended, about)
    yield span
    if subtask.checkpoint is not None:
        began = max(span.start_ms, span.end_ms - subtask.checkpoint.async_)
        yield _part(seed, span, "upload", began, span.end_ms)


def _finalize(seed: str, root: Span, checkpoint: CheckpointStats) -> Iterator[Span]:
    acknowledged, completed = checkpoint.latest_ack_timestamp, checkpoint.completed_timestamp
    if acknowledged is not None and completed is not None:
        yield _part(seed, root, "finalize", acknowledged, completed)


def _commit(
    seed: str, root: Span, checkpoint: CheckpointStats, committed_at_ms: int | None
) -> Iterator[Span]:
    completed = checkpoint.completed_timestamp
    if completed is not None and committed_at_ms is not None:
        yield _part(seed, root, "commit", completed, committed_at_ms)
