"""Checks for values that a place cannot store as text, on whole columns before they are staged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_DAY, END_DAY = -719_162, 2_932_897  # 0001-01-01 and 10000-01-01, as days since 1970-01-01.
DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def check_years(column: pa.ChunkedArray, name: str, instead: str) -> None:
    """Check a column of dates or timestamps: years have four digits in ISO 8601.

    Raises:
        ConfigurationError: a time is outside of the years 1 to 9999; *instead* adds to the fix.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

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
        raise holds_nul(name, place)


def holds_nul(name: str, place: str) -> ConfigurationError:
    return ConfigurationError(
        f"column {name!r} has a text with the character U+0000, which {place} cannot hold; replace "
        "it in the stage, or make it bytes"
    )
