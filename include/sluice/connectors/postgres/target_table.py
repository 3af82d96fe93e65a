"""The table that a sink writes: what it is made of, and whether rows fit it.

It is looked at before a checkpoint completes, and again in the transaction that writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.postgres.columns import (
    Column,
    check_columns,
    columns_of,
    has_unique_index,
    postgres_type,
)
from sluice.connectors.postgres.ledger import one_at_a_time
from sluice.connectors.postgres.server import Connection, TableName
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg.sql import Composed


@dataclass(frozen=True, slots=True)
class TargetTable:
    """*table* with what its sink declares; see ``PostgresTarget``."""

    table: TableName
    upsert_key: tuple[str, ...] = ()
    checkpoint_column: str | None = None
    creates: bool = False

    def check(self, connection: Connection, schema: pa.Schema) -> None:
        """Whether rows of *schema* can be written; a table that is still to be made takes them.

        Raises:
            ConfigurationError: they cannot; it names the column and what to do.
        """
        self.stamped(schema)
        there = self.columns(connection)
        if there:
            self.check_rows(there, schema)

    def columns(self, connection: Connection) -> dict[str, Column]:
        """Empty when it is still to be made.

        Raises:
            ConfigurationError: there is no table; or its key, or its checkpoint column, is none.
        """
        there = columns_of(connection, self.table)
        if not there:
            if self.creates:
                return {}
            raise ConfigurationError(
                f"there is no table {self.table} in database {connection.info.dbname!r}; make it, "
                "or declare create=True"
            )
        if self.upsert_key:
            self._check_key(connection, there)
        stamp = there.get(self.checkpoint_column or "")
        if self.checkpoint_column is not None and (stamp is None or stamp.type != "int8"):
            raise ConfigurationError(
                f"table {self.table} has no bigint column {self.checkpoint_column!r}, which is "
                f"declared as checkpoint_column; ALTER TABLE {self.table} ADD COLUMN it"
            )
        return there

    def check_rows(self, there: Mapping[str, Column], schema: pa.Schema) -> None:
        """Whether a table of these columns takes rows of *schema*, before they are stamped."""
        check_columns(self.table, there, self.stamped(schema))

    def check_keys(self, there: Mapping[str, Column], schema: pa.Schema) -> None:
        """The same of rows that are deleted, of which only the key is there."""
        check_columns(self.table, {name: there[name] for name in self.upsert_key}, schema)

    def stamped(self, schema: pa.Schema) -> pa.Schema:
        """With the checkpoint column, if there is one.

        Raises:
            ConfigurationError: the rows have a column of that name themselves.
        """
        import pyarrow as pa

        if self.checkpoint_column is None:
            return schema
        if self.checkpoint_column in schema.names:
            raise ConfigurationError(
                f"the rows for table {self.table} have a column {self.checkpoint_column!r} "
                "already, which is declared as checkpoint_column; name one that they have not"
            )
        return schema.append(pa.field(self.checkpoint_column, pa.int64()))

    def make(self, connection: Connection, schema: pa.Schema) -> None:
        """Create it for rows of *schema*, unless it is there."""
        # Another sink may make it, too, and IF NOT EXISTS alone would fail then.
        one_at_a_time(connection, f"create {self.table}")
        connection.execute(self._create(self.stamped(schema)))

    def _check_key(self, connection: Connection, there: Mapping[str, Column]) -> None:
        named = ", ".join(self.upsert_key)
        if missing := [name for name in self.upsert_key if name not in there]:
            raise ConfigurationError(
                f"table {self.table} has no column {missing[0]!r}, by which the sink upserts; it "
                f"has {', '.join(there)}; give it its name back, or declare another upsert_key"
            )
        if not has_unique_index(connection, self.table, self.upsert_key):
            raise ConfigurationError(
                f"table {self.table} has no unique index on exactly ({named}), by which the sink "
                f"upserts; CREATE UNIQUE INDEX ON {self.table} ({named}), without a condition"
            )
        if nullable := [name for name in self.upsert_key if there[name].is_nullable]:
            raise ConfigurationError(
                f"column {nullable[0]!r} of table {self.table} is part of the upsert key and may "
                f"be null, and nulls are never equal; ALTER TABLE {self.table} ALTER COLUMN "
                f"{nullable[0]} SET NOT NULL"
            )

    def _create(self, schema: pa.Schema) -> Composed:
        from psycopg.sql import SQL, Identifier

        types = {field.name: postgres_type(field.type) for field in schema}
        parts = [SQL("{} {}").format(Identifier(name), SQL(type_)) for name, type_ in types.items()]
        if self.upsert_key:
            key = SQL(", ").join([Identifier(name) for name in self.upsert_key])
            parts.append(SQL("PRIMARY KEY ({})").format(key))
        return SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
            self.table.sql, SQL(", ").join(parts)
        )
