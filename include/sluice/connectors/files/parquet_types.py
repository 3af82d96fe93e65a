"""The Arrow types that stages use for those of Parquet: types of Spark and of all sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.connectors.contracts.column_names import check_names
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DIGITS = 38  # Of a decimal, in Spark as in most databases.


def known_schema(schema: pa.Schema, file: str) -> pa.Schema:
    """The columns of *file*, each in the type that stages use.

    Raises:
        ConfigurationError: a column has a type that stages cannot use.
    """
    import pyarrow as pa

    check_names(schema.names, file)
    fields = []
    for field in schema:
        kind = _known(field.type)
        if kind is None:
            raise ConfigurationError(
                f"column {field.name!r} of {file} is of type {field.type}, which no stage knows; "
                "write it as text, a number, a decimal of at most 38 digits or a timestamp"
            )
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _known(kind: pa.DataType) -> pa.DataType | None:
    """The type that stages use for *kind*, or None.  Unsigned integers widen, as in Spark."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if types.is_dictionary(kind):
        return _known(kind.value_type)
    if types.is_decimal(kind):
        is_small = kind.precision <= MAX_DIGITS
        return pa.decimal128(kind.precision, kind.scale) if is_small else None
    if _is_list(kind):
        inner = _known(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if types.is_map(kind):
        key, item = _known(kind.key_type), _known(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if types.is_struct(kind):
        inners = [(field.name, _known(field.type)) for field in kind]
        if any(inner is None for _, inner in inners):
            return None
        return pa.struct([pa.field(name, inner) for name, inner in inners])
    for is_one, known in (
        (types.is_uint8, pa.int16()),
        (types.is_uint16, pa.int32()),
        (types.is_uint32, pa.int64()),
        (types.is_uint64, pa.decimal128(20, 0)),
        (types.is_float16, pa.float32()),
        (types.is_date, pa.date32()),
        (_is_text, pa.string()),
        (_is_bytes, pa.binary()),
    ):
        if is_one(kind):
            return known
    is_plain = types.is_signed_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return kind if is_plain else None


def _is_list(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )
