"""One subtask of one stage for one epoch: read, merge, write, upload, acknowledge; in one pass.

It runs inside Spark's Python worker, in ``mapInArrow``; its input is the rows of the epoch that
belong to this subtask.  Its only lasting effects are files, which count once an ack names them: a
retried or speculative Spark task changes nothing.

    sync part     read, merge, encode; what is encoded is uploaded meanwhile
    async part    wait until all of it is durable
    ack           yielded; the driver answers with it when Spark reports the tasks' success

It must not write the ack itself: where what feeds it fails, or the task is killed, Spark ends its
input as if that were all (docs/adr/0004-chains-and-acks.md; 0012-state-files.md on uploads).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain

import pyarrow as pa

from sluice.core.answers import Ack, Decline, Execution, HotGroup, SubtaskMetrics
from sluice.core.failures import CheckpointFailureReason, note_of_stage
from sluice.core.handles import StateHandle
from sluice.core.ids import SubtaskId
from sluice.declaration.places import UndecidedError
from sluice.errors import CheckpointDeclined, DeclineReason
from sluice.exchange.blocks import ChainedOutput, execution_rows, received, refused_row
from sluice.exchange.output import StageOutput
from sluice.exchange.reading import SOURCE, EventTimes, chunks
from sluice.exchange.refusals import Fed, RefusedError, is_final, reason_of, refusal_of
from sluice.exchange.snapshot import KeyedSnapshot
from sluice.exchange.workspace import SubtaskSpec, Workspace
from sluice.state.cache import SegmentCache
from sluice.state.segments import empty_frame
from sluice.store.checkpoints import AnswerStore
from sluice.store.open import open_store
from sluice.store.redaction import redact_logs
from sluice.store.uploads import Uploads

_REASONS: dict[DeclineReason, CheckpointFailureReason] = {
    "CHECKPOINT_DECLINED": CheckpointFailureReason.CHECKPOINT_DECLINED,
    "CHECKPOINT_DECLINED_TASK_NOT_READY":
        CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY,
    "CHECKPOINT_DECLINED_TASK_CLOSING":
        CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING,
    "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM":
        CheckpointFailureReason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM,
}  # fmt: skip


def run_subtask(
    spec: SubtaskSpec, index: int, batches: Iterable[pa.RecordBatch], *, is_retried: bool = False
) -> Iterator[pa.RecordBatch]:
    """Run the subtask in ``mapInArrow``; yield the execution, with the ack for the driver to write.

    The executions of earlier stages of its chain follow.  A subtask that the next stage is chained
    to yields blocks for that instead.  If rows are undecided, no execution is yielded: the stage
    has to run again, and Spark to read them.  A subtask that declines, or has failed for good,
    yields why (``refusals``): Spark would try it again for nothing.
    """
    redact_logs()
    if index >= spec.task.parallelism:
        yield refused_row(
            f"stage {spec.task.uid!r} has more partitions than its parallelism "
            f"{spec.task.parallelism}; a transform must not change the partitioning"
        )
        return
    work = _workspace(spec, SubtaskId(spec.task.uid, index))
    answers = AnswerStore(open_store(spec.location), work.paths)
    fed = Fed(batches)
    with _chained_output(work) as chained:
        try:
            if is_retried:
                _require_not_declined(answers, work)
            with _declining(answers, work, fed, is_retried=is_retried):
                done, earlier = _snapshot(work, fed, chained)
                _strike(work)
        except UndecidedError as error:  # Every subtask gets the block, so none has acknowledged.
            if chained is not None:
                yield from chained.undecided(str(error))
            return
        except RefusedError as error:
            if chained is None:
                yield refused_row(str(error))
            else:
                yield from chained.refused(str(error))
            return
        if chained is not None:
            done = replace(done, ack=replace(done.ack, is_chained=True))
            yield from chained.blocks(done, earlier)
            return
    yield execution_rows([done, *chain.from_iterable(earlier.values())])


def _workspace(spec: SubtaskSpec, subtask: SubtaskId) -> Workspace:
    uploads = Uploads()
    location = replace(spec.location, layer=uploads)
    store = open_store(location)
    return Workspace(
        spec=spec,
        subtask=subtask,
        location=location,
        uploads=uploads,
        store=store,
        cache=SegmentCache(spec.location, store),
        token=f"{spec.attempt}-{uuid.uuid4().hex[:8]}",
    )


def _require_not_declined(answers: AnswerStore, work: Workspace) -> None:
    """Spark runs a task again whose machine was lost, but a subtask that has declined stays out of
    the checkpoint: else its outcome would depend on which of the two answers is read first.
    """
    spec = work.spec
    declined = answers.decline(
        spec.checkpoint_id, work.subtask, attempt=spec.attempt, plan=spec.plan
    )
    if declined is not None:
        raise RefusedError(declined.message)


def _chained_output(work: Workspace) -> AbstractContextManager[ChainedOutput | None]:
    spec, subtask = work.spec, work.subtask
    if spec.chained_to is None:
        return nullcontext()
    return ChainedOutput(subtask.stage, spec.chained_to, subtask.index, spec.memory_bytes)


@contextmanager
def _declining(
    answers: AnswerStore, work: Workspace, fed: Fed, *, is_retried: bool
) -> Iterator[None]:
    """Writes why the subtask declines, or has failed; adds a note of the stage to every error.

    Raises:
        RefusedError: it declines, has failed for good, or was refused its rows.
    """
    try:
        yield
    except (RefusedError, UndecidedError):
        raise
    except Exception as error:
        is_own = error is not fed.error
        reason = _reason(error, work.uploads, is_retried=is_retried) if is_own else None
        error.add_note(note_of_stage(work.subtask.stage))  # A Spark job may run several stages.
        if reason is None:
            raise
        answers.write_decline(
            Decline(
                checkpoint_id=work.spec.checkpoint_id,
                subtask=work.subtask,
                attempt=work.spec.attempt,
                message=reason_of(error),
                reason=reason,
                plan=work.spec.plan,
            )
        )
        raise RefusedError(refusal_of(error)) from error
    finally:
        work.uploads.cancel()


def _reason(
    error: Exception, uploads: Uploads, *, is_retried: bool
) -> CheckpointFailureReason | None:
    """The reason to answer with; None if the Spark task may succeed when it is tried again.

    What the user's code raises, and what no repetition mends, is a task failure, wherever it was
    raised: only ``CheckpointDeclined`` and a failed upload decline the checkpoint.
    """
    if uploads.failure is not None:
        return CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
    if isinstance(error, CheckpointDeclined):
        return _REASONS[error.reason]
    is_failure = is_final(error, is_retried=is_retried)
    return CheckpointFailureReason.TASK_FAILURE if is_failure else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """The result of one pass over the epoch's rows; ``read`` and ``earlier`` are of its chain."""

    rows_in: int
    groups: int = 0
    hot_groups: tuple[HotGroup, ...] = ()
    state: tuple[StateHandle, ...] = ()
    event_times_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    streams_watermark_ms: int | None = None
    read: tuple[str, ...] = ()
    earlier: Mapping[str, list[Execution]] = field(default_factory=dict[str, list[Execution]])


def _snapshot(
    work: Workspace, batches: Iterable[pa.RecordBatch], chained: ChainedOutput | None
) -> tuple[Execution, Mapping[str, list[Execution]]]:
    """The execution of this subtask, and those of earlier stages of its chain."""
    started_ms, started = time.time_ns() // 1_000_000, time.monotonic()
    spec = work.spec
    output = StageOutput(work, chained)
    read = _keyed if spec.stage.is_stateful else _pass_through
    done = read(work, output, batches)
    # All subtasks know the times that senders or the driver measured, but only one ack has them.
    driver_ms = spec.event_times_ms if work.subtask.index == 0 else {}
    segments, committables = output.finish()
    sync_ms = _since(started)
    work.settle()
    ack = Ack(
        checkpoint_id=spec.checkpoint_id,
        subtask=work.subtask,
        attempt=spec.attempt,
        state=done.state,
        output=segments,
        schema=output.schema_bytes,
        event_times_ms={**done.event_times_ms, **driver_ms},
        watermark_ms=done.streams_watermark_ms,
        committables=committables,
        metrics=SubtaskMetrics(
            started_at_ms=started_ms,
            acknowledged_at_ms=time.time_ns() // 1_000_000,
            sync_ms=sync_ms,
            async_ms=_since(started) - sync_ms,
            async_start_delay_ms=work.uploads.start_delay_ms,
            rows_in=done.rows_in,
            rows_out=output.rows_out,
            groups=done.groups,
            hot_groups=done.hot_groups,
            late_rows=output.late_rows,
            late=output.late,
            malformed_rows=output.malformed_rows,
            checkpointed_bytes=work.uploaded_bytes + _inline_bytes(done.state, work),
            full_bytes=sum(handle.segment.size_bytes for handle in done.state),
            requests=work.uploads.requests.so_far(),
        ),
    )
    return Execution(ack=ack, token=work.token, read=done.read), done.earlier


def _keyed(work: Workspace, output: StageOutput, batches: Iterable[pa.RecordBatch]) -> _Pass:
    snapshot = KeyedSnapshot(work, output)
    if work.spec.is_exchanged:
        for part in received(batches):
            snapshot.receive(part)
    else:
        for chunk in chunks(batches):
            snapshot.add(chunk)
    state = snapshot.finish()
    is_first = work.subtask.index == 0
    return _Pass(
        rows_in=snapshot.rows_in,
        groups=snapshot.groups,
        hot_groups=snapshot.hot_groups,
        state=state,
        event_times_ms=snapshot.event_times_ms if is_first else {},
        streams_watermark_ms=snapshot.streams_watermark_ms,
        read=snapshot.read,
        earlier=snapshot.executions if is_first else {},
    )


def _pass_through(work: Workspace, output: StageOutput, batches: Iterable[pa.RecordBatch]) -> _Pass:
    spec = work.spec
    measures = spec.measured_source is not None
    assert not measures or spec.stage.inputs[0].event_time is not None
    event_times = EventTimes(
        spec.stage.uid, spec.measured_source or "", spec.stage.inputs[0].event_time or ""
    )
    rows_in = 0
    schema = pa.ipc.read_schema(pa.py_buffer(spec.input_schemas[0]))
    # An empty chunk first, so that the output's schema is known even without rows.
    for chunk in chain([empty_frame(schema)], chunks(batches)):
        rows_in += chunk.height
        rows = output.without_malformed(chunk)
        if measures:
            event_times.add(rows)
        output.add(rows.drop(SOURCE, strict=False))
    return _Pass(
        rows_in=rows_in,
        event_times_ms=event_times.latest_ms,
        streams_watermark_ms=spec.streams_watermark_ms,
    )


def _inline_bytes(state: tuple[StateHandle, ...], work: Workspace) -> int:
    """The most bytes of new state that are stored inside the ack."""
    inherited = {handle.segment.checksum for handle in work.spec.state[work.subtask.index]}
    new = [h.segment for h in state if h.segment.checksum not in inherited]
    return sum(segment.size_bytes for segment in new if segment.inline is not None)


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)


def _strike(work: Workspace) -> None:
    """Inject the configured fault, between the uploads and the ack."""
    fault, subtask = work.spec.fault, work.subtask
    if fault is None or subtask.index != 0:
        return
    if fault.strikes_subtask(subtask.stage, work.spec.checkpoint_id):
        fault.strike()
