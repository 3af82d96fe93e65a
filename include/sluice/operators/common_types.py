"""Types of columns that meet: in a union, and where a lookup or join compares them.

Their types may differ where Spark widens them to one that holds every value of each: integers of
other widths, an integer or decimal beside a decimal if 38 digits hold both, integers up to 32 bits
and floats as doubles, a date as a timestamp; arrays, maps and structs by their parts.  Spark goes
further: it reads a text beside a bigint as a number, row by row, and cuts a bigint to a double.
Then rows would fail, meet or differ by how they are spelled, so that is refused.  A join finds rows
by hashes of their keys, so these are of one type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import combinations
from typing import TypeAlias

import polars as pl

from sluice.declaration.sql_tree import Column, spelled
from sluice.errors import ConfigurationError
from sluice.operators.operator import require_column
from sluice.operators.sql import spark_type, wider_type
from sluice.state.segments import instance_of

Columns: TypeAlias = Mapping[str, pl.DataType | None]  # None: only Spark knows the type.


def united_columns(
    uid: str, streams: Sequence[tuple[str, Columns]]
) -> dict[str, pl.DataType | None]:
    """The columns of the union *uid* of *streams*, each with its producer, in the first's order
    and spelling.

    Raises:
        ConfigurationError: a stream lacks a column of another, or no type holds both of theirs.
    """
    (first, columns), *others = streams
    spelt = {name.lower(): name for name in columns}
    known = [(first, columns)]
    for producer, given in others:
        other = {spelt.get(name.lower(), name): of for name, of in given.items()}
        for name in columns:
            require_column(uid, other, name, f"in what it unites of {producer!r}")
        for name in other:
            require_column(uid, columns, name, f"in what it unites of {first!r}")
        known.append((producer, other))
    return {name: _united(uid, name, [(uid, of[name]) for uid, of in known]) for name in columns}


def check_looked_up(
    uid: str,
    column: str,
    of_rows: pl.DataType | None,
    table: str,
    of_table: pl.DataType | None,
    argument: str,
) -> None:
    """Check the types of what the lookup *uid* compares: *column*, and what *table* has for it.

    Raises:
        ConfigurationError: no type holds both.
    """
    if of_rows is None or of_table is None or common_type(of_rows, of_table) is not None:
        return
    raise ConfigurationError(
        f"lookup {uid!r} compares {column!r}, which is {spark_type(of_rows)}, with what is "
        f"{spark_type(of_table)} in the table {table!r}; {a_cast(column, of_rows, of_table)}, in "
        f"{argument} for the table or in a select() of the rows"
    )


def common_type(one: pl.DataType, other: pl.DataType) -> pl.DataType | None:
    """The type to which Spark widens both, if it holds every value of each as it is; else None."""
    match one, other:
        case pl.List(), pl.List():
            inner = common_type(instance_of(one.inner), instance_of(other.inner))
            return None if inner is None else pl.List(inner)
        case pl.Map(), pl.Map():
            key = common_type(instance_of(one.key), instance_of(other.key))
            value = common_type(instance_of(one.value), instance_of(other.value))
            return None if key is None or value is None else pl.Map(key, value)
        case pl.Struct(), pl.Struct():
            return _common_struct(one, other)
        case _:
            found = wider_type(one, other)
            is_long = any(of == pl.Int64() or of.is_decimal() for of in (one, other))
            is_cut = found == pl.Float64() and is_long
            return None if is_cut else found


def a_cast(column: str, one: pl.DataType, other: pl.DataType, its: str = "") -> str:
    """The fix for a *column* of two types, in words; *its* is the name of the other one."""
    if one.is_nested() or other.is_nested():
        return "make one type of both"
    to = pl.String() if pl.String() in (one, other) else wider_type(one, other) or one
    name = spelled(Column((its if its and one == to else column,)))
    which = "one of them" if to in (one, other) else "both"
    return f"cast {which}, for example 'CAST({name} AS {spark_type(to)}) AS {name}'"


def _common_struct(one: pl.Struct, other: pl.Struct) -> pl.DataType | None:
    if [field.name for field in one.fields] != [field.name for field in other.fields]:
        return None
    fields: dict[str, pl.DataType] = {}
    for own, its in zip(one.fields, other.fields, strict=True):
        of = common_type(instance_of(own.dtype), instance_of(its.dtype))
        if of is None:
            return None
        fields[own.name] = of
    return pl.Struct(fields)


def _united(
    uid: str, column: str, types: Sequence[tuple[str, pl.DataType | None]]
) -> pl.DataType | None:
    """The type of a *column* that has these *types* in the streams of its union."""
    known = [(producer, of) for producer, of in types if of is not None]
    for (one, first), (other, second) in combinations(known, 2):
        if common_type(first, second) is None:
            raise ConfigurationError(
                f"stage {uid!r} unites column {column!r}, which is {spark_type(first)} in {one!r} "
                f"and {spark_type(second)} in {other!r}; {a_cast(column, first, second)}, in a "
                "select() before the union"
            )
    if len(known) < len(types):
        return None
    return reduce(lambda one, other: common_type(one, other) or one, (of for _, of in known))
