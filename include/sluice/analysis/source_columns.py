"""The columns of a source, as far as they can be known without Spark."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.connectors.contracts.row_schema import ColumnType, row_schema
from sluice.connectors.contracts.source import MALFORMED_COLUMN, RAW, RECORD, Source

_TYPES: dict[str, pl.DataType] = {
    "boolean": pl.Boolean(),
    "tinyint": pl.Int8(),
    "smallint": pl.Int16(),
    "int": pl.Int32(),
    "bigint": pl.Int64(),
    "float": pl.Float32(),
    "double": pl.Float64(),
    "date": pl.Date(),
    "timestamp": pl.Datetime("us", "UTC"),
    "string": pl.String(),
    "char": pl.String(),
    "varchar": pl.String(),
    "binary": pl.Binary(),
}
OURS = (RECORD, MALFORMED_COLUMN, RAW)
_DECIMAL = (10, 0)  # Spark's default.


def source_columns(source: Source) -> Mapping[str, pl.DataType | None]:
    """The columns that stages see, by name; None where only Spark knows the type."""
    frame = pl.from_arrow(source.schema().empty_table())
    assert isinstance(frame, pl.DataFrame)
    types = {name: of for name, of in frame.schema.items() if name not in OURS}
    how = source.decoding
    if how is None:
        return {name: _as_spark_gives_it(of) for name, of in types.items()}
    held = row_schema("the source", how.schema)
    return {name: _polars(of) for name, of in held.items()} | {
        name: types.get(name) for name in how.keeps
    }


def _as_spark_gives_it(dtype: pl.DataType) -> pl.DataType | None:
    """*dtype*, if Spark does not change it; else None."""
    return dtype if dtype in _TYPES.values() or isinstance(dtype, pl.Decimal) else None


def _polars(column: ColumnType) -> pl.DataType | None:
    inside = [(name, _polars(of)) for name, of in column.fields]
    known = {name: of for name, of in inside if of is not None}
    match column.name:
        case "decimal":
            precision, scale = (*column.arguments, *_DECIMAL[len(column.arguments) :])
            return pl.Decimal(precision, scale)
        case "array" if known:
            return pl.List(known[""])
        case "struct" if len(known) == len(inside):
            return pl.Struct(known)
        case name:
            return _TYPES.get(name)
