"""What a keyed or windowed stage may compute per group: ``count()``, ``sum("price")``, ...

A declaration only; ``sluice.runtime.operators`` computes it.  Import the module, not its names
(``from sluice import aggregates as agg``): ``sum``, ``min`` and ``max`` are Python's, too.
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
    COUNT_DISTINCT = "count_distinct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One column of a stage's result.  ``column`` is None for ``count()`` of rows alone."""

    kind: AggregateKind
    column: str | None = None

    def __post_init__(self) -> None:
        if self.column is None and self.kind is not AggregateKind.COUNT:
            raise ConfigurationError(f"{self.kind.value}() needs the name of a column")


def count(column: str | None = None) -> Aggregate:
    """Rows of the group; with *column*, its non-null values."""
    return Aggregate(kind=AggregateKind.COUNT, column=column)


def sum(column: str) -> Aggregate:  # noqa: A001 - the field's word; the module is imported, not the name
    """Sum of the non-null values; null when there are none."""
    return Aggregate(kind=AggregateKind.SUM, column=column)


def min(column: str) -> Aggregate:  # noqa: A001 - as above
    """Smallest non-null value."""
    return Aggregate(kind=AggregateKind.MIN, column=column)


def max(column: str) -> Aggregate:  # noqa: A001 - as above
    """Largest non-null value."""
    return Aggregate(kind=AggregateKind.MAX, column=column)


def count_distinct(column: str) -> Aggregate:
    """Distinct non-null values, exactly: the values are kept in the state."""
    return Aggregate(kind=AggregateKind.COUNT_DISTINCT, column=column)
