"""The columns of the table that a sink writes, and the check that Arrow's types fit them.

A type fits if all of its values do: a bigint does not fit an integer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.postgres.server import Connection, TableName
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

TEXT = ("text", "varchar", "bpchar", "citext", "name", "json", "jsonb", "uuid")


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str  # The type's name in the catalog, such as int4; of a domain, its base type.
    shown: str
    kind: str
    typmod: int
    is_required: bool  # NOT NULL without a default.
    is_nullable: bool
    is_generated: bool


def columns_of(connection: Connection, table: TableName) -> dict[str, Column]:
    """The columns of a table; empty if there is no such table, or it is a view or the like."""
    found = connection.execute(
        """
        SELECT a.attname, coalesce(b.typname, t.typname), format_type(a.atttypid, a.atttypmod),
            coalesce(b.typtype, t.typtype)::text,
            CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
            a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', NOT a.attnotnull,
            a.attgenerated <> '' OR a.attidentity = 'a'
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace
            JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
        WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
            AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum
        """,
        [table.schema, table.name],
    )
    return {row[0]: Column(*row) for row in found}


def has_unique_index(connection: Connection, table: TableName, key: Sequence[str]) -> bool:
    """Whether ON CONFLICT can name *key*: a unique index on these columns, on every row."""
    return (
        connection.execute(
            """
            SELECT 1 FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
                JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = %s AND c.relname = %s AND i.indisunique AND i.indisvalid
                AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
                AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE "C")
                    FROM unnest(i.indkey[0:i.indnkeyatts - 1]) AS k JOIN pg_attribute a
                    ON a.attrelid = c.oid AND a.attnum = k) = %s::text[]
            """,
            [table.schema, table.name, sorted(key)],
        ).fetchone()
        is not None
    )


def check_columns(table: TableName, there: Mapping[str, Column], given: pa.Schema) -> None:
    """Raises ConfigurationError, which names column and types, unless all rows can be stored."""
    for field in given:
        column = there.get(field.name)
        if column is None:
            raise ConfigurationError(
                f"table {table} has no column {field.name!r}, and the rows do; it has "
                f"{', '.join(there)}; add it ({postgres_type(field.type)}) or select without it"
            )
        if column.is_generated:
            raise ConfigurationError(
                f"column {field.name!r} of table {table} is GENERATED ALWAYS and takes no "
                "values; select without it"
            )
        if not _fits(field.type, column):
            raise ConfigurationError(
                f"column {field.name!r} of table {table} is {column.shown}, and the rows have "
                f"{field.type}, which goes into {postgres_type(field.type)}; cast one of them"
            )
    if missing := [
        f"{one.name!r} ({one.shown})"
        for one in there.values()
        if one.is_required and one.name not in given.names
    ]:
        raise ConfigurationError(
            f"column {missing[0]} of table {table} is NOT NULL without a default, and the rows "
            f"have only {', '.join(given.names)}; give it a default, or write it"
        )


def postgres_type(type_: pa.DataType) -> str:
    """The type of a column that is created for values of *type_*."""
    import pyarrow as pa

    plain: tuple[tuple[bool, str], ...] = (
        (pa.types.is_boolean(type_), "boolean"),
        (
            pa.types.is_int8(type_) or pa.types.is_int16(type_) or pa.types.is_uint8(type_),
            "smallint",
        ),
        (pa.types.is_int32(type_) or pa.types.is_uint16(type_), "integer"),
        (pa.types.is_int64(type_) or pa.types.is_uint32(type_), "bigint"),
        (pa.types.is_uint64(type_), "numeric(20, 0)"),
        (pa.types.is_float16(type_) or pa.types.is_float32(type_), "real"),
        (pa.types.is_float64(type_), "double precision"),
        (pa.types.is_date(type_), "date"),
        (_is_binary(type_), "bytea"),
        (pa.types.is_nested(type_), "jsonb"),
    )
    for is_it, name in plain:
        if is_it:
            return name
    if pa.types.is_decimal(type_):
        return f"numeric({type_.precision}, {type_.scale})"
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz is None else "timestamptz"
    return "text"


def _fits(type_: pa.DataType, column: Column) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_null(type_):
        return True
    if pa.types.is_nested(type_):
        return column.type in ("json", "jsonb")
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return column.type in TEXT or column.kind == "e"
    if pa.types.is_integer(type_):
        return _digits_fit(_integer_digits(type_), 0, column) or column.type in _integers(type_)
    if pa.types.is_decimal(type_):
        return _digits_fit(type_.precision - type_.scale, type_.scale, column)
    name = postgres_type(type_)
    wider = {
        "boolean": ("bool",),
        "real": ("float4", "float8"),
        "double precision": ("float8",),
        "date": ("date",),
        "bytea": ("bytea",),
        "timestamp": ("timestamp",),
        "timestamptz": ("timestamptz",),
    }
    return column.type in wider.get(name, ())


def _integers(type_: pa.DataType) -> tuple[str, ...]:
    sizes = {"smallint": ("int2", "int4", "int8"), "integer": ("int4", "int8"), "bigint": ("int8",)}
    return sizes.get(postgres_type(type_), ())


def _integer_digits(type_: pa.DataType) -> int:
    import pyarrow as pa

    return len(str(1 << (type_.bit_width - pa.types.is_signed_integer(type_))))


def _digits_fit(before: int, after: int, column: Column) -> bool:
    """Whether a column of numeric holds so many digits before and after the point."""
    if column.type != "numeric":
        return False
    if column.typmod < 0:
        return True
    precision = ((column.typmod - 4) >> 16) & 0xFFFF
    scale = (((column.typmod - 4) & 0x7FF) ^ 1024) - 1024
    return scale >= after and precision - scale >= before


def _is_binary(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
    )
