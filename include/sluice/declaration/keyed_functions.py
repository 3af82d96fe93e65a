"""``KeyedProcessFunction``: one key at a time, with state and timers; Flink's, in Python.

    class ThirdVisit(KeyedProcessFunction):
        visits = ValueState(int)

        def process(self, row: Row, context: Context) -> Iterable[Row]:
            visits = self.visits.get(0) + 1
            self.visits.set(visits)
            if visits == 3:
                yield {"user": context.key["user"], "at": context.timestamp}
            context.timers.register_event_time(row["at"] + timedelta(minutes=30))

        def on_timer(self, timestamp: datetime, context: OnTimerContext) -> Iterable[Row]:
            self.visits.clear()
            return ()

State is declared on the class; inside ``process`` and ``on_timer`` it is that of the current key.
The rows of a key come in the order of their event time, then its timers that are due at the barrier
in the order of theirs.  Anything else that a function keeps on ``self`` is lost between epochs, and
it must not read a clock: the context has the time.  Then the same rows and barriers give the same
result.

Nothing here computes; ``sluice.operators.keyed_function`` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeAlias

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.keyed_states import Elements, Entries, K, Map, Migrations, V, map_key_type
from sluice.errors import ConfigurationError

# The types of a row's values are known to the pipeline's author only.
Row: TypeAlias = Mapping[str, Any]

# ``current_watermark`` before the first row, and when no row will come any more.
BEGINNING_OF_TIME = datetime.min.replace(tzinfo=UTC)
END_OF_TIME = datetime.max.replace(tzinfo=UTC)


class Timers(Protocol):
    """The timers of the current key, in whole milliseconds; of one instant there is one.

    A timer fires at the barrier, once the watermark, or the barrier's processing time, has reached
    its instant; one whose instant has passed already, at the next barrier.
    """

    def register_event_time(self, at: datetime) -> None: ...

    def register_processing_time(self, at: datetime) -> None: ...

    def delete_event_time(self, at: datetime) -> None: ...

    def delete_processing_time(self, at: datetime) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The context of a row: its key, its event time, and the times of the barriers around it.

    A row is late if its ``timestamp`` is not after ``current_watermark``; it is processed all the
    same.  ``processing_time`` is when the checkpoint was triggered.
    """

    key: Row
    timestamp: datetime | None  # None if the input has no event time, or the row has none.
    current_watermark: datetime
    processing_time: datetime
    timers: Timers


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTimerContext(Context):
    """The context of a timer that fires; ``timestamp`` is its event or processing time."""

    time_domain: Literal["event", "processing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskContext:
    """The context of a subtask in one epoch, beside all keys (FunctionSnapshotContext).

    ``checkpoint_id`` is another one when the epoch is repeated: no result may depend on it.
    """

    checkpoint_id: int
    subtask: int  # From 0.
    parallelism: int
    current_watermark: datetime
    processing_time: datetime


class CheckpointedFunction:
    """A function with operator state, or with anything to do around a barrier; Flink's.

    Around the keys of an epoch each subtask calls ``initialize_state``, then
    ``prepare_snapshot_pre_barrier`` and ``snapshot_state``, and again where it runs again.  The
    notifications are calls on the coordinator; nothing correct may depend on them
    (CheckpointListener).
    """

    def initialize_state(self, context: SubtaskContext) -> None:
        """Called before the first key, with the operator state of the barrier before."""

    def prepare_snapshot_pre_barrier(self, context: SubtaskContext) -> Iterable[Row] | None:  # noqa: ARG002 - for those who override it
        """The result's rows behind the last key and timer, before the barrier; None is none."""
        return None

    def snapshot_state(self, context: SubtaskContext) -> None:
        """Called last: the operator state as it is then is part of the checkpoint."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Called on the coordinator when every sink has published the checkpoint, perhaps again.

        There is no state.  As for a source or sink that listens, ids are left out, and what it
        raises is logged.
        """

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Called on the coordinator when everything that the checkpoint wrote is deleted."""

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        """Called on the coordinator when a newer checkpoint has taken its place in the store."""


class KeyedProcessFunction(CheckpointedFunction, ABC):
    """A function of single rows and timers, with state per key; one instance serves all keys."""

    @abstractmethod
    def process(self, row: Row, context: Context) -> Iterable[Row] | None:
        """The result's rows for one row; None is none."""

    def on_timer(self, timestamp: datetime, context: OnTimerContext) -> Iterable[Row] | None:  # noqa: ARG002 - for those who override it
        """The result's rows when a timer fires; None is none."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastContext:
    """The context of a broadcast row: its event time, and the times of the barriers around it."""

    timestamp: datetime | None  # None if the broadcast stream has no event time, or the row.
    current_watermark: datetime
    processing_time: datetime


class KeyedBroadcastProcessFunction(KeyedProcessFunction):
    """A keyed function beside rows that every subtask sees.

        class Flagged(KeyedBroadcastProcessFunction):
            limits = BroadcastState(str, int)

            def process_broadcast(self, row: Row, context: BroadcastContext) -> None:
                self.limits.put(row["category"], row["limit"])

            def process(self, row: Row, context: Context) -> Iterable[Row]:
                if row["price"] > self.limits.get(row["category"], 0):
                    yield {"auction": context.key["auction"], "price": row["price"]}

    The broadcast rows of an epoch come first, in the order of their event time, then the rows of
    the keys: a result depends on barriers, and on nothing else.
    """

    @abstractmethod
    def process_broadcast(self, row: Row, context: BroadcastContext) -> None:
        """Write broadcast state for one row.  It yields nothing, for every subtask calls it."""


@checked_initializer
class BroadcastState(Map[K, V]):
    """One map that all keys share: ``limits = BroadcastState(str, int)``.

    It is written in ``process_broadcast`` only, and has no TTL, as in Flink.
    """

    def __init__(
        self, key_type: type[K], of: type[V], *, migrations: Migrations[V] | None = None
    ) -> None:
        super().__init__(of, migrations=migrations)
        self.key_type = map_key_type(key_type)


class ReadOnlyEntries(Entries[K, V]):
    """Broadcast state as ``process`` and ``on_timer`` see it.  For the runtime."""

    def __init__(self, stored: Mapping[K, V], state: str) -> None:
        super().__init__(stored)
        self._state = state

    def put(self, key: K, value: V) -> None:  # noqa: ARG002 - always refused
        self._refuse()

    def remove(self, key: K) -> None:  # noqa: ARG002 - as above
        self._refuse()

    def clear(self) -> None:
        self._refuse()

    def _refuse(self) -> None:
        raise ConfigurationError(
            f"broadcast state {self._state!r} is read-only for rows of keys; write it in "
            "process_broadcast() only"
        )


@checked_initializer
class OperatorListState(Elements[V]):
    """A list of each subtask, whichever key is processed: Flink's operator list state.

        class Batched(KeyedProcessFunction):
            waiting = OperatorListState(str)

            def process(self, row: Row, context: Context) -> None:
                self.waiting.add(row["line"])

            def prepare_snapshot_pre_barrier(self, context: SubtaskContext) -> Iterable[Row]:
                if len(waiting := self.waiting.get()) >= 1_000:
                    self.waiting.clear()
                    yield {"lines": "\\n".join(waiting)}

    At another parallelism the elements of all subtasks are dealt out in turn (getListState).  It
    has no TTL, as in Flink, and is held in memory.
    """

    _USE = "that of a subtask; use it where a subtask processes keys only"

    def __init__(self, of: type[V], *, migrations: Migrations[V] | None = None) -> None:
        super().__init__(of, migrations=migrations)


class UnionListState(OperatorListState[V]):
    """A list of which each subtask writes its own elements and reads those of all subtasks
    (getUnionListState): ``seen = UnionListState(int)``.
    """

    _union: Sequence[V] = ()

    def get(self) -> list[V]:
        """The elements of all subtasks at the last barrier, in the order of the subtasks.

        What this subtask adds or updates is among them after the next one.
        """
        _ = self._entries  # Raises outside of a subtask.
        return list(self._union)

    def bind_union(self, entries: Entries[int, V], union: Sequence[V]) -> None:
        """*entries* are this subtask's, *union* those of all.  For the runtime."""
        self.bind(entries)
        self._union = union


def declared_operator_lists(function: object) -> Mapping[str, OperatorListState[object]]:
    """The operator lists that the class of *function* declares, in the order of their names."""
    attributes = class_attributes(function)
    return {name: state for name, state in attributes if isinstance(state, OperatorListState)}


def class_attributes(function: object) -> Iterator[tuple[str, Any]]:
    """The attributes of the class of *function* and of its bases, in the order of their names."""
    attributes = {
        name: attribute
        for base in reversed(type(function).__mro__)
        for name, attribute in vars(base).items()
    }
    return ((name, attributes[name]) for name in sorted(attributes))


def operator_table_of(state: OperatorListState[V]) -> str:
    """The name of the table that holds an operator list; it is part of the state's format."""
    return f"operator:{state.name}"


def refuse_operator_lists(uid: str, function: object, why: str) -> None:
    """Raises ConfigurationError if *function* declares an operator list: it cannot have one."""
    if lists := declared_operator_lists(function):
        raise ConfigurationError(
            f"{uid!r}: {type(function).__name__} declares operator list state "
            f"{', '.join(map(repr, lists))}, but {why}; only a function of process_keyed() has it"
        )
