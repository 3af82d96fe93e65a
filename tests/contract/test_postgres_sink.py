"""A PostgreSQL table keeps every sink's promises, and those of one transaction per checkpoint."""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness.postgres_database import Database
from sluice.connectors.postgres.declared_sink import PostgresTable
from sluice.connectors.postgres.target import PostgresTarget
from sluice.connectors.staged_sink import StagedSink
from sluice.core.timeline import Recovery, TimelineComparison
from sluice.declaration.places import RollBack, Sink
from sluice.errors import ConfigurationError, ProtocolViolation, StoreUnavailable
from sluice.store.open import StoreLocation
from tests.contract.sink_rules import (
    APPEND_RULES,
    JOB,
    RESTORED,
    RESTORED_AGAIN,
    UPSERT_RULES,
    SinkCase,
    publish,
    rows,
    seen,
    staged_rows,
)

COLUMNS = "id bigint NOT NULL, name text, price double precision, at timestamptz"


@pytest.fixture
def table(database: Database) -> str:
    return f"{database.new_schema()}.orders"


@pytest.fixture
def root(tmp_path: Path) -> StoreLocation:
    return StoreLocation(root=f"file://{tmp_path}/staged")


def case_of(database: Database, table: str, root: StoreLocation, **options: Any) -> SinkCase:
    spec = PostgresTable(database.dsn, table, **options)
    return SinkCase(
        lambda: spec.open("orders", {}, root),
        lambda: database.rows(f"SELECT id, name, price, at FROM {table}"),
    )


def sink_of(database: Database, table: str, root: StoreLocation, **options: Any) -> StagedSink:
    return PostgresTable(database.dsn, table, **options).open("orders", {}, root)


def target_of(sink: Sink) -> PostgresTarget:
    assert isinstance(sink, StagedSink)
    assert isinstance(sink.target, PostgresTarget)
    return sink.target


@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended_with_a_checkpoint_column(
    rule: Callable[[SinkCase], None], database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS}, epoch bigint)")
    rule(case_of(database, table, root, checkpoint_column="epoch"))


@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended(
    rule: Callable[[SinkCase], None], database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    rule(case_of(database, table, root))


@pytest.mark.parametrize("rule", UPSERT_RULES, ids=lambda rule: rule.__name__)
def test_upserted(
    rule: Callable[[SinkCase], None], database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS}, PRIMARY KEY (id))")
    rule(case_of(database, table, root, upsert_key=("id",)))


@pytest.mark.parametrize("key", [(), ("id",)], ids=["appended", "upserted"])
def test_a_missing_table_is_made_when_that_is_declared(
    key: tuple[str, ...], database: Database, table: str, root: StoreLocation
) -> None:
    case = case_of(database, table, root, upsert_key=key, create=True, checkpoint_column="epoch")

    publish(case.open(), 1, None, rows(1, 7))
    publish(case.open(), 2, 1, rows(2))

    assert seen(case) == rows(1, 2, 7)
    assert database.run(f"SELECT id, epoch FROM {table} ORDER BY id") == [(1, 1), (2, 2), (7, 1)]


def test_coordinators_that_make_ledger_and_table_at_once_do_not_disturb_each_other(
    database: Database, root: StoreLocation
) -> None:
    schema = database.new_schema()
    problems: list[BaseException] = []
    go = threading.Barrier(6)

    def begin(number: int) -> None:
        sink = sink_of(database, f"{schema}.t{number % 3}", root.below(str(number)), create=True)
        staged = staged_rows(sink, 1, number)
        go.wait()
        try:
            sink.commit(JOB, 1, None, [staged])
        except BaseException as error:  # noqa: BLE001 - whatever a thread raises is a problem
            problems.append(error)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert problems == []
    for number in range(3):
        found = database.run(f"SELECT id FROM {schema}.t{number} ORDER BY id")
        assert found == [(number,), (number + 3,)]


def test_a_roll_back_leaves_rows_of_nobody_and_refuses_a_table_that_two_sinks_write(
    database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS}, epoch bigint)")
    database.run(f"INSERT INTO {table} (id) VALUES (0)")
    case = case_of(database, table, root, checkpoint_column="epoch")
    for checkpoint_id in (1, 2):
        publish(case.open(), checkpoint_id, checkpoint_id - 1 or None, rows(checkpoint_id))
    assert case.open().rolls_back is RollBack.ON_REQUEST

    case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=True))

    assert [row["id"] for row in seen(case)] == [0, 1]
    other = case_of(database, table, root, checkpoint_column="epoch", ledger_name="another")
    publish(other.open(), 1, None, rows(8))
    publish(case.open(), 3, 1, rows(3), RESTORED)
    with pytest.raises(ConfigurationError, match="cannot be rolled back: 'another' writes it"):
        case.open().recover(RESTORED_AGAIN, Recovery(version=1, through=3, roll_back=True))
    assert [row["id"] for row in seen(case)] == [0, 1, 3, 8]


def test_a_damaged_staged_file_publishes_nothing_of_its_checkpoint(
    database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    case = case_of(database, table, root)
    sink = case.open()
    whole = staged_rows(sink, 1, 1)
    staged = [whole, replace(whole, file="data/gone.parquet")]

    with pytest.raises(ProtocolViolation, match="missing"):
        sink.commit(JOB, 1, None, staged)

    assert (seen(case), sink.is_published(1)) == ([], False)


NUMBERS = pa.table({"id": pa.array([1], pa.int64()), "price": pa.array([1.5])})


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("id bigint", {}, "has no column 'price'.*it has id; add it .double precision"),
        (
            "id integer, price float8",
            {},
            "column 'id' of table .* is integer, and the rows have int64.*goes into bigint",
        ),
        ("id bigint, price real", {}, "'price' .* is real, and the rows have double"),
        ("id numeric(18), price float8", {}, r"'id' .* is numeric\(18,0\), and .* int64"),
        (
            "id bigint, price float8, shop text NOT NULL",
            {},
            r"column 'shop' \(text\) .* is NOT NULL without a default",
        ),
        (
            "id bigint GENERATED ALWAYS AS IDENTITY, price float8",
            {},
            "'id' .* is GENERATED ALWAYS",
        ),
        ("id bigint, price float8", {"upsert_key": ("id",)}, r"no unique index on exactly \(id\)"),
        (
            "id bigint UNIQUE, price float8",
            {"upsert_key": ("id",)},
            "'id' .* may be null.*SET NOT NULL",
        ),
        (
            "id bigint, price float8",
            {"checkpoint_column": "epoch"},
            "no bigint column 'epoch'",
        ),
        (
            "id bigint, price float8",
            {"checkpoint_column": "price"},
            "no bigint column 'price'|already",
        ),
        ("id bigint CHECK (id > 5), price float8", {}, r"refuses \(23514\)"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_column_and_type(
    columns: str,
    options: dict[str, Any],
    words: str,
    database: Database,
    table: str,
    root: StoreLocation,
) -> None:
    database.run(f"CREATE TABLE {table} ({columns})")
    sink = sink_of(database, table, root, **options)
    staged = sink.stage(NUMBERS, checkpoint_id=1, subtask=0, attempt_token="1-a")  # noqa: S106
    assert staged is not None

    with pytest.raises(ConfigurationError, match=words):
        sink.commit(JOB, 1, None, [staged])

    assert database.run(f"SELECT count(*) FROM {table}") == [(0,)]
    assert not sink.is_published(1)


def test_a_column_with_a_default_and_a_wider_one_are_fine(
    database: Database, table: str, root: StoreLocation
) -> None:
    database.run(
        f"CREATE TABLE {table} (price numeric, id numeric(30, 2), made timestamptz NOT NULL"
        " DEFAULT now(), number bigint GENERATED ALWAYS AS IDENTITY)"
    )
    sink = sink_of(database, table, root)
    given = NUMBERS.set_column(1, "price", pa.array(["1.25"]).cast(pa.decimal128(10, 4)))
    staged = sink.stage(given, checkpoint_id=1, subtask=0, attempt_token="1-a")  # noqa: S106
    assert staged is not None
    sink.commit(JOB, 1, None, [staged])

    assert database.run(f"SELECT id::text, price::text, number FROM {table}") == [
        ("1.00", "1.2500", 1)
    ]


def test_a_missing_table_and_a_missing_privilege_name_the_fix(
    database: Database, table: str, root: StoreLocation
) -> None:
    sink = sink_of(database, table, root)
    with pytest.raises(ConfigurationError, match=r"no table .*; make it, or declare create=True"):
        publish(sink, 1, None, rows(1))

    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    database.run(f"GRANT USAGE ON SCHEMA {table.partition('.')[0]} TO guest")
    guest = PostgresTable(database.guest_dsn, table).open("orders", {}, root.below("guest"))
    with pytest.raises(ConfigurationError, match=r"\(42501\).*GRANT"):
        publish(guest, 1, None, rows(1))


def test_a_guest_with_the_documented_privileges_can_write(
    database: Database, table: str, root: StoreLocation
) -> None:
    schema = table.partition(".")[0]
    database.run(f"CREATE TABLE {table} ({COLUMNS}, PRIMARY KEY (id))")
    publish(sink_of(database, table, root.below("owner")), 1, None, [])  # Makes the ledger.
    database.run(f"GRANT USAGE ON SCHEMA {schema} TO guest")
    database.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO guest")
    for name in ("sluice_ledger", "sluice_sinks"):
        database.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.{name} TO guest")

    guest = PostgresTable(database.guest_dsn, table, upsert_key=("id",))
    publish(guest.open("orders", {}, root), 1, None, rows(1))
    publish(guest.open("orders", {}, root), 2, 1, rows(1, 2, name="new"))

    assert seen(case_of(database, table, root)) == rows(1, 2, name="new")


def test_no_message_shows_a_password(database: Database, table: str, root: StoreLocation) -> None:
    secret = f"hush{secrets.token_hex(8)}"
    said = []
    for dsn in (
        f"postgresql://airflow:{secret}@127.0.0.1:{database.port}/airflow",
        f"host=127.0.0.1 port={database.port} dbname=airflow user=airflow password={secret}",
        f"postgres//airflow:{secret}@127.0.0.1/airflow",
        f"postgresql://airflow:{secret}@127.0.0.1:1/airflow",
    ):
        sink = PostgresTable(dsn, table).open("orders", {}, root)
        with pytest.raises((ConfigurationError, StoreUnavailable)) as raised:
            sink.is_published(1)
        said += [type(raised.value), str(raised.value), repr(sink)]
        assert raised.value.__cause__ is None

    assert [one for one in said if isinstance(one, type)] == [
        ConfigurationError,
        ConfigurationError,
        ConfigurationError,
        StoreUnavailable,
    ]
    assert not [one for one in said if secret in str(one)]


def test_a_look_at_a_table_that_was_never_written_makes_nothing(
    database: Database, table: str, root: StoreLocation
) -> None:
    sink = sink_of(database, table, root)

    assert (sink.is_published(1), sink.standing(JOB.life, None)) == (False, TimelineComparison())
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s)", [f"{table.partition('.')[0]}.sluice_ledger"])
        assert cursor.fetchone() == (None,)


def test_sinks_of_one_schema_keep_their_notes_apart(
    database: Database, root: StoreLocation
) -> None:
    schema = database.new_schema()
    first, second = (
        case_of(database, f"{schema}.{name}", root.below(name), create=True)
        for name in ("first", "second")
    )
    publish(first.open(), 1, None, rows(1))
    publish(first.open(), 5, 1, rows(5))
    publish(second.open(), 2, None, rows(2))

    assert first.open().standing(JOB.life, None).ahead == (1, 5)
    assert second.open().standing(JOB.life, None).ahead == (2,)
    assert [row_ids(one) for one in (first, second)] == [[1, 5], [2]]


def row_ids(case: SinkCase) -> list[int]:
    return [row["id"] for row in seen(case)]
