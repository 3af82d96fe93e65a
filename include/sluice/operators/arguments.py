"""The arguments, filters and orders of aggregates: SQL, or names of columns.

Names come first: ``user`` is the column, where there is one, and never Spark's ``current_user()``.
A name that no column has is a mistake, which the operator reports.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from sluice.declaration.operations import KeyedAggregate, Operation, WindowAggregate
from sluice.operators.operator import ARGUMENT, FILTER, ORDER

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Computed:
    """A column that is computed for an aggregate before it reads the rows, and its Spark SQL."""

    column: str
    sql: str
    line: str
    is_condition: bool = False


def aggregate_arguments(operation: Operation) -> tuple[Computed, ...]:
    """The arguments of the aggregates of *operation*: SQL, or names of columns."""
    if not isinstance(operation, KeyedAggregate | WindowAggregate):
        return ()
    found: list[Computed] = []
    for name, aggregate in operation.aggregates.items():
        if aggregate.where is not None:
            found.append(
                Computed(FILTER + name, aggregate.where, aggregate.line, is_condition=True)
            )
        if aggregate.column is not None:
            found.append(Computed(ARGUMENT + name, aggregate.column, aggregate.line))
        if aggregate.by is not None:
            found.append(Computed(ORDER + name, aggregate.by, aggregate.line))
    return tuple(found)


def to_compute(arguments: Collection[Computed], columns: Collection[str]) -> list[Computed]:
    """The *arguments* that are SQL, and not the name of one of *columns*."""
    return [one for one in arguments if one.is_condition or is_sql(one.sql, columns)]


def is_sql(text: str, columns: Collection[str]) -> bool:
    """Whether *text* is an expression over *columns*, and not the name of one as it is spelt."""
    if text in columns:
        return False
    return _WORD.fullmatch(text) is None or text.lower() in {name.lower() for name in columns}
