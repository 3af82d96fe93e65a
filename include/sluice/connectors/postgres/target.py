"""A table into which a checkpoint's rows are written, in one transaction with its note.

Appended rows are copied straight into the table; rows with a key are copied into a temporary table,
from which one statement deletes and one upserts.

Rows of which the table would refuse one are refused before their checkpoint completes: columns and
types are compared, where a type fits if all of its values do, and values are rehearsed.  Columns
and types are compared again in the transaction that writes, as the table may have changed.

The rehearsal puts the rows into a temporary table that has the types and constraints of the real
one, in a transaction that is rolled back: what the server refuses there, it would refuse at the
commit, when the checkpoint could not be aborted any more.  What holds between rows (unique indexes,
foreign keys and partitions) is compared by queries of the temporary table and the real ones.  The
real table is only read.

A column may also take a value and keep less of it: ``varchar(n)`` cuts blanks, ``timestamptz(0)``
rounds.  And a key may be equal, to the table, to another one that is a key of its own to the rows:
a ``uuid`` in capitals.  ``Kept`` is what the table makes of such values, and rows of which it makes
something else are refused.

Not tried: what triggers do, exclusion constraints, foreign keys of other tables to this one, and
the unique indexes of a table that is upserted into.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypeAlias

from sluice.connectors.columns import check_no_null_keys, is_bytes, is_text
from sluice.connectors.postgres.copy import (
    TEXT_TYPES,
    check_nested_types,
    check_values,
    copy_in,
    numeric_digits,
    numeric_typmod,
)
from sluice.connectors.postgres.ledger import LEDGER, Ledger, TableRow, one_at_a_time
from sluice.connectors.postgres.server import (
    Connection,
    Server,
    TableName,
    check_encoding,
    check_row_security,
    one_row,
)
from sluice.connectors.staged_sink import errors_of_place
from sluice.core.timeline import Recovery, Timeline, Writer
from sluice.declaration.places import DELETED, RollBack
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg.sql import SQL, Composed, Identifier

    from sluice.connectors.staged_sink import EpochRows


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
        """Values are tried only where the table has rules of its own for them, or may change them.

        A table that is still to be made is judged as it will be.
        """
        with self.server.session(read_only=True) as connection:
            check_encoding(connection, self.server.who)
            if self.creates and self.ledger.exists(connection):
                self._check_not_gone(connection, self.ledger.row(connection))
            stamped = self._stamped_schema(schema)
            columns = self._columns(connection) or columns_to_be(stamped)
            check_column_types(self.table, columns, stamped)
            check_keys_are_told_apart(self.table, columns, self._key_of(schema))
            kept = [*kept_of(self.table, columns, stamped, self.upsert_key)]
            rules = rules_of(connection, self.table)
        rules = rules.applicable(upserts=bool(self.upsert_key), columns=stamped.names)
        required = [name for name in rules.names("required") if name in schema.names]
        can_refuse = any(rule.can_refuse(stamped) for rule in rules.rules)
        if not (kept or can_refuse or rows.has_nulls(required)):
            return
        checkpoint_id = rows.checkpoint_id or 0
        rehearsal = Rehearsal(self.table, rules, checkpoint_id, tuple(stamped.names), tuple(kept))
        with self.server.session() as connection:
            self._prepare(connection)
            rehearsal.play(connection, self._stamped(rows.upserts(), checkpoint_id))
            connection.rollback()

    def check_columns(self, schema: pa.Schema) -> None:
        """See ``RowChecks``; which columns there may be the database alone knows."""

    def check_rows(self, rows: pa.Table) -> None:
        """A key's columns are NOT NULL, also those of a table that is still to be made."""
        check_values(rows)
        if DELETED not in rows.column_names:
            fix = "fill it in the stage, or leave such rows out"
            check_no_null_keys(rows, self.upsert_key, f"table {self.table}", fix)

    def publish(
        self, writer: Writer, checkpoint_id: int, parent: int | None, rows: EpochRows
    ) -> None:
        with self._locked() as connection:
            row = self.ledger.row(connection, min(parent or checkpoint_id, checkpoint_id))
            self._check_not_gone(connection, row)
            with errors_of_place(self._name):
                after = row.timeline.publishing(writer, checkpoint_id, parent)
            if after is None:
                return
            self._create(connection, rows)
            self._delete(connection, rows.deletes())
            self._write(connection, rows.upserts(), checkpoint_id)
            # A table that was seen with rows and is empty was emptied, by a delete or by somebody.
            has_rows = rows.row_count > 0 or row.had_rows
            if rows.has_deletes:
                has_rows = not self._is_empty(connection)
            self.ledger.note(connection, row, after, rows=rows.row_count, has_rows=has_rows)

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
            row = self.ledger.row(connection, recovery.version or 0)
            with errors_of_place(self._name):
                after = row.timeline.recovered(writer, recovery)
            if after is None:
                return
            ahead = tuple(row.timeline.after(recovery.version))
            if recovery.roll_back and ahead and not self._is_empty(connection):
                self._roll_back(connection, ahead)
            has_rows = not self._is_empty(connection)
            self.ledger.note(connection, row, after, has_rows=has_rows)

    def describe(self, version: int) -> str:
        return f"row {version} of table {self.table} in {self.table.beside(LEDGER)}"

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
        if not columns_of_table(connection, self.table):
            return True  # The table does not exist yet.
        return not self.ledger.has_rows(connection)

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
        connection.execute(
            SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(
                self.table.sql, Identifier(self.checkpoint_column)
            ),
            [[*ahead]],
        )

    def _create(self, connection: Connection, rows: EpochRows) -> None:
        """Create the table with the columns of *rows*, if declared, unless it exists."""
        from psycopg.sql import SQL, Identifier

        if not self.creates or columns_of_table(connection, self.table):
            return
        schema = rows.schema()
        if schema is None:
            return
        # Under a lock, as concurrent CREATE ... IF NOT EXISTS would fail.
        one_at_a_time(connection, f"create {self.table}")
        parts = [
            SQL("{} {}").format(Identifier(field.name), SQL(postgres_type(field.type)))
            for field in self._stamped_schema(schema)
        ]
        if self.upsert_key:
            key = SQL(", ").join([Identifier(name) for name in self.upsert_key])
            parts.append(SQL("PRIMARY KEY ({})").format(key))
        statement = SQL("CREATE TABLE IF NOT EXISTS {} ({})")
        connection.execute(statement.format(self.table.sql, SQL(", ").join(parts)))

    def _check_not_gone(self, connection: Connection, row: TableRow) -> None:
        """Raises ConfigurationError when a missing table is not made, or had rows before."""
        if row.is_gone and not self.creates:
            self._columns(connection)
        if row.is_gone and (count := self.ledger.row_count(connection, row)):
            raise ConfigurationError(
                f"table {self.table} is gone, and {count} rows of earlier checkpoints with it; put "
                "it back, or restore and accept tables as they are to go on without them"
            )

    def _columns(self, connection: Connection) -> dict[str, TableColumn]:
        """The table's columns; empty if it is still to be created.

        Raises:
            ConfigurationError: the table, or its key or checkpoint column, is missing or unfit.
        """
        columns = columns_of_table(connection, self.table)
        if not columns:
            if self.creates:
                return {}
            raise ConfigurationError(
                f"there is no table {self.table} in database {connection.info.dbname!r}; make it, "
                "or declare create=True"
            )
        check_row_security(connection, self.table, "which upserts and deletes would pass over")
        if self.upsert_key:
            self._check_key(connection, columns)
        stamp = columns.get(self.checkpoint_column or "")
        if self.checkpoint_column is not None and (stamp is None or stamp.type != "int8"):
            raise ConfigurationError(
                f"table {self.table} has no bigint column {self.checkpoint_column!r}, which is "
                f"declared as checkpoint_column; ALTER TABLE {self.table} ADD COLUMN it"
            )
        return columns

    def _check_key(self, connection: Connection, columns: Mapping[str, TableColumn]) -> None:
        key = ", ".join(self.upsert_key)
        if missing := [name for name in self.upsert_key if name not in columns]:
            raise ConfigurationError(
                f"table {self.table} has no column {missing[0]!r}, by which the sink upserts; it "
                f"has {', '.join(columns)}; give it its name back, or declare another upsert_key"
            )
        index = unique_index(connection, self.table, self.upsert_key)
        if index is None:
            raise ConfigurationError(
                f"table {self.table} has no unique index on exactly ({key}), by which the sink "
                f"upserts; CREATE UNIQUE INDEX ON {self.table} ({key}), without a condition"
            )
        if index.collation:
            raise ConfigurationError(
                f"unique index {index.name!r} of table {self.table}, by which the sink upserts, "
                f"has the collation {index.collation!r}, which takes different texts as one key; "
                f'create it anew with COLLATE "C"'
            )
        if nullable := [name for name in self.upsert_key if columns[name].is_nullable]:
            raise ConfigurationError(
                f"column {nullable[0]!r} of table {self.table} is part of the upsert key and may "
                f"be null, and nulls are never equal; ALTER TABLE {self.table} ALTER COLUMN "
                f"{nullable[0]} SET NOT NULL"
            )

    def _key_of(self, schema: pa.Schema) -> tuple[pa.Field, ...]:
        return tuple(schema.field(name) for name in self.upsert_key if name in schema.names)

    def _stamped_schema(self, schema: pa.Schema) -> pa.Schema:
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
        for names, temporary in self._in_temporary(connection, checked):
            connection.execute(self._upsert(names, temporary))

    def _delete(self, connection: Connection, tables: Iterable[pa.Table]) -> None:
        """Delete rows by their keys."""
        from psycopg.sql import SQL, Identifier

        keys = (table.select(list(self.upsert_key)) for table in tables)
        checked = self._checked(connection, keys, only_keys=True)
        same = SQL(" AND ").join(
            [SQL("t.{0} = d.{0}").format(Identifier(name)) for name in self.upsert_key]
        )
        delete = SQL("DELETE FROM {} t USING {} d WHERE {}")
        for _, temporary in self._in_temporary(connection, checked):
            connection.execute(delete.format(self.table.sql, temporary, same))

    def _in_temporary(
        self, connection: Connection, tables: Iterable[pa.Table]
    ) -> Iterator[tuple[list[str], Identifier]]:
        """The rows in temporary tables, one for all neighbours of one schema, with its columns."""
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
            yield schema.names, temporary
            connection.execute(SQL("DROP TABLE {}").format(temporary))

    def _upsert(self, names: list[str], temporary: Identifier) -> Composed:
        from psycopg.sql import SQL, Identifier

        changes = [
            SQL("{0} = EXCLUDED.{0}").format(Identifier(name))
            for name in names
            if name not in self.upsert_key
        ]
        return SQL("INSERT INTO {} ({names}) SELECT {names} FROM {} ON CONFLICT ({}) DO {}").format(
            self.table.sql,
            temporary,
            SQL(", ").join([Identifier(name) for name in self.upsert_key]),
            SQL("UPDATE SET {}").format(SQL(", ").join(changes)) if changes else SQL("NOTHING"),
            names=SQL(", ").join([Identifier(name) for name in names]),
        )

    def _checked(
        self, connection: Connection, tables: Iterable[pa.Table], *, only_keys: bool = False
    ) -> Iterator[pa.Table]:
        """*tables*, each compared with the target's columns before it is yielded."""
        columns: dict[str, TableColumn] = {}
        compared: list[pa.Schema] = []
        for table in tables:
            columns = columns or self._columns(connection)
            schema = table.schema
            if schema not in compared:
                if only_keys:
                    key = {name: columns[name] for name in self.upsert_key}
                    check_column_types(self.table, key, schema)
                else:
                    check_column_types(self.table, columns, self._stamped_schema(schema))
                check_keys_are_told_apart(self.table, columns, self._key_of(schema))
                compared.append(schema)
            yield table


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    type: str  # The type's name in the catalog, such as int4; of a domain, its base type.
    shown: str
    kind: str
    typmod: int
    is_required: bool = False  # NOT NULL without a default.
    is_nullable: bool = False
    is_generated: bool = False
    collation: str = ""  # Of those to which different texts may be equal.


def columns_of_table(connection: Connection, table: TableName) -> dict[str, TableColumn]:
    """The columns of a table; empty if there is no such table, or it is a view or the like."""
    found = connection.execute(
        """
        SELECT a.attname, coalesce(b.typname, t.typname), format_type(a.atttypid, a.atttypmod),
            coalesce(b.typtype, t.typtype)::text,
            CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
            a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', NOT a.attnotnull,
            a.attgenerated <> '' OR a.attidentity = 'a',
            coalesce((SELECT o.collname::text FROM pg_collation o
                WHERE o.oid = a.attcollation AND NOT o.collisdeterministic), '')
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace
            JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
        WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
            AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum
        """,
        [table.schema, table.name],
    )
    return {row[0]: TableColumn(*row) for row in found}


def columns_to_be(rows: pa.Schema) -> dict[str, TableColumn]:
    """The columns of a table that is made for *rows*."""
    columns = {}
    for field in rows:
        shown = postgres_type(field.type)
        type_, _, modifier = shown.partition("(")
        typmod = -1
        if modifier:
            precision, scale = map(int, modifier.rstrip(")").split(","))
            typmod = numeric_typmod(precision, scale)
        name = _CATALOG_NAMES.get(type_, type_)
        columns[field.name] = TableColumn(field.name, name, shown, "b", typmod)
    return columns


# The names in the catalog of types that SQL calls otherwise.
_CATALOG_NAMES = {
    "boolean": "bool",
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
}


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    name: str
    collation: str  # Of those to which different texts may be equal, or empty.


def unique_index(
    connection: Connection, table: TableName, key: Sequence[str]
) -> UniqueIndex | None:
    """The unique index that ON CONFLICT means by *key*: on these columns, and on every row.

    Of several, as each of them may find two rows equal, the first with such a collation.
    """
    found = connection.execute(
        """
        SELECT x.relname::text, coalesce((SELECT min(o.collname::text) FROM pg_collation o
            WHERE o.oid = ANY (i.indcollation::oid[]) AND NOT o.collisdeterministic), '')
        FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
            JOIN pg_class x ON x.oid = i.indexrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = %s AND i.indisunique AND i.indisvalid
            AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
            AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE "C")
                FROM unnest(i.indkey[0:i.indnkeyatts - 1]) AS k JOIN pg_attribute a
                ON a.attrelid = c.oid AND a.attnum = k) = %s::text[]
        ORDER BY 2 DESC, 1 LIMIT 1
        """,
        [table.schema, table.name, sorted(key)],
    ).fetchone()
    return None if found is None else UniqueIndex(*found)


def check_column_types(
    table: TableName, columns: Mapping[str, TableColumn], rows: pa.Schema
) -> None:
    """Raises ConfigurationError, which names column and types, unless all rows can be stored."""
    check_nested_types(rows, f"table {table}")
    for field in rows:
        column = columns.get(field.name)
        if column is None:
            raise ConfigurationError(
                f"table {table} has no column {field.name!r}, and the rows do; it has "
                f"{', '.join(columns)}; add it ({postgres_type(field.type)}) or select without it"
            )
        if column.is_generated:
            raise ConfigurationError(
                f"column {field.name!r} of table {table} is GENERATED ALWAYS and takes no "
                "values; select without it"
            )
        if not _fits(field.type, column):
            raise ConfigurationError(
                f"column {field.name!r} of table {table} is {column.shown}, and the rows have "
                f"{field.type}, which goes into {postgres_type(field.type)}; cast one of them"
            )
    if missing := [
        f"{column.name!r} ({column.shown})"
        for column in columns.values()
        if column.is_required and column.name not in rows.names
    ]:
        raise ConfigurationError(
            f"column {missing[0]} of table {table} is NOT NULL without a default, and the rows "
            f"have only {', '.join(rows.names)}; give it a default, or write it"
        )


def postgres_type(type_: pa.DataType) -> str:
    """The type of a column that is created for values of *type_*."""
    import pyarrow as pa

    plain: tuple[tuple[bool, str], ...] = (
        (pa.types.is_boolean(type_), "boolean"),
        (
            pa.types.is_int8(type_) or pa.types.is_int16(type_) or pa.types.is_uint8(type_),
            "smallint",
        ),
        (pa.types.is_int32(type_) or pa.types.is_uint16(type_), "integer"),
        (pa.types.is_int64(type_) or pa.types.is_uint32(type_), "bigint"),
        (pa.types.is_uint64(type_), "numeric(20, 0)"),
        (pa.types.is_float16(type_) or pa.types.is_float32(type_), "real"),
        (pa.types.is_float64(type_), "double precision"),
        (pa.types.is_date(type_), "date"),
        (is_bytes(type_), "bytea"),
        (pa.types.is_nested(type_), "jsonb"),
    )
    for is_of_kind, name in plain:
        if is_of_kind:
            return name
    if pa.types.is_decimal(type_):
        return f"numeric({type_.precision}, {type_.scale})"
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz is None else "timestamptz"
    return "text"


def _fits(type_: pa.DataType, column: TableColumn) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_null(type_):
        return True
    if pa.types.is_nested(type_):
        return column.type in ("json", "jsonb")
    if is_text(type_):
        return column.type in TEXT_TYPES or column.kind == "e"
    if pa.types.is_integer(type_) and column.type == "numeric":
        digits = len(str(1 << (type_.bit_width - pa.types.is_signed_integer(type_))))
        return _digits_fit(digits, 0, column)
    if pa.types.is_decimal(type_):
        return _digits_fit(type_.precision - type_.scale, type_.scale, column)
    wide_enough = {
        "smallint": ("int2", "int4", "int8"),
        "integer": ("int4", "int8"),
        "bigint": ("int8",),
        "boolean": ("bool",),
        "real": ("float4", "float8"),
        "double precision": ("float8",),
        "date": ("date",),
        "bytea": ("bytea",),
        "timestamp": ("timestamp",),
        "timestamptz": ("timestamptz",),
    }
    return column.type in wide_enough.get(postgres_type(type_), ())


def _digits_fit(before: int, after: int, column: TableColumn) -> bool:
    """Whether a column of numeric holds so many digits before and after the point."""
    if column.type != "numeric":
        return False
    if column.typmod < 0:
        return True
    precision, scale = numeric_digits(column.typmod)
    return scale >= after and precision - scale >= before


def check_keys_are_told_apart(
    table: TableName, columns: Mapping[str, TableColumn], key: Sequence[pa.Field]
) -> None:
    """Check that the table distinguishes keys that are distinct in the rows.

    ``kept_of`` has the types that distinguish some values only.

    Raises:
        ConfigurationError: a column's type distinguishes no values; it names the column and the
            fix.
    """
    for field in key:
        column = columns[field.name]
        what = f"column {field.name!r} of table {table} is part of the upsert key"
        if column.collation:
            raise ConfigurationError(
                f"{what} and has the collation {column.collation!r}, which takes different texts "
                f'as one key; ALTER TABLE {table} ALTER COLUMN {field.name} TYPE text COLLATE "C"'
            )
        if column.type == "jsonb" and not _is_one_json(field.type):
            raise ConfigurationError(
                f"{what} and is jsonb, which takes different values of the rows as one key "
                "(spaces, the order of fields, 1 and 1.0); make it text, or upsert by other columns"
            )


def _is_one_json(type_: pa.DataType) -> bool:
    """Whether different values of a type are different to jsonb: maps have an order, it has not."""
    import pyarrow as pa

    if not pa.types.is_nested(type_):
        return False
    inner = [type_.field(number).type for number in range(type_.num_fields)]
    return not pa.types.is_map(type_) and all(
        _is_one_json(one) for one in inner if pa.types.is_nested(one)
    )


def kept_of(
    table: TableName, columns: Mapping[str, TableColumn], rows: pa.Schema, key: Sequence[str]
) -> Iterator[Kept]:
    """The columns of *rows* whose values *table* may round or cut, or mistake for another key."""
    import pyarrow as pa

    for field in rows:
        column, type_ = columns[field.name], field.type
        type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
        shown = f"in column {field.name!r} ({column.shown})"
        if field.name in key and column.type in _FORMS_OF_KEYS:
            sql, other, fix = _FORMS_OF_KEYS[column.type]
            what = f"a key {shown} that {other}, and to the table is another row's key"
            yield Kept(field.name, "text", sql, what, fix.format(field.name))
        elif pa.types.is_timestamp(type_):
            digits = {"s": 0, "ms": 3, "us": 6, "ns": 6}[type_.unit]
            if 0 <= column.typmod < digits:
                sql = f"CAST({{}} AS {column.type}({column.typmod}))"
                fix = f"ALTER TABLE {table} ALTER COLUMN {field.name} TYPE {column.type}"
                what = f"a value {shown} that it would round"
                yield Kept(
                    field.name, column.type, sql, what, f"truncate it in the stage, or {fix}"
                )
        elif column.type in ("varchar", "bpchar") and column.typmod >= 0:
            sql = f"left({{}}, {column.typmod - _VARIABLE_HEADER})"
            what = f"a value {shown} of which it would cut blanks"
            fix = f"rtrim({field.name}) in the stage, or make the column text"
            yield Kept(field.name, "text", sql, what, fix)
        elif column.type == "name":
            sql = "CAST(CAST({} AS name) AS text)"
            what = f"a value {shown} of more than 63 bytes, which it would cut"
            yield Kept(field.name, "text", sql, what, "shorten it, or make the column text")


_VARIABLE_HEADER = 4  # VARHDRSZ: modifiers of varchar and char count it.

# Types to which different texts are one key: the one of these that is taken, what makes a text
# another one, and what to do.
_FORMS_OF_KEYS = {
    "uuid": (
        "CAST(CAST({} AS uuid) AS text)",
        "is not in lower case with hyphens",
        "write it so before the stage that is keyed by it, or make the column text",
    ),
    "citext": (
        "lower({})",
        "has capitals",
        "lower({}) before the stage that is keyed by it, or make the column text",
    ),
    "bpchar": (
        "rtrim({}, ' ')",
        "ends with blanks",
        "rtrim({}) before the stage that is keyed by it, or make the column text",
    ),
}

TEMPORARY = "sluice_rehearsal"
_COLUMN = re.compile(r"COPY .+?, line \d+, column (?P<name>.+?)(?::|$)", re.DOTALL)
_VALUE = re.compile(r': ".*"$', re.DOTALL)  # Messages name no values.
_OF_VALUES = ("22", "23")  # SQLSTATE's data exceptions, and integrity constraint violations.


@dataclass(frozen=True, slots=True)
class Kept:
    """A column in which a table may keep another value than the one it is given.

    ``given`` is a type that has every value as it is; ``sql`` makes of ``{}``, such a value, what
    the table has of it.  A value that differs is *what*; *fix* prevents it.
    """

    column: str
    given: str
    sql: str
    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The rows of *checkpoint_id*, which have *columns*, tried for *table*, which has *rules*.

    Values of *kept* are compared with what the table would make of them.
    """

    table: TableName
    rules: TableRules
    checkpoint_id: int
    columns: tuple[str, ...]
    kept: tuple[Kept, ...] = ()

    def play(self, connection: Connection, tables: Iterable[pa.Table]) -> None:
        """Try the rows of *tables*, in a transaction that the caller rolls back.

        Raises:
            ConfigurationError: the table would refuse one, or change it; it names the column or
                the constraint.
        """
        import psycopg

        self._make(connection)
        try:
            copy_in(connection, self._temporary, map(self._sent, tables))
            for kept in enumerate(self.kept):
                self._try_kept(connection, *kept)
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(_OF_VALUES):
                raise
            raise self._refused(*self._reason_and_fix(error.diag)) from None
        if not self.rules.rules:
            return
        connection.execute(_sql("ANALYZE {}").format(self._temporary))
        self._try_partitions(connection)
        for rule in self.rules.of("unique"):
            self._try_unique(connection, rule)
        for rule in self.rules.of("foreign"):
            self._try_foreign(connection, rule)

    @property
    def _temporary(self) -> Identifier:
        from psycopg.sql import Identifier

        return Identifier("pg_temp", TEMPORARY)

    def _sent(self, rows: pa.Table) -> pa.Table:
        """The columns that the temporary table has; those of ``kept`` a second time, as given."""
        sent = rows if self.rules.rules else rows.select([])
        for number, kept in enumerate(self.kept):
            sent = sent.append_column(_given(number), rows.column(kept.column))
        return sent

    def _make(self, connection: Connection) -> None:
        """Make the temporary table; its rows take no number of a sequence of the real one."""
        from psycopg.sql import Identifier

        given = [
            _sql("{} {}").format(Identifier(_given(number)), _sql(kept.given))
            for number, kept in enumerate(self.kept)
        ]
        if not self.rules.rules:
            create = _sql("CREATE TEMP TABLE {} ({}) ON COMMIT DROP")
            connection.execute(create.format(self._temporary, _sql(", ").join(given)))
            return
        connection.execute(
            _sql(
                "CREATE TEMP TABLE {} (LIKE {} INCLUDING CONSTRAINTS INCLUDING DEFAULTS INCLUDING"
                " GENERATED) ON COMMIT DROP"
            ).format(self._temporary, self.table.sql)
        )
        for name in {*self.rules.names("numbered")} - {*self.columns}:
            free = _sql("ALTER TABLE {0} ALTER {1} DROP DEFAULT, ALTER {1} DROP NOT NULL")
            connection.execute(free.format(self._temporary, Identifier(name)))
        for column in given:
            add = _sql("ALTER TABLE {} ADD COLUMN {}")
            connection.execute(add.format(self._temporary, column))

    def _try_kept(self, connection: Connection, number: int, kept: Kept) -> None:
        from psycopg.sql import Identifier

        given = Identifier(_given(number))
        changed = _sql("SELECT FROM {} WHERE {} IS DISTINCT FROM {}").format(
            self._temporary, given, _sql(kept.sql).format(given)
        )
        if count := _count(connection, changed):
            raise ConfigurationError(
                f"table {self.table} would not keep the rows of checkpoint {self.checkpoint_id} as "
                f"they are: rows ({count}) have {kept.what}; {kept.fix}"
            )

    def _try_partitions(self, connection: Connection) -> None:
        partitions = self.rules.of("partition")
        if not partitions:
            return
        fits = _sql(" OR ").join([_sql("({})").format(_sql(rule.sql)) for rule in partitions])
        homeless = _sql("SELECT FROM {} WHERE NOT coalesce({}, false)")
        count = _count(connection, homeless.format(self._temporary, fits))
        if count:
            raise self._refused(
                f"rows ({count}) would be in none of its partitions", "create one for them"
            )

    def _try_unique(self, connection: Connection, rule: Rule) -> None:
        """Compare the keys with each other, and with those of the real table."""
        keys = [_sql("k{}").format(_sql(str(number))) for number in range(len(rule.parts))]
        has_key = _sql(" AND ").join([_sql("{} IS NOT NULL").format(key) for key in keys])
        own = self._keys(rule, self._temporary)
        repeated = _sql("SELECT FROM ({}) o WHERE {} GROUP BY {} HAVING count(*) > 1").format(
            own, _sql("true") if rule.is_strict else has_key, _sql(", ").join(keys)
        )
        shown = f"unique index {rule.name!r} ({', '.join(rule.parts)})"
        fix = "leave doubles out in the stage, declare upsert_key, or drop the index"
        if count := _count(connection, repeated):
            raise self._refused(f"keys of {shown} come more than once in them ({count} do)", fix)
        equal = "o.{0} IS NOT DISTINCT FROM t.{0}" if rule.is_strict else "o.{0} = t.{0}"
        present = _sql("SELECT FROM ({}) o WHERE EXISTS (SELECT FROM ({}) t WHERE {})").format(
            own,
            self._keys(rule, self.table.sql),
            _sql(" AND ").join([_sql(equal).format(key) for key in keys]),
        )
        if count := _count(connection, present):
            raise self._refused(f"keys of {shown} are there already ({count} are)", fix)

    def _keys(self, rule: Rule, table: Identifier) -> Composed:
        """The keys that the index *rule* has of the rows of *table*: columns or expressions."""
        keys = [_sql(f"{{}} AS k{number}").format(_sql(p)) for number, p in enumerate(rule.parts)]
        return _sql("SELECT {} FROM {} WHERE {}").format(
            _sql(", ").join(keys), table, _sql(rule.sql or "true")
        )

    def _try_foreign(self, connection: Connection, rule: Rule) -> None:
        """A row may refer to one of the same checkpoint, where the table refers to itself."""
        from psycopg.sql import Identifier

        pairs = [*zip(map(Identifier, rule.parts), map(Identifier, rule.others), strict=True)]
        same = _sql(" AND ").join([_sql("r.{} = o.{}").format(other, own) for own, other in pairs])
        exists = _sql("EXISTS (SELECT FROM {} r WHERE {})")
        known = exists.format(_sql(rule.sql) if rule.sql else self.table.sql, same)
        if not rule.sql:
            known += _sql(" OR ") + exists.format(self._temporary, same)
        nulls = [_sql("o.{} IS NULL").format(own) for own, _ in pairs]
        is_null = _sql(" AND " if rule.is_strict else " OR ").join(nulls)
        unknown = _sql("SELECT FROM {} o WHERE NOT ({}) AND NOT ({})")
        if count := _count(connection, unknown.format(self._temporary, is_null, known)):
            raise self._refused(
                f"rows ({count}) refer to no row of {rule.sql or self.table} by "
                f"({', '.join(rule.parts)}), which foreign key {rule.name!r} demands",
                "have those rows there first, or drop the constraint",
            )

    def _reason_and_fix(self, diag: psycopg.errors.Diagnostic) -> tuple[str, str]:
        """The part of the temporary table that the server refused, and the fix."""
        message = _VALUE.sub("", diag.message_primary or "")
        column = diag.column_name or ""
        if not column and (found := _COLUMN.search(diag.context or "")) is not None:
            column = found["name"].strip('"')
        types = {rule.name: rule.sql for rule in self.rules.of("type")}
        checks = {rule.name: rule.sql for rule in self.rules.of("check")}
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
            f"one has a value in column {column!r}{shown} that it does not take: {message}",
            "mend it in the stage, or alter the column",
        )

    def _refused(self, what: str, fix: str) -> ConfigurationError:
        return ConfigurationError(
            f"table {self.table} would refuse the rows of checkpoint {self.checkpoint_id}: {what}; "
            f"{fix}"
        )


def _given(number: int) -> str:
    """The name of a column of the temporary table that has values as they are given."""
    return f"sluice_given_{number}"


def _count(connection: Connection, query: Composed) -> int:
    (count,) = one_row(connection, _sql("SELECT count(*) FROM ({}) f").format(query))
    return int(count)


def _sql(text: str) -> SQL:
    """SQL that the catalog or this module has written."""
    from psycopg.sql import SQL

    return SQL(text)


RuleKind: TypeAlias = Literal[
    "check", "type", "required", "numbered", "trigger", "unique", "foreign", "partition"
]


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that a table demands.

    ==========  ===============================  =====================  =======================
    kind        name                             sql                    parts; others
    ==========  ===============================  =====================  =======================
    check       of the constraint                its definition
    type        of the column                    its type               "domain", if it is one
    required    of the column, NOT NULL
    numbered    of the column, by a sequence
    trigger     of one that may change rows
    unique      of the index                     its condition, or ""   expressions; columns
    foreign     of the constraint                the other table, ""    columns; the other's
                                                 where it is the same
    partition   of the partition                 which rows it has
    ==========  ===============================  =====================  =======================

    ``is_strict``: two nulls are the same to a unique index; a foreign key is null as a whole.
    """

    kind: RuleKind
    name: str
    sql: str
    parts: tuple[str, ...]
    others: tuple[str, ...]
    is_strict: bool

    def can_refuse(self, schema: pa.Schema) -> bool:
        """Whether some value of a row of *schema* may be refused for this alone."""
        import pyarrow as pa

        if self.kind != "type":
            return self.kind in ("check", "unique", "foreign", "partition")
        if self.name not in schema.names:
            return False
        is_domain = bool(self.parts)
        return is_domain or not pa.types.is_nested(schema.field(self.name).type)


@dataclass(frozen=True, slots=True)
class TableRules:
    """All that a table demands; empty where there is no table."""

    rules: tuple[Rule, ...]

    def of(self, kind: RuleKind) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.kind == kind)

    def names(self, kind: RuleKind) -> tuple[str, ...]:
        return tuple(rule.name for rule in self.of(kind))

    def applicable(self, *, upserts: bool, columns: Sequence[str]) -> TableRules:
        """The rules that can be tried for rows with *columns*.

        None with a trigger, which may mend a row before anything is checked.  No unique index where
        rows are upserted, as a row then takes the place of another; nor one over numbers that the
        table gives itself.
        """
        if self.of("trigger"):
            return TableRules(())
        own_numbers = {*self.names("numbered")} - {*columns}
        return TableRules(
            tuple(
                rule
                for rule in self.rules
                if not (rule.kind == "unique" and (upserts or own_numbers & {*rule.others}))
                and not (rule.kind == "required" and rule.name not in columns)
            )
        )


# Constraints that are NOT ENFORCED (PostgreSQL 18) and indexes whose nulls are equal (15) have
# columns in the catalog that older servers lack, so these are read from the rows as JSON.
_RULES = """
WITH place AS (
    SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = %(name)s),
enforced AS (
    SELECT k.* FROM pg_constraint k JOIN place ON k.conrelid = place.oid
    WHERE coalesce((to_jsonb(k) ->> 'conenforced')::boolean, true)),
own_columns AS (
    SELECT a.*, pg_get_expr(d.adbin, d.adrelid) AS filled
    FROM pg_attribute a JOIN place ON a.attrelid = place.oid
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attnum > 0 AND NOT a.attisdropped)
SELECT 'check', conname::text, pg_get_constraintdef(oid), '{}'::text[], '{}'::text[], false
    FROM enforced WHERE contype = 'c'
UNION ALL
SELECT 'type', a.attname::text, format_type(a.atttypid, a.atttypmod),
        CASE t.typtype WHEN 'd' THEN '{domain}'::text[] ELSE '{}' END, '{}', false
    FROM own_columns a JOIN pg_type t ON t.oid = a.atttypid
    WHERE t.typtype IN ('d', 'e') OR t.typname IN ('uuid', 'json', 'jsonb')
        OR t.typname IN ('varchar', 'bpchar') AND a.atttypmod >= 0
UNION ALL
SELECT 'required', attname::text, '', '{}', '{}', false FROM own_columns
    WHERE attnotnull AND attgenerated = ''
UNION ALL
SELECT 'numbered', attname::text, '', '{}', '{}', false FROM own_columns
    WHERE attidentity <> '' OR filled LIKE '%%nextval(%%'
UNION ALL
SELECT 'trigger', t.tgname::text, '', '{}', '{}', false
    FROM pg_trigger t JOIN place ON t.tgrelid = place.oid
    WHERE NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgtype & 7 = 7
UNION ALL
SELECT 'unique', x.relname::text, coalesce(pg_get_expr(i.indpred, i.indrelid), ''),
        ARRAY(SELECT pg_get_indexdef(i.indexrelid, k, true)
            FROM generate_series(1, i.indnkeyatts) AS k ORDER BY k),
        ARRAY(SELECT a.attname::text FROM pg_attribute a
            WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])),
        coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
    FROM pg_index i JOIN place ON i.indrelid = place.oid JOIN pg_class x ON x.oid = i.indexrelid
    WHERE i.indisunique AND i.indislive
UNION ALL
SELECT 'foreign', k.conname::text,
        CASE WHEN k.confrelid = k.conrelid THEN '' ELSE format('%%I.%%I', n.nspname, c.relname) END,
        ARRAY(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY AS u(num, at)
            JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.num ORDER BY u.at),
        ARRAY(SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY AS u(num, at)
            JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.num ORDER BY u.at),
        k.confmatchtype = 'f'
    FROM enforced k JOIN pg_class c ON c.oid = k.confrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE k.contype = 'f' AND has_schema_privilege(n.oid, 'USAGE')
        AND has_table_privilege(c.oid, 'SELECT')
UNION ALL
SELECT 'partition', p.relid::regclass::text,
        coalesce(pg_get_partition_constraintdef(p.relid), 'true'), '{}', '{}', false
    FROM place, LATERAL pg_partition_tree(place.oid) AS p
    WHERE place.relkind = 'p' AND p.isleaf AND p.relid <> place.oid
UNION ALL
SELECT 'partition', '', 'false', '{}', '{}', false FROM place WHERE relkind = 'p'
"""


def rules_of(connection: Connection, table: TableName) -> TableRules:
    """All rules of *table*, by one query."""
    found = connection.execute(_RULES, {"schema": table.schema, "name": table.name})
    return TableRules(
        tuple(
            Rule(kind, name, sql, tuple(parts), tuple(others), is_strict)
            for kind, name, sql, parts, others, is_strict in found
        )
    )
