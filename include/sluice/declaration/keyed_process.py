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

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeAlias

from sluice.declaration.checkpointed_function import CheckpointedFunction

# The types of a row's values are known to the pipeline's author only.
Row: TypeAlias = Mapping[str, Any]

# What ``current_watermark`` is before the first row, and when no row will come any more.
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


class KeyedProcessFunction(CheckpointedFunction, ABC):
    """A function of single rows and timers, with state per key; one instance serves all keys."""

    @abstractmethod
    def process(self, row: Row, context: Context) -> Iterable[Row] | None:
        """The result's rows for one row; None is none."""

    def on_timer(self, timestamp: datetime, context: OnTimerContext) -> Iterable[Row] | None:  # noqa: ARG002 - for those who override it
        """The result's rows when a timer fires; None is none."""
        return None
