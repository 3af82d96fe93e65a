"""The differences between the versions of Spark that we run on, 4.0 and newer.

Spark 4.1 has ``repartitionById``; PySpark 4.2 asks for a time zone where it took UTC before.
"""

from __future__ import annotations

from functools import lru_cache
from inspect import signature
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_LAYOUTS = 64  # Numbers of partitions that one process uses.
_32_BITS = 0xFFFFFFFF
_SEED = 42  # Of the hash by which Spark partitions.


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns of *schema* in Arrow's types, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, **_in_utc())


@lru_cache(1)
def _in_utc() -> dict[str, Any]:
    from pyspark.sql.pandas.types import to_arrow_schema

    return {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


def placed_by_id(rows: DataFrame, partitions: int, column: str) -> DataFrame:
    """*rows* in *partitions*, each in the one whose number is in the int *column*."""
    if hasattr(rows, "repartitionById"):
        return rows.repartitionById(partitions, column)
    return placed_by_hash(rows, partitions, column)


def placed_by_hash(rows: DataFrame, partitions: int, column: str) -> DataFrame:
    """See ``placed_by_id``: Spark hashes, for each partition, a number whose hash leads there."""
    from pyspark.sql.functions import expr

    numbers = ", ".join(map(str, _numbers_by_partition(partitions)))
    return rows.repartition(partitions, expr(f"element_at(array({numbers}), `{column}` + 1)"))


@lru_cache(_LAYOUTS)
def _numbers_by_partition(partitions: int) -> tuple[int, ...]:
    """By partition the least int that Spark's ``HashPartitioning`` places there."""
    found: dict[int, int] = {}
    for number in count():
        found.setdefault(_hash(number) % partitions, number)
        if len(found) == partitions:
            return tuple(found[partition] for partition in range(partitions))
    raise AssertionError


def _hash(number: int) -> int:
    """Spark's ``hash(number)`` of an int that is not negative: Murmur3 of 32 bits."""
    mixed = _rotated(number * 0xCC9E2D51 & _32_BITS, 15) * 0x1B873593 & _32_BITS
    found = (_rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _32_BITS
    found ^= 4
    found = (found ^ found >> 16) * 0x85EBCA6B & _32_BITS
    found = (found ^ found >> 13) * 0xC2B2AE35 & _32_BITS
    found ^= found >> 16
    return found - (1 << 32) if found >> 31 else found


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _32_BITS
