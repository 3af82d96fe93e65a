"""A keyed subtask's snapshot: the epoch's groups are merged with its state, changes are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

import polars as pl
import pyarrow as pa

from sluice.connectors.contracts.source import MALFORMED_COLUMN, RAW
from sluice.connectors.files.plain_json import UndecidedError
from sluice.core.executions import Execution
from sluice.core.handles import StateHandle
from sluice.subtask.broadcast_rows import BroadcastRows
from sluice.subtask.carried_clock import CarriedClock
from sluice.subtask.chain import ChainedClock, executions_in
from sluice.subtask.exchange_blocks import BlockKind, Received
from sluice.subtask.group_buffer import GroupBuffer, HashRange
from sluice.subtask.keyed_function import FunctionEpoch
from sluice.subtask.operators.build import build_operator
from sluice.subtask.operators.operator import ROW_COUNT, Operator, Outcome
from sluice.subtask.operators.process_keyed import ProcessKeyed
from sluice.subtask.output import Output
from sluice.subtask.side_rows import SOURCE
from sluice.subtask.state.keyed import KeyedState
from sluice.subtask.state.segments import HASH, to_frame
from sluice.subtask.state_files import open_runs
from sluice.subtask.state_writer import StateWriter
from sluice.subtask.workspace import Workspace

SIDE = "_side"  # The input of a join that a row is from.


class KeyedSnapshot:
    """The snapshot of one table or more: ``add`` the epoch's rows, then ``finish``."""

    def __init__(self, work: Workspace, output: Output) -> None:
        spec = work.spec
        self._work = work
        self._output = output
        self._time = spec.epoch_time
        given = [pa.ipc.read_schema(pa.py_buffer(schema)) for schema in spec.input_schemas]
        self._sides = [schema.names for schema in given]
        empty = [
            to_frame(schema.empty_table()).drop(SOURCE, MALFORMED_COLUMN, RAW, strict=False)
            for schema in given
        ]
        self._operator: Operator = build_operator(spec.stage, [frame.schema for frame in empty])
        self._inherited: dict[str, list[StateHandle]] = {name: [] for name in self._operator.tables}
        for handle in spec.state[work.subtask.index]:
            self._inherited.setdefault(handle.table, []).append(handle)
        self._buffer = GroupBuffer(self._operator, HashRange(*work.hash_range), spec.memory_bytes)
        self._template: dict[str, pl.DataFrame] = {}
        for side, frame in enumerate(empty):
            self._template |= self._operator.partial(frame, self._time, side).groups
        self._buffer.add(self._template)
        self._times: dict[int, list[pl.DataFrame]] = {}
        self._broadcast = (
            BroadcastRows(work, self._operator.broadcast)
            if isinstance(self._operator, ProcessKeyed) and self._operator.broadcast.tables
            else None
        )
        self._function = (
            FunctionEpoch(work, self._operator)
            if isinstance(self._operator, ProcessKeyed)
            else None
        )
        self.rows_in = 0
        self.event_times_ms: dict[str, int] = {}  # Those that came with the rows.
        self.executions: dict[str, list[Execution]] = {}  # Of stages before it in its chain.
        self.streams_watermark_ms = spec.streams_watermark_ms

    @property
    def groups(self) -> int:
        return self._buffer.rows

    @property
    def read(self) -> tuple[str, ...]:
        """The tokens of the executions that sent the rows, where the stage is chained."""
        clock = self._work.spec.clock
        if not isinstance(clock, ChainedClock):
            return ()
        senders = sorted(self.executions[clock.producer], key=lambda one: one.ack.subtask)
        return tuple(one.token for one in senders)

    def add(self, rows: pl.DataFrame) -> None:
        """Pre-aggregate one chunk of the epoch's rows."""
        if self._work.spec.is_pre_aggregated:
            self.rows_in += int(rows[ROW_COUNT].sum())
            template = self._template["groups"]
            self._buffer.add({"groups": rows.select(template.columns).cast(template.schema)})
            return
        self.rows_in += rows.height
        for side, names in enumerate(self._sides):
            mine = rows
            if len(self._sides) > 1:
                prefixed = [name if name == HASH else column_of(side, name) for name in names]
                mine = rows.filter(pl.col(SIDE) == side).select(prefixed)
                mine = mine.rename(dict(zip(prefixed, names, strict=True)))
            good = self._output.without_event_time(self._output.without_malformed(mine), side)
            self._add_rows(good.drop(SOURCE, strict=False), side)

    def receive(self, part: Received) -> None:
        """Add one frame of rows that were exchanged as blocks.

        Raises:
            UndecidedError: a sender could not read its rows.
        """
        self.rows_in += part.input_rows
        match part.kind:
            case BlockKind.ROWS:
                side = int(part.name)
                self._add_rows(self._output.without_event_time(part.rows, side), side)
            case BlockKind.GROUPS:
                self._buffer.add({part.name: part.rows})
            case BlockKind.LATE:
                self._output.add_late(part.rows, int(part.name))
            case BlockKind.TIMES:
                self._times.setdefault(int(part.name), []).append(part.rows)
            case BlockKind.ACK:
                known = self.executions.setdefault(part.name, [])
                known += executions_in(part.rows.iter_rows(), part.name)
            case BlockKind.UNDECIDED:
                raise UndecidedError(part.name)
            case _:
                assert_never(part.kind)

    def _add_rows(self, rows: pl.DataFrame, side: int) -> None:
        partial = self._operator.partial(rows, self._time, side)
        self._buffer.add(partial.groups)
        self._output.add_late(partial.late, side)

    def finish(self) -> tuple[StateHandle, ...]:
        """Merge with the state, add the result to the output, and upload the changes.

        Returns every live segment, oldest first: those of the parent, then the new ones.
        """
        self._read_clock()
        writers = {
            name: StateWriter(self._work, name, schema, self._inherited[name])
            for name, schema in self._operator.tables.items()
        }
        state, broadcast = self._state(), self._broadcast_state(writers)
        if self._function is not None:
            self._function.begin(broadcast, self._time)
        with self._buffer:
            for bounds, groups in self._buffer.ranges(self._due_bytes()):
                part = {
                    name: table.slice(bounds.first, bounds.last) for name, table in state.items()
                } | broadcast
                outcome = self._operator.process(groups, part, self._time)
                self._take(outcome, writers)
        if self._function is not None:
            self._take(self._function.end(self._time), writers)
        handles = [
            handle
            for name, inherited in self._inherited.items()
            for handle in (writers[name].finish() if name in writers else inherited)
        ]
        return tuple(map(self._copied, handles)) if self._work.spec.is_full else tuple(handles)

    def _read_clock(self) -> None:
        """Raises UndecidedError if Spark started no task of the stage before it in its chain."""
        match self._work.spec.clock:
            case CarriedClock() as clock:
                seen = {side: pl.concat(frames) for side, frames in self._times.items()}
                self.event_times_ms = clock.measured_ms(seen)
                self._time = clock.read(self._time, self.event_times_ms)
            case ChainedClock() as clock:
                if clock.producer not in self.executions:
                    raise UndecidedError(f"no subtask of {clock.producer!r} has sent its ack")
                acks = [one.ack for one in self.executions[clock.producer]]
                self.streams_watermark_ms = clock.streams_ms(acks)
                self._time = clock.read(self._time, self.streams_watermark_ms)
            case None:
                pass

    def _take(self, outcome: Outcome, writers: dict[str, StateWriter]) -> None:
        self._output.add(outcome.output, outcome.retracted)
        for side, late in outcome.late.items():
            self._output.add_late(late, side)
        for name, changes in outcome.changes.items():
            writers[name].add(changes)

    def _state(self) -> dict[str, KeyedState]:
        spec = self._work.spec
        now_ms = self._time.processing_time_ms
        if self.rows_in or self._due_bytes():
            self._work.cache.prefetch(
                handle.segment
                for name, schema in self._operator.tables.items()
                for handle in self._inherited[name]
                if not schema.has_expired(handle.last_write_ms, now_ms)
            )
        return {
            name: KeyedState(
                schema,
                open_runs(self._work.cache, self._inherited[name]),
                now_ms=now_ms,
                owner=f"stage {spec.stage.uid!r}",
            )
            for name, schema in self._operator.tables.items()
        }

    def _broadcast_state(self, writers: Mapping[str, StateWriter]) -> dict[str, KeyedState]:
        """The state that all keys read, behind the broadcast rows of the epoch."""
        if self._broadcast is None:
            return {}
        state, changes = self._broadcast.state()
        for name, changed in changes.items():
            writers[name].add(changed)
        self.rows_in += self._broadcast.rows_in
        return state

    def _due_bytes(self) -> int:
        """An upper bound of the state that is read because its timers are due."""
        return sum(
            handle.segment.size_bytes
            for handles in self._inherited.values()
            for handle in handles
            if handle.min_time_ms is not None and handle.min_time_ms <= self._time.watermark_ms
        )

    def _copied(self, handle: StateHandle) -> StateHandle:
        """A copy of the segment for this checkpoint; it belongs to a savepoint or another root."""
        segment, key = handle.segment, self._work.state_key(handle.segment.checksum)
        if segment.inline is not None or segment.key == key:
            return handle
        self._work.upload(key, self._work.cache.read(segment))
        return replace(handle, segment=replace(segment, key=key, root=""))


def column_of(side: int, name: str) -> str:
    """The name of an input's column *name* in rows that hold the columns of both inputs."""
    return f"_{side}_{name}"
