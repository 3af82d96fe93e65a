"""Casts to the types that stages use: the values stay the same, or it is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa


def cast_exactly(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """*column* as *kind*; only times are truncated, to microseconds.  Else raises ArrowInvalid."""
    import pyarrow.compute as pc

    if column.type == kind:
        return column
    return column.cast(options=pc.CastOptions(kind, allow_time_truncate=True))


def check_text(column: pa.Array) -> None:
    """Raises ArrowInvalid for text that is not UTF-8: Polars would not check it."""
    from pyarrow import types

    kind = column.type
    if _is_text(kind):
        if not _is_ascii(column):
            column.validate(full=True)
    elif types.is_nested(kind) or types.is_dictionary(kind):
        column.validate(full=True)


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_ascii(column: pa.Array) -> bool:
    """Whether all bytes are ASCII, which takes a tenth of the time of decoding them."""
    import numpy as np
    from pyarrow import types

    if types.is_string_view(column.type) or not len(column):
        return False
    _, offsets, letters = column.buffers()
    width = np.int64 if types.is_large_string(column.type) else np.int32
    bounds = np.frombuffer(offsets, width)[[column.offset, column.offset + len(column)]]
    if letters is None or bounds[0] == bounds[1]:
        return True
    return bool(np.frombuffer(letters, np.int8)[bounds[0] : bounds[1]].min() >= 0)


def not_of_type(field: pa.Field, what: str, error: Exception) -> ConfigurationError:
    """The error for a value of the column *field* of a file, *what*, that its type cannot hold."""
    return ConfigurationError(
        f"column {field.name!r} of {what} has a value that is no {field.type} "
        f"({sentence(error)}); correct it, or write the column as another type"
    )


def sentence(error: Exception) -> str:
    """The message of an error, in one line."""
    return " ".join(str(error).split())
