"""State that a ``KeyedProcessFunction`` declares, as Flink's: values, lists and maps of a key.

``ValueState``, ``ListState`` and ``MapState`` hold the values that they are given.
``ReducingState`` and ``AggregatingState`` hold one value for all that are added: what these were
reduced to, or an accumulator.  ``StateTtlConfig`` says when entries expire.

A value's type is a Python type, or a tuple of them, as ``tuple[int, float]`` for Flink's Tuple2.  A
value has exactly the type that was declared: what another epoch reads must equal what was written.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    overload,
)

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.durations import LONGEST, PositiveDuration, milliseconds
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.declaration.keyed_functions import KeyedProcessFunction

# Where an instance of a function has its own copies of the states of its class.
OWN_STATES = "_sluice_states"

K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")
# The type that values had -> a function from such a value to one of today's type.
Migrations: TypeAlias = Mapping[Any, Callable[[Any], V]]

_INT64 = range(-(2**63), 2**63)
_VALUE_TYPES = (bool, int, float, str, bytes, date, datetime, timedelta)
_MAP_KEY_TYPES = (bool, int, str, bytes, date, datetime)  # Not float: NaN is no key.
_LONGEST_PERIOD = timedelta(microseconds=2**63 - 1)
_SURROGATE = re.compile("[\ud800-\udfff]")


@checked_initializer
class State(Generic[K, V]):
    """A class attribute that declares state; its name is part of the state's format."""

    _USE = "that of a key; use it inside process() and on_timer() only"

    def __init__(
        self,
        of: type[V],
        *,
        ttl: StateTtlConfig | PositiveDuration | None = None,
        migrations: Migrations[V] | None = None,
    ) -> None:
        """*ttl* is this state's, whatever that of the stage is.

        *migrations* have, for each type that its values had before, a function from such a value
        to one of today's type.
        """
        self.name = ""
        self.value_type = value_type(of)
        self.ttl = ttl_config(ttl)
        self.migrations = checked_migrations(type(self).__name__, of, migrations)
        self._bound_entries: Entries[K, V] | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, function: KeyedProcessFunction | None, owner: type) -> Self:
        states: Mapping[str, Self] = {} if function is None else vars(function).get(OWN_STATES, {})
        return states.get(self.name, self)

    def __set__(self, function: KeyedProcessFunction, value: object) -> None:
        raise ConfigurationError(
            f"state {self.name!r} is not assigned to; use its methods, such as set() or add()"
        )

    def bind(self, entries: Entries[K, V] | None) -> None:
        """Switch to the state of another key, or of none.  For the runtime."""
        self._bound_entries = entries

    @property
    def _entries(self) -> Entries[K, V]:
        if self._bound_entries is None:
            raise ConfigurationError(f"state {self.name!r} is {self._USE}")
        return self._bound_entries

    def _checked(self, value: V) -> V:
        return checked_value(self.name, self.value_type, value)


class ValueState(State[str, V]):
    """One value per key: ``seen = ValueState(int)``."""

    @overload
    def get(self) -> V | None: ...

    @overload
    def get(self, default: V) -> V: ...

    def get(self, default: V | None = None) -> V | None:
        """The value of the key, or *default* if it has none."""
        found = self._entries.get(self.name)
        return default if found is None else found

    def set(self, value: V) -> None:
        self._entries.put(self.name, self._checked(value))

    def clear(self) -> None:
        self._entries.remove(self.name)


class Elements(State[int, V]):
    """A list, of a key or of a subtask."""

    def get(self) -> list[V]:
        """A copy; empty if there is none."""
        return [value for _, value in self._entries.items()]

    def add(self, value: V) -> None:
        """Append *value*: the cheap change, which writes nothing but itself."""
        last = next(reversed(self._entries.current), -1)
        self._entries.put(last + 1, self._checked(value))

    def update(self, values: Iterable[V]) -> None:
        """Replace the whole list."""
        checked = [self._checked(value) for value in values]
        self._entries.clear()
        for index, value in enumerate(checked):
            self._entries.put(index, value)

    def clear(self) -> None:
        self._entries.clear()


class ListState(Elements[V]):
    """A list per key: ``recent = ListState(str)``."""


class Map(State[K, V]):
    """A map, of a key or of all keys."""

    key_type: type[K]

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: V) -> V: ...

    def get(self, key: K, default: V | None = None) -> V | None:
        found = self._entries.get(self._key(key))
        return default if found is None else found

    def contains(self, key: K) -> bool:
        return self._entries.contains(self._key(key))

    def put(self, key: K, value: V) -> None:
        self._entries.put(self._key(key), self._checked(value))

    def remove(self, key: K) -> None:
        """Forget *key*, if it is there."""
        self._entries.remove(self._key(key))

    def items(self) -> list[tuple[K, V]]:
        """The items in the order of the keys, whenever they were put there."""
        found = dict(self._entries.items())
        return [(key, found[key]) for key in sorted(found)]  # type: ignore[type-var]

    def clear(self) -> None:
        self._entries.clear()

    def _key(self, key: K) -> K:
        return checked_value(self.name, self.key_type, key)


@checked_initializer
class MapState(Map[K, V]):
    """A map per key: ``per_day = MapState(str, int)``."""

    def __init__(
        self,
        key_type: type[K],
        of: type[V],
        *,
        ttl: StateTtlConfig | PositiveDuration | None = None,
        migrations: Migrations[V] | None = None,
    ) -> None:
        super().__init__(of, ttl=ttl, migrations=migrations)
        self.key_type = map_key_type(key_type)


@checked_initializer
class ReducingState(State[str, V]):
    """The values that were added, reduced to one: ``largest = ReducingState(max, int)``.

    *reduce* takes the value that is kept and the value that is added, and returns the one to keep
    (Flink's ``ReduceFunction``); the first value is kept as it is.
    """

    def __init__(
        self,
        reduce: Callable[[V, V], V],
        of: type[V],
        *,
        ttl: StateTtlConfig | PositiveDuration | None = None,
        migrations: Migrations[V] | None = None,
    ) -> None:
        super().__init__(of, ttl=ttl, migrations=migrations)
        self._reduce = reduce

    def get(self) -> V | None:
        """The value that those of the key were reduced to; None if none was added."""
        return self._entries.get(self.name)

    def add(self, value: V) -> None:
        added, entries = self._checked(value), self._entries
        if self.name in entries.current:
            added = self._checked(self._reduce(entries.current[self.name], added))
        entries.put(self.name, added)

    def clear(self) -> None:
        self._entries.remove(self.name)


class AggregateFunction(ABC, Generic[IN, ACC, OUT]):
    """The function of an ``AggregatingState`` over a key's values; Flink's, without ``merge``."""

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """The accumulator of no values."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """The accumulator with *value* in it."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """The result of the values in *accumulator*, which it does not change."""


@checked_initializer
class AggregatingState(State[str, ACC], Generic[IN, ACC, OUT]):
    """The values that were added, in an accumulator, which alone is kept.

    ``mean = AggregatingState(Mean(), tuple[float, int])``: the function, then its accumulator's
    type.
    """

    def __init__(
        self,
        function: AggregateFunction[IN, ACC, OUT],
        of: type[ACC],
        *,
        ttl: StateTtlConfig | PositiveDuration | None = None,
        migrations: Migrations[ACC] | None = None,
    ) -> None:
        super().__init__(of, ttl=ttl, migrations=migrations)
        self._function = function

    def get(self) -> OUT | None:
        """The result of the key's values; None if none was added."""
        found = self._entries.get(self.name)
        return None if found is None else self._function.get_result(found)

    def add(self, value: IN) -> None:
        entries = self._entries
        is_first = self.name not in entries.current
        before = self._function.create_accumulator() if is_first else entries.current[self.name]
        entries.put(self.name, self._checked(self._function.add(value, before)))

    def clear(self) -> None:
        self._entries.remove(self.name)


@checked_initializer
@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """The TTL of one state's entries; each entry of a list or map has its own.

    Time is that of the barriers: an entry's last write, or read, is the moment at which its
    checkpoint was triggered, and it is expired at the first barrier that is a TTL behind it.  So a
    repeated epoch forgets the same.

    Raises:
        ConfigurationError: the TTL is below a millisecond, or a type is none of Flink's.
    """

    class UpdateType(Enum):
        """The accesses after which the TTL of an entry begins anew."""

        Disabled = "Disabled"  # Nothing expires, also where the stage has a TTL.
        OnCreateAndWrite = "OnCreateAndWrite"
        OnReadAndWrite = "OnReadAndWrite"

    class StateVisibility(Enum):
        """Whether an expired entry is returned.

        In Flink it depends on when a cleanup ran.  Here the cleanup has a time: when the expired
        entry is read, or else at the first barrier that is two TTLs behind its write.
        """

        ReturnExpiredIfNotCleanedUp = "ReturnExpiredIfNotCleanedUp"
        NeverReturnExpired = "NeverReturnExpired"

    DISABLED: ClassVar[StateTtlConfig]

    ttl: PositiveDuration
    update_type: UpdateType = UpdateType.OnCreateAndWrite
    state_visibility: StateVisibility = StateVisibility.NeverReturnExpired

    @property
    def ttl_ms(self) -> int | None:
        """The time without an update until an entry has expired, in milliseconds; None is never."""
        return None if self.update_type is self.UpdateType.Disabled else milliseconds(self.ttl)

    @property
    def cleanup_ms(self) -> int | None:
        """The time without an update until an entry is deleted, in milliseconds; None is never."""
        return None if self.ttl_ms is None else self.ttl_ms * (2 if self.returns_expired else 1)

    @property
    def returns_expired(self) -> bool:
        return self.state_visibility is self.StateVisibility.ReturnExpiredIfNotCleanedUp

    @property
    def is_refreshed_by_reads(self) -> bool:
        return self.update_type is self.UpdateType.OnReadAndWrite


StateTtlConfig.DISABLED = StateTtlConfig(LONGEST, update_type=StateTtlConfig.UpdateType.Disabled)


class Entries(Generic[K, V]):
    """The current key's entries of a state, and which of them were written.  For the runtime.

    To get a value, or all of them, is to read it, which may begin its TTL anew.
    """

    def __init__(
        self,
        stored: Mapping[K, V],
        *,
        expired: Iterable[K] = (),
        is_refreshed_by_reads: bool = False,
    ) -> None:
        """*expired* are those of *stored* that are returned once more, and then are gone."""
        self.stored = stored
        self.current = dict(stored)
        self.written: dict[K, None] = {}  # In the order of writing, unlike a set.
        self._expired = set(expired)
        self._is_refreshed_by_reads = is_refreshed_by_reads
        self._heeds_reads = is_refreshed_by_reads or bool(self._expired)

    def get(self, key: K) -> V | None:
        """The value; None if there is none."""
        found = self.current.get(key)
        if self._heeds_reads and found is not None:
            if key in self._expired:
                self.remove(key)
            elif self._is_refreshed_by_reads:
                self.written[key] = None
        return found

    def items(self) -> list[tuple[K, V]]:
        """All entries in their order."""
        found = list(self.current.items())
        if self._heeds_reads:
            for key, _ in found:
                self.get(key)
        return found

    def contains(self, key: K) -> bool:
        """Whether there is a value; a read of it, unless it is expired."""
        is_there = key in self.current
        if is_there and key not in self._expired:
            self.get(key)
        return is_there

    def put(self, key: K, value: V) -> None:
        self._expired.discard(key)
        self.current[key] = value
        self.written[key] = None

    def remove(self, key: K) -> None:
        if key in self.current:
            self._expired.discard(key)
            del self.current[key]
            self.written[key] = None

    def clear(self) -> None:
        for key in list(self.current):
            self.remove(key)


def value_type(declared: type[V]) -> type[V]:
    """*declared*, if a state can hold it.

    Raises:
        ConfigurationError: it cannot.
    """
    if declared in _VALUE_TYPES or is_tuple(declared):
        return declared
    names = ", ".join(known.__name__ for known in _VALUE_TYPES)
    raise ConfigurationError(
        f"state cannot hold {declared!r} here; use one of: {names}, or a tuple of them, such as "
        "tuple[int, float]"
    )


def is_tuple(declared: object) -> bool:
    """Whether *declared* is a tuple of types that a state can hold: ``tuple[int, float]``."""
    fields = get_args(declared)
    return get_origin(declared) is tuple and bool(fields) and all(f in _VALUE_TYPES for f in fields)


def checked_value(state: str, declared: type[V], value: V) -> V:
    """*value* as it will be read back in another epoch; *state* is the name, for messages.

    Raises:
        ConfigurationError: it is not of the type that the state was declared with.
    """
    if type(declared) is type:  # The quick path of every value; tuple[int, int] is no class.
        return _checked_field(state, declared, value)  # type: ignore[return-value]
    fields = get_args(declared)
    if not isinstance(value, tuple) or len(value) != len(fields):
        raise _refused(state, declared, value)
    pairs = zip(fields, value, strict=True)
    return tuple(_checked_field(state, of, one) for of, one in pairs)  # type: ignore[return-value]


def checked_migrations(
    state: str, declared: object, migrations: Migrations[V] | None
) -> Migrations[V]:
    """*migrations* of the values of a *state* to the type *declared*.

    Raises:
        ConfigurationError: a type is none that a state could have had, or that of today.
    """
    for before in migrations or {}:
        value_type(before)
        if before == declared:
            raise ConfigurationError(
                f"{state} migrates from {type_name(before)}, which is its type; name the type that "
                "it had before"
            )
    return dict(migrations or {})


def type_name(declared: object) -> str:
    """The type as it is written."""
    return repr(declared) if get_args(declared) else getattr(declared, "__name__", repr(declared))


def _checked_field(state: str, declared: object, value: object) -> object:
    if declared is float and type(value) in (float, int):
        assert isinstance(value, float | int)
        return float(value) + 0.0  # -0.0 equals what is stored, so it would not be written.
    if type(value) is not declared or (isinstance(value, int) and value not in _INT64):
        raise _refused(state, declared, value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigurationError(
                f"state {state!r} was given {value}, which has no time zone; use UTC"
            )
        try:
            return value.astimezone(UTC)
        except OverflowError:
            raise _refused(state, declared, value) from None
    if isinstance(value, timedelta) and not -_LONGEST_PERIOD <= value <= _LONGEST_PERIOD:
        raise _refused(state, declared, value)
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
        raise ConfigurationError(
            f"state {state!r} holds str, not {value!r}, which has half a character (a surrogate "
            "without its other one), as no text in UTF-8 has; replace it"
        )
    return value


def _refused(state: str, declared: object, value: object) -> ConfigurationError:
    return ConfigurationError(
        f"state {state!r} holds {type_name(declared)}, not {value!r} of type "
        f"{type(value).__name__}; convert it, or declare what it is"
    )


def map_key_type(declared: type[V]) -> type[V]:
    """*declared*, if it can be the key of a ``MapState``.

    Raises:
        ConfigurationError: it cannot.
    """
    if declared not in _MAP_KEY_TYPES:
        names = ", ".join(known.__name__ for known in _MAP_KEY_TYPES)
        raise ConfigurationError(f"state cannot hold {declared!r} here; use one of: {names}")
    return declared


def ttl_config(given: StateTtlConfig | timedelta | None) -> StateTtlConfig | None:
    """The TTL of a state; a timedelta alone has Flink's defaults for everything else."""
    return StateTtlConfig(given) if isinstance(given, timedelta) else given
