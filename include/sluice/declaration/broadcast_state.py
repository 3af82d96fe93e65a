"""``KeyedBroadcastProcessFunction``: a keyed function beside rows that every subtask sees; Flink's.

    class Flagged(KeyedBroadcastProcessFunction):
        limits = BroadcastState(str, int)

        def process_broadcast(self, row: Row, context: BroadcastContext) -> None:
            self.limits.put(row["category"], row["limit"])

        def process(self, row: Row, context: Context) -> Iterable[Row]:
            if row["price"] > self.limits.get(row["category"], 0):
                yield {"auction": context.key["auction"], "price": row["price"]}

Broadcast state is one map for all keys.  The broadcast rows of an epoch come first, in the order of
their event time, then the rows of the keys: a result depends on barriers, and on nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from sluice.declaration.keyed_process import KeyedProcessFunction, Row
from sluice.declaration.keyed_states import Entries, Map, Migrations
from sluice.declaration.state_types import map_key_type
from sluice.errors import ConfigurationError

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastContext:
    """The context of a broadcast row: its event time, and the times of the barriers around it."""

    timestamp: datetime | None  # None if the broadcast stream has no event time, or the row.
    current_watermark: datetime
    processing_time: datetime


class KeyedBroadcastProcessFunction(KeyedProcessFunction):
    """A function of rows of keys, which reads what broadcast rows have written."""

    @abstractmethod
    def process_broadcast(self, row: Row, context: BroadcastContext) -> None:
        """Write broadcast state for one row.  It yields nothing, for every subtask calls it."""


class BroadcastState(Map[K, V]):
    """A map that all keys share: ``limits = BroadcastState(str, int)``.

    It is written in ``process_broadcast`` only, and has no TTL, as in Flink.
    """

    def __init__(
        self, key_type: type[K], of: type[V], *, migrations: Migrations[V] | None = None
    ) -> None:
        super().__init__(of, migrations=migrations)
        self.key_type = map_key_type(key_type)


class ReadOnlyEntries(Entries[K, V]):
    """Broadcast state as the rows of keys see it.  For the runtime."""

    def __init__(self, stored: Mapping[K, V], state: str) -> None:
        super().__init__(stored)
        self._state = state

    def put(self, key: K, value: V) -> None:  # noqa: ARG002 - it is refused, whatever it is
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
