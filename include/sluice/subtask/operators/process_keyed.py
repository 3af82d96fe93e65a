"""``ProcessKeyed``: a user's function of one key at a time; Flink's KeyedProcessFunction.

The rows of a key come in the order of event time and then of all other columns; then the timers
that are due at the barrier fire, in the order of their instants, including those that they register
in turn.  A row is processed even if it is late.  State is loaded once for all keys that have a row
or a due timer, and only changes are written.

Output is sorted by hash and key; for one key it is in the order in which it was yielded.  It runs
row by row in Python, so it is many times slower than the built-in operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import polars as pl

from sluice.declaration.checkpointed_function import SubtaskContext
from sluice.declaration.declared_states import Own, table_of, ttl_configs, with_own_states
from sluice.declaration.keyed_process import KeyedProcessFunction, Row
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import ProcessKeyed as Declared
from sluice.subtask.operators.declared_types import declared_schema
from sluice.subtask.operators.join_rows import require_instant
from sluice.subtask.operators.keyed_broadcast import BroadcastSide
from sluice.subtask.operators.keyed_entries import EntryTable, former_tables, state_tables
from sluice.subtask.operators.keyed_timers import (
    DOMAINS,
    PLACE,
    TIME_MS,
    KeyTimers,
    TimerTable,
    limits_ms,
    timer_schema,
    timer_table,
)
from sluice.subtask.operators.keyed_visit import Visitor
from sluice.subtask.operators.operator import (
    EpochTime,
    Frames,
    Outcome,
    Partial,
    input_schema,
    key_types,
    require_distinct,
)
from sluice.subtask.operators.operator_lists import OperatorLists, list_tables
from sluice.subtask.operators.panes import require_append_only
from sluice.subtask.operators.raw_rows import RawRows, in_order
from sluice.subtask.state.keyed import KeyedState, StateSchema
from sluice.subtask.state.segments import HASH

_ROWS = "rows"
_COUNT = "_count"


class ProcessKeyed(RawRows):
    """An ``Operator``; see ``sluice.subtask.operators.operator``."""

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        """*schema* is that of the input.

        Raises:
            ConfigurationError: the declared columns cannot be kept.
        """
        assert isinstance(stage.operation, Declared)
        require_append_only(stage, "the function of process_keyed()")
        self._uid = stage.uid
        self._function = stage.operation.function
        self._input = input_schema(schema)
        self._keys = stage.keys
        types = key_types(stage.uid, self._input, stage.keys)
        require_distinct(stage.uid, [*stage.keys, TIME_MS, PLACE, _COUNT])
        self._event_time = stage.inputs[0].event_time
        order = [HASH, *stage.keys]
        if self._event_time is not None:
            require_instant(stage.uid, self._input, self._event_time, "as event time")
            order.append(self._event_time)
        self._order = order
        self._timers = {domain: timer_schema(types) for domain in DOMAINS}
        self._states = state_tables(stage, types, self._function)
        self._ttls = ttl_configs(self._function)
        self._former = former_tables(types, self._function)
        self.broadcast = BroadcastSide(stage)
        self.list_tables = list_tables(stage)
        self._lists: OperatorLists | None = None
        self._own: Own[KeyedProcessFunction] | None = None
        self.tables: Mapping[str, StateSchema] = {
            **self._states,
            **self._former,
            **self.broadcast.tables,
            **self.list_tables,
            **{timer_table(domain): schema for domain, schema in self._timers.items()},
        }
        self.output_schema = declared_schema(stage.uid, stage.operation.result)
        require_distinct(stage.uid, self.output_schema)

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - a late row is like any other
        groups = {_ROWS: rows.select(HASH, *self._input)}
        return Partial(groups=groups, late=self._input.to_frame())

    def begin(
        self,
        lists: OperatorLists,
        broadcast: Mapping[str, KeyedState],
        context: SubtaskContext,
        time: EpochTime,
    ) -> None:
        """Begin an epoch of a subtask, before its first range of hashes."""
        self._lists, self._own = lists, with_own_states(self._function)
        self.broadcast.bind(self._own.broadcast, broadcast)
        lists.bind(self._own.lists)
        function = self._own.function
        self._visitor(function, time).tell(function.initialize_state, context)

    def end(self, context: SubtaskContext, time: EpochTime) -> Outcome:
        """End the epoch of the subtask, behind its last range of hashes."""
        assert self._own is not None, "the epoch has begun"
        assert self._lists is not None, "and the lists with it"
        function = self._own.function
        visitor = self._visitor(function, time)
        visitor.prepare(context)
        visitor.tell(function.snapshot_state, context)
        return Outcome(output=visitor.results(), changes=self._lists.changes())

    def _visitor(self, function: KeyedProcessFunction, time: EpochTime) -> Visitor:
        return Visitor(self._uid, function, self.output_schema, self._event_time, time)

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        empty = pl.Schema({HASH: pl.Int64(), **self._input}).to_frame()
        rows = in_order(groups.get(_ROWS, empty), self._order)
        limits = limits_ms(time)
        reached = {"event": time.previous_watermark_ms}
        timers = {
            domain: TimerTable(
                schema, state[timer_table(domain)], limits[domain], reached_ms=reached.get(domain)
            )
            for domain, schema in self._timers.items()
        }
        key = [HASH, *self._keys]
        touched = [rows.select(key), *(table.due.select(key) for table in timers.values())]
        keys = pl.concat(touched).unique().sort(key)
        for name in self._former:
            if state[name].has_runs:
                state[name].lookup(keys)
        now_ms = time.processing_time_ms
        tables = {
            name: EntryTable(of, state[name], keys, self._ttls.get(name), now_ms)
            for name, of in self._states.items()
        }
        due_ms = {domain: table.due_ms(keys) for domain, table in timers.items()}

        own = self._own or with_own_states(self._function)
        self.broadcast.bind(own.broadcast, state)
        visitor = self._visitor(own.function, time)
        for place, (named, its_rows) in enumerate(self._by_key(keys, rows)):
            entries = {name: table.entries(place) for name, table in tables.items()}
            for one in own.keyed.values():
                one.bind(entries[table_of(one)])
            its_timers = KeyTimers({d: of.get(place, []) for d, of in due_ms.items()}, limits)
            visitor.visit(named, its_rows, its_timers)
            for name, table in tables.items():
                table.collect(place, entries[name])
            for domain, timer_rows in timers.items():
                timer_rows.collect(place, its_timers.written(domain))
        for one in own.keyed.values():
            one.bind(None)

        changes = {name: table.changes() for name, table in tables.items()}
        changes |= {timer_table(domain): table.changes(keys) for domain, table in timers.items()}
        return Outcome(output=visitor.results(), changes=changes)

    def _by_key(
        self, keys: pl.DataFrame, rows: pl.DataFrame
    ) -> Iterator[tuple[Row, Iterator[Row]]]:
        """Each of *keys* with its rows; both are sorted by key."""
        counts = rows.group_by(HASH, *self._keys).len(_COUNT)
        counted = keys.join(
            counts, on=keys.columns, how="left", nulls_equal=True, maintain_order="left"
        )
        all_rows = rows.select(self._input.names()).iter_rows(named=True)
        numbers = counted[_COUNT].fill_null(0)
        for key, count in zip(keys.drop(HASH).iter_rows(named=True), numbers, strict=True):
            yield key, islice(all_rows, count)
