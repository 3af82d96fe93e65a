"""Aggregates of keyed and windowed stages: ``count()``, ``sum("price")``, ...

A declaration only; ``sluice.operators`` computes it.  Import the module, not its names
(``from sluice import aggregates as agg``): ``sum``, ``min`` and ``max`` are Python's, too.

What is aggregated is the name of a column, or else Spark SQL over the rows: ``sum("price * qty")``.
``where`` is SQL's FILTER clause: only rows for which this Spark SQL condition is true count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from sluice.declaration.arguments import NumberLimits, checked_arguments
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
    STDDEV = "stddev"
    VARIANCE = "variance"
    PERCENTILE = "percentile"
    STRING_AGG = "string_agg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One column of a stage's result.  ``column`` is None for ``count()`` of rows alone.

    ``by`` orders ``first`` and ``last``; None is the stream's event time.  Both are a column's name
    or Spark SQL.  ``fraction`` is that of a percentile, ``separator`` what ``string_agg`` puts
    between texts.
    """

    kind: AggregateKind
    column: str | None = None
    where: str | None = None
    by: str | None = None
    fraction: float | None = None
    separator: str | None = None

    def __post_init__(self) -> None:
        if self.column is None and self.kind is not AggregateKind.COUNT:
            raise ConfigurationError(f"{self.kind.value}() needs the name of a column")
        if self.fraction is not None and not 0 <= self.fraction <= 1:
            raise ConfigurationError(
                f"{self} has the fraction {self.fraction}; use one from 0 to 1, such as 0.95"
            )

    def __str__(self) -> str:
        """As it is written in a declaration: ``sum('price')``."""
        return f"{self.kind.value}({'' if self.column is None else repr(self.column)})"


@checked_arguments
def count(column: str | None = None, *, where: str | None = None) -> Aggregate:
    """Rows of the group; with *column*, its non-null values."""
    return Aggregate(kind=AggregateKind.COUNT, column=column, where=where)


@checked_arguments
def sum(column: str, *, where: str | None = None) -> Aggregate:  # noqa: A001 - the field's word; the module is imported, not the name
    """Sum of the non-null values; null when there are none.

    Of integers a BIGINT: a sum that is none is an error that names the column.  What is added on
    the way may be larger.
    """
    return Aggregate(kind=AggregateKind.SUM, column=column, where=where)


@checked_arguments
def min(column: str, *, where: str | None = None) -> Aggregate:  # noqa: A001 - as above
    """Smallest non-null value."""
    return Aggregate(kind=AggregateKind.MIN, column=column, where=where)


@checked_arguments
def max(column: str, *, where: str | None = None) -> Aggregate:  # noqa: A001 - as above
    """Largest non-null value."""
    return Aggregate(kind=AggregateKind.MAX, column=column, where=where)


@checked_arguments
def avg(column: str, *, where: str | None = None) -> Aggregate:
    """Mean of the non-null values, a double; null when there are none."""
    return Aggregate(kind=AggregateKind.AVG, column=column, where=where)


@checked_arguments
def first(column: str, *, by: str | None = None, where: str | None = None) -> Aggregate:
    """The non-null value of the row with the smallest ``by``; of several, the smallest value."""
    return Aggregate(kind=AggregateKind.FIRST, column=column, by=by, where=where)


@checked_arguments
def last(column: str, *, by: str | None = None, where: str | None = None) -> Aggregate:
    """The non-null value of the row with the largest ``by``; of several, the largest value."""
    return Aggregate(kind=AggregateKind.LAST, column=column, by=by, where=where)


@checked_arguments
def count_distinct(column: str, *, where: str | None = None) -> Aggregate:
    """Distinct non-null values, exactly: the values are kept in the state."""
    return Aggregate(kind=AggregateKind.COUNT_DISTINCT, column=column, where=where)


@checked_arguments
def collect(column: str, *, where: str | None = None) -> Aggregate:
    """All non-null values as a sorted list, duplicates included (SQL's ARRAY_AGG)."""
    return Aggregate(kind=AggregateKind.COLLECT, column=column, where=where)


@checked_arguments
def variance(column: str, *, where: str | None = None) -> Aggregate:
    """Sample variance of the non-null values, SQL's VAR_SAMP, a double; null of fewer than two."""
    return Aggregate(kind=AggregateKind.VARIANCE, column=column, where=where)


@checked_arguments
def stddev(column: str, *, where: str | None = None) -> Aggregate:
    """Sample standard deviation, SQL's STDDEV_SAMP: the root of ``variance``."""
    return Aggregate(kind=AggregateKind.STDDEV, column=column, where=where)


@checked_arguments
def percentile(
    column: str, fraction: Annotated[float, NumberLimits(0, 1)], *, where: str | None = None
) -> Aggregate:
    """The value below which *fraction* of the non-null values lie, a double; null of no values.

    Exactly, and interpolated between two values, SQL's PERCENTILE_CONT: the values are kept.
    """
    return Aggregate(
        kind=AggregateKind.PERCENTILE, column=column, where=where, fraction=float(fraction)
    )


@checked_arguments
def string_agg(column: str, separator: str = ",", *, where: str | None = None) -> Aggregate:
    """The non-null texts, sorted, with *separator* between them; null when there are none."""
    return Aggregate(kind=AggregateKind.STRING_AGG, column=column, where=where, separator=separator)
