"""Rows whose values a PostgreSQL table refuses are refused before their checkpoint completes."""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from harness.postgres_database import Database
from sluice.connectors.postgres import server
from sluice.errors import ConfigurationError
from sluice.store.open import StoreLocation
from tests.contract.sink_case import JOB
from tests.contract.test_postgres_target import sink_of, stage_table


@pytest.fixture
def table(database: Database) -> str:
    return f"{database.new_schema()}.orders"


@pytest.fixture
def root(tmp_path: Path) -> StoreLocation:
    return StoreLocation(root=f"file://{tmp_path}/staged")


ORDERS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("ref", pa.int64())])


def given(*rows: Sequence[Any]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ORDERS.names, row, strict=True)) for row in rows], ORDERS)


@dataclass(frozen=True)
class Case:
    """A table, rows that it refuses, the message, and rows that it takes.

    *before* and *after* are statements around the creation of the table.
    """

    columns: str
    refused: Sequence[Sequence[Any]]
    says: str
    taken: Sequence[Sequence[Any]]
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


PLAIN = "id bigint, name text, ref bigint"
CASES = {
    "a varchar": Case(
        "id bigint, name varchar(3), ref bigint",
        [(1, "abc", 1), (2, "abcd", 1)],
        r"one has a value in column 'name' \(character varying\(3\)\) that it does not take: value "
        r"too long for type character varying\(3\); mend it in the stage, or alter the column",
        [(1, "abc", 1)],
    ),
    "a char": Case(
        "id bigint, name char(2), ref bigint", [(2, "abc", 1)], "'name'.*too long", [(1, "ab", 1)]
    ),
    "a check": Case(
        "id bigint CONSTRAINT positive CHECK (id > 0), name text, ref bigint",
        [(1, "a", 1), (-5, "b", 1)],
        r"one violates constraint 'positive', CHECK \(\(?id > 0\)?\); leave such rows out",
        [(1, "a", 1), (None, "b", 1)],
    ),
    "a check of several columns": Case(
        f"{PLAIN}, CHECK (name <> 'x' OR ref > 5)", [(1, "x", 5)], "constraint", [(1, "x", 6)]
    ),
    "a domain": Case(
        "id bigint, name {0}.short, ref bigint",
        [(1, "secret-value", 1)],
        r"column 'name' \(.*short\).* violates check constraint",
        [(1, "ok", 1)],
        before=["CREATE DOMAIN {0}.short AS text CHECK (length(value) < 5)"],
    ),
    "an enum": Case(
        "id bigint, name {0}.mood, ref bigint",
        [(1, "secret-value", 1)],
        "column 'name'.*that it does not take: invalid input value for enum .*mood; mend",
        [(1, "sad", 1)],
        before=["CREATE TYPE {0}.mood AS ENUM ('sad')"],
    ),
    "a uuid": Case(
        "id bigint, name uuid, ref bigint",
        [(1, "secret-value", 1)],
        r"column 'name' \(uuid\).*invalid input syntax for type uuid; mend",
        [(1, "0" * 32, 1)],
    ),
    "nulls": Case(
        "id bigint, name text NOT NULL, ref bigint",
        [(1, "a", 1), (2, None, 1)],
        "one has no value in column 'name', which is NOT NULL; fill it",
        [(None, "a", 1)],
    ),
    "doubles in the checkpoint": Case(
        "id bigint PRIMARY KEY, name text, ref bigint",
        [(1, "a", 1), (2, "b", 1), (1, "c", 1)],
        r"keys of unique index 'orders_pkey' \(id\) come more than once in them \(1 do\); leave",
        [(1, "a", 1), (2, "b", 1)],
    ),
    "keys that are there": Case(
        "id bigint PRIMARY KEY, name text, ref bigint",
        [(7, "a", 1), (8, "b", 1)],
        r"keys of unique index 'orders_pkey' \(id\) are there already \(1 are\); leave doubles",
        [(8, "b", 1)],
        after=["INSERT INTO {0}.orders VALUES (7, 'old', 1)"],
    ),
    "a unique expression, where a condition holds": Case(
        PLAIN,
        [(7, "OLD", 1)],
        r"unique index 'by_name' \(lower\(name\)\) are there already",
        [(8, "OLD", 2), (9, None, 1), (10, None, 1)],
        after=[
            "CREATE UNIQUE INDEX by_name ON {0}.orders (lower(name)) WHERE ref = 1",
            "INSERT INTO {0}.orders VALUES (7, 'old', 1)",
        ],
    ),
    "nulls that are one": Case(
        f"{PLAIN}, UNIQUE NULLS NOT DISTINCT (ref)",
        [(1, "a", None), (2, "a", None)],
        r"\(ref\) come more than once",
        [(1, "a", None), (1, "a", 2)],
    ),
    "a foreign key": Case(
        "id bigint, name text, ref bigint CONSTRAINT of_shop REFERENCES {0}.shops (id)",
        [(1, "a", 1), (2, "b", 2), (3, "c", 3)],
        r"rows \(2\) refer to no row of \w+\.shops by \(ref\), which foreign key 'of_shop' demands",
        [(1, "a", 1), (2, "b", None)],
        before=["CREATE TABLE {0}.shops (id bigint PRIMARY KEY)"],
        after=["INSERT INTO {0}.shops VALUES (1)"],
    ),
    "a foreign key to itself": Case(
        "id bigint PRIMARY KEY, name text, ref bigint REFERENCES {0}.orders (id)",
        [(8, "a", 7), (9, "b", 8), (10, "b", 11)],
        r"rows \(1\) refer to no row of \w+\.orders by \(ref\)",
        [(8, "a", 7), (9, "b", 8)],
        after=["INSERT INTO {0}.orders VALUES (7, 'old', NULL)"],
    ),
    "no partition": Case(
        f"{PLAIN}) PARTITION BY RANGE (id",
        [(5, "a", 1), (15, "b", 1), (16, "b", 1)],
        r"rows \(2\) would be in none of its partitions; create one",
        [(5, "a", 1)],
        after=["CREATE TABLE {0}.first PARTITION OF {0}.orders FOR VALUES FROM (0) TO (10)"],
    ),
    "an upsert": Case(
        "id bigint PRIMARY KEY, name varchar(3), ref bigint",
        [(7, "abcd", 1)],
        "'name'.*too long",
        [(7, "abc", 1)],
        after=["INSERT INTO {0}.orders VALUES (7, 'old', 1)"],
        options={"upsert_key": ("id",)},
    ),
    "a stamp": Case(
        f"{PLAIN}, epoch bigint NOT NULL, CHECK (ref > 0)",
        [(1, "a", 0)],
        "constraint 'orders_ref_check'",
        [(1, "a", 1)],
        options={"checkpoint_column": "epoch"},
    ),
    "numbers of its own": Case(
        f"{PLAIN}, number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, other serial UNIQUE,"
        " twice bigint GENERATED ALWAYS AS (ref * 2) STORED CHECK (twice < 10)",
        [(1, "a", 5)],
        "constraint 'orders_twice_check'",
        [(1, "a", 4), (2, "a", 4)],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=[*CASES])
def test_rows_that_the_table_would_refuse_are_refused_before_and_leave_it_as_it_was(
    case: Case, database: Database, table: str, root: StoreLocation
) -> None:
    schema = table.split(".", maxsplit=1)[0]
    for statement in case.before:
        database.run(statement.format(schema))
    database.run(f"CREATE TABLE {table} ({case.columns.format(schema)})")
    for statement in case.after:
        database.run(statement.format(schema))
    sink = sink_of(database, table, root, **case.options)
    untouched = traces(database, schema)
    staged = [stage_table(sink, given(row), 2, number) for number, row in enumerate(case.refused)]

    for _ in range(2):
        with pytest.raises(ConfigurationError, match=case.says) as raised:
            sink.check(None, ORDERS, staged)

    assert str(raised.value).startswith(f"table {table} would refuse the rows of checkpoint 2: ")
    assert "secret-value" not in str(raised.value)
    mended = [stage_table(sink, given(row), 3, number) for number, row in enumerate(case.taken)]
    sink.check(None, ORDERS, mended)
    assert traces(database, schema) == untouched
    with pytest.raises(ConfigurationError):  # What would be owed for ever.
        sink.commit(JOB, 2, None, staged)
    sink.commit(JOB, 3, None, mended)
    sink.check(None, ORDERS, mended)  # Its own rows are not in its way.
    assert sink.is_published(3)


def traces(database: Database, schema: str) -> list[tuple[Any, ...]]:
    """What a rehearsal in the table itself would leave behind: dead rows, and numbers taken."""
    sizes = (
        "SELECT c.relname::text, pg_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n"
        " ON n.oid = c.relnamespace WHERE n.nspname = %s ORDER BY 1"
    )
    numbers = (
        "SELECT sequencename::text, last_value FROM pg_sequences WHERE schemaname = %s ORDER BY 1"
    )
    return [*database.run(sizes, schema), *database.run(numbers, schema)]


def test_a_trigger_may_mend_rows_so_they_are_not_tried(
    database: Database, table: str, root: StoreLocation
) -> None:
    schema = table.split(".", maxsplit=1)[0]
    database.run(f"CREATE TABLE {table} ({PLAIN}, CHECK (ref > 0))")
    database.run(
        f"CREATE FUNCTION {schema}.mend() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN NEW.ref := 1; RETURN NEW; END'"
    )
    database.run(
        f"CREATE TRIGGER mends BEFORE INSERT ON {table} FOR EACH ROW"
        f" EXECUTE FUNCTION {schema}.mend()"
    )
    sink = sink_of(database, table, root)
    staged = [stage_table(sink, given((1, "a", -1)))]

    sink.check(None, ORDERS, staged)
    sink.commit(JOB, 1, None, staged)

    assert database.run(f"SELECT ref FROM {table}") == [(1,)]


@pytest.mark.parametrize(
    ("columns", "options", "rehearsals"),
    [
        (PLAIN, {}, 0),
        ("id bigint PRIMARY KEY, name text NOT NULL, ref bigint", {"upsert_key": ("id",)}, 0),
        (f"{PLAIN}, CHECK (id > 0)", {}, 1),
    ],
    ids=["no rules", "no nulls in what is required", "rules"],
)
def test_a_table_without_rules_is_asked_one_query_more_and_no_row_is_sent(
    columns: str,
    options: Mapping[str, Any],
    rehearsals: int,
    database: Database,
    table: str,
    root: StoreLocation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database.run(f"CREATE TABLE {table} ({columns})")
    sink = sink_of(database, table, root, **options)
    staged = [stage_table(sink, given((1, "a", 1), (2, "b", 2)))]
    opened: list[list[str]] = []
    session, execute = server.Server.session, psycopg.Connection.execute

    @contextmanager
    def counted(
        self: server.Server, *, read_only: bool = False
    ) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        opened.append([])
        with session(self, read_only=read_only) as connection:
            yield connection

    def noted(self: psycopg.Connection[Any], query: Any, *given: Any) -> psycopg.Cursor[Any]:
        opened[-1].append(str(query))
        return execute(self, query, *given)

    monkeypatch.setattr(server.Server, "session", counted)
    monkeypatch.setattr(psycopg.Connection, "execute", noted)
    sink.check(None, ORDERS, staged)

    assert len(opened) == 2 + rehearsals  # What the table is, and what it shows.
    assert sum("pg_constraint" in query for query in opened[0]) == 1
    # Settings, encoding, policies, columns, their key; rules.
    assert len(opened[0]) == 5 + bool(options)
