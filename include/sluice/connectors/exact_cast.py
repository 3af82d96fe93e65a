"""Values in the type in which a stage gets them: the same values, or an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa


def cast_exactly(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """What is finer than a microsecond is cut off; nothing else may be lost, or is ArrowInvalid."""
    import pyarrow.compute as pc

    if column.type == kind:
        return column
    return column.cast(options=pc.CastOptions(kind, allow_time_truncate=True))


@contextmanager
def of_column(field: pa.Field, what: str) -> Iterator[None]:
    """Convert the column *field* of *what*, a file, within the block.

    Raises:
        ConfigurationError: a value has no place in the column's type.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, OverflowError) as error:
        raise ConfigurationError(
            f"column {field.name!r} of {what} has a value that is no {field.type} "
            f"({sentence(error)}); correct it, or write the column as another type"
        ) from error


def sentence(error: Exception) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split())
