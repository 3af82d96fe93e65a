"""A type of Avro, and the column that it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sluice.connectors.contracts.exact_cast import cast_exactly

if TYPE_CHECKING:
    import pyarrow as pa

AvroSchema: TypeAlias = Any  # JSON: a name, a list that is a union, or an object.


@dataclass(frozen=True, slots=True)
class Mapped:
    """A type of Avro, and its column.

    ``plain`` is its Avro schema without logical times; ``decoded`` the Arrow type of values that
    are decoded by it, ``exact`` that with times in their own unit, ``column`` that of the rows.
    """

    plain: AvroSchema
    decoded: pa.DataType
    exact: pa.DataType
    column: pa.DataType

    def array_of(self, name: str, values: Sequence[object]) -> pa.Array:
        """The column *name* of a record, of *values* that were decoded by ``plain``.

        Raises:
            pyarrow.ArrowInvalid, OverflowError: a value has no place in the column.
        """
        import pyarrow as pa

        decoded = pa.array(values, self.decoded.field(name).type)
        exact = cast_exactly(decoded, self.exact.field(name).type)
        return cast_exactly(exact, self.column.field(name).type)

    def numbers_of(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """What Avro writes of the column *name* of a record: times as numbers, as fine as they are
        declared.

        Raises:
            pyarrow.ArrowInvalid: a time is none of Avro's 64 bits.
        """
        exact = cast_exactly(column, self.exact.field(name).type)
        return cast_exactly(exact, self.decoded.field(name).type)


def has_nanoseconds(kind: pa.DataType) -> bool:
    """Somewhere within it."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "ns")
    return any(has_nanoseconds(kind.field(index).type) for index in range(kind.num_fields))


def same(plain: AvroSchema, column: pa.DataType) -> Mapped:
    return Mapped(plain, column, column, column)


def list_of(item: Mapped) -> Mapped:
    import pyarrow as pa

    return Mapped(
        {"type": "array", "items": item.plain},
        pa.list_(item.decoded),
        pa.list_(item.exact),
        pa.list_(item.column),
    )


def map_of(value: Mapped) -> Mapped:
    import pyarrow as pa

    text = pa.string()
    return Mapped(
        {"type": "map", "values": value.plain},
        pa.map_(text, value.decoded),
        pa.map_(text, value.exact),
        pa.map_(text, value.column),
    )
