"""What a keyed or windowed stage may compute per group: ``count()``, ``sum("price")``, ...

A declaration only; ``sluice.runtime.operators`` computes it.  Import the module, not its names
(``from sluice import aggregates as agg``): ``sum``, ``min`` and ``max`` are Python's, too.

``where`` is SQL's FILTER clause: only rows for which this Spark SQL condition is true count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sluice.errors import ConfigurationError


class AggregateKind(Enum):
    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    FIRST = "first"
    LAST = "last"
    COUNT_DISTINCT = "count_distinct"
    COLLECT = "collect"


# Those that can take a row back, and so may aggregate a stream whose rows are updated.
RETRACTABLE = frozenset({AggregateKind.COUNT, AggregateKind.SUM, AggregateKind.AVG})


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One column of a stage's result.  ``column`` is None for ``count()`` of rows alone.

    ``by`` orders ``first`` and ``last``; None is the stream's event time.
    """

    kind: AggregateKind
    column: str | None = None
    where: str | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        if self.column is None and self.kind is not AggregateKind.COUNT:
            raise ConfigurationError(f"{self.kind.value}() needs the name of a column")


def count(column: str | None = None, *, where: str | None = None) -> Aggregate:
    """Rows of the group; with *column*, its non-null values."""
    return Aggregate(kind=AggregateKind.COUNT, column=column, where=where)


def sum(column: str, *, where: str | None = None) -> Aggregate:  # noqa: A001 - the field's word; the module is imported, not the name
    """Sum of the non-null values; null when there are none."""
    return Aggregate(kind=AggregateKind.SUM, column=column, where=where)


def min(column: str, *, where: str | None = None) -> Aggregate:  # noqa: A001 - as above
    """Smallest non-null value."""
    return Aggregate(kind=AggregateKind.MIN, column=column, where=where)


def max(column: str, *, where: str | None = None) -> Aggregate:  # noqa: A001 - as above
    """Largest non-null value."""
    return Aggregate(kind=AggregateKind.MAX, column=column, where=where)


def avg(column: str, *, where: str | None = None) -> Aggregate:
    """Mean of the non-null values, a double; null when there are none."""
    return Aggregate(kind=AggregateKind.AVG, column=column, where=where)


def first(column: str, *, by: str | None = None, where: str | None = None) -> Aggregate:
    """The non-null value of the row with the smallest ``by``; of several, the smallest value."""
    return Aggregate(kind=AggregateKind.FIRST, column=column, by=by, where=where)


def last(column: str, *, by: str | None = None, where: str | None = None) -> Aggregate:
    """The non-null value of the row with the largest ``by``; of several, the largest value."""
    return Aggregate(kind=AggregateKind.LAST, column=column, by=by, where=where)


def count_distinct(column: str, *, where: str | None = None) -> Aggregate:
    """Distinct non-null values, exactly: the values are kept in the state."""
    return Aggregate(kind=AggregateKind.COUNT_DISTINCT, column=column, where=where)


def collect(column: str, *, where: str | None = None) -> Aggregate:
    """All non-null values as a sorted list, duplicates included (SQL's ARRAY_AGG)."""
    return Aggregate(kind=AggregateKind.COLLECT, column=column, where=where)
