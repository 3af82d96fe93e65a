"""What a table demands of values: its constraints, and the types that refuse some texts.

All of it is asked in one query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from sluice.connectors.postgres.server import Connection, TableName

if TYPE_CHECKING:
    import pyarrow as pa

Kind: TypeAlias = Literal[
    "check", "type", "required", "numbered", "trigger", "unique", "foreign", "partition"
]


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that a table demands.

    ==========  ===============================  =====================  =======================
    kind        name                             said                   parts; others
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

    kind: Kind
    name: str
    said: str
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


# Constraints that are NOT ENFORCED (PostgreSQL 18) and indexes whose nulls are equal (15) are told
# by columns of the catalog that older servers lack, so rows of it are looked at as JSON.
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


@dataclass(frozen=True, slots=True)
class TableRules:
    """All that a table demands; empty where there is no table."""

    rules: tuple[Rule, ...]

    def of(self, kind: Kind) -> tuple[Rule, ...]:
        return tuple(one for one in self.rules if one.kind == kind)

    def names(self, kind: Kind) -> tuple[str, ...]:
        return tuple(one.name for one in self.of(kind))

    def given(self, *, upserts: bool, columns: Sequence[str]) -> TableRules:
        """Those that can be tried for rows with *columns*.

        A trigger may mend a row before anything is checked.  An upsert takes the place of a row, so
        no index of it is tried; nor one over numbers that the table gives itself.
        """
        if self.of("trigger"):
            return TableRules(())
        given_by_table = {*self.names("numbered")} - {*columns}
        return TableRules(
            tuple(
                one
                for one in self.rules
                if not (one.kind == "unique" and (upserts or given_by_table & {*one.others}))
                and not (one.kind == "required" and one.name not in columns)
            )
        )


def rules_of(connection: Connection, table: TableName) -> TableRules:
    found = connection.execute(_RULES, {"schema": table.schema, "name": table.name})
    return TableRules(
        tuple(
            Rule(kind, name, said, tuple(parts), tuple(others), is_strict)
            for kind, name, said, parts, others, is_strict in found
        )
    )
