"""The plugin ``pgoutput``'s messages about a table's changes: protocol version 1, values as text.

See "Logical Replication Message Formats" of PostgreSQL's documentation.  Transactions come whole,
in the order of their commits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

Value: TypeAlias = bytes | None
Row: TypeAlias = list[Value]

UNCHANGED: Final = b"unchanged TOAST"  # This object stands for a large value that was not logged.

_TAKEN_BACK = b"O"  # The whole row before a change; b"K" has its key alone.
_COUNT, _LENGTH = struct.Struct(">H"), struct.Struct(">I")
_BEGIN = struct.Struct(">QqI")
_TYPE = struct.Struct(">Ii")


@dataclass(frozen=True, slots=True)
class Begin:
    """The changes that follow are of transaction *xid*, whose commit is logged at *commit*."""

    commit: int
    xid: int


@dataclass(frozen=True, slots=True)
class Relation:
    """The columns of the rows that follow: each name with its type's oid and modifier."""

    columns: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row was inserted (no *old*), deleted (no *new*) or updated.

    *old* has the whole row if it ``is_whole``, and else its key alone, or is None in an update.
    """

    old: Row | None
    new: Row | None
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """The table was emptied."""


Message: TypeAlias = Begin | Relation | RowChange | Truncate


def messages_of(messages: Iterable[bytes], oid: int) -> Iterator[Message]:
    """The *messages* about the table *oid*, decoded."""
    told = _LENGTH.pack(oid)
    for message in messages:
        kind = message[:1]
        if kind == b"B":
            commit, _, xid = _BEGIN.unpack_from(message, 1)
            yield Begin(commit, xid)
        elif kind == b"T":
            count = _LENGTH.unpack_from(message, 1)[0]
            if told in [message[at : at + 4] for at in range(6, 6 + 4 * count, 4)]:
                yield Truncate()
        elif message[1:5] != told:
            continue
        elif kind == b"R":
            yield _relation(message)
        elif kind in b"IUD":
            yield _row_change(kind, message)


def _relation(message: bytes) -> Relation:
    at = message.index(0, message.index(0, 5) + 1) + 2  # Behind schema, name and replica identity.
    (count,) = _COUNT.unpack_from(message, at)
    at += 2
    columns = []
    for _ in range(count):
        end = message.index(0, at + 1)
        columns.append((message[at + 1 : end].decode(), *_TYPE.unpack_from(message, end + 1)))
        at = end + 9
    return Relation(tuple(columns))


def _row_change(kind: bytes, message: bytes) -> RowChange:
    old, at = None, 5
    part = message[at : at + 1]
    if part in b"KO":
        old, at = _row(message, at + 1)
    new = None if kind == b"D" else _row(message, at + 1)[0]
    return RowChange(old, new, is_whole=kind == b"I" or part == _TAKEN_BACK)


def _row(message: bytes, at: int) -> tuple[Row, int]:
    (count,) = _COUNT.unpack_from(message, at)
    at += 2
    row: Row = []
    for _ in range(count):
        kind = message[at]
        at += 1
        if kind == 0x74:  # t: a text
            (length,) = _LENGTH.unpack_from(message, at)
            at += 4 + length
            row.append(message[at - length : at])
        else:
            row.append(UNCHANGED if kind == 0x75 else None)  # u, n
    return row, at
