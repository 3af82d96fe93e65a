"""State that a ``KeyedProcessFunction`` declares, as Flink's: values, lists and maps of a key.

A value's type is a Python type, or a tuple of them, as ``tuple[int, float]``.
``sluice.declaration.accumulating_states`` has the states to which values are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Generic, Self, TypeVar, overload

from sluice.declaration.state_types import checked, map_key_type, value_type
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.declaration.keyed_process import KeyedProcessFunction

# Where an instance of a function has its own copies of the states of its class.
OWN_STATES = "_sluice_states"

K = TypeVar("K")
V = TypeVar("V")


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

    def __init__(self, of: type[V]) -> None:
        self.name = ""
        self.value_type = value_type(of)
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
        return self._entries.current.get(self.name, default)

    def set(self, value: V) -> None:
        self._entries.put(self.name, self._checked(value))

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
        self._entries.put(last + 1, self._checked(value))

    def update(self, values: Iterable[V]) -> None:
        """Replace the whole list."""
        checked = [self._checked(value) for value in values]
        self._entries.clear()
        for index, value in enumerate(checked):
            self._entries.put(index, value)

    def clear(self) -> None:
        self._entries.clear()


class MapState(State[K, V]):
    """A map per key: ``per_day = MapState(str, int)``."""

    def __init__(self, key_type: type[K], of: type[V]) -> None:
        super().__init__(of)
        self.key_type = map_key_type(key_type)

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: V) -> V: ...

    def get(self, key: K, default: V | None = None) -> V | None:
        return self._entries.current.get(self._key(key), default)

    def contains(self, key: K) -> bool:
        return self._key(key) in self._entries.current

    def put(self, key: K, value: V) -> None:
        self._entries.put(self._key(key), self._checked(value))

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
        return checked(self.name, self.key_type, key)
