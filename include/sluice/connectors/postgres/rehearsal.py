"""The rehearsal of a commit: whether a table takes the values of rows that are staged.

The rows go into a temporary table that has the types and constraints of the real one, in a
transaction that is rolled back: what the server refuses there, it would refuse at the commit, when
the checkpoint could not be aborted any more.  What holds between rows (unique indexes, foreign keys
and partitions) is compared by queries of the temporary table and the real ones.  The real table is
only read.

A column may also take a value and keep less of it: ``varchar(n)`` cuts blanks, ``timestamptz(0)``
rounds.  And a key may be equal, to the table, to another one that is a key of its own to the rows:
a ``uuid`` in capitals.  ``Kept`` is what the table makes of such values, and rows of which it makes
something else are refused.

Not tried: what triggers do, exclusion constraints, foreign keys of other tables to this one, and
the unique indexes of a table that is upserted into.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from sluice.connectors.postgres.copy import copy_in
from sluice.connectors.postgres.server import Connection, TableName, one_row
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg.sql import SQL, Composed, Identifier

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
