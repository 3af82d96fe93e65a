"""Values of a keyed function's state as they are kept in a column, and back.

A tuple is a struct whose fields are ``f0``, ``f1`` and so on, as in Flink's Tuple2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import polars as pl

from sluice.declaration.keyed_states import State
from sluice.declaration.state_types import checked, is_tuple
from sluice.subtask.operators.declared_types import declared_type
from sluice.subtask.state.schema import DeclaredColumn


def column_type(declared: object) -> pl.DataType:
    """The type of the column that keeps values of the type *declared*, which state can hold."""
    if not is_tuple(declared):
        return declared_type("", "", declared)
    fields = get_args(declared)
    return pl.Struct({f"f{place}": column_type(field) for place, field in enumerate(fields)})


def to_column(value: object) -> object:
    if not isinstance(value, tuple):
        return value
    return {f"f{place}": field for place, field in enumerate(value)}


def from_column(value: object) -> object:
    """The value as it was written; None if there is none."""
    if not isinstance(value, dict):
        return value
    fields = tuple(value.values())
    return None if all(field is None for field in fields) else fields


def declared_column(state: State[Any, Any]) -> DeclaredColumn:
    """The column of the state's values, with what makes them of values of other types."""
    return DeclaredColumn(
        state=state.name,
        dtype=column_type(state.value_type),
        is_positional=is_tuple(state.value_type),
        migrations=tuple(
            (column_type(before), _migration(state, migrate))
            for before, migrate in state.migrations.items()
        ),
    )


def _migration(
    state: State[Any, Any], migrate: Callable[[object], object]
) -> Callable[[object], object]:
    def migrated(stored: object) -> object:
        value = from_column(stored)
        if value is None:
            return None
        return to_column(checked(state.name, state.value_type, migrate(value)))

    return migrated
