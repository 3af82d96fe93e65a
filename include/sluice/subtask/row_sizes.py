"""The size of rows in bytes, by their content alone; it bounds files and buffers of wide rows."""

from __future__ import annotations

from functools import reduce
from operator import add

import polars as pl

_WIDTHS: dict[type[pl.DataType], int] = {
    pl.Boolean: 1,
    pl.Int8: 1,
    pl.UInt8: 1,
    pl.Int16: 2,
    pl.UInt16: 2,
    pl.Int32: 4,
    pl.UInt32: 4,
    pl.Float32: 4,
    pl.Date: 4,
    pl.Decimal: 16,
}
_OTHER_WIDTH = 8  # Numbers and times, and Polars' view of a text.


def row_sizes(rows: pl.DataFrame) -> pl.Series:
    """The bytes of each row; equal rows have equal sizes, however they are cut into frames."""
    sizes = [_size(pl.col(name), dtype) for name, dtype in rows.schema.items()]
    return rows.select(reduce(add, sizes, pl.lit(0)).cast(pl.Int64).alias("size")).to_series()


def fixed_width(schema: pl.Schema) -> int | None:
    """The bytes of any row of these columns; None where they depend on its content."""
    if any(not _is_fixed(dtype) for dtype in schema.values()):
        return None
    return sum(_width(dtype) for dtype in schema.values())


def _is_fixed(dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.Struct):
        return all(_is_fixed(_instance(field.dtype)) for field in dtype.fields)
    return not (dtype.is_nested() or dtype in (pl.String(), pl.Binary()))


def _width(dtype: pl.DataType) -> int:
    if isinstance(dtype, pl.Struct):
        return 1 + sum(_width(_instance(field.dtype)) for field in dtype.fields)
    return _WIDTHS.get(type(dtype), _OTHER_WIDTH)


def _size(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    match dtype:
        case pl.String():
            size = value.str.len_bytes() + _OTHER_WIDTH
        case pl.Binary():
            size = value.bin.size() + _OTHER_WIDTH
        case pl.Struct() if not _is_fixed(dtype):
            fields = [_size(value.struct.field(f.name), _instance(f.dtype)) for f in dtype.fields]
            return reduce(add, fields, pl.lit(1))
        case pl.List() | pl.Array():
            inner = _instance(dtype.inner)
            values = value if isinstance(dtype, pl.List) else value.arr.to_list()
            if _is_fixed(inner):
                size = values.list.len() * _width(inner) + _OTHER_WIDTH
            else:
                size = values.list.eval(_size(pl.element(), inner)).list.sum() + _OTHER_WIDTH
        case _:
            return pl.lit(_width(dtype))
    return size.cast(pl.Int64).fill_null(_OTHER_WIDTH)


def _instance(dtype: object) -> pl.DataType:
    """Polars may name an inner type by its class."""
    if isinstance(dtype, pl.DataType):
        return dtype
    assert isinstance(dtype, type)
    assert issubclass(dtype, pl.DataType)
    return dtype()
