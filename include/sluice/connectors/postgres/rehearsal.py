"""The rehearsal of a commit: whether a table takes the values of rows that are staged.

The rows go into a temporary table that has the types and constraints of the real one, in a
transaction that is rolled back: what the server says of them there, it would say at the commit,
when the checkpoint could not be aborted any more.  What lies between rows, unique indexes, foreign
keys and partitions, is asked of the temporary table and the real ones.  The real table is only
read.

Not tried: what triggers do, exclusion constraints, foreign keys of other tables to this one, and
the unique indexes of a table that is upserted into.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.postgres.rules import Rule, TableRules
from sluice.connectors.postgres.server import Connection, TableName, one_row
from sluice.connectors.postgres.writing import copy_in
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg.sql import SQL, Composable, Composed, Identifier

TEMPORARY = "sluice_rehearsal"
_COLUMN = re.compile(r"COPY .+?, line \d+, column (?P<name>.+?)(?::|$)", re.DOTALL)
_VALUE = re.compile(r': ".*"$', re.DOTALL)  # Messages name no values.
_OF_VALUES = ("22", "23")  # SQLSTATE's data exceptions, and integrity constraint violations.


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Of the rows of *checkpoint_id*, which have *columns*, for *table*, which demands *rules*."""

    table: TableName
    rules: TableRules
    checkpoint_id: int
    columns: tuple[str, ...]

    def play(self, connection: Connection, tables: Iterable[pa.Table]) -> None:
        """Try the rows of *tables*, in a transaction that the caller rolls back.

        Raises:
            ConfigurationError: the table would refuse one; it names the column or the constraint.
        """
        import psycopg

        self._make(connection)
        try:
            copy_in(connection, self._there, tables)
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(_OF_VALUES):
                raise
            raise self._refused(*self._told(error.diag)) from None
        connection.execute(_sql("ANALYZE {}").format(self._there))
        self._try_partitions(connection)
        for rule in self.rules.of("unique"):
            self._try_unique(connection, rule)
        for rule in self.rules.of("foreign"):
            self._try_foreign(connection, rule)

    @property
    def _there(self) -> Identifier:
        from psycopg.sql import Identifier

        return Identifier("pg_temp", TEMPORARY)

    def _make(self, connection: Connection) -> None:
        """It takes no number of a sequence for columns that the rows do not have."""
        from psycopg.sql import Identifier

        connection.execute(
            _sql(
                "CREATE TEMP TABLE {} (LIKE {} INCLUDING CONSTRAINTS INCLUDING DEFAULTS INCLUDING"
                " GENERATED) ON COMMIT DROP"
            ).format(self._there, self.table.sql)
        )
        for name in {*self.rules.names("numbered")} - {*self.columns}:
            free = _sql("ALTER TABLE {0} ALTER {1} DROP DEFAULT, ALTER {1} DROP NOT NULL")
            connection.execute(free.format(self._there, Identifier(name)))

    def _try_partitions(self, connection: Connection) -> None:
        partitions = self.rules.of("partition")
        if not partitions:
            return
        fits = _sql(" OR ").join([_sql("({})").format(_sql(one.said)) for one in partitions])
        count = self._count(
            connection, _sql("SELECT FROM {} WHERE NOT coalesce({}, false)"), self._there, fits
        )
        if count:
            raise self._refused(
                f"rows ({count}) would be in none of its partitions", "create one for them"
            )

    def _try_unique(self, connection: Connection, rule: Rule) -> None:
        """Against each other, and against the rows that are there."""
        keys = [_sql("k{}").format(_sql(str(number))) for number in range(len(rule.parts))]
        has_key = _sql(" AND ").join([_sql("{} IS NOT NULL").format(key) for key in keys])
        own = self._keys(rule, self._there)
        twice = self._count(
            connection,
            _sql("SELECT FROM ({}) o WHERE {} GROUP BY {} HAVING count(*) > 1"),
            own,
            _sql("true") if rule.is_strict else has_key,
            _sql(", ").join(keys),
        )
        shown = f"unique index {rule.name!r} ({', '.join(rule.parts)})"
        fix = "leave doubles out in the stage, declare upsert_key, or drop the index"
        if twice:
            raise self._refused(f"keys of {shown} come more than once in them ({twice} do)", fix)
        equal = "o.{0} IS NOT DISTINCT FROM t.{0}" if rule.is_strict else "o.{0} = t.{0}"
        count = self._count(
            connection,
            _sql("SELECT FROM ({}) o WHERE EXISTS (SELECT FROM ({}) t WHERE {})"),
            own,
            self._keys(rule, self.table.sql),
            _sql(" AND ").join([_sql(equal).format(key) for key in keys]),
        )
        if count:
            raise self._refused(f"keys of {shown} are there already ({count} are)", fix)

    def _keys(self, rule: Rule, of: Identifier) -> Composed:
        """What the index *rule* has of the rows of a table: its own columns or expressions."""
        keys = [_sql(f"{{}} AS k{number}").format(_sql(p)) for number, p in enumerate(rule.parts)]
        return _sql("SELECT {} FROM {} WHERE {}").format(
            _sql(", ").join(keys), of, _sql(rule.said or "true")
        )

    def _try_foreign(self, connection: Connection, rule: Rule) -> None:
        """A row may refer to one of the same checkpoint, where the table refers to itself."""
        from psycopg.sql import Identifier

        pairs = [*zip(map(Identifier, rule.parts), map(Identifier, rule.others), strict=True)]
        same = _sql(" AND ").join([_sql("r.{} = o.{}").format(other, one) for one, other in pairs])
        is_here = _sql("EXISTS (SELECT FROM {} r WHERE {})")
        known = is_here.format(_sql(rule.said) if rule.said else self.table.sql, same)
        if not rule.said:
            known += _sql(" OR ") + is_here.format(self._there, same)
        nulls = [_sql("o.{} IS NULL").format(one) for one, _ in pairs]
        excused = _sql(" AND " if rule.is_strict else " OR ").join(nulls)
        count = self._count(
            connection,
            _sql("SELECT FROM {} o WHERE NOT ({}) AND NOT ({})"),
            self._there,
            excused,
            known,
        )
        if count:
            raise self._refused(
                f"rows ({count}) refer to no row of {rule.said or self.table} by "
                f"({', '.join(rule.parts)}), which foreign key {rule.name!r} demands",
                "have those rows there first, or drop the constraint",
            )

    def _count(self, connection: Connection, statement: SQL, *parts: Composable) -> int:
        found = _sql("SELECT count(*) FROM ({}) f").format(statement.format(*parts))
        return int(one_row(connection, found)[0])

    def _told(self, diag: psycopg.errors.Diagnostic) -> tuple[str, str]:
        """What the server refused in the temporary table, and what to do."""
        said = _VALUE.sub("", diag.message_primary or "")
        column = diag.column_name or ""
        if not column and (found := _COLUMN.search(diag.context or "")) is not None:
            column = found["name"].strip('"')
        types = {rule.name: rule.said for rule in self.rules.of("type")}
        checks = {rule.name: rule.said for rule in self.rules.of("check")}
        constraint = diag.constraint_name or ""
        if constraint in checks:
            return (
                f"one violates constraint {constraint!r}, {checks[constraint]}",
                "leave such rows out in the stage, or change the constraint",
            )
        if diag.sqlstate == "23502":
            return (
                f"one has no value in column {column!r}, which is NOT NULL",
                "fill it in the stage, or make the column nullable",
            )
        shown = f" ({types[column]})" if column in types else ""
        return (
            f"one has a value in column {column!r}{shown} that it does not take: {said}",
            "mend it in the stage, or alter the column",
        )

    def _refused(self, what: str, fix: str) -> ConfigurationError:
        return ConfigurationError(
            f"table {self.table} would refuse the rows of checkpoint {self.checkpoint_id}: {what}; "
            f"{fix}"
        )


def _sql(text: str) -> SQL:
    """SQL that the catalog or this module has written."""
    from psycopg.sql import SQL

    return SQL(text)
