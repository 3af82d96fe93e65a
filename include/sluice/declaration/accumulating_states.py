"""State to which a keyed function adds values: Flink's ReducingState and AggregatingState.

What is kept of all values of a key is one: what they were reduced to, or an accumulator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Generic, TypeVar

from sluice.declaration.keyed_states import Migrations, State
from sluice.declaration.state_ttl import StateTtlConfig
from sluice.errors import ConfigurationError

V = TypeVar("V")
IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")


class ReducingState(State[str, V]):
    """The values that were added, reduced to one: ``largest = ReducingState(max, int)``.

    *reduce* takes what there is and the value that is added, and returns what is kept (Flink's
    ``ReduceFunction``); the first value is kept as it is.
    """

    def __init__(
        self,
        reduce: Callable[[V, V], V],
        of: type[V],
        *,
        ttl: StateTtlConfig | timedelta | None = None,
        migrations: Migrations[V] | None = None,
    ) -> None:
        super().__init__(of, ttl=ttl, migrations=migrations)
        if not callable(reduce):
            raise ConfigurationError(
                f"ReducingState is given {reduce!r}, which cannot be called; give it a function of "
                "two values, then their type: ReducingState(max, int)"
            )
        self._reduce = reduce

    def get(self) -> V | None:
        """What the values of the key were reduced to; None if none was added."""
        return self._entries.get(self.name)

    def add(self, value: V) -> None:
        added, entries = self._checked(value), self._entries
        if self.name in entries.current:
            added = self._checked(self._reduce(entries.current[self.name], added))
        entries.put(self.name, added)

    def clear(self) -> None:
        self._entries.remove(self.name)


class AggregateFunction(ABC, Generic[IN, ACC, OUT]):
    """What an ``AggregatingState`` does with the values of a key; Flink's, without ``merge``."""

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """The accumulator of no values."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """The accumulator with *value* in it."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """The result of the values in *accumulator*, which it does not change."""


class AggregatingState(State[str, ACC], Generic[IN, ACC, OUT]):
    """The values that were added, in an accumulator of which state keeps nothing else.

    ``mean = AggregatingState(Mean(), tuple[float, int])``: the function, then its accumulator's
    type.
    """

    def __init__(
        self,
        function: AggregateFunction[IN, ACC, OUT],
        of: type[ACC],
        *,
        ttl: StateTtlConfig | timedelta | None = None,
        migrations: Migrations[ACC] | None = None,
    ) -> None:
        super().__init__(of, ttl=ttl, migrations=migrations)
        if not isinstance(function, AggregateFunction):
            raise ConfigurationError(
                f"AggregatingState is given {function!r}, which is no AggregateFunction; give it "
                "an instance, then its accumulator's type: AggregatingState(Mean(), "
                "tuple[float, int])"
            )
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
