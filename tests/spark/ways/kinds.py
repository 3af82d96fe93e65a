"""Types at their extremes: the values of a column, as they are written and as a stage gets them.

Values are what Arrow makes columns of: dates and times as numbers, decimals exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa

from sluice.state.segments import to_frame

I32, I64 = 2**31 - 1, 2**63 - 1
INTS = (-I32 - 1, I32, 0, -1)
LONGS = (-I64 - 1, I64, 0, -1)
NAN, INFINITY = float("nan"), float("inf")
DOUBLES = (NAN, INFINITY, -INFINITY, -0.0, 0.0, 5e-324, 1.7976931348623157e308, 0.1)
FLOATS = (NAN, INFINITY, -INFINITY, -0.0, 0.0, 2.0**-149, 3.4028234663852886e38, 0.5)
NINES = Decimal("9" * 28 + "." + "9" * 10)
DECIMALS = (NINES, NINES.copy_negate(), Decimal("0E-10"), Decimal("1E-10"), Decimal("1.5000000000"))
WIDE = (Decimal("9" * 38), Decimal("-" + "9" * 38), Decimal(0))
TEXTS = (
    "", " a\t", "ü😀\u2028", "\ufeffmark", "quo\"te's, \\n", "line\r\nbreak\n", "x" * 70_000,
    "NULL", "\\N", "\\.", "nan", "e\u0301", "100%s",
)  # fmt: skip
WITH_NUL = (*TEXTS, "\0", "a\0b")
BYTES = (b"", b"\0", bytes(range(256)), b"\xff\xfe", b"y" * 70_000)
# Year 1, both sides of the calendar's reform, this side of 1970, year 9999.
DAYS = (-719_162, -141_428, -141_427, -1, 0, 2_932_896)
ALL_DAYS = (*DAYS, -I32 - 1, I32)
MICROS = (-62_135_596_800_000_000, -12_219_292_800_000_001, -1, 0, 1, 253_402_300_799_999_999)
ALL_MICROS = (*MICROS, -I64 - 1, I64)
UTC = pa.timestamp("us", "UTC")
LOCAL = pa.timestamp("us")
DECIMAL = pa.decimal128(38, 10)
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00Z")


@dataclass(frozen=True)
class Kind:
    """``declared`` is the type in the place's words, and ``column`` what a stage is to get;
    ``read`` are the *values* there, where they are others.
    """

    declared: Any
    column: pa.DataType
    values: tuple[Any, ...]
    read: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.read) in (0, len(self.values))

    def written(self, choice: int) -> Any:
        """The value of that number; behind the last one there is null."""
        return self.values[choice] if choice < len(self.values) else None

    def expected(self, choices: Sequence[int]) -> pa.Array:
        values = (*(self.read or self.values), None)
        return pa.array([values[min(choice, len(self.values))] for choice in choices], self.column)


def iso(kind: Kind, value: int) -> str | None:
    """*value* as an ISO text; None if the column has neither dates nor times."""
    if pa.types.is_date32(kind.column):
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    if pa.types.is_timestamp(kind.column):
        return (EPOCH + timedelta(microseconds=value)).isoformat()
    return None


Kinds = Mapping[str, Kind]
Choices = Mapping[str, Sequence[int]]  # Of each column, a value's number for each row.


def expected(kinds: Kinds, choices: Choices) -> pl.DataFrame:
    """The rows that a stage gets."""
    count = len(next(iter(choices.values())))
    columns = {name: kind.expected(choices[name]) for name, kind in kinds.items()}
    return to_frame(pa.table({"n": pa.array(range(count), pa.int64()), **columns}))


def exactly(frame: pl.DataFrame) -> tuple[pl.Schema, dict[str, list[str]]]:
    """The types and every value to the last bit: -0.0 is not 0.0, and NaN is itself."""
    table = frame.sort("n").to_arrow(compat_level=pl.CompatLevel.oldest())
    return frame.schema, {
        name: [_shown(value) for value in table.column(name).cast(_plain(kind)).to_pylist()]
        for name, kind in zip(table.column_names, table.schema.types, strict=True)
    }


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:80]}… {len(text)} letters, hash {hash(text)}"


def _plain(kind: pa.DataType) -> pa.DataType:
    """With dates and times as numbers, of which Python's own have not all."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.int64()
    if types.is_date32(kind):
        return pa.int32()
    if types.is_large_list(kind) or types.is_list(kind):
        return pa.large_list(_plain(kind.value_type))
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(one.name, _plain(one.type)) for one in kind])
    return kind
