"""Spark's ``xxhash64`` of key columns, in NumPy: it decides a row's key group, and its subtask.

Rows that never pass Spark's JVM must get the same hash as those that do.  The rule is Catalyst's
``XxHash64Function``: seed 42, column after column, each hash the seed of the next; a null changes
nothing; numbers below 64 bits count as 32-bit integers, timestamps as microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sluice.state.segments import HASH

Hashes: TypeAlias = npt.NDArray[np.uint64]
Places: TypeAlias = npt.NDArray[np.int64]  # In the bytes of all texts of a column.
Numbers: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
Words: TypeAlias = Callable[[Places, int, str], Numbers]

_SEED = 42
_BLOCK = 16_384  # Rows: some arrays of 128 kB.

_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_INTS = (pl.Int8(), pl.Int16(), pl.Int32(), pl.Date(), pl.Boolean())
_TIMESTAMPS = (pl.Datetime("us", "UTC"), pl.Datetime("us"))
_TEXTS = (pl.String(), pl.Binary())


def can_hash(dtype: pl.DataType) -> bool:
    """Whether ``key_hash`` takes a key column of this type."""
    return dtype in (*_INTS, pl.Int64(), *_TIMESTAMPS, *_TEXTS)


def with_hash(rows: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """*rows* with the column ``_hash``, the hash of their *columns*."""
    return rows.with_columns(pl.Series(HASH, key_hash(rows, columns)))


def key_hash(rows: pl.DataFrame, columns: Sequence[str]) -> npt.NDArray[np.int64]:
    """The signed hash of each row's *columns*, in their order."""
    hashes = np.full(rows.height, _SEED, np.uint64)
    if not rows.height:  # A filter may have removed all rows of a chunk.
        return hashes.view(np.int64)
    with np.errstate(over="ignore"):
        for name in columns:
            column = rows[name]
            hashed = _hashed(column, hashes)
            valid = column.is_not_null().to_numpy()
            hashes = hashed if valid.all() else np.where(valid, hashed, hashes)
    return hashes.view(np.int64)


def _hashed(column: pl.Series, seeds: Hashes) -> Hashes:
    dtype = column.dtype
    if dtype in _TEXTS:
        return _hash_texts(column, seeds)
    if dtype in _INTS:
        numbers = column.to_physical().cast(pl.Int32).fill_null(0).to_numpy()
        return _in_blocks(_hash_ints, seeds, numbers.view(np.uint32))
    assert can_hash(dtype), f"{dtype} is no type of a key"
    longs = column.to_physical().fill_null(0).to_numpy().view(np.uint64)
    return _in_blocks(_hash_longs, seeds, longs)


def _in_blocks(
    hash_them: Callable[[Hashes, npt.NDArray[Any]], Hashes],
    seeds: Hashes,
    values: npt.NDArray[Any],
) -> Hashes:
    """Hash the rows block by block, so that intermediate arrays stay in the processor's caches."""
    hashes = np.empty(len(seeds), np.uint64)
    for start in range(0, len(seeds), _BLOCK):
        block = slice(start, start + _BLOCK)
        hashes[block] = hash_them(seeds[block], values[block])
    return hashes


def _hash_longs(seeds: Hashes, values: Hashes) -> Hashes:
    return _avalanche(_with_long(seeds + _PRIME_5 + np.uint64(8), values))


def _hash_ints(seeds: Hashes, values: npt.NDArray[np.uint32]) -> Hashes:
    return _avalanche(_with_int(seeds + _PRIME_5 + np.uint64(4), values.astype(np.uint64)))


def _hash_texts(column: pl.Series, seeds: Hashes) -> Hashes:
    """Hash texts of equal length together, one pass for each eight bytes of that length."""
    array = column.cast(pl.Binary).fill_null(b"").to_arrow(compat_level=pl.CompatLevel.oldest())
    assert isinstance(array, pa.LargeBinaryArray)
    _, offset_buffer, data_buffer = array.buffers()
    first = array.offset
    offsets = np.frombuffer(offset_buffer, np.int64)[first : first + len(array) + 1]
    data = memoryview(data_buffer or b"")
    lengths = np.diff(offsets)
    if (lengths == lengths[0]).all():
        hash_them = partial(_hash_bytes, partial(_adjacent, data, int(lengths[0])), int(lengths[0]))
        return _in_blocks(hash_them, seeds, offsets[:-1])
    order = np.argsort(lengths, kind="stable")
    starts = np.flatnonzero(np.diff(lengths[order], prepend=-1))
    hashes = np.empty(len(array), np.uint64)
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        rows = order[start:end]
        hash_them = partial(_hash_bytes, partial(_scattered, data), int(lengths[rows[0]]))
        hashes[rows] = _in_blocks(hash_them, seeds[rows], offsets[rows])
    return hashes


def _hash_bytes(words: Words, length: int, seeds: Hashes, places: Places) -> Hashes:
    """XXH64, as published, of the *length* bytes from each of *places* on, which *words* reads."""
    at = 0
    hashes: Hashes = seeds + _PRIME_5
    if length >= 32:
        lanes = [seeds + _PRIME_1 + _PRIME_2, seeds + _PRIME_2, seeds.copy(), seeds - _PRIME_1]
        while at + 32 <= length:
            for number in range(4):
                lanes[number] = _round(lanes[number], words(places, at + 8 * number, "<u8"))
            at += 32
        hashes = np.zeros(len(places), np.uint64)
        for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
            hashes = hashes + _rotated(lane, bits)
        for lane in lanes:
            hashes = (hashes ^ _round(np.zeros(1, np.uint64), lane)) * _PRIME_1 + _PRIME_4
    hashes = hashes + np.uint64(length)
    while at + 8 <= length:
        hashes = _with_long(hashes, words(places, at, "<u8"))
        at += 8
    if at + 4 <= length:
        hashes = _with_int(hashes, words(places, at, "<u4").astype(np.uint64))
        at += 4
    while at < length:
        hashes = hashes ^ (words(places, at, "u1").astype(np.uint64) * _PRIME_5)
        hashes = _rotated(hashes, 11) * _PRIME_1
        at += 1
    return _avalanche(hashes)


def _scattered(data: memoryview, places: Places, at: int, dtype: str) -> Numbers:
    """The number that begins *at* bytes behind each of *places*; it need not be aligned."""
    count = data.nbytes - np.dtype(dtype).itemsize + 1
    return np.ndarray((count,), dtype, data, strides=(1,))[places + at]


def _adjacent(data: memoryview, length: int, places: Places, at: int, dtype: str) -> Numbers:
    """``_scattered`` for *places* that are *length* bytes apart, in a fifth of the time."""
    first = int(places[0]) + at
    return np.ascontiguousarray(
        np.ndarray((len(places),), dtype, data, offset=first, strides=(length,))
    )


def _with_long(hashes: Hashes, values: Hashes) -> Hashes:
    mixed = hashes ^ _round(np.zeros(1, np.uint64), values)
    return _rotated(mixed, 27) * _PRIME_1 + _PRIME_4


def _with_int(hashes: Hashes, values: Hashes) -> Hashes:
    return _rotated(hashes ^ (values * _PRIME_1), 23) * _PRIME_2 + _PRIME_3


def _round(lane: Hashes, values: Hashes) -> Hashes:
    return _rotated(lane + values * _PRIME_2, 31) * _PRIME_1


def _rotated(values: Hashes, bits: int) -> Hashes:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _avalanche(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _PRIME_2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _PRIME_3
    return hashes ^ (hashes >> np.uint64(32))
