"""The columns that are computed for a stage's aggregates before they read the rows.

An argument is the name of a column or SQL, and names come first: ``user`` is the column, where
there is one, and never Spark's ``current_user()``.  A name that no column has is a mistake, which
the operator reports.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from sluice.declaration.aggregates import Aggregate
from sluice.declaration.operations import KeyedAggregate, Operation, WindowAggregate
from sluice.subtask.operators.operator import ARGUMENT, FILTER, ORDER

_NAME = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Computed:
    """A column and its Spark SQL."""

    column: str
    sql: str
    is_condition: bool = False


def wanted(operation: Operation) -> tuple[Computed, ...]:
    """The arguments of the aggregates of *operation*: SQL, or names of columns."""
    if not isinstance(operation, KeyedAggregate | WindowAggregate):
        return ()
    found: list[Computed] = []
    for name, aggregate in operation.aggregates.items():
        found += _of(name, aggregate)
    return tuple(found)


def to_compute(all_wanted: Collection[Computed], columns: Collection[str]) -> list[Computed]:
    """Those of *all_wanted* that are SQL, and not the name of one of *columns*."""
    return [one for one in all_wanted if one.is_condition or is_sql(one.sql, columns)]


def is_sql(text: str, columns: Collection[str]) -> bool:
    """Whether *text* is an expression over *columns*, and not the name of one."""
    return text not in columns and _NAME.fullmatch(text) is None


def _of(name: str, aggregate: Aggregate) -> list[Computed]:
    found: list[Computed] = []
    if aggregate.where is not None:
        found.append(Computed(FILTER + name, aggregate.where, is_condition=True))
    if aggregate.column is not None:
        found.append(Computed(ARGUMENT + name, aggregate.column))
    if aggregate.by is not None:
        found.append(Computed(ORDER + name, aggregate.by))
    return found
