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
in the order of theirs.  What else a function remembers on ``self`` is lost between epochs, and no
clock may be read: the context has the time.  Then the same rows and barriers give the same result.

Nothing here computes; ``sluice.subtask.operators.process_keyed`` does.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, overload

from sluice.errors import ConfigurationError

# The types of a row's values are known to the pipeline's author only.
Row: TypeAlias = Mapping[str, Any]

# What ``current_watermark`` is before the first row, and when no row will come any more.
BEGINNING_OF_TIME = datetime.min.replace(tzinfo=UTC)
END_OF_TIME = datetime.max.replace(tzinfo=UTC)

_STATES = "_sluice_states"
_INT64 = range(-(2**63), 2**63)
_VALUE_TYPES = (bool, int, float, str, bytes, date, datetime, timedelta)
_MAP_KEY_TYPES = (bool, int, str, bytes, date, datetime)  # Not float: NaN is no key.

K = TypeVar("K")
V = TypeVar("V")
F = TypeVar("F", bound="KeyedProcessFunction")
AnyState: TypeAlias = "ValueState[Any] | ListState[Any] | MapState[Any, Any]"


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


class KeyedProcessFunction(ABC):
    """A function of single rows and timers, with state per key; one instance serves all keys."""

    @abstractmethod
    def process(self, row: Row, context: Context) -> Iterable[Row] | None:
        """The result's rows for one row; None is none."""

    def on_timer(self, timestamp: datetime, context: OnTimerContext) -> Iterable[Row] | None:  # noqa: ARG002 - for those who override it
        """The result's rows when a timer fires; None is none."""
        return None


class Entries(Generic[K, V]):
    """The current key's entries of a state, and which of them were written.  For the runtime."""

    def __init__(self, stored: Mapping[K, V]) -> None:
        self.stored = stored
        self.current = dict(stored)
        self.written: dict[K, None] = {}  # In the order of writing, unlike a set.

    def put(self, key: K, value: V) -> None:
        self.current[key] = value
        self.written[key] = None

    def remove(self, key: K) -> None:
        if key in self.current:
            del self.current[key]
            self.written[key] = None

    def clear(self) -> None:
        for key in list(self.current):
            self.remove(key)


class State(Generic[K, V]):
    """A class attribute that declares state; its name is part of the state's format."""

    def __init__(self, value_type: type[V]) -> None:
        self.name = ""
        self.value_type = _checked_type(value_type, _VALUE_TYPES)
        self._bound_entries: Entries[K, V] | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, function: KeyedProcessFunction | None, owner: type) -> Self:
        states: Mapping[str, Self] = {} if function is None else vars(function).get(_STATES, {})
        return states.get(self.name, self)

    def __set__(self, function: KeyedProcessFunction, value: object) -> None:
        raise ConfigurationError(
            f"state {self.name!r} is not assigned to; use its methods, such as set() or add()"
        )

    def bind(self, entries: Entries[K, V]) -> None:
        """Switch to the state of another key.  For the runtime."""
        self._bound_entries = entries

    @property
    def _entries(self) -> Entries[K, V]:
        if self._bound_entries is None:
            raise ConfigurationError(
                f"state {self.name!r} is that of a key; use it inside process() and on_timer() only"
            )
        return self._bound_entries


class ValueState(State[str, V]):
    """One value per key: ``seen = ValueState(int)``."""

    @overload
    def get(self) -> V | None: ...

    @overload
    def get(self, default: V) -> V: ...

    def get(self, default: V | None = None) -> V | None:
        """The value of the key, or *default* if it has none."""
        return self._entries.current.get(self.name, default)

    def set(self, value: V) -> None:
        self._entries.put(self.name, _checked(self, self.value_type, value))

    def clear(self) -> None:
        self._entries.remove(self.name)


class ListState(State[int, V]):
    """A list per key: ``recent = ListState(str)``."""

    def get(self) -> list[V]:
        """A copy; empty if there is none."""
        return list(self._entries.current.values())

    def add(self, value: V) -> None:
        """Append *value*: the cheap change, which writes nothing but itself."""
        last = next(reversed(self._entries.current), -1)
        self._entries.put(last + 1, _checked(self, self.value_type, value))

    def update(self, values: Iterable[V]) -> None:
        """Replace the whole list."""
        checked = [_checked(self, self.value_type, value) for value in values]
        self._entries.clear()
        for index, value in enumerate(checked):
            self._entries.put(index, value)

    def clear(self) -> None:
        self._entries.clear()


class MapState(State[K, V]):
    """A map per key: ``per_day = MapState(str, int)``."""

    def __init__(self, key_type: type[K], value_type: type[V]) -> None:
        super().__init__(value_type)
        self.key_type = _checked_type(key_type, _MAP_KEY_TYPES)

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: V) -> V: ...

    def get(self, key: K, default: V | None = None) -> V | None:
        return self._entries.current.get(self._key(key), default)

    def contains(self, key: K) -> bool:
        return self._key(key) in self._entries.current

    def put(self, key: K, value: V) -> None:
        self._entries.put(self._key(key), _checked(self, self.value_type, value))

    def remove(self, key: K) -> None:
        """Forget *key*, if it is there."""
        self._entries.remove(self._key(key))

    def items(self) -> list[tuple[K, V]]:
        """In the order of the keys, whenever they were put there."""
        current = self._entries.current
        return [(key, current[key]) for key in sorted(current)]  # type: ignore[type-var]

    def clear(self) -> None:
        self._entries.clear()

    def _key(self, key: K) -> K:
        return _checked(self, self.key_type, key)


def declared_states(function: KeyedProcessFunction) -> Mapping[str, AnyState]:
    """The states that the class of *function* declares, in the order of their names."""
    found = {
        name: attribute
        for base in reversed(type(function).__mro__)
        for name, attribute in vars(base).items()
    }
    states: dict[str, AnyState] = {}
    for name in sorted(found):
        match found[name]:
            case ValueState() | ListState() | MapState() as state:
                states[name] = state
            case _:
                pass
    return states


def with_own_states(function: F) -> tuple[F, Mapping[str, AnyState]]:
    """A copy of *function*, and its states, which are to be bound to a key.  For the runtime."""
    own = copy.copy(function)
    states = {name: copy.copy(state) for name, state in declared_states(function).items()}
    vars(own)[_STATES] = states
    return own, states


def _checked_type(declared: type[V], allowed: tuple[type, ...]) -> type[V]:
    if declared not in allowed:
        names = ", ".join(one.__name__ for one in allowed)
        raise ConfigurationError(f"state cannot hold {declared!r} here; use one of: {names}")
    return declared


def _checked(state: State[Any, Any], declared: type[V], value: V) -> V:
    """*value* as it will be read back in another epoch.

    Raises:
        ConfigurationError: it is not of the type that *state* was declared with.
    """
    if declared is float and type(value) is int:
        return float(value)  # type: ignore[arg-type,return-value]
    if type(value) is not declared or (isinstance(value, int) and value not in _INT64):
        raise ConfigurationError(
            f"state {state.name!r} holds {declared.__name__}, not {value!r} of type "
            f"{type(value).__name__}; convert it, or declare what it is"
        )
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigurationError(
                f"state {state.name!r} was given {value}, which has no time zone; use UTC"
            )
        return value.astimezone(UTC)
    return value
