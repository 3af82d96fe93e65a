"""``ProcessKeyed``: a user's function of one key at a time; Flink's KeyedProcessFunction.

The rows of a key come in the order of event time and then of all other columns; then the timers
that are due at the barrier fire, in the order of their instants, including those that they register
in turn.  A row is processed even if it is late.  State is loaded once for all keys that have a row
or a due timer, and only changes are written.

Output is sorted by hash and key; for one key it is in the order in which it was yielded.  It runs
row by row in Python, so it is many times slower than the built-in operators.

What the function declares beside keyed state is loaded once for an epoch: rows of a broadcast side
(``BroadcastSide``) and lists of the subtask (``OperatorLists``).

``ProcessOperator`` calls a function of the epoch's rows and of the state of the keys they touch.
It gets the rows sorted by key, event time and all other columns, and one row of state per key, in
the same order; so its result depends neither on the order of arrival nor on chunks.  It is called
for one range of keys at a time, and not at all without rows: it must not compare rows of different
keys.  Its result is checked against the declaration, column by column.  A key's state is written
only if it changed or, with a TTL, if it was returned at all.  Output is sorted by hash where it has
the key columns; otherwise it keeps the function's order.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Literal, ParamSpec, TypeAlias

import polars as pl

from sluice.core.key_groups import dealt_out, hash_range, key_group_range
from sluice.core.plan import TaskPlan
from sluice.declaration import operations as ops
from sluice.declaration.declared_states import (
    FunctionCopy,
    broadcast_table_of,
    declared_broadcasts,
    table_of,
    ttl_configs,
    with_own_states,
)
from sluice.declaration.keyed_functions import (
    BEGINNING_OF_TIME,
    END_OF_TIME,
    BroadcastContext,
    BroadcastState,
    Context,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    OnTimerContext,
    OperatorListState,
    ReadOnlyEntries,
    Row,
    SubtaskContext,
    UnionListState,
    declared_operator_lists,
    operator_table_of,
)
from sluice.declaration.keyed_states import Entries
from sluice.declaration.nodes import StageNode
from sluice.errors import CheckpointDeclined, ConfigurationError, StageFailed
from sluice.operators.declared_columns import conformed, declared_schema, frame_of_rows, row_values
from sluice.operators.joins import require_instant
from sluice.operators.keyed_entries import (
    MAP_KEY,
    PLACE,
    VALUE,
    EntryTable,
    declared_columns,
    former_tables,
    from_column,
    function_state_tables,
    state_column_type,
    to_column,
)
from sluice.operators.operator import (
    EpochTime,
    Frames,
    Outcome,
    Partial,
    RawRows,
    column_type,
    in_order,
    input_schema,
    key_types,
    require_distinct,
)
from sluice.state.keyed import Changes, KeyedState
from sluice.state.segments import HASH, StateSchema

_ROWS = "rows"
_COUNT = "_count"

TimeDomain: TypeAlias = Literal["event", "processing"]
TIME_MS = "_time_ms"
DOMAINS: tuple[TimeDomain, ...] = ("event", "processing")

# A timer a second for four months, more than an epoch should span.  Without a limit, a timer that
# always registers the next one would fire for ever at the final watermark, MAX.
MOST_FIRINGS = 10_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

BROADCAST_HASH = 0  # Of all rows of broadcast state.

LIST_SUBTASK = "_subtask"
LIST_INDEX = "_index"
LIST_PARALLELISM = "_parallelism"

P = ParamSpec("P")


class ProcessKeyedOperator(RawRows):
    """An ``Operator``; see ``sluice.operators.operator``."""

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        assert isinstance(stage.operation, ops.ProcessKeyed)
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
        self._timers = dict.fromkeys(DOMAINS, _timer_schema(types))
        self._states = function_state_tables(stage, types, self._function)
        self._ttls = ttl_configs(self._function)
        self._former = former_tables(types, self._function)
        self.broadcast = BroadcastSide(stage)
        self.list_tables = list_tables(stage)
        self._lists: OperatorLists | None = None
        self._own: FunctionCopy[KeyedProcessFunction] | None = None
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
        self._visitor(function, time).notify(function.initialize_state, context)

    def end(self, context: SubtaskContext, time: EpochTime) -> Outcome:
        """End the epoch of the subtask, after its last range of hashes."""
        assert self._own is not None, "the epoch has begun"
        assert self._lists is not None, "and the lists with it"
        function = self._own.function
        visitor = self._visitor(function, time)
        visitor.prepare(context)
        visitor.notify(function.snapshot_state, context)
        return Outcome(output=visitor.results(), changes=self._lists.changes())

    def _visitor(self, function: KeyedProcessFunction, time: EpochTime) -> Visitor:
        return Visitor(self._uid, function, self.output_schema, self._event_time, time)

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        empty = pl.Schema({HASH: pl.Int64(), **self._input}).to_frame()
        rows = in_order(groups.get(_ROWS, empty), self._order)
        # A timer at or before the limit of its domain fires.
        limits: dict[TimeDomain, int] = {
            "event": time.watermark_ms,
            "processing": time.processing_time_ms,
        }
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
            name: EntryTable(schema, state[name], keys, self._ttls.get(name), now_ms)
            for name, schema in self._states.items()
        }
        due_ms = {domain: table.due_ms(keys) for domain, table in timers.items()}

        own = self._own or with_own_states(self._function)
        self.broadcast.bind(own.broadcast, state)
        visitor = self._visitor(own.function, time)
        for place, (named_key, key_rows) in enumerate(self._by_key(keys, rows)):
            entries = {name: table.entries(place) for name, table in tables.items()}
            for declared in own.keyed.values():
                declared.bind(entries[table_of(declared)])
            key_timers = KeyTimers({d: by.get(place, []) for d, by in due_ms.items()}, limits)
            visitor.visit(named_key, key_rows, key_timers)
            for name, table in tables.items():
                table.collect(place, entries[name])
            for domain, timer_rows in timers.items():
                timer_rows.collect(place, key_timers.written(domain))
        for declared in own.keyed.values():
            declared.bind(None)

        changes = {name: table.changes() for name, table in tables.items()}
        changes |= {timer_table(domain): table.changes(keys) for domain, table in timers.items()}
        return Outcome(output=visitor.results(), changes=changes)

    def _by_key(
        self, keys: pl.DataFrame, rows: pl.DataFrame
    ) -> Iterator[tuple[Row, Iterator[Row]]]:
        """The *keys*, each with its rows; both are sorted by key."""
        counts = rows.group_by(HASH, *self._keys).len(_COUNT)
        counted = keys.join(
            counts, on=keys.columns, how="left", nulls_equal=True, maintain_order="left"
        )
        all_rows = rows.select(self._input.names()).iter_rows(named=True)
        numbers = counted[_COUNT].fill_null(0)
        for key, count in zip(keys.drop(HASH).iter_rows(named=True), numbers, strict=True):
            yield key, islice(all_rows, count)


class Visitor:
    """Calls the user's function for one key after the other, and collects the results of all."""

    def __init__(
        self,
        uid: str,
        function: KeyedProcessFunction,
        result: pl.Schema,
        event_time: str | None,
        time: EpochTime,
    ) -> None:
        self._uid = uid
        self._function = function
        self._result = result
        self._event_time = event_time
        self._watermark_before = instant_of(time.previous_watermark_ms)
        self._watermark = instant_of(time.watermark_ms)
        self._processing_time = instant_of(time.processing_time_ms)
        self._rows: list[tuple[object, ...]] = []

    def visit(self, key: Row, rows: Iterable[Row], timers: KeyTimers) -> None:
        """Call the function with *rows* in their order, then with its timers until none is due."""
        for row in rows:
            context = Context(
                key=key,
                timestamp=None if self._event_time is None else row[self._event_time],
                current_watermark=self._watermark_before,
                processing_time=self._processing_time,
                timers=timers,
            )
            self._collect(key, self._function.process, row, context)
        while (due := timers.next_due()) is not None:
            timestamp, domain = due
            firing = OnTimerContext(
                key=key,
                timestamp=timestamp,
                current_watermark=self._watermark,
                processing_time=self._processing_time,
                timers=timers,
                time_domain=domain,
            )
            self._collect(key, self._function.on_timer, timestamp, firing)

    def prepare(self, context: SubtaskContext) -> None:
        """Call the function before the barrier, after the last key."""
        self._collect(None, self._function.prepare_snapshot_pre_barrier, context)

    def notify(self, call: Callable[[SubtaskContext], None], context: SubtaskContext) -> None:
        """Call a method of the function that yields nothing."""
        before = len(self._rows)
        self._collect(None, call, context)
        if len(self._rows) > before:
            name = getattr(call, "__name__", "its function")
            raise ConfigurationError(
                f"stage {self._uid!r}: {name}() yields rows; yield them in process(), on_timer() "
                "or prepare_snapshot_pre_barrier()"
            )

    def results(self) -> pl.DataFrame:
        """The results of all visits, in their order."""
        return frame_of_rows(
            self._rows, self._result, f"stage {self._uid!r}: its function's result"
        )

    def _collect(
        self,
        key: Row | None,
        call: Callable[P, Iterable[Row] | None],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call the user's code, for a *key* or for none, and collect each row once it is yielded.

        Raises:
            ConfigurationError: a row has other columns than declared, or state was misused.
            CheckpointDeclined: the user's code raised it.
            StageFailed: the user's code raised something else.
        """
        name = getattr(call, "__name__", "its function")
        where = f"stage {self._uid!r}" + ("" if key is None else f", key {key}")
        try:
            for row in _rows_of(call(*args, **kwargs), name):
                self._rows.append(row_values(row, self._result, f"what {name}() yields"))
        except CheckpointDeclined:
            raise
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error
        except Exception as error:
            raise StageFailed(
                f"{where}: {name}() raised {type(error).__name__}: {error}"
            ) from error


def _rows_of(returned: Iterable[Row] | None, name: str) -> Iterable[Row]:
    if isinstance(returned, Mapping):
        raise ConfigurationError(
            f"{name}() returns {returned!r}, one row; yield it, or return a list of rows"
        )
    return returned or ()


class KeyTimers:
    """The ``Timers`` of one key in one epoch: those in state that are due, and the new ones."""

    def __init__(
        self, due_ms: Mapping[TimeDomain, list[int]], limits: Mapping[TimeDomain, int]
    ) -> None:
        """*due_ms* are the timers in state that have reached their limit; no others are loaded."""
        self._limits = limits
        self._loaded = {(ms, domain) for domain in DOMAINS for ms in due_ms.get(domain, ())}
        self._exists = dict.fromkeys(sorted(self._loaded), True)
        self._due = sorted(self._loaded)
        self._firings = 0

    def register_event_time(self, at: datetime) -> None:
        self._register(at, "event")

    def register_processing_time(self, at: datetime) -> None:
        self._register(at, "processing")

    def delete_event_time(self, at: datetime) -> None:
        self._exists[_ms_of(at), "event"] = False

    def delete_processing_time(self, at: datetime) -> None:
        self._exists[_ms_of(at), "processing"] = False

    def next_due(self) -> tuple[datetime, TimeDomain] | None:
        """Remove and return the earliest timer that is due; at a tie, that of event time."""
        while self._due:
            timer = heapq.heappop(self._due)
            if self._exists[timer]:
                self._exists[timer] = False
                self._count()
                return instant_of(timer[0]), timer[1]
        return None

    def written(self, domain: TimeDomain) -> tuple[list[int], list[int]]:
        """The instants, in milliseconds, of the timers to keep and of those to delete.

        Timers that are not due were not loaded, so one to keep may be in the state already.
        """
        kept, deleted = [], []
        for (ms, of), exists in self._exists.items():
            if of == domain and exists:
                kept.append(ms)
            elif of == domain and ((ms, of) in self._loaded or ms > self._limits[of]):
                deleted.append(ms)
        return kept, deleted

    def _register(self, at: datetime, domain: TimeDomain) -> None:
        timer = (_ms_of(at), domain)
        if not self._exists.get(timer, False) and timer[0] <= self._limits[domain]:
            heapq.heappush(self._due, timer)
        self._exists[timer] = True

    def _count(self) -> None:
        self._firings += 1
        if self._firings > MOST_FIRINGS:
            raise ConfigurationError(
                f"{MOST_FIRINGS} timers of one key fired in one epoch; do not register the next "
                "one when context.current_watermark is END_OF_TIME"
            )


class TimerTable:
    """The timers of one domain in one epoch, by the place of their key among the epoch's keys.

    State has a table for each time domain, with a row per key and instant.  Its rows never expire:
    a TTL may drop the state of a key, and its timers fire all the same.
    """

    def __init__(
        self,
        schema: StateSchema,
        state: KeyedState,
        limit_ms: int,
        *,
        reached_ms: int | None = None,
    ) -> None:
        """*reached_ms* is the limit of the epoch before, if known: timers up to it have fired.

        Their rows may remain in runs that are not merged yet, and are skipped.
        """
        self._schema = schema
        self._state = state
        self.due = state.due(limit_ms, after_ms=reached_ms)
        self._kept: tuple[list[int], list[int]] = ([], [])
        self._deleted: tuple[list[int], list[int]] = ([], [])

    def due_ms(self, keys: pl.DataFrame) -> dict[int, list[int]]:
        """The timers that are due, in milliseconds, by the place of their key."""
        found: dict[int, list[int]] = defaultdict(list)
        key = list(self._schema.key)
        placed = self.due.join(keys.with_row_index(PLACE), on=key, nulls_equal=True)
        for place, ms in placed.select(PLACE, TIME_MS).iter_rows():
            found[place].append(ms)
        return found

    def collect(self, place: int, written: tuple[list[int], list[int]]) -> None:
        for (places, instants), new in zip((self._kept, self._deleted), written, strict=True):
            places.extend([place] * len(new))
            instants.extend(new)

    def changes(self, keys: pl.DataFrame) -> Changes:
        kept, deleted = (self._identities(keys, rows) for rows in (self._kept, self._deleted))
        return Changes(
            upserts=kept.filter(~self._is_stored(kept)),
            deletes=deleted.filter(self._is_stored(deleted)),
        )

    def _identities(self, keys: pl.DataFrame, rows: tuple[list[int], list[int]]) -> pl.DataFrame:
        places, instants = rows
        found = keys[pl.Series(places, dtype=pl.Int64)]
        with_time = found.with_columns(pl.Series(TIME_MS, instants, pl.Int64))
        return with_time.sort(self._schema.identity)

    def _is_stored(self, identities: pl.DataFrame) -> pl.Series:
        return self._state.find(identities)[HASH].is_not_null()


def timer_table(domain: TimeDomain) -> str:
    """The name of the table; it is part of the state's format."""
    return f"{domain}_timers"


def _timer_schema(key_types: pl.Schema) -> StateSchema:
    return StateSchema(
        columns=pl.Schema({**key_types, TIME_MS: pl.Int64()}),
        key_columns=tuple(key_types),
        sub_key_columns=(TIME_MS,),
        time_column=TIME_MS,
    )


def instant_of(ms: int) -> datetime:
    """The instant at *ms*, cut to the first and last that Python can represent."""
    if ms <= _ms_of(BEGINNING_OF_TIME):
        return BEGINNING_OF_TIME
    return END_OF_TIME if ms >= _ms_of(END_OF_TIME) else _EPOCH + ms * _MS


def _ms_of(at: datetime) -> int:
    if at.tzinfo is None:
        raise ConfigurationError(f"a timer at {at} has no time zone; use UTC")
    return (at - _EPOCH) // _MS


class BroadcastSide:
    """The broadcast states of a stage's function, and the rows that write them.

    Every subtask plays the same rows on the same state, so that each has the same map; the subtask
    that owns ``BROADCAST_HASH`` keeps the changes.  There is one copy, so a rescale is nothing
    special (Flink has a copy in each subtask, and deals them out).
    """

    def __init__(self, stage: StageNode) -> None:
        assert isinstance(stage.operation, ops.ProcessKeyed)
        self._uid = stage.uid
        self._function = stage.operation.function
        self._event_time = stage.broadcast.event_time if stage.broadcast is not None else None
        self.tables: Mapping[str, StateSchema] = {
            broadcast_table_of(state): StateSchema(
                columns=pl.Schema(
                    {
                        MAP_KEY: state_column_type(state.key_type),
                        VALUE: state_column_type(state.value_type),
                    }
                ),
                key_columns=(MAP_KEY,),
                one_hash=BROADCAST_HASH,
                declared=declared_columns(stage, broadcast_table_of(state)),
            )
            for state in declared_broadcasts(self._function).values()
        }

    def received(
        self, rows: pl.DataFrame, state: Mapping[str, KeyedState], time: EpochTime
    ) -> dict[str, Changes]:
        """The changes that the broadcast *rows* of an epoch make to the *state* before it.

        Raises:
            ConfigurationError: state was misused, or the function yields rows.
            StageFailed: the function raised something else.
        """
        assert isinstance(self._function, KeyedBroadcastProcessFunction)
        own = with_own_states(self._function)
        function, broadcasts = own.function, own.broadcast
        entries = {
            name: Entries(_stored(state[broadcast_table_of(one)]))
            for name, one in broadcasts.items()
        }
        for name, one in broadcasts.items():
            one.bind(entries[name])
        at = self._event_time if self._event_time in rows.columns else None
        for row in in_order(rows, [at] if at is not None else []).iter_rows(named=True):
            context = BroadcastContext(
                timestamp=None if at is None else row[at],
                current_watermark=instant_of(time.previous_watermark_ms),
                processing_time=instant_of(time.processing_time_ms),
            )
            self._call(function, row, context)
        return {
            broadcast_table_of(one): self._changes(one, entries[name])
            for name, one in broadcasts.items()
        }

    def bind(
        self,
        broadcasts: Mapping[str, BroadcastState[Any, Any]],
        state: Mapping[str, KeyedState],
    ) -> None:
        """Let rows of keys read *broadcasts* as they are in *state*."""
        for name, one in broadcasts.items():
            one.bind(ReadOnlyEntries(_stored(state[broadcast_table_of(one)]), name))

    def _call(
        self, function: KeyedBroadcastProcessFunction, row: Row, context: BroadcastContext
    ) -> None:
        try:
            yielded: object = function.process_broadcast(row, context)
        except ConfigurationError as error:
            raise ConfigurationError(f"stage {self._uid!r}, broadcast row: {error}") from error
        except Exception as error:
            raise StageFailed(
                f"stage {self._uid!r}: process_broadcast() raised {type(error).__name__}: {error}"
            ) from error
        if yielded is not None:
            raise ConfigurationError(
                f"stage {self._uid!r}: process_broadcast() yields rows, but every subtask calls "
                "it; yield them in process()"
            )

    def _changes(self, state: BroadcastState[Any, Any], entries: Entries[Any, Any]) -> Changes:
        schema = self.tables[broadcast_table_of(state)]
        upserts = [
            (BROADCAST_HASH, key, to_column(entries.current[key]))
            for key in entries.written
            if key in entries.current and entries.current[key] != entries.stored.get(key)
        ]
        deletes = [
            (BROADCAST_HASH, key)
            for key in entries.written
            if key in entries.stored and key not in entries.current
        ]
        identity = {name: schema.live[name] for name in (HASH, MAP_KEY)}
        return Changes(
            upserts=pl.DataFrame(upserts, schema.live, orient="row"),
            deletes=pl.DataFrame(deletes, identity, orient="row"),
        )


def _stored(state: KeyedState) -> dict[Any, Any]:
    rows = state.scan().select(MAP_KEY, VALUE).iter_rows()
    return {key: from_column(value) for key, value in rows}


def list_tables(stage: StageNode) -> Mapping[str, StateSchema]:
    """The tables of the operator lists of a stage's function."""
    assert isinstance(stage.operation, ops.ProcessKeyed)
    return {
        operator_table_of(state): StateSchema(
            columns=pl.Schema(
                {
                    LIST_SUBTASK: pl.Int64(),
                    LIST_INDEX: pl.Int64(),
                    VALUE: state_column_type(state.value_type),
                    LIST_PARALLELISM: pl.Int64(),
                }
            ),
            key_columns=(LIST_SUBTASK, LIST_INDEX),
            declared=declared_columns(stage, operator_table_of(state)),
        )
        for state in declared_operator_lists(stage.operation.function).values()
    }


class OperatorLists:
    """The operator lists of one subtask in one epoch: its elements, those of all, its changes.

    The table of a list has a row for each element: the subtask that has it, its place, and the
    parallelism.  A subtask's rows have the first hash of its range, so they are of its files.  At
    another parallelism all rows are dealt out anew, and written by their new owners; each subtask
    deletes the rows in its range of hashes that have moved.
    """

    def __init__(
        self,
        tables: Mapping[str, StateSchema],
        rows: Mapping[str, pl.DataFrame],
        task: TaskPlan,
        subtask: int,
    ) -> None:
        """*rows* are those of all subtasks at the barrier before, by table."""
        self._tables = tables
        self._parallelism = task.parallelism
        self._subtask = subtask
        most, count = task.max_parallelism, task.parallelism
        ranges = [hash_range(most, key_group_range(most, count, n)) for n in range(count)]
        self._owned = ranges[subtask]
        self._firsts = [first for first, _ in ranges]
        self._before = {name: frame.sort(LIST_SUBTASK, LIST_INDEX) for name, frame in rows.items()}
        self._all = {
            name: [from_column(value) for value in frame[VALUE]]
            for name, frame in self._before.items()
        }
        parts = dealt_out({name: len(elements) for name, elements in self._all.items()}, count)
        self._entries: dict[str, Entries[int, Any]] = {
            name: Entries(
                self._own(frame)
                if self._is_settled(frame)
                else dict(enumerate(self._all[name][slice(*parts[name][subtask])]))
            )
            for name, frame in self._before.items()
        }

    def bind(self, lists: Mapping[str, OperatorListState[Any]]) -> None:
        for state in lists.values():
            table = operator_table_of(state)
            if isinstance(state, UnionListState):
                state.bind_union(self._entries[table], self._all[table])
            else:
                state.bind(self._entries[table])

    def changes(self) -> dict[str, Changes]:
        """The changes from the rows in this subtask's range to those that it has now."""
        found = {}
        for name, schema in self._tables.items():
            first, last = self._owned
            before = {
                tuple(row[:3]): tuple(row[3:])
                for row in self._before[name]
                .filter(pl.col(HASH).is_between(first, last))
                .select(HASH, LIST_SUBTASK, LIST_INDEX, VALUE, LIST_PARALLELISM)
                .iter_rows()
            }
            now = {
                (first, self._subtask, place): (to_column(value), self._parallelism)
                for place, value in self._entries[name].current.items()
            }
            upserts = [(*key, *row) for key, row in now.items() if before.get(key) != row]
            deletes = [key for key in before if key not in now]
            found[name] = Changes(
                upserts=pl.DataFrame(upserts, schema.live, orient="row"),
                deletes=pl.DataFrame(
                    deletes, {one: schema.live[one] for one in schema.identity}, orient="row"
                ),
            )
        return found

    def _own(self, rows: pl.DataFrame) -> dict[int, Any]:
        own = rows.filter(pl.col(LIST_SUBTASK) == self._subtask).select(LIST_INDEX, VALUE)
        return {place: from_column(value) for place, value in own.iter_rows()}

    def _is_settled(self, rows: pl.DataFrame) -> bool:
        """Whether each row is where a subtask of today keeps it."""
        kept = {(self._parallelism, subtask, at) for subtask, at in enumerate(self._firsts)}
        return kept.issuperset(
            rows.select(LIST_PARALLELISM, LIST_SUBTASK, HASH).unique().iter_rows()
        )


_STATE = "state"


class ProcessOperator(RawRows):
    """An ``Operator``; see ``sluice.operators.operator``."""

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        assert isinstance(stage.operation, ops.Process)
        self._uid = stage.uid
        self._function = stage.operation.function
        self._input = input_schema(schema)
        self._key_types = key_types(stage.uid, self._input, stage.keys)
        declared = declared_schema(stage.uid, stage.operation.state)
        require_distinct(stage.uid, [*stage.keys, *declared, PLACE])
        self._declared = declared
        self._keys = stage.keys
        event_time = stage.inputs[0].event_time
        if event_time is not None:
            column_type(stage.uid, self._input, event_time, "for its event time")
        self._order = (HASH, *stage.keys, *([] if event_time is None else [event_time]))
        self._is_refreshed = stage.ttl_ms is not None
        self._state_schema = StateSchema(
            columns=pl.Schema({**self._key_types, **declared}),
            key_columns=stage.keys,
            ttl_ms=stage.ttl_ms,
        )
        self.tables = {_STATE: self._state_schema} if declared else {}
        self.output_schema = declared_schema(stage.uid, stage.operation.result)
        require_distinct(stage.uid, [*self.output_schema, PLACE])

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        groups = {_ROWS: rows.select(HASH, *self._input)}
        return Partial(groups=groups, late=self._input.to_frame())

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        live = self._state_schema.live
        if _ROWS not in groups or groups[_ROWS].is_empty():
            return self._outcome(self.output_schema.to_frame(), live.to_frame(), live.to_frame())
        rows = in_order(groups[_ROWS], self._order)
        keys = rows.select(self._state_schema.key).unique(maintain_order=True)
        kept = state[_STATE].find(keys) if self._declared else live.to_frame().clear(keys.height)
        before = keys.hstack(kept.select(self._declared.names()))

        result, returned = self._returned(rows.select(self._input.names()), before.drop(HASH))

        after = self._hashed(returned, keys)
        is_known = kept[HASH].is_not_null().gather(after[PLACE])
        is_same = is_known
        is_null = pl.repeat(True, after.height, eager=True)  # noqa: FBT003 - a value
        for name in self._declared:
            is_null &= after[name].is_null()
            is_same &= after[name].eq_missing(before[name].gather(after[PLACE]))
        is_written = ~is_null if self._is_refreshed else ~is_null & ~is_same
        after = after.select(live.names())
        return self._outcome(
            self._sorted(result, keys), after.filter(is_written), after.filter(is_null & is_known)
        )

    def _outcome(
        self, output: pl.DataFrame, upserts: pl.DataFrame, deletes: pl.DataFrame
    ) -> Outcome:
        changes = Changes(upserts=upserts, deletes=deletes)
        return Outcome(output=output, changes={_STATE: changes} if self._declared else {})

    def _returned(
        self, rows: pl.DataFrame, state: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The function's result, with exactly the columns and types that were declared."""
        what = f"stage {self._uid!r}: what its function returns"
        try:
            returned = self._function(rows, state)
        except CheckpointDeclined:
            raise
        except Exception as error:
            raise StageFailed(
                f"stage {self._uid!r}: its function raised {type(error).__name__}: {error}"
            ) from error
        match returned:
            case (pl.DataFrame() as result, pl.DataFrame() as after):
                return (
                    conformed(result, self.output_schema, f"{what} as the result"),
                    conformed(after, self._state_schema.columns, f"{what} as the new state"),
                )
            case _:
                raise ConfigurationError(
                    f"{what} is {_described(returned)}; return two Polars DataFrames, "
                    "(result, new state)"
                )

    def _hashed(self, returned: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        """The new state with the hash and the place of its keys among *keys*, sorted by it."""
        what = f"stage {self._uid!r}: the new state that its function returns has the key"
        keys_of_state = returned.select(self._keys)
        repeated = keys_of_state.filter(keys_of_state.is_duplicated())
        for key in repeated.head(1).iter_rows(named=True):
            raise ConfigurationError(f"{what} {key} twice; return one row per key")
        after = self._with_hash(returned, keys)
        for key in after.filter(pl.col(HASH).is_null()).select(self._keys).iter_rows(named=True):
            raise ConfigurationError(
                f"{what} {key}, which no row has; return only keys that it was given"
            )
        return after.sort(PLACE)

    def _sorted(self, result: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        """*result* sorted by hash, if it has the key columns."""
        if any(self.output_schema.get(name) != of for name, of in self._key_types.items()):
            return result
        hashed = self._with_hash(result, keys).sort(PLACE, maintain_order=True, nulls_last=True)
        return hashed.select(result.columns)

    def _with_hash(self, rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        """*rows* with the hash of their key and its place; null for a key not among *keys*."""
        return rows.join(
            keys.with_row_index(PLACE),
            on=list(self._keys),
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )


def _described(returned: object) -> str:
    if isinstance(returned, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in returned) or 'nothing'}"
    return f"a {type(returned).__name__}"
