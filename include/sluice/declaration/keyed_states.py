"""State that a ``KeyedProcessFunction`` declares, as Flink's: values, lists and maps of a key.

A value's type is a Python type, or a tuple of them, as ``tuple[int, float]``.
``sluice.declaration.accumulating_states`` has the states to which values are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar, overload

from sluice.declaration.state_ttl import StateTtlConfig, ttl_config
from sluice.declaration.state_types import checked, checked_migrations, map_key_type, value_type
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.declaration.keyed_process import KeyedProcessFunction

# Where an instance of a function has its own copies of the states of its class.
OWN_STATES = "_sluice_states"

K = TypeVar("K")
V = TypeVar("V")
# The type that values had -> a function of such a value.
Migrations: TypeAlias = Mapping[Any, Callable[[Any], V]]


class Entries(Generic[K, V]):
    """The current key's entries of a state, and which of them were written.  For the runtime."""

    def __init__(
        self,
        stored: Mapping[K, V],
        *,
        expired: Iterable[K] = (),
        is_refreshed_by_reads: bool = False,
    ) -> None:
        """*expired* are those of *stored* that are returned once more, and are gone then."""
        self.stored = stored
        self.current = dict(stored)
        self.written: dict[K, None] = {}  # In the order of writing, unlike a set.
        self._expired = set(expired)
        self._is_refreshed_by_reads = is_refreshed_by_reads
        self._heeds_reads = is_refreshed_by_reads or bool(self._expired)

    def get(self, key: K) -> V | None:
        """The value, which was read then; None if there is none."""
        found = self.current.get(key)
        if self._heeds_reads and found is not None:
            if key in self._expired:
                self.remove(key)
            elif self._is_refreshed_by_reads:
                self.written[key] = None
        return found

    def items(self) -> list[tuple[K, V]]:
        """All entries, which were read then, in their order."""
        found = list(self.current.items())
        if self._heeds_reads:
            for key, _ in found:
                self.get(key)
        return found

    def contains(self, key: K) -> bool:
        """Whether there is a value, which was read then, if it is not expired."""
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


class State(Generic[K, V]):
    """A class attribute that declares state; its name is part of the state's format."""

    _USE = "that of a key; use it inside process() and on_timer() only"

    def __init__(
        self,
        of: type[V],
        *,
        ttl: StateTtlConfig | timedelta | None = None,
        migrations: Migrations[V] | None = None,
    ) -> None:
        """*ttl* is this state's, whatever that of the stage is; *migrations* have, for each type
        that its values had before, a function that makes one of today's of such a value.
        """
        self.name = ""
        self.value_type = value_type(of)
        self.ttl = ttl_config(type(self), ttl)
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
        return checked(self.name, self.value_type, value)


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
    """The elements of a list, whosever it is."""

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
    """The entries of a map, whichever rows see it; ``key_type`` is the type of its keys."""

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
        """In the order of the keys, whenever they were put there."""
        found = dict(self._entries.items())
        return [(key, found[key]) for key in sorted(found)]  # type: ignore[type-var]

    def clear(self) -> None:
        self._entries.clear()

    def _key(self, key: K) -> K:
        return checked(self.name, self.key_type, key)


class MapState(Map[K, V]):
    """A map per key: ``per_day = MapState(str, int)``."""

    def __init__(
        self,
        key_type: type[K],
        of: type[V],
        *,
        ttl: StateTtlConfig | timedelta | None = None,
        migrations: Migrations[V] | None = None,
    ) -> None:
        super().__init__(of, ttl=ttl, migrations=migrations)
        self.key_type = map_key_type(key_type)
