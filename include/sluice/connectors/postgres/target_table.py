"""``TargetTable``: the table that a sink writes, and the check that rows fit it.

It is checked before a checkpoint completes, and again in the transaction that writes.
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
    """*table* with the options of its sink; see ``PostgresTarget``."""

    table: TableName
    upsert_key: tuple[str, ...] = ()
    checkpoint_column: str | None = None
    creates: bool = False

    def check(self, connection: Connection, schema: pa.Schema) -> None:
        """Check that rows of *schema* can be written; a table that does not exist yet accepts all.

        Raises:
            ConfigurationError: they cannot; it names the column and the fix.
        """
        self.stamped(schema)
        there = self.columns(connection)
        if there:
            self.check_rows(there, schema)

    def columns(self, connection: Connection) -> dict[str, Column]:
        """The table's columns; empty if it is still to be created.

        Raises:
            ConfigurationError: the table, or its key or checkpoint column, is missing or unfit.
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
        """Check that a table of these columns accepts rows of *schema*, before they are stamped."""
        check_columns(self.table, there, self.stamped(schema))

    def check_keys(self, there: Mapping[str, Column], schema: pa.Schema) -> None:
        """Check that a table of these columns accepts deletes, which have only the key."""
        check_columns(self.table, {name: there[name] for name in self.upsert_key}, schema)

    def stamped(self, schema: pa.Schema) -> pa.Schema:
        """*schema* with the checkpoint column, if one is declared.

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
        """Create the table for rows of *schema*, unless it exists."""
        # Under a lock, as concurrent CREATE ... IF NOT EXISTS would fail.
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
