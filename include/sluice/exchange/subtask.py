"""One subtask of one stage for one epoch: read, merge, write, upload, acknowledge; in one pass.

It runs inside Spark's Python worker, in ``mapInArrow``; its input is the rows of the epoch that
belong to this subtask.  Its only lasting effects are files, which count once an ack names them: a
retried or speculative Spark task changes nothing.

    sync part     read, merge, encode; what is encoded is uploaded meanwhile
    async part    wait until all of it is durable
    ack           yielded; the driver answers with it when Spark reports the tasks' success

It must not write the ack itself: where what feeds it fails, or the task is killed, Spark ends its
input as if that were all (docs/adr/0004-chains-and-acks.md; 0012-state-files.md on uploads).

``KeyedSnapshot`` merges the epoch's groups with the state of a keyed stage, range of hashes by
range; a ``StateWriter`` per table writes the changes as the segments of a new run.
``FunctionEpoch`` and ``BroadcastRows`` are what a keyed function has around its keys.

``KeyGroupRows`` has the key groups that most rows of an epoch came to a subtask in, with some
of their keys.  Rows are counted as they come: where equal keys were folded before the exchange, a
key is one row of each sender, and no key is hot.  What is kept of an epoch is small: a
number for each key group of the subtask while it runs, and three groups in its ack.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import assert_never

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sluice.core.answers import Ack, Decline, Execution, HotGroup, SubtaskMetrics
from sluice.core.compaction import SortedRun, sorted_runs
from sluice.core.failures import CheckpointFailureReason, note_of_stage
from sluice.core.handles import MIN_HASH, StateHandle
from sluice.core.ids import SubtaskId
from sluice.core.key_groups import KeyGroupRange
from sluice.core.transitions import Adoption
from sluice.declaration.keyed_functions import SubtaskContext
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import SparkCode, TopN
from sluice.declaration.places import MALFORMED_COLUMN, RAW, UndecidedError
from sluice.declaration.results import Replace
from sluice.errors import CheckpointDeclined, DeclineReason
from sluice.exchange.blocks import (
    BlockKind,
    ChainedClock,
    ChainedOutput,
    Received,
    execution_rows,
    executions_in,
    received,
    refused_row,
)
from sluice.exchange.group_buffer import GroupBuffer, HashRange
from sluice.exchange.output import StageOutput
from sluice.exchange.reading import SOURCE, CarriedClock, EventTimes, chunks, in_columns_of
from sluice.exchange.refusals import Fed, RefusedError, is_final, reason_of, refusal_of
from sluice.exchange.workspace import SubtaskSpec, Workspace
from sluice.operators.aggregate import GROUPS
from sluice.operators.build import build_operator
from sluice.operators.changes import COPIES, behind
from sluice.operators.keyed_function import (
    BROADCAST_HASH,
    BroadcastSide,
    OperatorLists,
    ProcessKeyedOperator,
    instant_of,
)
from sluice.operators.operator import (
    Adopts,
    ComputesColumns,
    EpochTime,
    Frames,
    HoldsResult,
    Operator,
    Outcome,
)
from sluice.operators.ranking import RANK, ROWS
from sluice.state.at_once import without
from sluice.state.cache import SegmentCache
from sluice.state.keyed import Changes, KeyedState, delta_table
from sluice.state.merging import (
    AS_IT_IS,
    GROWTH,
    ReadOtherwise,
    describe_segment,
    merged_frames,
    open_runs,
    stored_run,
)
from sluice.state.runs import Run
from sluice.state.segments import HASH, RowFiles, StateSchema, empty_frame, to_frame, to_table
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


SMALL_RUN_ROWS = 32_768  # About a megabyte: rewriting it costs as much as a request.


class KeyedSnapshot:
    """The snapshot of one table or more: ``add`` the epoch's rows, then ``finish``."""

    def __init__(self, work: Workspace, output: StageOutput) -> None:
        spec = work.spec
        self._work = work
        self._output = output
        self._time = spec.epoch_time
        shape = _shape_of(_Same(spec))
        self._operator: Operator = build_operator(spec.stage, shape.schemas)
        self._inherited: dict[str, list[StateHandle]] = {name: [] for name in self._operator.tables}
        self._begun = _state_of(self._operator, spec.begun)
        self._adopts = _without_begun(spec.adopts, spec.begun)
        self._reads = ReadOtherwise(without=self._begun)
        self._reads_groups = self._reads
        if self._adopts is not None and isinstance(self._operator, ComputesColumns):
            computed = self._operator.state_of_means(self._adopts.means)
            self._reads_groups = replace(self._reads, computed=computed)
        for handle in _respelt(spec.state[work.subtask.index], self._operator.tables):
            if handle.table not in self._begun:
                self._inherited.setdefault(handle.table, []).append(handle)
        self._buffer = GroupBuffer(self._operator, HashRange(*work.hash_range), spec.memory_bytes)
        self._template = shape.groups
        self._buffer.add(self._template)
        self._times: dict[int, list[pl.DataFrame]] = {}
        self._function: FunctionEpoch | None = None
        self._broadcast: BroadcastRows | None = None
        if isinstance(self._operator, ProcessKeyedOperator):
            self._function = FunctionEpoch(work, self._operator)
            if self._operator.broadcast.tables:
                self._broadcast = BroadcastRows(work, self._operator.broadcast)
        task = spec.task
        self._key_groups = KeyGroupRows(work.key_groups, task.max_parallelism, spec.stage.keys)
        self.rows_in = 0
        self.event_times_ms: dict[str, int] = {}  # Those that senders measured.
        self.executions: dict[str, list[Execution]] = {}  # Of earlier stages of its chain.
        self.streams_watermark_ms = spec.streams_watermark_ms

    @property
    def groups(self) -> int:
        return self._buffer.rows

    @property
    def hot_groups(self) -> tuple[HotGroup, ...]:
        return self._key_groups.hot()

    @property
    def read(self) -> tuple[str, ...]:
        """The tokens of the executions that sent the rows, where the stage is chained."""
        clock = self._work.spec.clock
        if not isinstance(clock, ChainedClock):
            return ()
        senders = self.executions[clock.producer]
        return tuple(s.token for s in sorted(senders, key=lambda sender: sender.ack.subtask))

    def add(self, rows: pl.DataFrame) -> None:
        """Add a chunk of the rows of the only input, which Spark has sorted."""
        self.rows_in += rows.height
        self._add_rows(rows, 0)

    def receive(self, part: Received) -> None:
        """Add one frame of rows that were exchanged as blocks.

        Raises:
            UndecidedError: a sender could not read its rows.
            RefusedError: a sender refuses its part.
        """
        self.rows_in += part.input_rows
        match part.kind:
            case BlockKind.ROWS:
                self._add_rows(part.rows, int(part.name))
            case BlockKind.GROUPS:
                of = self._template[part.name]
                self._key_groups.add(part.rows)
                self._buffer.add({part.name: part.rows.select(of.columns).cast(of.schema)})
            case BlockKind.LATE:
                self._output.add_late(part.rows, int(part.name))
            case BlockKind.TIMES:
                self._times.setdefault(int(part.name), []).append(part.rows)
            case BlockKind.ACK:
                known = self.executions.setdefault(part.name, [])
                known += executions_in(part.rows.iter_rows(), part.name)
            case BlockKind.UNDECIDED:
                raise UndecidedError(part.name)
            case BlockKind.REFUSED:
                raise RefusedError(part.name)
            case _:
                assert_never(part.kind)

    def _add_rows(self, rows: pl.DataFrame, side: int) -> None:
        self._key_groups.add(rows)
        good = self._output.without_event_time(self._output.without_malformed(rows), side)
        partial = self._operator.partial(without(good, (SOURCE,)), self._time, side)
        self._buffer.add(partial.groups)
        self._output.add_late(partial.late, side)

    def finish(self) -> tuple[StateHandle, ...]:
        """Merge with the state, add the result to the output, and upload the changes.

        Returns every live segment, oldest first: those of the parent, then the new ones.
        """
        self._read_clock()
        writers = {
            name: StateWriter(self._work, name, schema, self._inherited[name], self._read_as(name))
            for name, schema in self._operator.tables.items()
        }
        state, broadcast = self._state(), self._broadcast_state(writers)
        former = self._former()
        if self._function is not None:
            self._function.begin(broadcast, self._time)
        with self._buffer:
            for bounds, groups in self._buffer.ranges(self._bytes_read()):
                part = {
                    name: table.slice(bounds.first, bounds.last) for name, table in state.items()
                } | broadcast
                if self._work.spec.resends:
                    assert isinstance(self._operator, HoldsResult)
                    self._output.resend(self._operator.held(part))
                outcome = self._processed(groups, part)
                gone = None
                if former is not None:
                    gone = former.slice(bounds.first, bounds.last).scan().drop(HASH)
                elif self._begun and isinstance(self._operator, HoldsResult):
                    # Tables have what the columns were before they began anew: that row of a key
                    # may have passed a filter that none of now does.
                    held, keys = self._operator.held(part), self._work.spec.stage.keys
                    rows = held.join(outcome.output, on=keys, how="anti", nulls_equal=True)
                    output = pl.concat([outcome.output, rows])
                    outcome = replace(outcome, output=output, retracted=None)
                    gone = held.select(keys)
                self._take(outcome, writers, gone)
                if self._work.spec.republished:
                    self._republish(part, outcome)
        if self._function is not None:
            self._take(self._function.end(self._time), writers)
        handles = [
            handle
            for name, inherited in self._inherited.items()
            for handle in (writers[name].finish() if name in writers else inherited)
        ]
        return tuple(map(self._copied, handles)) if self._work.spec.is_full else tuple(handles)

    def _republish(self, state: Mapping[str, KeyedState], outcome: Outcome) -> None:
        """Send the rows that the epoch did not change to sinks that show them otherwise by now."""
        spec = self._work.spec
        assert isinstance(self._operator, HoldsResult), "no other result is published anew"
        key = [*spec.stage.keys, *([RANK] if isinstance(spec.stage.operation, TopN) else [])]
        rows = self._operator.held(state)
        for changed in (outcome.output, outcome.retracted):
            if changed is not None:
                rows = rows.join(changed, on=key, how="anti", nulls_equal=True)
        self._output.republish(rows, spec.republished)

    def _read_as(self, table: str) -> ReadOtherwise:
        return self._reads_groups if table == GROUPS else self._reads

    def _processed(self, groups: Frames, state: Mapping[str, KeyedState]) -> Outcome:
        if self._adopts is not None and isinstance(self._operator, Adopts):
            return self._operator.adopted(groups, state, self._time, self._adopts)
        return self._operator.process(groups, state, self._time)

    def _read_clock(self) -> None:
        """Raises UndecidedError if Spark started no task of the producer in the chain."""
        match self._work.spec.clock:
            case CarriedClock() as clock:
                sent = {side: pl.concat(frames) for side, frames in self._times.items()}
                self.event_times_ms = clock.measured_ms(sent)
                self._time = clock.read(self._time, self.event_times_ms)
            case ChainedClock() as clock:
                if clock.producer not in self.executions:
                    raise UndecidedError(f"no subtask of {clock.producer!r} has sent its ack")
                acks = [done.ack for done in self.executions[clock.producer]]
                self.streams_watermark_ms = clock.streams_ms(acks)
                self._time = clock.read(self._time, self.streams_watermark_ms)
            case None:
                pass

    def _take(
        self,
        outcome: Outcome,
        writers: dict[str, StateWriter],
        former: pl.DataFrame | None = None,
    ) -> None:
        self._output.add(outcome.output, outcome.retracted, former)
        for side, late in outcome.late.items():
            self._output.add_late(late, side)
        for name, changes in outcome.changes.items():
            writers[name].add(changes)

    def _state(self) -> dict[str, KeyedState]:
        spec = self._work.spec
        now_ms = self._time.processing_time_ms
        if self.rows_in or self._bytes_read():
            self._work.cache.prefetch(
                handle.segment
                for name, schema in self._operator.tables.items()
                for handle in self._inherited[name]
                if not schema.has_expired(handle.last_write_ms, now_ms)
            )
        return {
            name: KeyedState(
                schema,
                open_runs(self._work.cache, self._inherited[name], self._read_as(name)),
                now_ms=now_ms,
                owner=f"stage {spec.stage.uid!r}",
            )
            for name, schema in self._operator.tables.items()
        }

    def _broadcast_state(self, writers: Mapping[str, StateWriter]) -> dict[str, KeyedState]:
        """The state that all keys read, after the broadcast rows of the epoch."""
        if self._broadcast is None:
            return {}
        state, changes = self._broadcast.state()
        for name, changed in changes.items():
            writers[name].add(changed)
        self.rows_in += self._broadcast.rows_in
        return state

    def _former(self) -> KeyedState | None:
        """The keys of what a stage that is recomputed has sent to its sinks."""
        spec = self._work.spec
        if not (spec.former and spec.sinks):
            return None
        result, keys = self._operator.output_schema, spec.stage.keys
        held = [RANK] if isinstance(spec.stage.operation, TopN) else []
        schema = StateSchema(
            columns=pl.Schema({name: result[name] for name in (*keys, *held)}),
            key_columns=keys,
            sub_key_columns=tuple(held),
        )
        handles = [h for h in self._former_handles() if h.table in (GROUPS, ROWS)]
        runs = open_runs(self._work.cache, handles)
        return KeyedState(schema, runs, owner=f"stage {spec.stage.uid!r}")

    def _former_handles(self) -> tuple[StateHandle, ...]:
        former = self._work.spec.former
        return former[self._work.subtask.index] if former else ()

    def _bytes_read(self) -> int:
        """An upper bound of the state that is read whatever rows there are."""
        handles = list(self._former_handles())
        spec = self._work.spec
        is_whole = spec.resends or spec.republished or _reads_all(spec.stage)
        if is_whole or spec.adopts is not None:
            handles += [one for inherited in self._inherited.values() for one in inherited]
        return self._due_bytes() + sum(handle.segment.size_bytes for handle in handles)

    def _due_bytes(self) -> int:
        """An upper bound of the state that is read because its timers are due, or columns anew."""
        return sum(
            handle.segment.size_bytes
            for handles in self._inherited.values()
            for handle in handles
            if self._begun
            or (handle.min_time_ms is not None and handle.min_time_ms <= self._time.watermark_ms)
        )

    def _copied(self, handle: StateHandle) -> StateHandle:
        """The segment, copied for this checkpoint if it belongs to another one or another root."""
        segment, key = handle.segment, self._work.state_key(handle.segment.checksum)
        if segment.inline is not None or segment.key == key:
            return handle
        self._work.upload(key, self._work.cache.read(segment))
        return replace(handle, segment=replace(segment, key=key, root=""))


@dataclass(frozen=True, slots=True)
class _Shape:
    """The common parts of the subtasks of a spec: the ``schemas`` of what the operator gets of each
    input, and its ``groups`` of no rows.
    """

    schemas: list[pl.Schema]
    groups: dict[str, pl.DataFrame]


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A spec, which is the same as itself alone: it cannot be hashed."""

    spec: SubtaskSpec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.spec is self.spec

    def __hash__(self) -> int:
        return id(self.spec)


@lru_cache(maxsize=1)  # A task runs its subtasks one behind the other.
def _shape_of(same: _Same) -> _Shape:
    spec = same.spec
    inputs = (pa.ipc.read_schema(pa.py_buffer(schema)) for schema in spec.input_schemas)
    empty = [without(empty_frame(of), (SOURCE, MALFORMED_COLUMN, RAW)) for of in inputs]
    schemas = [frame.schema for frame in empty]
    operator = build_operator(spec.stage, schemas)
    groups: dict[str, pl.DataFrame] = {}
    for side, frame in enumerate(empty):
        groups |= operator.partial(frame, spec.epoch_time, side).groups
    return _Shape(schemas, groups)


def _without_begun(adopts: Adoption | None, begun: Sequence[str]) -> Adoption | None:
    if adopts is None:
        return None
    means = {column: of for column, of in adopts.means.items() if column not in begun}
    return replace(adopts, means=means)


def _reads_all(stage: StageNode) -> bool:
    """Whether the epoch compares its rows with the whole state."""
    code = stage.operation
    return isinstance(code, SparkCode) and isinstance(code.result, Replace)


def _state_of(operator: Operator, columns: Sequence[str]) -> frozenset[str]:
    """The columns and tables of state that serve only *columns* of the result."""
    if not columns:
        return frozenset()
    assert isinstance(operator, ComputesColumns), "only columns that are computed begin anew"
    return frozenset[str]().union(*map(operator.state_of, columns))


def _respelt(handles: Sequence[StateHandle], tables: Iterable[str]) -> Iterator[StateHandle]:
    """*handles* with their tables called as the operator calls its *tables* now: that of a column
    may have been called so in another case.
    """
    known = {handle.table for handle in handles}
    now = {name.lower(): name for name in tables if name not in known}
    for handle in handles:
        name = now.get(handle.table.lower(), handle.table)
        yield handle if name == handle.table else replace(handle, table=name)


class StateWriter:
    """Writes an epoch's changes to one table of state as a new run, range of hashes by range.

    A run holds changed rows only, so a checkpoint's size follows the changes.  Compactions merge
    runs, off the critical path.  Two cases are merged here at once: runs so small that a file for
    each would cost more than their rows, and runs beyond ``max_state_runs``, which would make
    lookups slow.
    """

    def __init__(
        self,
        work: Workspace,
        table: str,
        schema: StateSchema,
        inherited: Sequence[StateHandle],
        reads: ReadOtherwise = AS_IT_IS,
    ) -> None:
        """*inherited* are the segments of the parent checkpoint, oldest first.

        Where they are read otherwise, all of them are written anew.
        """
        self._reads = reads
        self._rewrites = bool(reads) or work.spec.drops_expired
        self._work = work
        self._table = table
        self._schema = schema
        self._inherited = tuple(inherited)
        self._run = max((handle.run for handle in inherited), default=0) + 1
        self._files = RowFiles(self._write)
        self._written: list[StateHandle] = []

    def add(self, changes: Changes) -> None:
        now_ms = self._work.spec.epoch_time.processing_time_ms
        delta = delta_table(self._schema, changes.upserts, changes.deletes, now_ms=now_ms)
        self._files.add(to_frame(delta))

    def finish(self) -> tuple[StateHandle, ...]:
        """Every live segment of the table, oldest first: those of the parent, then the new ones."""
        rest = self._files.take()
        runs = sorted_runs(self._inherited)
        is_short = len(runs) <= self._work.spec.max_state_runs
        if rest is None and not self._written and is_short and not self._rewrites:
            return self._inherited
        new_rows = sum(handle.segment.rows for handle in self._written)
        new_rows += 0 if rest is None else rest.height
        count = _runs_to_merge_now(
            [run.rows for run in runs], new_rows, self._work.spec.max_state_runs
        )
        count = len(runs) if self._rewrites else count
        kept, swallowed = runs[: len(runs) - count], runs[len(runs) - count :]
        if swallowed:
            self._merge(swallowed, rest, is_oldest=not kept)
        elif rest is not None:
            self._write(to_table(rest))
        return (*(handle for run in kept for handle in run.handles), *self._written)

    def _merge(
        self, swallowed: Sequence[SortedRun], rest: pl.DataFrame | None, *, is_oldest: bool
    ) -> None:
        """Write *swallowed* runs and the new one, of which *rest* is in no file yet, as one run."""
        handles = [handle for run in swallowed for handle in run.handles]
        runs = open_runs(self._work.cache, handles, self._reads)
        runs += open_runs(self._work.cache, self._written)
        if rest is not None:
            runs.append(Run(table=stored_run(self._schema, rest)))
        self._written = []
        for frame in merged_frames(
            self._schema,
            runs,
            drop_tombstones=is_oldest,
            now_ms=self._work.spec.epoch_time.processing_time_ms,
        ):
            self._files.add(frame)
        self._files.finish()

    def _write(self, rows: pa.Table) -> None:
        spec = self._work.spec
        handle, body = describe_segment(self._schema, rows)
        if len(body) >= spec.inline_threshold_bytes:
            key = self._work.state_key(handle.segment.checksum)
            segment = replace(handle.segment, key=key, inline=None)
            self._work.upload_state(segment, body)
            handle = replace(handle, segment=segment)
        self._written.append(replace(handle, table=self._table, run=self._run))


def _runs_to_merge_now(row_counts: Sequence[int], new_rows: int, max_runs: int) -> int:
    """The number of newest runs, of sizes *row_counts*, to merge with the new run at once."""
    count, rows = 0, new_rows
    while count < len(row_counts):
        previous = row_counts[-count - 1]
        is_small = rows + previous <= SMALL_RUN_ROWS and previous < GROWTH * rows
        has_too_many = len(row_counts) - count + 1 > max_runs
        if not is_small and not has_too_many:
            return count
        count += 1
        rows += previous
    return count


class FunctionEpoch:
    """An epoch of a keyed function in one subtask: what is called around its keys, and its lists.

    ``begin`` it before the first range of hashes, ``end`` it after the last.
    """

    def __init__(self, work: Workspace, operator: ProcessKeyedOperator) -> None:
        self._work = work
        self._operator = operator

    def begin(self, broadcast: Mapping[str, KeyedState], time: EpochTime) -> None:
        """Raises ConfigurationError, StageFailed: the function did."""
        tables = self._operator.list_tables
        rows = {name: self._rows(name) for name in tables}
        lists = OperatorLists(tables, rows, self._work.spec.task, self._work.subtask.index)
        context = self._context(time, time.previous_watermark_ms)
        self._operator.begin(lists, broadcast, context, time)

    def end(self, time: EpochTime) -> Outcome:
        """Raises ConfigurationError, StageFailed: the function did."""
        return self._operator.end(self._context(time, time.watermark_ms), time)

    def _context(self, time: EpochTime, watermark_ms: int) -> SubtaskContext:
        return SubtaskContext(
            checkpoint_id=self._work.spec.checkpoint_id,
            subtask=self._work.subtask.index,
            parallelism=self._work.spec.task.parallelism,
            current_watermark=instant_of(watermark_ms),
            processing_time=instant_of(time.processing_time_ms),
        )

    def _rows(self, table: str) -> pl.DataFrame:
        """The rows of a list, of all subtasks."""
        schema = self._operator.list_tables[table]
        found = [schema.live.to_frame()]
        for handles in self._work.spec.state:
            runs = open_runs(self._work.cache, [h for h in handles if h.table == table])
            owner = f"stage {self._work.spec.stage.uid!r}"
            found.append(KeyedState(schema, runs, owner=owner).scan().select(schema.live.names()))
        return pl.concat(found)


class BroadcastRows:
    """The broadcast rows of an epoch and the state that they write, in one subtask.

    Each subtask reads all rows, and plays them on the same state.
    """

    def __init__(self, work: Workspace, side: BroadcastSide) -> None:
        self._work = work
        self._side = side
        first, last = work.hash_range
        self._is_owner = first <= BROADCAST_HASH <= last
        self.rows_in = 0  # Counted by one subtask.

    def state(self) -> tuple[dict[str, KeyedState], Mapping[str, Changes]]:
        """The broadcast state after the epoch's rows, and what this subtask keeps of the changes.

        Raises:
            ConfigurationError, StageFailed: the function did.
        """
        time = self._work.spec.epoch_time
        before = {name: self._state(name) for name in self._side.tables}
        rows = self._rows()
        if not rows.height:
            return before, {}
        changes = self._side.received(rows, before, time)
        after = {name: self._state(name, changes[name]) for name in before}
        if not self._is_owner:
            return after, {}
        self.rows_in = rows.height
        return after, changes

    def _rows(self) -> pl.DataFrame:
        spec = self._work.spec
        if not spec.broadcast_schema:
            return pl.DataFrame()
        schema = pa.ipc.read_schema(pa.py_buffer(spec.broadcast_schema))
        self._work.cache.prefetch(spec.broadcast)
        given = spec.stage.broadcast
        assert given is not None
        opened = map(self._work.cache.open, spec.broadcast)
        tables = [in_columns_of(table, schema, given.producer) for table in opened]
        rows = to_frame(pa.concat_tables([schema.empty_table(), *tables]))
        return behind(given.steps, rows, given.producer)

    def _state(self, table: str, changes: Changes | None = None) -> KeyedState:
        """The state of *table* in the segments of all subtasks, with *changes* applied."""
        spec, schema = self._work.spec, self._side.tables[table]
        handles = [h for subtask_state in spec.state for h in subtask_state if h.table == table]
        runs = open_runs(self._work.cache, handles)
        if changes is not None:
            delta = delta_table(schema, changes.upserts, changes.deletes)
            runs.append(Run(table=delta))
        return KeyedState(schema, runs, owner=f"stage {spec.stage.uid!r}")


MOST_GROUPS, MOST_KEYS = 3, 3
HOT = 2  # So many times the rows of the mean key group, or more.
LEAST_ROWS = 1_000  # No subtask waits for fewer.
SAMPLED_ROWS = 10_000  # Of a group in a chunk: a key with a tenth of them is among the first.
MAX_KEY_TEXT = 80  # Characters; a key may be a megabyte.


class KeyGroupRows:
    """The rows of each of *groups*, of which the stage has *max_parallelism*."""

    def __init__(
        self,
        groups: KeyGroupRange,
        max_parallelism: int,
        keys: Sequence[str],
        *,
        least_rows: int = LEAST_ROWS,
    ) -> None:
        self._first, self._max_parallelism, self._keys = groups.first, max_parallelism, keys
        self._least = least_rows
        self._rows = np.zeros(groups.last - groups.first + 1, dtype=np.int64)
        # Of the hottest: the rows of the chunk in which it had most, and the keys there.
        self._seen: dict[int, tuple[int, tuple[str, ...]]] = {}

    def add(self, rows: pl.DataFrame) -> None:
        if not rows.height:
            return
        groups = self._groups_of(rows[HASH].to_numpy())
        counts = np.bincount(groups, minlength=len(self._rows))
        self._rows += counts
        hottest = self._hottest()
        self._seen = {group: seen for group, seen in self._seen.items() if group in hottest}
        for group in hottest:
            count = int(counts[group])
            if count > self._seen.get(group, (0, ()))[0]:
                found = np.flatnonzero(groups == group)[:SAMPLED_ROWS]
                self._seen[group] = (count, self._keys_of(rows[found]))

    def hot(self) -> tuple[HotGroup, ...]:
        """The hottest, the one with most rows first; none where all are about equal, or small."""
        return tuple(
            HotGroup(
                group=self._first + group,
                rows=int(self._rows[group]),
                keys=self._seen.get(group, (0, ()))[1],
            )
            for group in self._hottest()
        )

    def _groups_of(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Their places among the subtask's own (``core/key_groups.hash_range``)."""
        groups = hashes >> 32  # In place from here on: memory costs more than the arithmetic.
        groups -= MIN_HASH >> 32
        groups *= self._max_parallelism
        groups >>= 32
        groups -= self._first
        return groups

    def _hottest(self) -> list[int]:
        least = max(self._least, HOT * self._rows.sum() / len(self._rows))
        order = np.argsort(self._rows, kind="stable")[::-1][:MOST_GROUPS]
        return [int(group) for group in order if self._rows[group] >= least]

    def _keys_of(self, rows: pl.DataFrame) -> tuple[str, ...]:
        """The keys that come most often in *rows*, as people read them."""
        keys = [key for key in self._keys if key in rows.columns]
        if not keys:
            return ()
        often = rows.group_by(keys).len(COPIES).top_k(MOST_KEYS, by=COPIES)
        return tuple(
            ", ".join(f"{key}={row[key]}" for key in keys)[:MAX_KEY_TEXT]
            for row in often.sort(COPIES, descending=True).iter_rows(named=True)
        )
