"""A table into which a checkpoint's rows are written, in one transaction with its note.

Appended rows are copied straight into the table; rows with a key are copied into a temporary table,
from which one statement deletes and one upserts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from sluice.connectors.contracts.sink import RollBack
from sluice.connectors.contracts.timeline_note import named
from sluice.connectors.postgres.columns import Column, columns_of
from sluice.connectors.postgres.ledger import LEDGER, Ledger
from sluice.connectors.postgres.rehearsal import Rehearsal
from sluice.connectors.postgres.rules import rules_of
from sluice.connectors.postgres.server import (
    Connection,
    Server,
    TableName,
    check_encoding,
)
from sluice.connectors.postgres.target_table import TargetTable
from sluice.connectors.postgres.writing import check_values, copy_in
from sluice.core.timeline import Recovery, Timeline, Writer
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg.sql import Composed

    from sluice.connectors.staging.staged_sink import EpochRows

# The server disconnects an idle transaction after this time if no other coordinator does it before.
IDLE_TIMEOUT = "10min"
LOCK_TIMEOUT = "60s"  # For the lock of the table itself, which another session may alter.


@dataclass(frozen=True, slots=True)
class PostgresTarget:
    """See ``staged_sink.Target``.  *checkpoint_column* holds the checkpoint of each row."""

    server: Server
    table: TableName
    ledger: Ledger
    upsert_key: tuple[str, ...] = ()
    checkpoint_column: str | None = None
    creates: bool = False

    @property
    def rolls_back(self) -> RollBack:
        by_column = self.checkpoint_column is not None and not self.upsert_key
        return RollBack.ON_REQUEST if by_column else RollBack.NEVER

    def check(self, schema: pa.Schema, rows: EpochRows) -> None:
        """Values are tried only where the table has rules of its own for them."""
        with self.server.session(read_only=True) as connection:
            check_encoding(connection, self.server.who)
            self._check_not_gone(connection)
            self._place.check(connection, schema)
            rules = rules_of(connection, self.table)
        given = self._place.stamped(schema)
        rules = rules.given(upserts=bool(self.upsert_key), columns=given.names)
        required = [name for name in rules.names("required") if name in schema.names]
        if not (any(rule.can_refuse(given) for rule in rules.rules) or rows.has_nulls(required)):
            return
        checkpoint_id = rows.checkpoint_id or 0
        rehearsal = Rehearsal(self.table, rules, checkpoint_id, tuple(given.names))
        with self.server.session() as connection:
            self._prepare(connection)
            rehearsal.play(connection, self._stamped(rows.upserts(), checkpoint_id))
            connection.rollback()

    def check_rows(self, rows: pa.Table) -> None:
        check_values(rows)

    def publish(
        self, writer: Writer, checkpoint_id: int, parent: int | None, rows: EpochRows
    ) -> None:
        with self._locked() as connection:
            before = self.ledger.timeline(connection, min(parent or checkpoint_id, checkpoint_id))
            with named(self._name):
                after = before.publishing(writer, checkpoint_id, parent)
            if after is None:
                return
            self._make(connection, rows)
            self._delete(connection, rows.deletes())
            self._write(connection, rows.upserts(), checkpoint_id)
            self.ledger.note(connection, before, after, rows.row_count)

    def timeline(self) -> Timeline:
        with self.server.session(read_only=True) as connection:
            if not self.ledger.exists(connection):
                return Timeline()
            return self.ledger.timeline(connection)

    def is_empty(self) -> bool:
        with self.server.session(read_only=True) as connection:
            return self._is_empty(connection)

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        with self._locked() as connection:
            before = self.ledger.timeline(connection, recovery.version or 0)
            with named(self._name):
                after = before.recovered(writer, recovery)
            if after is None:
                return
            ahead = tuple(before.after(recovery.version))
            if recovery.roll_back and ahead and not self._is_empty(connection):
                self._roll_back(connection, ahead)
            self.ledger.note(connection, before, after)

    def describe(self, version: int) -> str:
        return f"row ({self.ledger.sink!r}, {version}) of {self.table.beside(LEDGER)}"

    @property
    def _place(self) -> TargetTable:
        return TargetTable(self.table, self.upsert_key, self.checkpoint_column, self.creates)

    @property
    def _name(self) -> str:
        return f"PostgreSQL table {self.table}"

    @contextmanager
    def _locked(self) -> Iterator[Connection]:
        """One transaction that holds the sink's lock."""
        with self.server.session() as connection:
            if not self.ledger.exists(connection):
                self.ledger.create(connection)
        with self.server.session() as connection:
            self._prepare(connection)
            self.ledger.lock(connection)
            yield connection

    def _is_empty(self, connection: Connection) -> bool:
        from psycopg.sql import SQL

        if not columns_of(connection, self.table):
            return True  # The table does not exist yet.
        found = connection.execute(SQL("SELECT 1 FROM {} LIMIT 1").format(self.table.sql))
        return found.fetchone() is None

    def _prepare(self, connection: Connection) -> None:
        """Make the commit durable, as the staged files are deleted after it."""
        check_encoding(connection, self.server.who)
        connection.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', %s, true),"
            " set_config('lock_timeout', %s, true), CASE current_setting('synchronous_commit')"
            " WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END",
            [IDLE_TIMEOUT, LOCK_TIMEOUT],
        )

    def _roll_back(self, connection: Connection, ahead: tuple[int, ...]) -> None:
        """Delete the rows of the checkpoints *ahead*."""
        from psycopg.sql import SQL, Identifier

        if self.rolls_back is RollBack.NEVER or self.checkpoint_column is None:
            raise ConfigurationError(
                f"table {self.table} has {len(ahead)} checkpoints, through {ahead[-1]}, and cannot "
                "be rolled back: only appended rows with a checkpoint_column can; restore without "
                "rolling back, or empty the table by hand"
            )
        if others := self.ledger.others(connection):
            raise ConfigurationError(
                f"table {self.table} cannot be rolled back: {others[0]!r} writes it, too, and its "
                "rows have the same checkpoint ids; give each sink a table of its own"
            )
        connection.execute(
            SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(
                self.table.sql, Identifier(self.checkpoint_column)
            ),
            [[*ahead]],
        )

    def _make(self, connection: Connection, rows: EpochRows) -> None:
        """Create the table with the columns of *rows*, if declared, unless it exists."""
        if not self.creates or columns_of(connection, self.table):
            return
        schema = rows.schema()
        if schema is not None:
            self._check_not_gone(connection)
            self._place.make(connection, schema)

    def _check_not_gone(self, connection: Connection) -> None:
        """Raises ConfigurationError when a missing table had rows before."""
        if not self.creates or columns_of(connection, self.table):
            return
        if self.ledger.exists(connection) and (count := self.ledger.row_count(connection)):
            raise ConfigurationError(
                f"table {self.table} is gone, and {count} rows of earlier checkpoints with it; put "
                "it back, or create an empty one to go on without them"
            )

    def _stamped(self, tables: Iterable[pa.Table], checkpoint_id: int) -> Iterator[pa.Table]:
        import pyarrow as pa

        for table in tables:
            if self.checkpoint_column is None:
                yield table
                continue
            ids = pa.repeat(pa.scalar(checkpoint_id, pa.int64()), table.num_rows)
            yield table.append_column(self.checkpoint_column, ids)

    def _write(
        self, connection: Connection, tables: Iterable[pa.Table], checkpoint_id: int
    ) -> None:
        checked = self._stamped(self._checked(connection, tables), checkpoint_id)
        if not self.upsert_key:
            copy_in(connection, self.table.sql, checked)
            return
        for names, part in self._in_temporary(connection, checked):
            connection.execute(self._upsert(names, part))

    def _delete(self, connection: Connection, tables: Iterable[pa.Table]) -> None:
        """Delete rows by their keys."""
        from psycopg.sql import SQL, Identifier

        keys = (table.select(list(self.upsert_key)) for table in tables)
        checked = self._checked(connection, keys, only_keys=True)

        for _, part in self._in_temporary(connection, checked):
            same = SQL(" AND ").join(
                [SQL("t.{0} = d.{0}").format(Identifier(name)) for name in self.upsert_key]
            )
            connection.execute(
                SQL("DELETE FROM {} t USING {} d WHERE {}").format(self.table.sql, part, same)
            )

    def _in_temporary(
        self, connection: Connection, tables: Iterable[pa.Table]
    ) -> Iterator[tuple[list[str], Composed]]:
        """The rows in temporary tables, one for all neighbours of one schema."""
        from psycopg.sql import SQL, Identifier

        temporary = Identifier("pg_temp", "sluice_rows")
        for schema, alike in groupby(tables, key=lambda table: table.schema):
            names = SQL(", ").join([Identifier(name) for name in schema.names])
            connection.execute(
                SQL("CREATE TEMP TABLE sluice_rows AS SELECT {} FROM {} WITH NO DATA").format(
                    names, self.table.sql
                )
            )
            copy_in(connection, temporary, alike)
            connection.execute(SQL("ANALYZE {}").format(temporary))
            yield schema.names, SQL("{}").format(temporary)
            connection.execute(SQL("DROP TABLE {}").format(temporary))

    def _upsert(self, names: list[str], part: Composed) -> Composed:
        from psycopg.sql import SQL, Identifier

        changes = [
            SQL("{0} = EXCLUDED.{0}").format(Identifier(name))
            for name in names
            if name not in self.upsert_key
        ]
        return SQL("INSERT INTO {} ({names}) SELECT {names} FROM {} ON CONFLICT ({}) DO {}").format(
            self.table.sql,
            part,
            SQL(", ").join([Identifier(name) for name in self.upsert_key]),
            SQL("UPDATE SET {}").format(SQL(", ").join(changes)) if changes else SQL("NOTHING"),
            names=SQL(", ").join([Identifier(name) for name in names]),
        )

    def _checked(
        self, connection: Connection, tables: Iterable[pa.Table], *, only_keys: bool = False
    ) -> Iterator[pa.Table]:
        """*tables*, each compared with the target's columns before it is yielded."""
        place = self._place
        there: dict[str, Column] = {}
        seen: list[pa.Schema] = []
        for table in tables:
            there = there or place.columns(connection)
            if table.schema not in seen:
                (place.check_keys if only_keys else place.check_rows)(there, table.schema)
                seen.append(table.schema)
            yield table
