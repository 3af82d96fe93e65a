"""``Server``: sessions of one transaction on a PostgreSQL server, and its translated errors.

A session's settings are for its transaction only, so that it works behind a pooler that assigns a
connection per transaction.  No message shows the address's password.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from sluice.errors import ConfigurationError, SluiceError, StoreUnavailable
from sluice.extras import require

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed, Identifier

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

CONNECT_TIMEOUT_S = 10  # Unless the address has its own; after it the task is retried.

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


@dataclass(frozen=True, slots=True)
class Server:
    """The server at *dsn*, a libpq connection string or URI.  Messages begin with *who*."""

    dsn: str = field(repr=False)
    who: str

    @contextmanager
    def session(self, *, read_only: bool = False) -> Iterator[Connection]:
        """One transaction, read committed, that commits at the end of the block without an error.

        Raises:
            ConfigurationError: the address, a name, a privilege or a value is wrong.
            StoreUnavailable: the server does not answer, or the answer to COMMIT was lost.
        """
        require("psycopg", who=self.who)
        import psycopg

        with self.errors():
            given = self._parsed()
            timeout = given.get("connect_timeout", CONNECT_TIMEOUT_S)
            with psycopg.connect(
                self.dsn,
                prepare_threshold=None,
                connect_timeout=timeout,
                client_encoding="UTF8",
                application_name=given.get("application_name", "sluice"),
            ) as connection:
                connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                connection.read_only = read_only
                connection.execute(
                    "SELECT set_config('TimeZone', 'UTC', true),"
                    " set_config('DateStyle', 'ISO, YMD', true),"
                    " set_config('extra_float_digits', '1', true)"
                )
                yield connection

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

        said = self._without_password(str(error).strip())
        code = error.sqlstate
        if code is None:
            is_refused = any(refusal in said for refusal in _REFUSALS)
            if isinstance(error, psycopg.OperationalError) and not is_refused:
                return StoreUnavailable(f"{self.who}: PostgreSQL did not answer: {said}")
            return ConfigurationError(f"{self.who}: PostgreSQL refuses: {said}")
        if code.startswith(_TRANSIENT_CLASSES) or code in _TRANSIENT_CODES:
            return StoreUnavailable(f"{self.who}: PostgreSQL could not ({code}): {said}")
        hint = "; GRANT what is missing to its role" if code == "42501" else ""
        return ConfigurationError(f"{self.who}: PostgreSQL refuses ({code}): {said}{hint}")

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
