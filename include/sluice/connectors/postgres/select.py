"""The columns that are selected from a table, and the Arrow types of PostgreSQL's types.

smallint, int, bigint, real, double precision, boolean, date and bytea keep their types; numeric of
a precision up to 38 becomes decimal128; timestamp and timestamptz microseconds, the latter in UTC.
text, varchar, char, uuid, json, jsonb and enums become text, and arrays JSON's text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.contracts.column_names import check_names
from sluice.connectors.contracts.source import RECORD
from sluice.connectors.postgres.server import Connection, TableName
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg.sql import Composed

MOST_DIGITS = 38  # The digits of decimal128, and of Spark's decimals.
CAST = re.compile(r"(?P<name>[^:]+)::(?P<type>[A-Za-z][A-Za-z0-9_ ]*(\([0-9, ]+\))?)")
TEXT_TYPES = ("text", "varchar", "bpchar", "name", "citext", "uuid", "json", "jsonb")


@dataclass(frozen=True, slots=True)
class Selected:
    """A column of the result.  ``typmod`` is PostgreSQL's modifier, -1 without one."""

    name: str
    type: str  # The type's name in the catalog: int4.
    shown: str  # Its name for people: integer.
    kind: str  # "b" base, "e" enum, ...
    typmod: int
    is_array: bool

    @property
    def is_hex(self) -> bool:
        return self.type == "bytea"

    def arrow(self) -> pa.DataType:
        """The Arrow type; ConfigurationError for a type without one."""
        import pyarrow as pa

        if self.is_array or self.kind == "e" or self.type in TEXT_TYPES:
            return pa.string()
        if self.type == "numeric":
            return self._decimal()
        plain: dict[str, pa.DataType] = {
            "int2": pa.int16(),
            "int4": pa.int32(),
            "int8": pa.int64(),
            "float4": pa.float32(),
            "float8": pa.float64(),
            "bool": pa.bool_(),
            "bytea": pa.binary(),
            "date": pa.date32(),
            "timestamp": pa.timestamp("us"),
            "timestamptz": pa.timestamp("us", tz="UTC"),
        }
        if self.type not in plain:
            raise ConfigurationError(
                f"column {self.name!r} is of type {self.shown}, which sluice does not read; leave "
                f'it out of `columns`, or cast it there: "{self.name}::text"'
            )
        return plain[self.type]

    def _decimal(self) -> pa.DataType:
        import pyarrow as pa

        cast = f'cast it in `columns`: "{self.name}::numeric({MOST_DIGITS}, 9)" or ::text'
        if self.typmod < 0:
            raise ConfigurationError(
                f"column {self.name!r} is numeric without a precision, and sluice has to know how "
                f"many digits follow the point; {cast}"
            )
        # See numeric_typmod_precision and _scale in PostgreSQL's numeric.c.
        precision = ((self.typmod - 4) >> 16) & 0xFFFF
        scale = (((self.typmod - 4) & 0x7FF) ^ 1024) - 1024
        digits = max(precision, scale) if scale >= 0 else precision - scale
        if digits > MOST_DIGITS:
            raise ConfigurationError(
                f"column {self.name!r} is of type numeric({precision}, {scale}), and {MOST_DIGITS} "
                f"digits is the most that Arrow and Spark hold; {cast}"
            )
        return pa.decimal128(digits, max(scale, 0))


@dataclass(frozen=True, slots=True)
class Selection:
    """The columns of a table's rows, and the offset of each as ``_record``."""

    table: TableName
    offset_column: str
    columns: tuple[Selected, ...]
    casts: dict[str, str]

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        fields = [pa.field(one.name, one.arrow()) for one in self.columns]
        return pa.schema([*fields, pa.field(RECORD, pa.int64())])

    def sql(self, where: str, start: int, end: int) -> Composed:
        """The query of the rows of offsets *start* to *end*, in order, encoded for CSV.

        The offset is the first column: a byte order mark would be lost at the start of a text.
        """
        from psycopg.sql import SQL, Identifier, Literal

        offset = Identifier(self.offset_column)
        return SQL(
            "SELECT {columns} FROM {table} WHERE {offset} >= {start} AND {offset} < {end}"
            "{where} ORDER BY {offset}"
        ).format(
            columns=SQL(", ").join([offset, *(self._expression(one) for one in self.columns)]),
            offset=offset,
            table=self.table.sql,
            start=Literal(start),
            end=Literal(end),
            where=filter_sql(where),
        )

    def _expression(self, column: Selected) -> Composed:
        from psycopg.sql import SQL

        value = _value(column.name, self.casts)
        if column.is_hex:
            return SQL("encode({}, 'hex')").format(value)
        return SQL("array_to_json({})").format(value) if column.is_array else value


def filter_sql(where: str) -> Composed:
    from psycopg.sql import SQL

    # SQL of the pipeline's author, who may read the table anyway.
    return SQL(f" AND ({where})" if where else "").format()


def select(
    connection: Connection, table: TableName, offset_column: str, columns: Sequence[str]
) -> Selection:
    """The selection of *columns*, names or ``name::type``, with their types from the server.

    Raises:
        ConfigurationError: there is no such column, or it cannot be cast.
    """
    from psycopg.sql import SQL, Identifier

    casts: dict[str, str] = {}
    names: list[str] = []
    for one in columns:
        match = CAST.fullmatch(one)
        if match is not None:
            casts[match["name"]] = match["type"]
        names.append(match["name"] if match is not None else one)
    wanted = SQL(", ").join(
        [SQL("{} AS {}").format(_value(name, casts), Identifier(name)) for name in names]
    )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(
            f"column {twice!r} of {table} is twice in `columns`, and a row has one column of a "
            "name; name it once"
        )
    asked = connection.execute(
        SQL("SELECT {} FROM {} LIMIT 0").format(wanted if names else SQL("*"), table.sql)
    )
    result = asked.pgresult
    assert result is not None
    types = {
        oid: rest
        for oid, *rest in connection.execute(
            "SELECT oid, typname, format_type(oid, NULL), typtype::text, typcategory = 'A'"
            " FROM pg_type WHERE oid = ANY(%s::oid[])",
            [[result.ftype(number) for number in range(result.nfields)]],
        )
    }
    selected = []
    for number in range(result.nfields):
        type_, shown, kind, is_array = types[result.ftype(number)]
        name = result.fname(number)
        assert name is not None
        selected.append(Selected(name.decode(), type_, shown, kind, result.fmod(number), is_array))
    check_names([one.name for one in selected], f"table {table}")
    return Selection(table, offset_column, tuple(selected), casts)


def _value(name: str, casts: dict[str, str]) -> Composed:
    from psycopg.sql import SQL, Identifier

    column = Identifier(name)
    if name not in casts:
        return SQL("{}").format(column)
    type_ = SQL(casts[name])  # CAST accepts the type's name with a modifier.
    return SQL("{}::{}").format(column, type_)
