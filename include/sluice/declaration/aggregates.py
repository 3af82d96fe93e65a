"""Aggregates of keyed and windowed stages: ``count()``, ``sum("price")``, ...

A declaration only; ``sluice.operators`` computes it.  Import the module, not its names
(``from sluice import aggregates as agg``): ``sum``, ``min`` and ``max`` are Python's, too.

What is aggregated is the name of a column, or else Spark SQL over the rows: ``sum("price * qty")``.
``where`` is SQL's FILTER clause: only rows for which this Spark SQL condition is true count.
Both may be a column of Spark Connect, too (``spark_columns``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, NoReturn

from sluice.declaration.arguments import NumberLimits, checked_arguments, user_line
from sluice.declaration.spark_columns import SparkColumn, sql_text
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
    line: str = user_line()

    def __post_init__(self) -> None:
        if self.column is None and self.kind is not AggregateKind.COUNT:
            raise ConfigurationError(f"{self.kind.value}() needs the name of a column")
        if self.fraction is not None and not 0 <= self.fraction <= 1:
            raise ConfigurationError(
                f"{self} has the fraction {self.fraction}; use one from 0 to 1, such as 0.95"
            )

    def _computed(self, _: object) -> NoReturn:
        raise ConfigurationError(
            f"{self} has no value where it is declared; give each aggregate a name, and compute "
            "behind the stage: .select('*', 'total / n AS mean')"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = _computed
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _computed

    def __str__(self) -> str:
        """The text of a declaration: ``sum('price')``."""
        return f"{self.kind.value}({'' if self.column is None else repr(self.column)})"


@checked_arguments
def count(
    column: str | SparkColumn | None = None, *, where: str | SparkColumn | None = None
) -> Aggregate:
    """Rows of the group; with *column*, its non-null values."""
    return _aggregate(AggregateKind.COUNT, column, where)


@checked_arguments
def sum(column: str | SparkColumn, *, where: str | SparkColumn | None = None) -> Aggregate:  # noqa: A001 - the field's word; the module is imported, not the name
    """Sum of the non-null values; null when there are none.

    Of integers a BIGINT: a sum that is none is an error that names the column.  What is added on
    the way may be larger.
    """
    return _aggregate(AggregateKind.SUM, column, where)


@checked_arguments
def min(column: str | SparkColumn, *, where: str | SparkColumn | None = None) -> Aggregate:  # noqa: A001 - as above
    """Smallest non-null value."""
    return _aggregate(AggregateKind.MIN, column, where)


@checked_arguments
def max(column: str | SparkColumn, *, where: str | SparkColumn | None = None) -> Aggregate:  # noqa: A001 - as above
    """Largest non-null value."""
    return _aggregate(AggregateKind.MAX, column, where)


@checked_arguments
def avg(column: str | SparkColumn, *, where: str | SparkColumn | None = None) -> Aggregate:
    """Mean of the non-null values, a double; null when there are none."""
    return _aggregate(AggregateKind.AVG, column, where)


@checked_arguments
def first(
    column: str | SparkColumn,
    *,
    by: str | SparkColumn | None = None,
    where: str | SparkColumn | None = None,
) -> Aggregate:
    """The non-null value of the row with the smallest ``by``; of several, the smallest value."""
    return _aggregate(AggregateKind.FIRST, column, where, by)


@checked_arguments
def last(
    column: str | SparkColumn,
    *,
    by: str | SparkColumn | None = None,
    where: str | SparkColumn | None = None,
) -> Aggregate:
    """The non-null value of the row with the largest ``by``; of several, the largest value."""
    return _aggregate(AggregateKind.LAST, column, where, by)


@checked_arguments
def count_distinct(
    column: str | SparkColumn, *, where: str | SparkColumn | None = None
) -> Aggregate:
    """Distinct non-null values, exactly: the values are kept in the state."""
    return _aggregate(AggregateKind.COUNT_DISTINCT, column, where)


@checked_arguments
def collect(column: str | SparkColumn, *, where: str | SparkColumn | None = None) -> Aggregate:
    """All non-null values as a sorted list, duplicates included (SQL's ARRAY_AGG)."""
    return _aggregate(AggregateKind.COLLECT, column, where)


@checked_arguments
def variance(column: str | SparkColumn, *, where: str | SparkColumn | None = None) -> Aggregate:
    """Sample variance of the non-null values, SQL's VAR_SAMP, a double; null of fewer than two."""
    return _aggregate(AggregateKind.VARIANCE, column, where)


@checked_arguments
def stddev(column: str | SparkColumn, *, where: str | SparkColumn | None = None) -> Aggregate:
    """Sample standard deviation, SQL's STDDEV_SAMP: the root of ``variance``."""
    return _aggregate(AggregateKind.STDDEV, column, where)


@checked_arguments
def percentile(
    column: str | SparkColumn,
    fraction: Annotated[float, NumberLimits(0, 1)],
    *,
    where: str | SparkColumn | None = None,
) -> Aggregate:
    """The value below which *fraction* of the non-null values lie, a double; null of no values.

    Exactly, and interpolated between two values, SQL's PERCENTILE_CONT: the values are kept.
    """
    return replace(_aggregate(AggregateKind.PERCENTILE, column, where), fraction=float(fraction))


@checked_arguments
def string_agg(
    column: str | SparkColumn, separator: str = ",", *, where: str | SparkColumn | None = None
) -> Aggregate:
    """The non-null texts, sorted, with *separator* between them; null when there are none."""
    return replace(_aggregate(AggregateKind.STRING_AGG, column, where), separator=separator)


def _aggregate(
    kind: AggregateKind,
    column: str | SparkColumn | None,
    where: str | SparkColumn | None,
    by: str | SparkColumn | None = None,
) -> Aggregate:
    return Aggregate(
        kind=kind,
        column=None if column is None else sql_text(column),
        where=None if where is None else sql_text(where),
        by=None if by is None else sql_text(by),
    )
