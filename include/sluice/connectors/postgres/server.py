"""A PostgreSQL server: sessions of one transaction, and what its catalog knows of a table.

A session's settings are for its transaction only, so that it works behind a pooler that assigns a
connection per transaction.  Errors of the server become those of sluice, and no message shows the
address's password.

Of the catalog: a table's name and oid, its identity, by which a replaced table is noticed, the
place in the server's write-ahead log, by which a server that lacks commits is, and the sequence
that numbers its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from sluice.declaration.places import Dataset
from sluice.errors import ConfigurationError, ProtocolViolation, SluiceError, StoreUnavailable
from sluice.extras import require_installed

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed, Identifier

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

CONNECT_TIMEOUT_S = 10  # Unless the address has its own; after it the task is retried.

_ADDRESS = {"host": "localhost", "port": "5432", "dbname": ""}  # What libpq takes for none.

# Errors that may pass, by class or code of SQLSTATE (PostgreSQL's appendix A): connections,
# transactions rolled back, resources, objects in use, operator intervention, the system, a server
# that became a standby, and internal errors.
_TRANSIENT_CLASSES = ("08", "40", "53", "55", "57", "58", "XX")
_TRANSIENT_CODES = ("25006", "25P03", "25P04")
# Errors before a session exists have no SQLSTATE in libpq, only text.
_REFUSALS = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table by schema and name, both exactly as in the catalog."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql(self) -> Identifier:
        from psycopg.sql import Identifier

        return Identifier(self.schema, self.name)

    def beside(self, name: str) -> TableName:
        """Another table of the same schema."""
        return TableName(self.schema, name)


def table_name(text: str) -> TableName:
    """Raises ConfigurationError unless *text* is ``schema.table``."""
    schema, separator, name = text.partition(".")
    if not (separator and schema and name) or '"' in text:
        raise ConfigurationError(
            f"the table {text!r} is not written with its schema; write it as public.orders, "
            "without quotes and with the letters' case that the table has"
        )
    return TableName(schema, name)


def database_of(dsn: str) -> tuple[str, ...]:
    """Host, port and database of *dsn*, however it is written; *dsn* itself where it is no address,
    or libpq is not installed.
    """
    try:
        from psycopg import Error
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        return (dsn,)
    try:
        given = conninfo_to_dict(dsn)
    except Error:
        return (dsn,)
    return tuple(str(given.get(part) or usual) for part, usual in _ADDRESS.items())


def dataset_of(dsn: str, table: str) -> Dataset:
    """The table as OpenLineage names it."""
    address = database_of(dsn)
    if len(address) == 1:
        return Dataset("postgres", table)
    host, port, database = address
    return Dataset(f"postgres://{host}:{port}", f"{database}.{table}")


@dataclass(frozen=True, slots=True)
class Server:
    """The server at *dsn*, a libpq connection string or URI.  Messages begin with *who*."""

    dsn: str = field(repr=False)
    who: str

    @contextmanager
    def session(
        self, *, read_only: bool = False, locked: TableName | None = None
    ) -> Iterator[Connection]:
        """One transaction, read committed, that commits at the end of the block without an error.

        With *locked*, a table, it has one snapshot, and nobody truncates the table from before that
        on.

        Raises:
            ConfigurationError: the address, a name, a privilege or a value is wrong.
            StoreUnavailable: the server does not answer, or the answer to COMMIT was lost.
        """
        require_installed("psycopg", who=self.who)
        import psycopg

        with self.errors():
            options = self._parsed()
            with psycopg.connect(
                self.dsn,
                prepare_threshold=None,
                connect_timeout=options.get("connect_timeout", CONNECT_TIMEOUT_S),
                client_encoding="UTF8",
                application_name=options.get("application_name", "sluice"),
            ) as connection:
                levels = psycopg.IsolationLevel
                connection.isolation_level = (
                    levels.REPEATABLE_READ if locked else levels.READ_COMMITTED
                )
                connection.read_only = read_only
                if locked is not None:  # Before the first query, which takes the snapshot.
                    lock = psycopg.sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE")
                    connection.execute(lock.format(locked.sql))
                connection.execute(
                    "SELECT set_config('TimeZone', 'UTC', true),"
                    " set_config('DateStyle', 'ISO, YMD', true),"
                    " set_config('extra_float_digits', '1', true),"
                    " set_config('bytea_output', 'hex', true)"
                )
                yield connection

    def timeline_history(self, timeline: int) -> str:
        """The history file of *timeline*; the role has to have REPLICATION."""
        import psycopg

        with (
            self.errors(),
            psycopg.connect(
                self.dsn,
                autocommit=True,
                replication="database",  # A session that takes commands of the protocol.
                connect_timeout=self._parsed().get("connect_timeout", CONNECT_TIMEOUT_S),
            ) as connection,
        ):
            _, content = one_row(connection, f"TIMELINE_HISTORY {timeline}")
        return bytes(content).decode() if not isinstance(content, str) else content

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate psycopg's errors into those of sluice."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            raise self._translated(error) from None

    def _translated(self, error: psycopg.Error) -> SluiceError:
        import psycopg

        text = self._without_password(str(error).strip())
        code = error.sqlstate
        if code is None:
            is_refused = any(refusal in text for refusal in _REFUSALS)
            if isinstance(error, psycopg.OperationalError) and not is_refused:
                return StoreUnavailable(f"{self.who}: PostgreSQL did not answer: {text}")
            return ConfigurationError(f"{self.who}: PostgreSQL refuses: {text}")
        if code.startswith(_TRANSIENT_CLASSES) or code in _TRANSIENT_CODES:
            return StoreUnavailable(f"{self.who}: PostgreSQL could not ({code}): {text}")
        hint = "; GRANT what is missing to its role" if code == "42501" else ""
        return ConfigurationError(f"{self.who}: PostgreSQL refuses ({code}): {text}{hint}")

    def _without_password(self, text: str) -> str:
        password = str(self._parsed().get("password") or "")
        return text.replace(password, "***") if password else text

    def _parsed(self) -> dict[str, Any]:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        try:
            return dict(conninfo_to_dict(self.dsn))
        except psycopg.ProgrammingError:  # The original message quotes the address.
            raise ConfigurationError(
                f"{self.who}: the address is no PostgreSQL connection string (not shown, as it "
                "may hold a password); write postgresql://user:password@host:5432/database"
            ) from None


def one_row(connection: Connection, statement: str | Composed, *values: object) -> tuple[Any, ...]:
    """The only row of *statement*'s result."""
    # Without parameters "%" is an ordinary character.
    row = connection.execute(statement, values or None).fetchone()
    assert row is not None, "the statement has a row whatever there is"
    return row


def check_encoding(connection: Connection, who: str) -> None:
    """Raises ConfigurationError for a database whose text cannot be read as UTF-8."""
    if one_row(connection, "SHOW server_encoding")[0] == "SQL_ASCII":
        raise ConfigurationError(
            f"{who}: the database's encoding is SQL_ASCII, which does not say what its letters "
            "are; use a database of another encoding, as UTF8"
        )


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


def check_row_security(connection: Connection, table: TableName, why: str) -> None:
    """Raises ConfigurationError if policies of the table say which of its rows the role sees.

    They may change at any time, and depend on settings of a session.  *why* says what goes wrong.
    """
    (is_active,) = one_row(
        connection,
        "SELECT row_security_active(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid ="
        " c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
        table.schema,
        table.name,
    )
    if is_active:
        role = connection.info.user
        raise ConfigurationError(
            f"row level security of table {table} hides rows from role {role!r}, {why}; give the "
            "role BYPASSRLS, or use the table's owner, unless row security is forced on it, too"
        )


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """The identity of a table beside its name: the database, its oid, and its files.

    DROP and CREATE make another table.  TRUNCATE gives the table, or each of its partitions,
    another file and, with RESTART IDENTITY, its sequence, too.  VACUUM FULL rewrites only the
    table's file and ALTER SEQUENCE only the sequence's, and neither changes rows.  Identities of
    different databases cannot be compared.

    ``database`` is the server's system identifier and the database's oid; ``file`` is the table's,
    or that of its oldest partition; ``sequence_file`` is 0 if no sequence numbers the rows.
    """

    database: str
    table: int
    file: int
    sequence_file: int

    def is_other_than(self, before: TableIdentity) -> bool:
        """Whether the table was replaced or truncated since *before*: its numbers may repeat."""
        if self.database != before.database:
            return False
        is_emptied = self.file != before.file
        return self.table != before.table or (
            is_emptied and self.sequence_file != before.sequence_file
        )

    def __str__(self) -> str:
        return f"{self.database}/{self.table}/{self.file}/{self.sequence_file}"


@dataclass(frozen=True, slots=True)
class WalPosition:
    """A place in the write-ahead log: ``lsn``, a number of bytes, on ``timeline``.

    All that a session saw before it asked for the place was committed before it.  A promotion
    begins another timeline, at the end of what the promoted server had of the one before
    (PostgreSQL's "Timelines").
    """

    timeline: int
    lsn: int

    def is_on(self, now: WalPosition, history: Mapping[int, int]) -> bool:
        """Whether the log that ends at *now* has all up to here.

        *history* has, for each timeline before that of *now*, the place at which it was left.
        """
        end = now.lsn if now.timeline == self.timeline else history.get(self.timeline, -1)
        return self.lsn <= end

    def __str__(self) -> str:
        return f"{self.timeline}@{self.lsn >> 32:X}/{self.lsn & 0xFFFFFFFF:X}"


NO_WAL = "-"  # A standby does not say on which timeline it is.


def parsed_wal(text: str) -> WalPosition | None:
    """The place that ``str`` wrote, None for ``NO_WAL``.  Raises ProtocolViolation for others."""
    if text == NO_WAL:
        return None
    try:
        timeline, _, lsn = text.partition("@")
        high, low = lsn.split("/")
        return WalPosition(int(timeline), (int(high, 16) << 32) + int(low, 16))
    except ValueError:
        raise ProtocolViolation(f"{text!r} is no place in a write-ahead log") from None


_FIND_WAL = """
SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_insert_lsn()) END,
    CASE WHEN NOT pg_is_in_recovery()
        THEN pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint END
"""


def wal_position_of(connection: Connection) -> WalPosition | None:
    """The end of the server's log; None on a standby.

    The name of a log file begins with the timeline on which the server writes.  The control file
    says it, too, but only from the first checkpoint after a promotion on.
    """
    file, lsn = one_row(connection, _FIND_WAL)
    return None if file is None else WalPosition(int(file[:8], 16), int(lsn))


_HISTORY_RIGHTS = """
SELECT has_function_privilege('pg_read_file(text)', 'EXECUTE'),
    (SELECT rolreplication FROM pg_roles WHERE rolname = current_user)
"""


def history_of(server: Server, connection: Connection, timeline: int) -> Mapping[int, int] | None:
    """The timelines before *timeline*, each with the place at which it was left.

    None if the role may not know: it may if it may execute ``pg_read_file``, or replicate.
    """
    if timeline == 1:
        return {}  # The first one has no history.
    may_read, may_replicate = one_row(connection, _HISTORY_RIGHTS)
    if may_read:
        (text,) = one_row(connection, "SELECT pg_read_file(%s)", f"pg_wal/{timeline:08X}.history")
    elif may_replicate:
        text = server.timeline_history(timeline)
    else:
        return None
    return parsed_history(text)


def parsed_history(text: str) -> Mapping[int, int]:
    """By timeline of a history file, the place at which it was left."""
    lines = (line.split() for line in text.splitlines())
    places = (f"{line[0]}@{line[1]}" for line in lines if line and line[0].isdecimal())
    return {place.timeline: place.lsn for place in map(parsed_wal, places) if place is not None}


_FIND_IDENTITY = """
SELECT (SELECT system_identifier FROM pg_control_system()),
    (SELECT oid FROM pg_database WHERE datname = current_database()),
    coalesce(
        (SELECT min(pg_relation_filenode(relid)) FROM pg_partition_tree(%s::oid::regclass)
            WHERE isleaf),
        pg_relation_filenode(%s::oid::regclass), 0)::bigint,
    coalesce(pg_relation_filenode(%s::oid::regclass), 0)::bigint
"""


def identity_of(connection: Connection, table: TableName, column: str) -> TableIdentity:
    """The identity of *table*, whose rows *column* numbers."""
    oid = table_oid(connection, table)
    found = _sequence_row(connection, oid, column)
    sequence = None if found is None else found[0]
    system, database, *files = one_row(connection, _FIND_IDENTITY, oid, oid, sequence)
    return TableIdentity(f"{system}/{database}", oid, *files)


def parsed_identity(text: str) -> TableIdentity:
    """The identity that ``str`` wrote.  Raises ProtocolViolation for any other text."""
    try:
        database, table, file, sequence_file = text.rsplit("/", 3)
        return TableIdentity(database, int(table), int(file), int(sequence_file))
    except ValueError:
        raise ProtocolViolation(f"{text!r} is no table's identity") from None


@dataclass(frozen=True, slots=True)
class Sequence:
    """The sequence *oid* that numbers the rows of the table *table_oid*."""

    oid: int
    table_oid: int
    least: int

    def last_value(self, connection: Connection) -> int:
        """The largest number that was taken; one less than the smallest if none was."""
        last = one_row(connection, "SELECT pg_sequence_last_value(%s::oid::regclass)", self.oid)[0]
        return self.least - 1 if last is None else int(last)


_OR_LAG = "or declare late_commits=timedelta(...) with a lag_column"


def sequence_of(connection: Connection, table: TableName, column: str) -> Sequence:
    """The sequence of *column*; ConfigurationError unless waiting for writers is sound with it."""
    if one_row(connection, "SELECT pg_is_in_recovery()")[0]:
        raise ConfigurationError(
            f"the address of {table} leads to a standby, which does not know the primary's running "
            f"transactions; give the primary's address, {_OR_LAG}"
        )
    oid = table_oid(connection, table)
    found = _sequence_row(connection, oid, column)
    where = f"offset column {column!r} of {table}"
    if found is None:
        raise ConfigurationError(
            f"{where} has no sequence, so it is not known which numbers are yet to come; make it "
            f"GENERATED ALWAYS AS IDENTITY, {_OR_LAG}"
        )
    sequence, name, cache, increment, cycles, least = found
    if cache > 1:
        raise ConfigurationError(
            f"sequence {name} of {where} has CACHE {cache}, so sessions take numbers long before "
            f"they write rows; ALTER SEQUENCE {name} CACHE 1 and have all sessions connect anew, "
            f"{_OR_LAG}"
        )
    if increment < 0 or cycles or least < 0:
        raise ConfigurationError(
            f"sequence {name} of {where} has numbers that fall, come again or are below 0; it has "
            "to grow from 0 or more, without CYCLE"
        )
    if not one_row(connection, "SELECT has_sequence_privilege(%s::oid, 'SELECT')", sequence)[0]:
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


# The sequence that the column owns (serial, identity), or that its default names.
_FIND_SEQUENCE = """
SELECT s.seqrelid::oid, s.seqrelid::regclass::text, s.seqcache, s.seqincrement, s.seqcycle, s.seqmin
FROM pg_attribute a JOIN pg_sequence s ON s.seqrelid = coalesce(
    pg_get_serial_sequence(%(table)s::oid::regclass::text, a.attname)::regclass,
    (SELECT d.refobjid FROM pg_attrdef f
        JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
        JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid
        WHERE f.adrelid = a.attrelid AND f.adnum = a.attnum AND c.relkind = 'S' LIMIT 1))
WHERE a.attrelid = %(table)s AND a.attname = %(column)s
"""


def _sequence_row(connection: Connection, table: int, column: str) -> tuple[Any, ...] | None:
    return connection.execute(_FIND_SEQUENCE, {"table": table, "column": column}).fetchone()
