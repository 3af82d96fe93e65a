"""The notes of what is published: which checkpoints of which sink are in the table.

    sluice_ledger   one row per published checkpoint: sink, checkpoint_id, rows, published_at
    sluice_sinks    one row per sink: the table that it writes, and its floor, the checkpoint up to
                    which a restore has left everything behind

Both are in the schema of the table that is written, and change in the transactions that write it.
An advisory lock per sink, held to the transaction's end, lets one coordinator after the other in.
A coordinator that hangs while it holds the lock, and says nothing to the server, is disconnected by
the next one; then its transaction cannot commit any more.
"""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass

from sluice.connectors.postgres.server import Connection, TableName, one_row
from sluice.errors import FencedError, StoreUnavailable

log = logging.getLogger(__name__)

LEDGER = "sluice_ledger"
SINKS = "sluice_sinks"
# A client that is silent for so long while another waits is taken for dead; writing a block of
# text takes milliseconds, and reading a staged file seconds.
HUNG_AFTER_S = 30.0
LOCK_WAIT_S = 300.0  # Then the task fails, and Airflow tries again.
POLL_S = 0.05

CREATE = """
CREATE TABLE IF NOT EXISTS {sinks} (
    sink text PRIMARY KEY, table_name text NOT NULL, floor bigint NOT NULL);
CREATE TABLE IF NOT EXISTS {ledger} (
    sink text NOT NULL, checkpoint_id bigint NOT NULL, rows bigint NOT NULL,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sink, checkpoint_id))
"""
# Who holds the lock, and what changes when it does anything.  Of another role's sessions one sees
# nothing but that they are there.
HOLDER = """
SELECT a.pid, a.backend_start, a.state, a.state_change, c.bytes_processed
FROM pg_locks l JOIN pg_stat_activity a USING (pid) LEFT JOIN pg_stat_progress_copy c USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (l.classid::bigint << 32) | l.objid::bigint = %s AND a.wait_event_type = 'Client'
"""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The notes of *sink*, which writes *table*."""

    sink: str
    table: TableName
    hung_after_s: float = HUNG_AFTER_S
    lock_wait_s: float = LOCK_WAIT_S

    def exists(self, connection: Connection) -> bool:
        names = [str(self.table.beside(name).sql.as_string(None)) for name in (LEDGER, SINKS)]
        found = one_row(connection, "SELECT to_regclass(%s), to_regclass(%s)", *names)
        return None not in found

    def create(self, connection: Connection) -> None:
        """Make the tables.  Who comes at the same time waits: IF NOT EXISTS alone would fail."""
        from psycopg.sql import SQL

        one_at_a_time(connection, f"create {self.table.beside(LEDGER)}")
        connection.execute(
            SQL(CREATE).format(
                ledger=self.table.beside(LEDGER).sql, sinks=self.table.beside(SINKS).sql
            )
        )

    def lock(self, connection: Connection) -> int:
        """Be the only one until the transaction ends; returns the floor.

        Raises:
            StoreUnavailable: another coordinator is at work, for as long as we wait.
        """
        from psycopg.sql import SQL

        key = _lock_key(f"{self.table.schema} {self.sink}")
        since = seen_at = time.monotonic()
        seen: tuple[object, ...] | None = None
        while not one_row(connection, "SELECT pg_try_advisory_xact_lock(%s)", key)[0]:
            now = time.monotonic()
            if now - since > self.lock_wait_s:
                raise StoreUnavailable(
                    f"another coordinator has been writing table {self.table} for "
                    f"{self.lock_wait_s:.0f} s"
                )
            holder = connection.execute(HOLDER, [key]).fetchone()
            if holder != seen:
                seen, seen_at = holder, now
            elif holder is not None and holder[2] and now - seen_at > self.hung_after_s:
                _disconnect(connection, holder[0], holder[1])
            time.sleep(POLL_S)
        connection.execute(
            SQL("INSERT INTO {} VALUES (%s, %s, 0) ON CONFLICT (sink) DO NOTHING").format(
                self.table.beside(SINKS).sql
            ),
            [self.sink, str(self.table)],
        )
        return int(
            one_row(
                connection,
                SQL("SELECT floor FROM {} WHERE sink = %s FOR UPDATE").format(
                    self.table.beside(SINKS).sql
                ),
                self.sink,
            )[0]
        )

    def noted(
        self, connection: Connection, after: int = 0, through: int | None = None
    ) -> tuple[int, ...]:
        """The published checkpoints behind *after*, oldest first."""
        from psycopg.sql import SQL

        found = connection.execute(
            SQL(
                "SELECT checkpoint_id FROM {} WHERE sink = %s AND checkpoint_id > %s"
                " AND checkpoint_id <= coalesce(%s, checkpoint_id) ORDER BY checkpoint_id"
            ).format(self.table.beside(LEDGER).sql),
            [self.sink, after, through],
        )
        return tuple(int(one) for (one,) in found)

    def may_publish(self, connection: Connection, checkpoint_id: int) -> bool:
        """Lock, and say whether the checkpoint is to be published; False when it is already.

        Raises:
            FencedError: a later one is noted, or a restore has passed it.
        """
        floor = self.lock(connection)
        there = self.noted(connection, checkpoint_id - 1)
        if checkpoint_id in there:
            return False
        if there or checkpoint_id <= floor:
            passed = (
                f"checkpoint {there[-1]} is published" if there else f"a restore passed {floor}"
            )
            raise FencedError(
                f"checkpoint {checkpoint_id} of sink {self.sink!r} was left behind: {passed}"
            )
        return True

    def note(self, connection: Connection, checkpoint_id: int, rows: int) -> None:
        from psycopg.sql import SQL

        connection.execute(
            SQL("INSERT INTO {} (sink, checkpoint_id, rows) VALUES (%s, %s, %s)").format(
                self.table.beside(LEDGER).sql
            ),
            [self.sink, checkpoint_id, rows],
        )

    def forget(self, connection: Connection, after: int, through: int) -> None:
        from psycopg.sql import SQL

        connection.execute(
            SQL(
                "DELETE FROM {} WHERE sink = %s AND checkpoint_id > %s AND checkpoint_id <= %s"
            ).format(self.table.beside(LEDGER).sql),
            [self.sink, after, through],
        )

    def raise_floor(self, connection: Connection, through: int) -> None:
        from psycopg.sql import SQL

        connection.execute(
            SQL("UPDATE {} SET floor = greatest(floor, %s) WHERE sink = %s").format(
                self.table.beside(SINKS).sql
            ),
            [through, self.sink],
        )

    def others(self, connection: Connection) -> tuple[str, ...]:
        """The other sinks that write the table."""
        from psycopg.sql import SQL

        found = connection.execute(
            SQL("SELECT sink FROM {} WHERE table_name = %s AND sink <> %s ORDER BY sink").format(
                self.table.beside(SINKS).sql
            ),
            [str(self.table), self.sink],
        )
        return tuple(one for (one,) in found)


def one_at_a_time(connection: Connection, what: str) -> None:
    """Wait until nobody else is at *what*, and be at it until the transaction ends."""
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_lock_key(what)])


def _disconnect(connection: Connection, pid: int, backend_start: object) -> None:
    log.warning("disconnecting a coordinator that hangs in its transaction pid=%d", pid)
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid = %s AND backend_start = %s",
        [pid, backend_start],
    )


def _lock_key(name: str) -> int:
    """Equal keys of different names would only wait for each other."""
    digest = hashlib.sha256(f"sluice {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
