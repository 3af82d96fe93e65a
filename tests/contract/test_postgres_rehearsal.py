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


WHAT_IS_LESS = {
    "a varchar": (
        "name varchar(3)",
        {"name": ["abc", "abc  "]},
        (
            r"rows \(1\) have a value in column 'name' \(character varying\(3\)\) of which it "
            r"would cut blanks; rtrim\(name\) in the stage, or make the column text"
        ),
    ),
    "a char": ("name char(3)", {"name": ["abc ", "ab "]}, "'name'.*cut blanks"),
    "a domain": ("name {0}.short", {"name": ["abc ", "ab "]}, "'name'.*cut blanks"),
    "a name": ("name name", {"name": ["n" * 63, "n" * 64]}, "'name'.* more than 63 bytes"),
    "an instant": (
        "at timestamptz(0)",
        {"at": pa.array([1_500_001, 2_000_000], pa.timestamp("us", "UTC"))},
        (
            r"'at' \(timestamp\(0\) with time zone\) that it would round; truncate it in the "
            r"stage, or ALTER TABLE \w+\.orders ALTER COLUMN at TYPE timestamptz$"
        ),
    ),
    "a local time": (
        "at timestamp(3)",
        {"at": pa.array([1_500_001, 2_001_000], pa.timestamp("us"))},
        "'at'.* would round",
    ),
    "milliseconds": (
        "at timestamptz(2)",
        {"at": pa.array([1_501, 2_010], pa.timestamp("ms", "UTC"))},
        "'at'.* would round",
    ),
}


@pytest.mark.parametrize("has_trigger", [False, True], ids=["plain", "with a trigger"])
@pytest.mark.parametrize("case", WHAT_IS_LESS.values(), ids=[*WHAT_IS_LESS])
def test_rows_of_which_the_table_would_keep_less_are_refused_before(
    case: tuple[str, Mapping[str, Any], str],
    has_trigger: bool,
    database: Database,
    table: str,
    root: StoreLocation,
) -> None:
    column, values, says = case
    schema = table.split(".", maxsplit=1)[0]
    database.run(f"CREATE DOMAIN {schema}.short AS varchar(3)")
    database.run(f"CREATE TABLE {table} (id bigint NOT NULL, {column.format(schema)})")
    if has_trigger:
        database.run(
            f"CREATE FUNCTION {schema}.mend() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN NEW.id := 1; RETURN NEW; END'"
        )
        database.run(
            f"CREATE TRIGGER mends BEFORE INSERT ON {table} FOR EACH ROW"
            f" EXECUTE FUNCTION {schema}.mend()"
        )
    sink = sink_of(database, table, root)
    rows = pa.table({"id": pa.array([None if has_trigger else 1] * 2, pa.int64()), **values})
    staged = [stage_table(sink, rows, 2)]

    with pytest.raises(ConfigurationError, match=says) as raised:
        sink.check(None, rows.schema, staged)

    assert str(raised.value).startswith(
        f"table {table} would not keep the rows of checkpoint 2 as they are: rows (1) have "
    )


WHAT_IS_ONE_KEY = {
    "a uuid in capitals": (
        "uuid",
        ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
        (
            r"rows \(1\) have a key in column 'k' \(uuid\) that is not in lower case with hyphens, "
            "and to the table is another row's key; write it so before the stage that is keyed"
        ),
    ),
    "a uuid without hyphens": ("uuid", ["0" * 32, f"{'0' * 8}{'-0000' * 4}{'0' * 8}"], "hyphens"),
    "a char": ("char(4)", ["ab", "ab "], r"'k' \(character\(4\)\) that ends with blanks"),
    "a char of any length": ("bpchar", ["ab", "ab "], "ends with blanks"),
    "a varchar": ("varchar(3)", ["abc", "abc "], "cut blanks"),
    "a name": ("name", ["n" * 63, "n" * 64], "63 bytes"),
    "capitals": ("citext", ["ab", "aB"], r"that has capitals, .*; lower\(k\) before the stage"),
    "a domain of them": ("{0}.folded", ["a", "A"], "has capitals"),
    "an instant": (
        "timestamptz(0)",
        pa.array([1_500_001, 2_000_000], pa.timestamp("us", "UTC")),
        "would round",
    ),
}


@pytest.mark.parametrize("case", WHAT_IS_ONE_KEY.values(), ids=[*WHAT_IS_ONE_KEY])
@pytest.mark.parametrize("together", [True, False], ids=["in one checkpoint", "in two"])
def test_keys_that_are_one_to_the_table_alone_are_refused_before(
    case: tuple[str, Any, str],
    together: bool,
    database: Database,
    table: str,
    root: StoreLocation,
) -> None:
    type_, keys, says = case
    schema = table.split(".", maxsplit=1)[0]
    database.run(f"CREATE DOMAIN {schema}.folded AS citext")
    database.run(f"CREATE TABLE {table} (k {type_.format(schema)} PRIMARY KEY, n bigint)")
    sink = sink_of(database, table, root, upsert_key=("k",))
    rows = pa.table({"k": keys, "n": pa.array([1, 2], pa.int64())})
    parts = [rows] if together else [rows.slice(0, 1), rows.slice(1)]

    def epochs() -> None:
        for number, part in enumerate(parts, start=1):
            staged = [stage_table(sink, part, number)]
            sink.check(number - 1 or None, rows.schema, staged)
            sink.commit(JOB, number, number - 1 or None, staged)

    with pytest.raises(ConfigurationError, match=says):
        epochs()

    assert len(database.rows(f"SELECT * FROM {table}")) <= len(parts) - 1


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (
            [
                "CREATE TABLE {0}.orders (k text COLLATE folded PRIMARY KEY, n bigint)",
            ],
            r"has the collation 'folded', which takes different texts as one key; ",
        ),
        (
            [
                "CREATE TABLE {0}.orders (k text NOT NULL, n bigint)",
                "CREATE UNIQUE INDEX by_c ON {0}.orders (k)",
                "CREATE UNIQUE INDEX by_k ON {0}.orders (k COLLATE folded)",
            ],
            r"unique index 'by_k' of table \w+\.orders, .* collation 'folded', .*COLLATE \"C\"",
        ),
        (
            ["CREATE TABLE {0}.orders (k jsonb PRIMARY KEY, n bigint)"],
            "'k' of table .* is part of the upsert key and is jsonb, which takes different values",
        ),
    ],
    ids=["a collation", "a collation of the index", "jsonb"],
)
def test_types_that_do_not_tell_keys_apart_are_refused_whatever_the_keys_are(
    statements: Sequence[str], says: str, database: Database, table: str, root: StoreLocation
) -> None:
    schema = table.split(".", maxsplit=1)[0]
    for statement in statements:
        database.run(statement.format(schema))
    sink = sink_of(database, table, root, upsert_key=("k",))
    rows = pa.table({"k": ["1"], "n": pa.array([1], pa.int64())})
    staged = [stage_table(sink, rows)]

    with pytest.raises(ConfigurationError, match=says):
        sink.check(None, rows.schema, staged)
    with pytest.raises(ConfigurationError, match=says):
        sink.commit(JOB, 1, None, staged)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "'k' of table .* is jsonb"),
        (pa.array([[[("a", 1)]]], pa.list_(pa.map_(pa.string(), pa.int64()))), "is jsonb"),
        (
            pa.array([1], pa.time64("us")),
            "column 'k' of table .* is text, and the rows have time64",
        ),
        (pa.array([{"a": 1}], pa.struct([("a", pa.int64())])), None),
        (pa.array([1], pa.uint64()), None),
        (pa.array(["1.50"]).cast(pa.decimal128(9, 2)), None),
    ],
    ids=["a map", "maps in a list", "a time", "a struct", "an unsigned number", "a decimal"],
)
def test_a_table_that_is_still_to_be_made_is_judged_as_it_will_be(
    key: pa.Array, says: str | None, database: Database, table: str, root: StoreLocation
) -> None:
    sink = sink_of(database, table, root, upsert_key=("k",), create=True)
    rows = pa.table({"k": key})
    staged = [stage_table(sink, rows)]
    if says is not None:
        with pytest.raises(ConfigurationError, match=says):
            sink.check(None, rows.schema, staged)
        return

    sink.check(None, rows.schema, staged)
    sink.commit(JOB, 1, None, staged)

    assert database.run(f"SELECT count(*) FROM {table}") == [(1,)]


@pytest.mark.parametrize("is_made", [True, False], ids=["made by us", "made by hand"])
def test_a_null_in_a_key_is_refused_before_it_is_staged(
    is_made: bool, database: Database, table: str, root: StoreLocation
) -> None:
    if not is_made:
        database.run(f"CREATE TABLE {table} (id bigint, name text, ref bigint, PRIMARY KEY (id))")
    sink = sink_of(database, table, root, upsert_key=("id",), create=is_made)

    with pytest.raises(ConfigurationError) as raised:
        stage_table(sink, given((1, "a", 1), (None, "b", 1)))

    assert str(raised.value) == (
        f"column 'id' is part of the key of table {table}, which takes no null, and is null in "
        "rows (1); fill it in the stage, or leave such rows out"
    )


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
