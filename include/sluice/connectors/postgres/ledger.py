"""The notes of published checkpoints: a sink's time line (``core/timeline.py``) as rows.

    sluice_ledger   one row per published checkpoint: sink, checkpoint_id, rows, life, generation,
                    published_at
    sluice_sinks    one row per sink: the table that it writes, and the rest of its time line: life,
                    generation, fenced_by, through, continues, past

Both are in the schema of the table that is written, and change in the transactions that write it.
An advisory lock per sink, held to the transaction's end, admits one coordinator at a time.  A
coordinator that holds the lock and sends nothing to the server for long is disconnected by the next
one, so that its transaction cannot commit any more.
"""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass

from sluice.connectors.postgres.server import Connection, TableName, one_row
from sluice.core.timeline import CheckpointRange, Timeline
from sluice.errors import StoreUnavailable

log = logging.getLogger(__name__)

LEDGER = "sluice_ledger"
SINKS = "sluice_sinks"
# A client that is silent for this long while another waits counts as dead; writing a block of text
# takes milliseconds, and reading a staged file seconds.
HUNG_AFTER_S = 30.0
LOCK_WAIT_S = 300.0  # After it the task fails, and Airflow retries it.
POLL_S = 0.05

CREATE = """
CREATE TABLE IF NOT EXISTS {sinks} (
    sink text PRIMARY KEY, table_name text NOT NULL, life text NOT NULL DEFAULT '',
    generation bigint NOT NULL DEFAULT 0, fenced_by bigint NOT NULL DEFAULT 0,
    through bigint NOT NULL DEFAULT 0, continues bigint, past jsonb NOT NULL DEFAULT '[]');
CREATE TABLE IF NOT EXISTS {ledger} (
    sink text NOT NULL, checkpoint_id bigint NOT NULL, rows bigint NOT NULL,
    life text NOT NULL, generation bigint NOT NULL,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sink, checkpoint_id))
"""
FOUND = "SELECT to_regclass(%s) IS NOT NULL AND to_regclass(%s) IS NOT NULL"
# The server groups neighbouring ids to spans, as there is a row per id, for years.
SPANS = """
SELECT min(checkpoint_id), max(checkpoint_id) FROM (
    SELECT checkpoint_id, checkpoint_id - row_number() OVER (ORDER BY checkpoint_id) AS gap
    FROM {ledger} WHERE sink = %(sink)s AND checkpoint_id >= %(since)s) AS noted
GROUP BY gap ORDER BY 1
"""
# The sessions that hold the lock, with a value that changes with each of their statements.  Of the
# sessions of other roles only their existence is visible.
HOLDER = """
SELECT a.pid, a.backend_start, a.state, a.state_change, c.bytes_processed
FROM pg_locks l JOIN pg_stat_activity a USING (pid) LEFT JOIN pg_stat_progress_copy c USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (l.classid::bigint << 32) | l.objid::bigint = %s AND a.wait_event_type = 'Client'
"""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger of *sink*, which writes *table*."""

    sink: str
    table: TableName
    hung_after_s: float = HUNG_AFTER_S
    lock_wait_s: float = LOCK_WAIT_S

    def exists(self, connection: Connection) -> bool:
        names = [self.table.beside(name).sql.as_string(None) for name in (LEDGER, SINKS)]
        return bool(one_row(connection, FOUND, *names)[0])

    def create(self, connection: Connection) -> None:
        """Create the tables, under a lock: concurrent CREATE ... IF NOT EXISTS would fail."""
        from psycopg.sql import SQL

        ledger, sinks = self.table.beside(LEDGER), self.table.beside(SINKS)
        one_at_a_time(connection, f"create {ledger}")
        connection.execute(SQL(CREATE).format(ledger=ledger.sql, sinks=sinks.sql))

    def lock(self, connection: Connection) -> None:
        """Take the sink's lock, until the transaction ends.

        Raises:
            StoreUnavailable: another coordinator held it for ``lock_wait_s``.
        """
        from psycopg.sql import SQL

        key = _lock_key(f"{self.table.schema} {self.sink}")
        since = changed_at = time.monotonic()
        last_holder: tuple[object, ...] | None = None
        while not one_row(connection, "SELECT pg_try_advisory_xact_lock(%s)", key)[0]:
            now = time.monotonic()
            if now - since > self.lock_wait_s:
                raise StoreUnavailable(
                    f"another coordinator has been writing table {self.table} for "
                    f"{self.lock_wait_s:.0f} s"
                )
            holder = connection.execute(HOLDER, [key]).fetchone()
            if holder != last_holder:
                last_holder, changed_at = holder, now
            elif holder is not None and holder[2] and now - changed_at > self.hung_after_s:
                _disconnect(connection, holder[0], holder[1])
            time.sleep(POLL_S)
        connection.execute(
            SQL(
                "INSERT INTO {} (sink, table_name) VALUES (%s, %s) ON CONFLICT (sink) DO NOTHING"
            ).format(self.table.beside(SINKS).sql),
            [self.sink, str(self.table)],
        )

    def timeline(self, connection: Connection, since: int = 0) -> Timeline:
        """The time line; of ids before *since*, only the newest is read."""
        from psycopg.sql import SQL

        ledger, sinks = self.table.beside(LEDGER).sql, self.table.beside(SINKS).sql
        found = connection.execute(
            SQL(
                "SELECT life, generation, fenced_by, through, continues, past,"
                " (SELECT min(checkpoint_id) FROM {ledger} l WHERE l.sink = s.sink),"
                " (SELECT max(checkpoint_id) FROM {ledger} l WHERE l.sink = s.sink)"
                " FROM {sinks} s WHERE sink = %s"
            ).format(ledger=ledger, sinks=sinks),
            [self.sink],
        ).fetchone()
        if found is None:
            return Timeline()
        *_, oldest, newest = found
        start = min(since, newest or 0)
        spans = connection.execute(
            SQL(SPANS).format(ledger=ledger), {"sink": self.sink, "since": start}
        )
        return Timeline(
            life=found[0],
            generation=int(found[1]),
            fenced_by=int(found[2]),
            through=int(found[3]),
            continues=found[4],
            past=tuple((life, generation) for life, generation in found[5]),
            published=tuple((int(first), int(last)) for first, last in spans),
            is_cut=oldest is not None and oldest < start,
        )

    def note(
        self, connection: Connection, before: Timeline, after: Timeline, rows: int = 0
    ) -> None:
        """Change the time line from *before* to *after*; *rows* is the row count of a new id."""
        from psycopg.sql import SQL
        from psycopg.types.json import Jsonb

        ledger = self.table.beside(LEDGER).sql
        old, new = _ids(before.published), _ids(after.published)
        connection.execute(
            SQL("DELETE FROM {} WHERE sink = %s AND checkpoint_id = ANY(%s)").format(ledger),
            [self.sink, [*old - new]],
        )
        connection.execute(
            SQL(
                "INSERT INTO {} (sink, checkpoint_id, rows, life, generation)"
                " SELECT %s, unnest(%s::bigint[]), %s, %s, %s"
            ).format(ledger),
            [self.sink, [*new - old], rows, after.life, after.generation],
        )
        connection.execute(
            SQL(
                "UPDATE {} SET life = %s, generation = %s, fenced_by = %s, through = %s,"
                " continues = %s, past = %s WHERE sink = %s"
            ).format(self.table.beside(SINKS).sql),
            [
                after.life,
                after.generation,
                after.fenced_by,
                after.through,
                after.continues,
                Jsonb(after.past),
                self.sink,
            ],
        )

    def row_count(self, connection: Connection) -> int:
        """The number of rows that the noted checkpoints wrote or deleted."""
        from psycopg.sql import SQL

        ledger = self.table.beside(LEDGER).sql
        statement = SQL("SELECT coalesce(sum(rows), 0) FROM {} WHERE sink = %s").format(ledger)
        return int(one_row(connection, statement, self.sink)[0])

    def others(self, connection: Connection) -> tuple[str, ...]:
        """The other sinks that write the table."""
        from psycopg.sql import SQL

        statement = SQL(
            "SELECT sink FROM {} WHERE table_name = %s AND sink <> %s ORDER BY sink"
        ).format(self.table.beside(SINKS).sql)
        found = connection.execute(statement, [str(self.table), self.sink])
        return tuple(sink for (sink,) in found)


def one_at_a_time(connection: Connection, what: str) -> None:
    """Take the lock on *what*, until the transaction ends; wait for whichever session has it."""
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_lock_key(what)])


def _ids(spans: tuple[CheckpointRange, ...]) -> set[int]:
    return {id_ for first, last in spans for id_ in range(first, last + 1)}


def _disconnect(connection: Connection, pid: int, backend_start: object) -> None:
    log.warning("disconnecting a coordinator that hangs in its transaction pid=%d", pid)
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid = %s AND backend_start = %s",
        [pid, backend_start],
    )


def _lock_key(name: str) -> int:
    """The advisory lock's key; two names with equal keys would only wait for each other."""
    digest = hashlib.sha256(f"sluice {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
