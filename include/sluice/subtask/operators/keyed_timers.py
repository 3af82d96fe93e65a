"""Timers of a ``KeyedProcessFunction``: those in state, those that are due, and the new ones.

There is a table of state for each time domain, with a row per key and instant.  Its rows never
expire: a TTL may drop the state of a key, and its timers fire all the same.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

import polars as pl

from sluice.declaration.keyed_process import BEGINNING_OF_TIME, END_OF_TIME
from sluice.errors import ConfigurationError
from sluice.subtask.operators.operator import Changes, EpochTime
from sluice.subtask.state.keyed import KeyedState, StateSchema
from sluice.subtask.state.segments import HASH

TimeDomain: TypeAlias = Literal["event", "processing"]

TIME_MS = "_time_ms"
PLACE = "_place"  # The place of a key among those that an epoch touches.
DOMAINS: tuple[TimeDomain, ...] = ("event", "processing")
# A timer a second for four months, more than an epoch should span.  Without a limit, a timer that
# always registers the next one would fire for ever at the final watermark, MAX.
MOST_FIRINGS = 10_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def timer_table(domain: TimeDomain) -> str:
    """The name of the table; it is part of the state's format."""
    return f"{domain}_timers"


def timer_schema(key_types: pl.Schema) -> StateSchema:
    return StateSchema(
        columns=pl.Schema({**key_types, TIME_MS: pl.Int64()}),
        key_columns=tuple(key_types),
        sub_key_columns=(TIME_MS,),
        time_column=TIME_MS,
    )


def limits_ms(time: EpochTime) -> dict[TimeDomain, int]:
    """The time at the epoch's end in each domain: a timer at or before it fires."""
    return {"event": time.watermark_ms, "processing": time.processing_time_ms}


def instant_of(ms: int) -> datetime:
    """The instant at *ms*, cut to the first and last that Python can represent."""
    if ms <= _ms_of(BEGINNING_OF_TIME):
        return BEGINNING_OF_TIME
    return END_OF_TIME if ms >= _ms_of(END_OF_TIME) else _EPOCH + ms * _MS


class KeyTimers:
    """The ``Timers`` of one key in one epoch."""

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
    """The timers of one domain in one epoch, by the place of their key among those touched."""

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


def _ms_of(at: datetime) -> int:
    if at.tzinfo is None:
        raise ConfigurationError(f"a timer at {at} has no time zone; use UTC")
    return (at - _EPOCH) // _MS
