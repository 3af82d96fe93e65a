"""The computation of a simulated pipeline's stages: a function of input and keyed state.

Record n of the source is the number n.  A stage adds up, per key, what its input says, so that a
row lost, a row repeated, or state of another moment changes every later result of that key.

No stage is pure: each run of it by a driver says other things (``said_by``), as one that calls
``rand()`` would, so that rows tell whose they are.  Only ``pure`` rows can be told in advance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import TypeAlias

import msgspec
import pyarrow as pa

from harness.key_groups import key_group_of, subtask_of
from sluice.core.handles import SegmentHandle, StateHandle
from tests.subtasks import hash_of

COLUMNS = pa.schema([("record", pa.int64())])  # Of what a sink gets.

Row: TypeAlias = tuple[int, int]  # The number of a record, and what a stage says of it.
UIDS = ("count_bids", "rank_bids", "sum_bids")
KEYS = (7, 5, 3)  # How many the first stage has, the second, and the third.
IMPURE = 1 << 32  # What drivers add is a multiple of it, and more than all that is pure.
SALTS = 1_000

_reference: dict[int, list[Row]] = {}


def reference(depth: int, upto: int) -> list[Row]:
    """The output of the stage at *depth* for the first records, without failures."""
    rows = _reference.setdefault(depth, [])
    rows += [(number, value_of(depth, number)) for number in range(len(rows), upto)]
    return rows[:upto]


@cache
def value_of(depth: int, record: int) -> int:
    before = record - KEYS[depth]
    said = 1 if depth == 0 else value_of(depth - 1, record)
    return said + (value_of(depth, before) if before >= 0 else 0)


def run(depth: int, state: Iterable[Row], rows: Iterable[Row]) -> list[Row]:
    """The stage's output for *rows*, given its state."""
    totals = {number % KEYS[depth]: value for number, value in sorted(state)}
    said: list[Row] = []
    for number, value in sorted(rows):
        total = totals.get(number % KEYS[depth], 0) + value
        totals[number % KEYS[depth]] = total
        said.append((number, total))
    return said


def said_by(driver: str, rows: Iterable[Row]) -> list[Row]:
    """The output of a stage as *driver*, a token that ends in a number, runs it."""
    salt = int(driver[1:]) % SALTS
    return [(number, value + salt * IMPURE) for number, value in rows]


def pure(rows: Iterable[Row]) -> list[Row]:
    """The rows in order, without what drivers added to them."""
    return sorted((number, value % IMPURE) for number, value in rows)


@cache
def key_hash(depth: int, record: int) -> int:
    return hash_of(1_000 * depth + record % KEYS[depth])


@cache
def owner(depth: int, record: int, max_parallelism: int, parallelism: int) -> int:
    """The subtask whose key groups the record falls into."""
    group = key_group_of(key_hash(depth, record), max_parallelism)
    return subtask_of(group, max_parallelism, parallelism)


def live_rows(depth: int, handle: StateHandle, body: bytes) -> list[Row]:
    """The rows of a segment that are the handle's, as after a rescale they are not all."""
    first, last = handle.first_hash, handle.last_hash
    return [row for row in rows_of(body) if first <= key_hash(depth, row[0]) <= last]


def body_of(rows: Iterable[Row]) -> bytes:
    return msgspec.json.encode([*rows])


@lru_cache(maxsize=2_000)
def rows_of(body: bytes) -> tuple[Row, ...]:
    return tuple(msgspec.json.decode(body, type=list[Row]))


@lru_cache(maxsize=2_000)
def checksum(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def a_segment(key: str, body: bytes, *, is_inline: bool = False) -> SegmentHandle:
    return SegmentHandle(
        key="" if is_inline else key,
        size_bytes=len(body),
        rows=len(rows_of(body)),
        checksum=checksum(body),
        inline=body if is_inline else None,
    )
