"""Checks of columns that several places share: their names, their types and their values.

Names of columns are distinct, and none is reserved.  Casts keep the values, or are an error.  What
a place cannot hold is refused before rows are staged, a whole column at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from sluice.declaration.column_types import ColumnType

MAX_DECIMAL_DIGITS = 38  # Of Arrow's decimal128, as of Spark's decimals and most databases'.

FIRST_DAY, END_DAY = -719_162, 2_932_897  # 0001-01-01 and 10000-01-01, as days since 1970-01-01.
DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


_UNREADABLE = b"sluice.unreadable"


def unreadable_column(name: str, why: str) -> pa.Field:
    """A column whose values no stage can use; *why* is the sentence that refuses it."""
    import pyarrow as pa

    return pa.field(name, pa.null(), metadata={_UNREADABLE: why.encode()})


def unreadable_columns(schema: pa.Schema) -> dict[str, str]:
    """The columns of *schema* that no stage can use, each with the sentence that refuses it."""
    return {
        field.name: field.metadata[_UNREADABLE].decode()
        for field in schema
        if field.metadata is not None and _UNREADABLE in field.metadata
    }


def remaining_rows(found: pa.Table, deleted: pl.DataFrame) -> pl.Series | None:
    """A mask of the rows of *found*, keys, that are not among *deleted*; None when none is.

    Null is a key like any other.
    """
    import polars as pl

    keys = pl.from_arrow(found)
    assert isinstance(keys, pl.DataFrame)
    keys = keys.select(pl.col(name).cast(kind) for name, kind in deleted.schema.items())
    numbered = keys.with_row_index("\0row")
    goes = numbered.join(deleted, on=deleted.columns, how="semi", nulls_equal=True)["\0row"]
    if not goes.len():
        return None
    remaining = pl.Series(values=[True], dtype=pl.Boolean).new_from_index(0, keys.height)
    return remaining.scatter(goes, values=False)


def check_announced(found: pa.Schema, announced: pa.Schema, partition: str) -> None:
    """Raises ConfigurationError unless rows of *partition* have the columns *announced*.

    A stage asks a source for its columns once, and its workers read later, perhaps in another
    attempt.  A file, a column or the table may have been replaced in between: other columns are
    refused by name, so that no value is read as that of another column.
    """
    if found.equals(announced):
        return
    for name in dict.fromkeys([*announced.names, *found.names]):
        is_now, was = (_type_of(name, schema) for schema in (found, announced))
        if is_now != was:
            raise ConfigurationError(
                f"column {name!r} of {partition} was {was} when the stage that reads it started, "
                f"and is {is_now} now; run the stage again, and give everything that a source "
                "reads the same columns"
            )
    if found.names != announced.names:
        raise ConfigurationError(
            f"the columns of {partition} were {', '.join(announced.names)} when the stage that "
            f"reads them started, and are {', '.join(found.names)} now; run the stage again, and "
            "give everything that a source reads the same columns in the same order"
        )


def _type_of(name: str, schema: pa.Schema) -> pa.DataType | str:
    match schema.names.count(name):
        case 0:
            return "missing"
        case 1:
            return schema.field(name).type
        case _:
            return "there twice"


def narrowed_schema(schema: pa.Schema, paths: Sequence[str]) -> pa.Schema:
    """*schema* with only the columns and fields *paths*: ``a.b`` is the field b of the column a.

    Fields keep the order that they have in *schema*.
    """
    import pyarrow as pa

    fields = []
    for field in schema:
        inner = [path.partition(".")[2] for path in paths if path.partition(".")[0] == field.name]
        if not inner:
            continue
        kind = field.type
        if "" not in inner:
            kind = pa.struct([child for child in kind if child.name in inner])
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def narrowed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """*batch* without the columns and fields that *wanted* has not, in its order.

    A column that it lacks, or has in another type, is left to ``check_announced``.
    """
    import pyarrow as pa

    if batch.schema.equals(wanted):
        return batch
    there = [field for field in wanted if batch.schema.get_field_index(field.name) >= 0]
    columns = [_narrowed_column(batch.column(field.name), field.type) for field in there]
    fields = [field.with_type(one.type) for field, one in zip(there, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _narrowed_column(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if kind == wanted or not (types.is_struct(kind) and types.is_struct(wanted)):
        return column
    names = [child.name for child in kind]
    if not all(names.count(child.name) == 1 for child in wanted):
        return column
    fields = [kind.field(child.name) for child in wanted]
    children = [column.field(names.index(field.name)) for field in fields]
    return pa.StructArray.from_arrays(children, fields=fields, mask=column.is_null())


def arrow_type(column: ColumnType) -> pa.DataType:
    """The type as Spark hands it to Python, of all types but binary and those of several fields."""
    import pyarrow as pa

    match column.name:
        case "decimal":
            return pa.decimal128(*(*column.arguments, *(10, 0)[len(column.arguments) :]))
        case "timestamp":
            return pa.timestamp("us", tz="UTC")
        case name:
            return {
                "bigint": pa.int64(),
                "boolean": pa.bool_(),
                "date": pa.date32(),
                "double": pa.float64(),
                "float": pa.float32(),
                "int": pa.int32(),
                "smallint": pa.int16(),
                "string": pa.string(),
                "timestamp_ntz": pa.timestamp("us"),
                "tinyint": pa.int8(),
            }[name]


def cast_exactly(column: pa.Array, kind: pa.DataType, *, truncates_times: bool = True) -> pa.Array:
    """*column* as *kind*; a loss raises ArrowInvalid, but that of times to the unit of *kind* only
    unless it *truncates_times*.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type == kind:
        return column
    if loss := _silent_loss(column.type, kind):
        raise pa.ArrowInvalid(loss)
    return column.cast(options=pc.CastOptions(kind, allow_time_truncate=truncates_times))


def fitted_rows(
    rows: pa.Table, schema: pa.Schema, name: str, *, truncates_times: bool, optional: str
) -> pa.Table:
    """*rows* in the columns of *schema*, in its order and types; those that they lack are null.

    Raises:
        ConfigurationError: a column is unknown to the table *name*, has values that do not fit, or
            is required and null; *optional* is the table's word for a column that is not.
    """
    import pyarrow as pa

    if unknown := [column for column in rows.column_names if column not in schema.names]:
        raise ConfigurationError(
            f"{name} has no column {unknown[0]!r}; add it to the table, or select others in the "
            f"stage: it has {', '.join(schema.names)}"
        )
    columns = []
    for wanted in schema:
        column = pa.nulls(rows.num_rows, wanted.type)
        if wanted.name in rows.column_names:
            column = rows.column(wanted.name)
            try:
                column = cast_exactly(column, wanted.type, truncates_times=truncates_times)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ConfigurationError(
                    f"column {wanted.name!r} is {column.type}, and {wanted.type} in {name}: "
                    f"{error}; cast it in the stage"
                ) from error
        if not wanted.nullable and column.null_count:
            raise ConfigurationError(
                f"column {wanted.name!r} of {name} is required, and {column.null_count} rows have "
                f"no value in it; fill it in the stage, or make the column {optional}"
            )
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _silent_loss(given: pa.DataType, wanted: pa.DataType) -> str:
    """The harm that Arrow's cast does in silence; what else does not fit, it refuses."""
    from pyarrow import types

    is_number = types.is_integer(given) or types.is_floating(given)
    if types.is_boolean(wanted) and is_number:
        return "all numbers but 0 would be true"
    if types.is_timestamp(given) and (types.is_date(wanted) or types.is_time(wanted)):
        return "a part of each timestamp would be lost"
    if (is_number and types.is_temporal(wanted)) or (
        types.is_temporal(given) and types.is_integer(wanted)
    ):
        return "a number does not say of which unit it is"
    if types.is_floating(wanted):
        is_wider = types.is_floating(given) and given.bit_width > wanted.bit_width
        return "values would be rounded" if is_wider or types.is_decimal(given) else ""
    if types.is_decimal(wanted):
        return "values would be rounded" if types.is_floating(given) else ""
    if types.is_struct(given) and types.is_struct(wanted):
        names = [field.name for field in given]
        if gone := [name for name in names if wanted.get_field_index(name) < 0]:
            return f"its field {gone[0]!r} would be lost"
        inner = [(given.field(name).type, wanted.field(name).type) for name in names]
    else:
        both = range(min(given.num_fields, wanted.num_fields))
        inner = [(given.field(place).type, wanted.field(place).type) for place in both]
    return next(filter(None, (_silent_loss(one, other) for one, other in inner)), "")


def check_text(column: pa.Array) -> None:
    """Raises ArrowInvalid for text that is not UTF-8, which Polars does not check."""
    from pyarrow import types

    kind = column.type
    if is_text(kind):
        if not _is_ascii(column):
            column.validate(full=True)
    elif types.is_nested(kind) or types.is_dictionary(kind):
        column.validate(full=True)


def is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(type_: pa.DataType) -> bool:
    from pyarrow import types

    is_varying = types.is_binary(type_) or types.is_large_binary(type_)
    return bool(is_varying or types.is_binary_view(type_) or types.is_fixed_size_binary(type_))


def is_list(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _is_ascii(column: pa.Array) -> bool:
    """Whether all bytes are ASCII, which takes a tenth of the time of decoding them."""
    import numpy as np
    from pyarrow import types

    if types.is_string_view(column.type) or not len(column):
        return False
    _, offsets, data = column.buffers()
    width = np.int64 if types.is_large_string(column.type) else np.int32
    bounds = np.frombuffer(offsets, width)[[column.offset, column.offset + len(column)]]
    if data is None or bounds[0] == bounds[1]:
        return True
    return bool(np.frombuffer(data, np.int8)[bounds[0] : bounds[1]].min() >= 0)


def not_of_type(field: pa.Field, what: str, error: Exception) -> ConfigurationError:
    """The error for a value of the column *field* of a file, *what*, that its type cannot hold."""
    return ConfigurationError(
        f"column {field.name!r} of {what} has a value that is no {field.type} "
        f"({sentence(error)}); correct it, or write the column as another type"
    )


def sentence(error: Exception) -> str:
    """The message of an error, in one line."""
    return " ".join(str(error).split())


def check_years(column: pa.ChunkedArray, name: str, instead: str) -> None:
    """Check dates or timestamps that become text: years have four digits in ISO 8601.

    Those in maps are left to Python, which refuses them itself.

    Raises:
        ConfigurationError: a time is outside of the years 1 to 9999; *instead* adds to the fix.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type):
        for field in column.flatten():
            check_years(field, name, instead)
        return
    if is_list(column.type):
        check_years(pc.list_flatten(column), name, instead)
        return
    if pa.types.is_date32(column.type):
        a_day, numbers = 1, column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        a_day, numbers = DAY[column.type.unit], column.cast(pa.int64())
    else:
        return
    found = pc.min_max(numbers).as_py()
    least, most = found["min"], found["max"]
    if least is not None and not FIRST_DAY * a_day <= least <= most < END_DAY * a_day:
        raise ConfigurationError(
            f"column {name!r} has times outside of the years 1 to 9999, which its text does not "
            f"say; filter or replace them in the stage{instead}"
        )


def check_no_nul(column: pa.ChunkedArray, name: str, place: str) -> None:
    """Raises ConfigurationError for a text with the character U+0000, which *place* cannot hold."""
    import pyarrow.compute as pc

    if pc.any(pc.match_substring(column, "\0")).as_py():
        raise nul_error(name, place)


def check_no_null_keys(rows: pa.Table, key: Sequence[str], place: str, fix: str) -> None:
    """Raises ConfigurationError for a row that is null in a column of *key*, unlike in *place*."""
    for name in key:
        if name in rows.column_names and (count := rows.column(name).null_count):
            raise ConfigurationError(
                f"column {name!r} is part of the key of {place}, which takes no null, and is null "
                f"in rows ({count}); {fix}"
            )


def nul_error(name: str, place: str) -> ConfigurationError:
    return ConfigurationError(
        f"column {name!r} has a text with the character U+0000, which {place} cannot hold; replace "
        "it in the stage, or make it bytes"
    )
