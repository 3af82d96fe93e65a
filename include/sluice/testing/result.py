"""``LocalRun``: the result of a local run: tables, side outputs, keyed state, and epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import polars as pl

from sluice.core.watermarks import MAX_WATERMARK, MIN_WATERMARK
from sluice.declaration.keyed_process import BEGINNING_OF_TIME, END_OF_TIME
from sluice.errors import ConfigurationError

_T = TypeVar("_T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEpoch:
    """One checkpoint.

    ``number`` counts the chunks of rows from 1; after a restore an epoch is repeated, under the
    same number and another ``checkpoint_id``.  ``watermarks`` are by stage, in UTC, from
    ``BEGINNING_OF_TIME`` before the first row to ``END_OF_TIME`` behind the last.  ``attempts`` are
    by stage: how often it was run.
    """

    number: int
    checkpoint_id: int
    records: int
    watermarks: Mapping[str, datetime]
    attempts: Mapping[str, int]
    _published: Mapping[str, pl.DataFrame] = field(repr=False)

    def published(self, sink: str) -> pl.DataFrame:
        """The rows that the epoch published to *sink*.

        With an upsert key or deletes there is the column ``_deleted``, true in a deleted row.
        """
        return _named(self._published, sink, "sink")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """The result of a local run.

    ``status`` is FINISHED if every source was bounded, else RUNNING; ``seconds`` is its duration.
    """

    pipeline: str
    status: str
    seconds: float
    epochs: tuple[LocalEpoch, ...]
    _tables: Mapping[str, pl.DataFrame] = field(repr=False)
    _side_outputs: Mapping[str, pl.DataFrame] = field(repr=False)
    _state: Mapping[str, Mapping[str, pl.DataFrame]] = field(repr=False)

    @property
    def sinks(self) -> tuple[str, ...]:
        return tuple(self._tables)

    @property
    def side_outputs(self) -> tuple[str, ...]:
        """The names of all side outputs, as ``stage.name``."""
        return tuple(self._side_outputs)

    def table(self, sink: str) -> pl.DataFrame:
        """The rows that readers of *sink* see at the end, as a Polars frame, in no order.

        There is one row per upsert key; without a key, every published row.

        Raises:
            ConfigurationError: there is no such sink.
        """
        return _named(self._tables, sink, "sink")

    def side_output(self, stage: str, name: str = "") -> pl.DataFrame:
        """The rows of a side output, such as ``side_output("window_rule", "late")``.

        *name* is ``malformed``, ``no_event_time``, ``late`` or ``late_right``.

        Raises:
            ConfigurationError: there is no such side output.
        """
        return _named(self._side_outputs, f"{stage}.{name}" if name else stage, "side output")

    def state(self, stage: str, table: str | None = None) -> pl.DataFrame:
        """The keyed state of *stage* after the last epoch: a row per key, or per row of a bag.

        *table* may be left out if the stage has only one.

        Raises:
            ConfigurationError: the stage keeps none, or no table of that name.
        """
        tables = _named(self._state, stage, "stage with keyed state")
        if table is None and len(tables) == 1:
            return next(iter(tables.values()))
        if table is None:
            raise ConfigurationError(
                f"the state of stage {stage!r} has several tables; name one: {', '.join(tables)}"
            )
        return _named(tables, table, f"table in the state of {stage!r}")


def watermark_of(watermark_ms: int) -> datetime:
    if watermark_ms == MIN_WATERMARK:
        return BEGINNING_OF_TIME
    if watermark_ms == MAX_WATERMARK:
        return END_OF_TIME
    return _EPOCH + timedelta(milliseconds=watermark_ms)


def _named(known: Mapping[str, _T], name: str, what: str) -> _T:
    if name not in known:
        raise ConfigurationError(
            f"the run has no {what} {name!r}; it has {', '.join(known) or 'none'}"
        )
    return known[name]
