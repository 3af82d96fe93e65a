"""``SparkRead``: the declared source of a table that only Spark reads.

Such a place does not give the same rows twice.  So what was read is kept, as the state of the stage
that reads: a reading is compared with the one before, and what differs is sent, with updates and
deletes as changes.  A checkpoint, a restore and a rescale move those rows as any state.  What is
behind reads what the checkpoint has, and never the place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeAlias
from zoneinfo import ZoneInfo

from sluice.connectors.offsets import OffsetSource, Readable
from sluice.core.plan import PartitionOffset, Slice
from sluice.declaration.arguments import NumberLimits, checked_initializer
from sluice.declaration.column_types import ColumnType, row_schema
from sluice.declaration.durations import (
    US,
    DurationLimits,
    PositiveDuration,
    milliseconds,
)
from sluice.declaration.functions import CHECKS_ONLY
from sluice.declaration.places import DUE, SparkReading
from sluice.declaration.results import Replace, Upsert
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from sluice.declaration.params import Param
    from sluice.declaration.places import Source

Key: TypeAlias = str | tuple[str, ...]
_TimeLag: TypeAlias = Annotated[timedelta, DurationLimits(timedelta(0), unit=US)]


@checked_initializer
@dataclass(frozen=True, slots=True)
class Snapshot:
    """All rows are read, and compared by their ``key`` with those of the reading before.

    Exact for what was seen: rows that came, changed or went.  It costs the whole table a reading.
    """

    key: Key


@checked_initializer
@dataclass(frozen=True, slots=True)
class Column:
    """Rows are read whose column ``name``, a time or a number, is at least the largest one that was
    read, less ``lag``: a timedelta, or a number.

    They replace those of their ``key``.  Rows within the lag are read again, and sent if they
    differ; rows without a value are read each time.  Not seen are rows that are deleted, and rows
    that become visible more than ``lag`` behind a later one: those that are at most
    ``checked_lag`` behind it fail the epoch, as ``lag`` is too short.
    """

    name: str
    key: Key
    lag: _TimeLag | Annotated[int, NumberLimits(0)] = 0
    checked_lag: _TimeLag | Annotated[int, NumberLimits(0)] = field(default=0, metadata=CHECKS_ONLY)


@checked_initializer
@dataclass(frozen=True, slots=True)
class SparkRead:
    """The DataFrame of *function(spark)*, read once in each interval ``every``, by an epoch.

    ``schema``, Spark's DDL, has the columns that it has, and ``by`` says what of it is read.
    """

    function: Callable[[SparkSession], DataFrame]
    schema: str
    by: Snapshot | Column
    every: PositiveDuration
    version: str | None = None  # Of what the function means; None: its source says.

    def __post_init__(self) -> None:
        if isinstance(self.by, Column):
            _check_lag(self.by, row_schema("SparkRead", self.schema))

    @property
    def params(self) -> tuple[Param, ...]:
        return ()

    def reading(self) -> SparkReading:
        """See ``ReadBySparkSpec``."""
        by = self.by
        return SparkReading(
            function=partial(all_rows, self.function)
            if isinstance(by, Snapshot)
            else partial(rows_since, self.function, by),
            schema=self.schema,
            result=Replace(by.key) if isinstance(by, Snapshot) else Upsert(by.key),
            takes_previous=isinstance(by, Column),
            version=self.version,
        )

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:  # noqa: ARG002 - its function reads
        return Readings(milliseconds(self.every))


PARTITION = "readings"


@dataclass(frozen=True, slots=True)
class Readings(OffsetSource):
    """The times at which a reading is due: an epoch takes the records of the intervals that passed.

    Record n is due ``every_ms`` after record n - 1; the first to be read is the newest.
    """

    every_ms: int

    @property
    def bounded(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return "the readings by Spark"

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([(DUE, pa.timestamp("us", tz="UTC"))])

    def readable(self) -> Mapping[str, Readable]:
        return {PARTITION: Readable(first=0, end=int(time.time() * 1000) // self.every_ms + 1)}

    def first_offset(self, partition: str, now: Readable, *, is_new: bool) -> int:  # noqa: ARG002 - there is one
        return now.end - 1

    def _check_end(self, read: PartitionOffset, there: Readable) -> None:
        """Check that nothing is lost where a clock goes back, or ``every_ms`` has changed."""

    def _begun(self, read: PartitionOffset, there: Readable) -> PartitionOffset:
        """One reading sees what all that were missed would have seen."""
        return replace(read, offset=min(max(read.offset, there.end - 1), there.end))

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - there is one
        import pyarrow as pa

        due = [number * self.every_ms * 1000 for number in range(piece.start, piece.end)]
        schema = self.schema()
        yield pa.RecordBatch.from_arrays([pa.array(due, schema[0].type)], schema=schema)


def all_rows(function: Callable[[SparkSession], DataFrame], /, due: DataFrame) -> DataFrame:
    """All rows, as they are when a reading is *due*."""
    return function(due.sparkSession)


def rows_since(
    function: Callable[[SparkSession], DataFrame],
    by: Column,
    /,
    due: DataFrame,
    previous: DataFrame,
) -> DataFrame:
    """The rows that may have come or changed since the *previous* reading.

    The largest value passes Python as text: as a time it would be one of the driver's time zone.

    Raises:
        ConfigurationError: a row within ``checked_lag`` is none of the *previous* ones.
    """
    rows, name = function(due.sparkSession), f"`{by.name}`"
    kind = previous.schema[by.name].dataType.simpleString()
    # For Spark NaN is larger than all numbers.
    read = f"nanvl({name}, NULL)" if kind in ("double", "float") else name
    newest = previous.selectExpr(f"CAST(max({read}) AS STRING) AS largest")
    ((largest, zone),) = newest.selectExpr("largest", _ZONE_OF_JVM).collect()
    if largest is None:
        return rows
    text = largest.replace("\\", "\\\\").replace("'", "\\'")
    lag = by.lag
    if kind in ("timestamp", "timestamp_ntz"):
        since = lag if isinstance(lag, timedelta) else timedelta(0)
        lag = since + _around_a_clock_change(largest, since, kind, zone)
    bound = _less(f"CAST('{text}' AS {kind})", lag, kind)
    if by.checked_lag:
        least = _less(f"CAST('{text}' AS {kind})", by.checked_lag, kind)
        behind = rows.where(f"{name} >= {least} AND {name} < {bound}")
        _check_read(by, behind, previous, largest)
    return rows.where(f"{name} >= {bound} OR {name} IS NULL")


def _around_a_clock_change(largest: str, lag: timedelta, kind: str, zone: str) -> timedelta:
    """How much earlier than the *largest* time less its *lag* rows are read, to miss none.

    Spark gives a JDBC driver a time as a text of the JVM's *zone*.  An hour that comes twice there
    in autumn, or is left out in spring, is understood as up to an hour later.
    """
    try:
        bound, there = datetime.fromisoformat(largest) - lag, ZoneInfo(zone)
    except (ValueError, OverflowError, KeyError):
        return timedelta(0)  # A year that Python has not; a zone like GMT+02:00, of one offset.
    at = bound.replace(tzinfo=UTC if kind == "timestamp" else there).astimezone(UTC)
    before, behind = at - timedelta(hours=3), at + timedelta(hours=1)
    is_changed = before.astimezone(there).utcoffset() != behind.astimezone(there).utcoffset()
    return timedelta(hours=3 if is_changed else 0)


def _less(value: str, lag: timedelta | int, kind: str) -> str:
    """The *value* of a *kind* less a *lag*, in SQL."""
    if not isinstance(lag, timedelta):
        return f"{value} - {lag}" if lag else value
    if kind == "date":
        return f"date_sub({value}, {-(-lag // timedelta(days=1))})"
    return f"{value} - INTERVAL {lag // timedelta(microseconds=1)} MICROSECONDS"


def _check_read(by: Column, behind: DataFrame, previous: DataFrame, largest: str) -> None:
    """Raises ConfigurationError for a row *behind* the bound that is not among *previous* ones."""
    keys = (by.key,) if isinstance(by.key, str) else by.key
    names = [*dict.fromkeys((*keys, by.name))]
    shown = [f"CAST(`{name}` AS STRING) AS `{name}`" for name in names]
    missed = behind.join(previous.select(*(f"`{name}`" for name in names)), names, "left_anti")
    row = missed.orderBy(f"`{by.name}`").selectExpr(*shown).first()
    if row is not None:
        values = ", ".join(f"{name} = {value}" for name, value in zip(names, row, strict=True))
        raise ConfigurationError(
            f"SparkRead finds a row with {values} that no reading had, and {by.name!r} was read "
            f"up to {largest}, so the lag {by.lag} is too short; declare a longer one, or read by "
            "Snapshot"
        )


def _check_lag(by: Column, columns: Mapping[str, ColumnType]) -> None:
    """Raises ConfigurationError: there is no such column, or the lag is none of its type."""
    if by.name not in columns:
        raise ConfigurationError(
            f"SparkRead reads by the column {by.name!r}, which its schema does not have; it has "
            f"{', '.join(columns)}"
        )
    kind = columns[by.name]
    for lag in (by.lag, by.checked_lag):
        if lag and (kind.name in _TIMES) != isinstance(lag, timedelta):
            raise ConfigurationError(
                f"Column({by.name!r}) is {kind} and has the lag {lag!r}; write a timedelta for a "
                "date or a time, and a number for a number"
            )
    if by.checked_lag and _amount(by.checked_lag) <= _amount(by.lag):
        raise ConfigurationError(
            f"Column({by.name!r}) has the lag {by.lag}, and its checked_lag {by.checked_lag} looks "
            "no further behind; make it longer, or leave it out"
        )


def _amount(lag: timedelta | int) -> float:
    return lag.total_seconds() if isinstance(lag, timedelta) else lag


_ZONE_OF_JVM = "java_method('java.time.ZoneId', 'systemDefault')"
_TIMES = ("date", "timestamp", "timestamp_ntz")
