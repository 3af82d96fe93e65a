"""The end up to which a growing table can be read: no row before it will be committed later.

A sequence's number is taken when a row is written, and the row is seen when its transaction
commits; so a smaller number may appear after a larger one.  There are two answers.

``Wait``, which is sound: an INSERT locks the table that it names (ROW EXCLUSIVE, PostgreSQL's
table-level locks) before it takes a number, and holds the lock until its transaction has ended and
its rows are visible.  It may name any table that takes numbers of the sequence, or one above or
below it: a partitioned table locks a partition only when a row with its number gets there.  So a
running transaction with a number up to the sequence's present one holds the lock of one of these:

    1. through = the sequence's last value
    2. writers = the transactions that hold the lock, or wait for it, read after 1
    3. when all of them have ended, every row up to ``through`` is visible, or never will be

This is a ``Fence``.  It is kept in the position, so that transactions that always overlap delay
reading without stopping it.  It needs numbers that are taken in order, by the INSERT itself: a
sequence without CACHE, and no application that fetches numbers beforehand.

``Lag``, which relies on a declared bound: every writing transaction commits within *lag* of the
timestamp of its rows.  Rows that are twice as old can be read: the newest of them took its number
at most one lag after its timestamp, and a transaction that took a smaller one before that commits
at most another lag later.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from sluice.connectors.postgres.sequence import Sequence
from sluice.connectors.postgres.server import Connection, TableName, one_row
from sluice.errors import ProtocolViolation

POLL_S = 0.01
PREPARED = "-1/"  # The prefix of a prepared transaction that outlived a server's restart.

# An INSERT may name the table, any other that takes its numbers from the sequence by a default or
# as its owner, and whatever they inherit from or are inherited by.  No snapshot is involved.
WRITERS = """
WITH RECURSIVE tree AS (
    SELECT relation FROM (
        SELECT %(table)s::oid AS relation
        UNION SELECT refobjid FROM pg_depend WHERE classid = 'pg_class'::regclass
            AND objid = %(sequence)s AND refclassid = 'pg_class'::regclass
            AND deptype IN ('a', 'i')
        UNION SELECT f.adrelid FROM pg_depend d JOIN pg_attrdef f ON f.oid = d.objid
            WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass
            AND d.refobjid = %(sequence)s) takers
    UNION SELECT near.relation FROM tree, LATERAL (
        SELECT inhparent FROM pg_inherits WHERE inhrelid = tree.relation
        UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = tree.relation
    ) near(relation))
SELECT DISTINCT virtualtransaction FROM pg_locks JOIN tree USING (relation)
WHERE locktype = 'relation' AND mode = 'RowExclusiveLock'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@dataclass(frozen=True, slots=True)
class Fence:
    """All rows below ``verified`` are visible; up to ``through``, when ``writers`` have ended."""

    verified: int
    through: int
    writers: frozenset[str]

    @property
    def is_settled(self) -> bool:
        return not self.writers

    def __str__(self) -> str:
        return f"{self.verified} {self.through} {','.join(sorted(self.writers))}".rstrip()


def parsed_fence(version: str) -> Fence | None:
    """The fence that ``str`` wrote; None for no text.  Raises ProtocolViolation for others."""
    if not version:
        return None
    try:
        verified, through, *writers = version.split(" ")
        return Fence(
            int(verified), int(through), frozenset(writers[0].split(",") if writers else ())
        )
    except ValueError:
        raise ProtocolViolation(f"the position's version {version!r} is no fence") from None


def settled(
    connection: Connection,
    sequence: Sequence,
    before: Fence | None,
    *,
    is_pinned: bool,
    patience_s: float,
) -> Fence:
    """Wait for the writers of *before*, then for the present ones, at most *patience_s* in total.

    With *is_pinned* the fence stays at the numbers that were taken when it was first set.
    """
    deadline = time.monotonic() + patience_s
    verified = before.verified if before is not None else 0
    fence = before if before is not None and (before.writers or is_pinned) else None
    is_of_now = False
    while True:
        if fence is None:
            through = sequence.last_value(connection)
            fence = Fence(verified, through, _writers(connection, sequence))
            is_of_now = True
        elif fence.writers:
            now = _writers(connection, sequence)
            fence = Fence(verified, fence.through, remaining(fence.writers, now))
        if fence.is_settled:
            verified = max(verified, fence.through + 1)
            if is_of_now or is_pinned:
                return Fence(verified, fence.through, frozenset())
            fence = None
            continue
        if time.monotonic() > deadline:
            return fence
        time.sleep(POLL_S)


def lagging_end(
    connection: Connection, table: TableName, offset_column: str, lag_column: str, lag: timedelta
) -> tuple[int, int]:
    """The end of the offsets that are old enough, and that of all; 0 without rows."""
    from psycopg.sql import SQL, Identifier, Literal

    offset, at = Identifier(offset_column), Identifier(lag_column)
    # Without parameters, as a name may contain "%".
    old = connection.execute(
        SQL(
            "SELECT {0} FROM {1} WHERE {2} <= clock_timestamp() - {3} ORDER BY {0} DESC LIMIT 1"
        ).format(offset, table.sql, at, Literal(2 * lag))
    ).fetchone()
    newest = one_row(
        connection, SQL("SELECT coalesce(max({}) + 1, 0) FROM {}").format(offset, table.sql)
    )[0]
    return (old[0] + 1 if old is not None else 0), newest


def _writers(connection: Connection, sequence: Sequence) -> frozenset[str]:
    given = {"table": sequence.table_oid, "sequence": sequence.oid}
    return frozenset(name for (name,) in connection.execute(WRITERS, given))


def remaining(waited_for: Iterable[str], now: frozenset[str]) -> frozenset[str]:
    """The writers of *waited_for* that run *now*; a server's restart renames prepared ones."""
    return (now & frozenset(waited_for)) | {name for name in now if name.startswith(PREPARED)}
