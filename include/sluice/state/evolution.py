"""State evolution: reading state that an earlier declaration of its stage wrote.

    column gone           ignored             Int8 < Int16 < Int32 < Int64, and unsigned alike
    column added          null                Float32 < Float64, and integers that a float holds
    column wider          cast                Decimal of more digits, the same scale
    column respelt        the same            (in another case; a function's states are not)
    lists, structs        by their fields     anything else: refused
    a state's value       by its migration    a state's tuple: only by a migration

Key and sub-key columns stay as they are, but for their case, as rows are sorted by them, and hashed
by the key; where sub-key columns are in another order, rows are sorted anew as they are read.
A TTL may be added (rows written before never expire until they are written again; a join writes
those that have a partner) and removed (the stored times of writes are ignored).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from sluice.errors import RestoreError
from sluice.state.segments import IDENTITY, DeclaredColumn, StateSchema, instance_of, to_frame

Migration: TypeAlias = Callable[[object], object]
_Bits: TypeAlias = dict[type[pl.DataType], int]

# The bits of a whole number that each type holds, without the sign.
_UNSIGNED: _Bits = {pl.UInt8: 8, pl.UInt16: 16, pl.UInt32: 32, pl.UInt64: 64}
_SIGNED: _Bits = {pl.Int8: 7, pl.Int16: 15, pl.Int32: 31, pl.Int64: 63, pl.Int128: 127}
_FLOAT: _Bits = {pl.Float32: 24, pl.Float64: 53}
_BITS: _Bits = {**_UNSIGNED, **_SIGNED, **_FLOAT}


class Evolutions:
    """The evolutions of all runs of one table of state, cached by their stored schema."""

    def __init__(self, schema: StateSchema, owner: str) -> None:
        """*owner* is the stage whose state it is, for messages."""
        self.schema = schema
        self._owner = owner
        self._known: dict[tuple[pa.Schema, bytes | None], Evolution] = {}

    def of(self, table: pa.Table) -> Evolution:
        stored = (table.schema, _identity_of(table))
        if stored not in self._known:
            self._known[stored] = Evolution(self.schema, table, self._owner)
        return self._known[stored]

    def respelt(self, table: pa.Table) -> pa.Table:
        """*table* with its columns in the case in which the stage spells them now.

        A function's states are the names of its code, of which two may differ in case alone.
        """
        known = {*table.column_names, *self.schema.declared}
        now = {name.lower(): name for name in self.schema.live if name not in known}
        names = [
            name if name in self.schema.live else now.get(name.lower(), name)
            for name in table.column_names
        ]
        if names == table.column_names:
            return table
        metadata = dict(table.schema.metadata or {})
        if IDENTITY in metadata:
            before = json.loads(metadata[IDENTITY])
            spelt = [[now.get(name.lower(), name) for name in part] for part in before]
            metadata[IDENTITY] = _encoded(spelt)
        return table.rename_columns(names).replace_schema_metadata(metadata)

    def is_sorted_otherwise(self, table: pa.Table) -> bool:
        """Whether rows are sorted by the same columns, with those of the sub-key in another order.

        No hash changes by it, and no segment ends within one.
        """
        before = _identity_of(table)
        if before in (None, identity_metadata(self.schema)[IDENTITY]):
            return False
        key, sub_key = json.loads(before or b"")
        is_same_key = tuple(key) == self.schema.key_columns
        return is_same_key and sorted(sub_key) == sorted(self.schema.sub_key_columns)


class Evolution:
    """The conversion of one run's rows to the columns that the stage declares now."""

    def __init__(self, schema: StateSchema, table: pa.Table, owner: str) -> None:
        """
        Raises:
            RestoreError: the declaration changed in a way that the rows cannot follow.
        """
        stored = to_frame(table.slice(0, 0)).schema
        self._owner = owner or "a stage"
        self._refuse_other_identity(schema, table, stored)
        for name in sorted(schema.refused.keys() & stored.keys()):
            raise self._refused(schema.refused[name])
        self.columns = [name for name in schema.stored if name in stored]
        self._migrated: list[tuple[str, DeclaredColumn, Migration]] = []
        self._expressions = [
            self._column(name, stored.get(name), dtype, schema.declared.get(name))
            for name, dtype in schema.stored.items()
        ]
        self.is_none = {name: stored[name] for name in self.columns} == dict(schema.stored)

    def evolved(self, rows: pl.DataFrame) -> pl.DataFrame:
        """
        Raises:
            RestoreError: a migration raised, or made a value that its state cannot hold.
        """
        if self.is_none:
            return rows
        migrated = [self._series(rows[name], column, by) for name, column, by in self._migrated]
        return rows.with_columns(migrated).select(self._expressions)

    def _refuse_other_identity(
        self, schema: StateSchema, table: pa.Table, stored: pl.Schema
    ) -> None:
        now = identity_metadata(schema)
        before = _identity_of(table)
        if before is not None and before != now[IDENTITY]:
            raise self._refused(f"its key was {_names(before)} and is now {_names(now[IDENTITY])}")
        for name in schema.identity:
            if stored.get(name) != schema.stored[name]:
                kept = f"was {stored[name]}" if name in stored else "was not there"
                raise self._refused(
                    f"key column {name!r} {kept} and is now {schema.stored[name]}, but the "
                    "columns of a key may not change"
                )

    def _column(
        self,
        name: str,
        before: pl.DataType | None,
        now: pl.DataType,
        declared: DeclaredColumn | None,
    ) -> pl.Expr:
        if before is None:
            return pl.lit(None, now).alias(name)
        if declared is not None and declared.dtype == now != before:
            migrate = declared.migration_from(before)
            if migrate is not None:
                self._migrated.append((name, declared, migrate))
                return pl.col(name)
            if declared.is_positional or not is_widened(before, now):
                raise self._refused(
                    f"state {declared.state!r} was {before} and is now {now}, and has no migration "
                    f"from that; declare migrations={{{_python_type(before)}: ...}} at the state"
                )
        if not is_widened(before, now):
            raise self._refused(f"column {name!r} was {before} and is now {now}")
        return widened(pl.col(name), before, now).alias(name)

    def _series(self, values: pl.Series, declared: DeclaredColumn, migrate: Migration) -> pl.Series:
        try:
            now = [None if value is None else migrate(value) for value in values.to_list()]
        except Exception as error:  # The user's code: it may raise anything.
            raise RestoreError(
                f"{self._owner} cannot read its state: the migration of state {declared.state!r} "
                f"from {_python_type(values.dtype)} raised {type(error).__name__}: {error}"
            ) from error
        return pl.Series(values.name, now, declared.dtype)

    def _refused(self, change: str) -> RestoreError:
        return RestoreError(
            f"{self._owner} cannot read its state: {change}; restore with the former declaration, "
            "or give the stage another uid and allow non-restored state"
        )


def identity_metadata(schema: StateSchema) -> dict[bytes, bytes]:
    """The Arrow metadata of a run: the columns by which its rows are sorted."""
    return {IDENTITY: _encoded([schema.key_columns, schema.sub_key_columns])}


def _encoded(identity: Sequence[Sequence[str]]) -> bytes:
    return json.dumps(identity, separators=(",", ":")).encode()


def is_widened(before: pl.DataType, now: pl.DataType) -> bool:
    """Whether the type *now* holds every value of the type *before*."""
    if before == now:
        return True
    match before, now:
        case pl.Decimal(), pl.Decimal():
            return before.scale == now.scale and before.precision <= now.precision
        case pl.List(), pl.List():
            return is_widened(_inner(before), _inner(now))
        case pl.Struct(), pl.Struct():
            kept = _fields(before)
            return all(is_widened(kept.get(n, dtype), dtype) for n, dtype in _fields(now).items())
        case _:
            return _holds_more(before.base_type(), now.base_type())


def widened(column: pl.Expr, before: pl.DataType, now: pl.DataType) -> pl.Expr:
    """*column* cast from *before* to *now*; Polars alone would match nested fields by position."""
    if before == now:
        return column
    match before, now:
        case pl.List(), pl.List():
            return column.list.eval(widened(pl.element(), _inner(before), _inner(now)))
        case pl.Struct(), pl.Struct():
            kept = _fields(before)
            fields = [
                widened(column.struct.field(name), kept[name], dtype).alias(name)
                if name in kept
                else pl.lit(None, dtype).alias(name)
                for name, dtype in _fields(now).items()
            ]
            return pl.when(column.is_not_null()).then(pl.struct(fields))
        case _:
            return column.cast(now)


def _identity_of(table: pa.Table) -> bytes | None:
    """The identity in a stored run's metadata; None if it has none."""
    return (table.schema.metadata or {}).get(IDENTITY)


def _holds_more(before: type[pl.DataType], now: type[pl.DataType]) -> bool:
    if before not in _BITS or now not in _BITS:
        return False
    may_be_negative = before not in _UNSIGNED
    is_kind_kept = now in _FLOAT or before not in _FLOAT
    is_sign_kept = now not in _UNSIGNED or not may_be_negative
    return is_kind_kept and is_sign_kept and _BITS[before] <= _BITS[now]


def _inner(dtype: pl.List) -> pl.DataType:
    return instance_of(dtype.inner)


def _fields(dtype: pl.Struct) -> dict[str, pl.DataType]:
    return {field.name: instance_of(field.dtype) for field in dtype.fields}


def _python_type(dtype: pl.DataType) -> str:
    """The type as a state declares it."""
    if isinstance(dtype, pl.Struct):
        return f"tuple[{', '.join(map(_python_type, _fields(dtype).values()))}]"
    return dtype.to_python().__name__


def _names(identity: bytes) -> str:
    key, sub_key = json.loads(identity)
    return ", ".join(key) + (f" and, within it, {', '.join(sub_key)}" if sub_key else "")
