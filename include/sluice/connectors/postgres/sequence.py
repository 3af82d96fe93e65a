"""``Sequence``: the sequence that numbers a table's rows, if its numbers are taken in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.connectors.postgres.server import Connection, TableName, one_row
from sluice.errors import ConfigurationError

INSTEAD = "or declare late_commits=timedelta(...) with a lag_column"

# The sequence that the column owns (serial, identity), or that its default names.
FIND = """
SELECT s.seqrelid::oid, s.seqrelid::regclass::text, s.seqcache, s.seqincrement, s.seqcycle, s.seqmin
FROM pg_attribute a JOIN pg_sequence s ON s.seqrelid = coalesce(
    pg_get_serial_sequence(%(table)s::oid::regclass::text, a.attname)::regclass,
    (SELECT d.refobjid FROM pg_attrdef f
        JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
        JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid
        WHERE f.adrelid = a.attrelid AND f.adnum = a.attnum AND c.relkind = 'S' LIMIT 1))
WHERE a.attrelid = %(table)s AND a.attname = %(column)s
"""


@dataclass(frozen=True, slots=True)
class Sequence:
    """The sequence *oid* behind the numbers of the table *table_oid*."""

    oid: int
    table_oid: int
    least: int

    def last_value(self, connection: Connection) -> int:
        """The largest number that was taken; one less than the least if none was."""
        last = one_row(connection, "SELECT pg_sequence_last_value(%s::oid::regclass)", self.oid)[0]
        return self.least - 1 if last is None else int(last)


def table_oid(connection: Connection, table: TableName) -> int:
    """The table's oid; ConfigurationError unless it is a table, partitioned or not."""
    found = connection.execute(
        "SELECT c.oid, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid ="
        " c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
        [table.schema, table.name],
    ).fetchone()
    if found is None:
        raise ConfigurationError(
            f"there is no table {table} in database {connection.info.dbname!r}; names are matched "
            "exactly, upper and lower case included"
        )
    if found[1] not in ("r", "p"):
        raise ConfigurationError(
            f"{table} is no table but a view, an index or a foreign table; name the table itself"
        )
    return int(found[0])


def sequence_of(connection: Connection, table: TableName, column: str) -> Sequence:
    """The sequence of *column*; ConfigurationError unless waiting for writers is sound with it."""
    if one_row(connection, "SELECT pg_is_in_recovery()")[0]:
        raise ConfigurationError(
            f"the address of {table} leads to a standby, which does not know the primary's running "
            f"transactions; give the primary's address, {INSTEAD}"
        )
    oid = table_oid(connection, table)
    found = _found(connection, oid, column)
    where = f"offset column {column!r} of {table}"
    if found is None:
        raise ConfigurationError(
            f"{where} has no sequence, so it is not known which numbers are yet to come; make it "
            f"GENERATED ALWAYS AS IDENTITY, {INSTEAD}"
        )
    sequence, name, cache, increment, cycles, least = found
    if cache > 1:
        raise ConfigurationError(
            f"sequence {name} of {where} has CACHE {cache}, so sessions take numbers long before "
            f"they write rows; ALTER SEQUENCE {name} CACHE 1 and have all sessions connect anew, "
            f"{INSTEAD}"
        )
    if increment < 0 or cycles or least < 0:
        raise ConfigurationError(
            f"sequence {name} of {where} has numbers that fall, come again or are below 0; it has "
            "to grow from 0 or more, without CYCLE"
        )
    may_look = one_row(connection, "SELECT has_sequence_privilege(%s::oid, 'SELECT')", sequence)[0]
    if not may_look:
        raise ConfigurationError(
            f"the role may not look at sequence {name} of {where}; GRANT SELECT ON SEQUENCE {name}"
        )
    return Sequence(sequence, oid, least)


def check_numbered(connection: Connection, table: TableName, column: str) -> None:
    """Raises ConfigurationError for rows whose number is null: they would never be read."""
    from psycopg.sql import SQL, Identifier

    (is_not_null,) = one_row(
        connection,
        "SELECT attnotnull FROM pg_attribute WHERE attrelid = %s AND attname = %s",
        table_oid(connection, table),
        column,
    )
    if is_not_null:
        return
    query = SQL("SELECT EXISTS (SELECT FROM {} WHERE {} IS NULL)")
    if one_row(connection, query.format(table.sql, Identifier(column)))[0]:
        raise ConfigurationError(
            f"table {table} has rows whose {column!r} is null, which are never read; number "
            "them, and make the column NOT NULL"
        )


def sequence_oid(connection: Connection, table: int, column: str) -> int | None:
    """The oid of the sequence that numbers *column*, if there is one; *table* is an oid."""
    found = _found(connection, table, column)
    return None if found is None else int(found[0])


def _found(connection: Connection, table: int, column: str) -> tuple[Any, ...] | None:
    return connection.execute(FIND, {"table": table, "column": column}).fetchone()
