"""A PostgreSQL table keeps every sink's promises, and those of one transaction per checkpoint."""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest

from sluice.connectors.postgres.ledger import Ledger
from sluice.connectors.sink import RollBack
from sluice.connectors.staged_sink import StagedSink
from sluice.errors import ConfigurationError, FencedError, ProtocolViolation, StoreUnavailable
from sluice.sinks.postgres import PostgresTable
from sluice.storage.open import StoreLocation
from tests.contract.conftest import environment_with_sluice
from tests.contract.sink_rules import (
    APPEND_RULES,
    UPSERT_RULES,
    Row,
    SinkCase,
    publish,
    rows,
    seen,
    staged_rows,
)
from tests.postgres_database import Database, running_postgres

COLUMNS = "id bigint NOT NULL, name text, price double precision, at timestamptz"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with running_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def table(database: Database) -> str:
    return f"{database.new_schema()}.orders"


@pytest.fixture
def root(tmp_path) -> StoreLocation:
    return StoreLocation(root=f"file://{tmp_path}/staged")


def case_of(database: Database, table: str, root: StoreLocation, **options: object) -> SinkCase:
    spec = PostgresTable(database.dsn, table, **options)
    return SinkCase(
        lambda: spec.open("orders", {}, root),
        lambda: database.rows(f"SELECT id, name, price, at FROM {table}"),
    )


def sink_of(database: Database, table: str, root: StoreLocation, **options: object) -> StagedSink:
    return PostgresTable(database.dsn, table, **options).open("orders", {}, root)


def impatient(sink: StagedSink, *, hung_after_s: float = 0.3, wait_s: float = 30) -> StagedSink:
    ledger = replace(sink.target.ledger, hung_after_s=hung_after_s, lock_wait_s=wait_s)
    return replace(sink, target=replace(sink.target, ledger=ledger))


@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended_with_a_checkpoint_column(
    rule: Callable[[SinkCase], None], database, table, root
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS}, epoch bigint)")
    rule(case_of(database, table, root, checkpoint_column="epoch"))


@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended(rule: Callable[[SinkCase], None], database, table, root) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    rule(case_of(database, table, root))


@pytest.mark.parametrize("rule", UPSERT_RULES, ids=lambda rule: rule.__name__)
def test_upserted(rule: Callable[[SinkCase], None], database, table, root) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS}, PRIMARY KEY (id))")
    rule(case_of(database, table, root, upsert_key=("id",)))


@pytest.mark.parametrize("key", [(), ("id",)], ids=["appended", "upserted"])
def test_a_missing_table_is_made_when_that_is_declared(key, database, table, root) -> None:
    case = case_of(database, table, root, upsert_key=key, create=True, checkpoint_column="epoch")

    publish(case.open(), 1, None, rows(1, 7))
    publish(case.open(), 2, 1, rows(2))

    assert seen(case) == rows(1, 2, 7)
    assert database.run(f"SELECT id, epoch FROM {table} ORDER BY id") == [(1, 1), (2, 2), (7, 1)]


def test_coordinators_that_make_ledger_and_table_at_once_do_not_disturb_each_other(
    database, root
) -> None:
    schema = database.new_schema()
    problems: list[BaseException] = []
    go = threading.Barrier(6)

    def begin(number: int) -> None:
        sink = sink_of(database, f"{schema}.t{number % 3}", root.below(str(number)), create=True)
        staged = staged_rows(sink, 1, number)
        go.wait()
        try:
            sink.commit(1, None, [staged])
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


# A coordinator of its own, that dies where the first argument says.
COMMITTER = """
import os, signal, sys, time
from sluice.connectors.postgres.ledger import Ledger
from sluice.connectors.postgres.target import PostgresTarget
from sluice.core.acks import Committable
from sluice.sinks.postgres import PostgresTable
from sluice.storage.open import StoreLocation

where, dsn, table, key, root, checkpoint_id, file, rows, size = sys.argv[1:]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def hang(*_):
    print("hangs", flush=True)
    time.sleep(600)

def after(method, what):
    def both(*args):
        found = method(*args)
        what()
        return found
    return both

match where:
    case "before":
        PostgresTarget.publish = die
    case "after_copy":
        Ledger.note = die
    case "before_commit":
        Ledger.note = after(Ledger.note, die)
    case "after_commit":
        PostgresTarget.publish = after(PostgresTarget.publish, die)
    case "hang_before_commit":
        Ledger.note = after(Ledger.note, hang)
    case "hang_in_copy":
        from sluice.connectors.postgres import writing
        writing.as_csv = lambda table, text=writing.as_csv: after(text, hang)(table)
        def some(table, text=writing.as_csv):
            yield b'5,"a",1.5,2026-01-01\\n'
            hang()
        writing.as_csv = some
sink = PostgresTable(dsn, table, upsert_key=tuple(key.split())).open(
    "orders", {}, StoreLocation(root=root))
staged = Committable(sink="orders", file=file, rows=int(rows), size_bytes=int(size))
sink.commit(int(checkpoint_id), None, [staged])
"""


def committing(
    where: str, database: Database, table: str, root: StoreLocation, staged, key: str = ""
) -> subprocess.Popen[str]:
    arguments = (where, database.dsn, table, key, root.root, 2, *_told(staged))
    return subprocess.Popen(
        [sys.executable, "-c", COMMITTER, *map(str, arguments)],
        env=environment_with_sluice(),
        stdout=subprocess.PIPE,
        text=True,
    )


def _told(staged) -> tuple[str, int, int]:
    return staged.file, staged.rows, staged.size_bytes


@pytest.mark.parametrize("key", ["", "id"], ids=["appended", "upserted"])
@pytest.mark.parametrize("where", ["before", "after_copy", "before_commit", "after_commit"])
def test_a_coordinator_killed_while_it_commits_leaves_every_row_exactly_once(
    where, key, database, table, root
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS}, UNIQUE (id))")
    if not key:  # A row that came twice must not be stopped by the table.
        database.run(f"ALTER TABLE {table} DROP CONSTRAINT orders_id_key")
    case = case_of(database, table, root, upsert_key=tuple(key.split()))
    publish(case.open(), 1, None, rows(1))
    staged = staged_rows(case.open(), 2, 2, 3)

    with committing(where, database, table, root, staged, key) as killed:
        assert killed.wait(30) == -signal.SIGKILL
    assert seen(case) == (rows(1, 2, 3) if where == "after_commit" else rows(1))
    for _ in range(2):
        case.open().commit(2, 1, [staged])

    assert seen(case) == rows(1, 2, 3)
    ledger = database.run(f"SELECT checkpoint_id, rows FROM {table.split('.')[0]}.sluice_ledger")
    assert sorted(ledger) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("where", ["hang_before_commit", "hang_in_copy"])
def test_a_zombie_that_hangs_in_its_transaction_is_disconnected_and_shows_nothing(
    where, database, table, root
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    case = case_of(database, table, root)
    publish(case.open(), 1, None, rows(1))
    staged = staged_rows(case.open(), 2, 2, 3)
    with committing(where, database, table, root, staged) as zombie:
        assert zombie.stdout is not None
        assert zombie.stdout.readline() == "hangs\n"
        try:
            os.kill(zombie.pid, signal.SIGSTOP)

            impatient(case.open()).commit(2, 1, [staged])

            assert seen(case) == rows(1, 2, 3)
        finally:
            zombie.kill()
    assert seen(case) == rows(1, 2, 3)


@pytest.mark.parametrize("where", ["hang_before_commit", "hang_in_copy"])
def test_a_zombie_that_a_restore_passed_while_it_hung_shows_nothing(
    where, database, table, root, monkeypatch
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    case = case_of(database, table, root)
    publish(case.open(), 1, None, rows(1))
    staged = staged_rows(case.open(), 2, 2, 3)
    hangs, goes_on = threading.Event(), threading.Event()
    outcome: list[BaseException | None] = []

    def hang() -> None:
        hangs.set()
        goes_on.wait(30)

    def act_as_zombie() -> None:
        try:
            sink = case.open()
            target = replace(sink.target, ledger=Hanging(*_fields(sink.target.ledger), hang))
            replace(sink, target=target).commit(2, 1, [staged])
        except BaseException as error:  # noqa: BLE001 - it is looked at
            outcome.append(error)
        else:
            outcome.append(None)

    if where == "hang_in_copy":
        from sluice.connectors.postgres import writing

        as_csv = writing.as_csv
        monkeypatch.setattr(writing, "as_csv", lambda given: (hang(), *as_csv(given))[1:])
        monkeypatch.setattr(Hanging, "note", Ledger.note)
    thread = threading.Thread(target=act_as_zombie)
    thread.start()
    assert hangs.wait(20)
    impatient(case.open()).recover(1, through=3, roll_back=False)
    goes_on.set()
    thread.join()

    assert isinstance(outcome[0], StoreUnavailable)
    assert seen(case) == rows(1)
    with pytest.raises(FencedError, match="a restore passed 3"):
        case.open().commit(2, 1, [staged])
    assert seen(case) == rows(1)


class Hanging(Ledger):
    """Hangs between its note and COMMIT."""

    def __init__(self, *given) -> None:
        super().__init__(*given[:-1])
        object.__setattr__(self, "hang", given[-1])

    def note(self, connection, checkpoint_id: int, count: int) -> None:
        super().note(connection, checkpoint_id, count)
        self.hang()


def _fields(ledger: Ledger) -> tuple[object, ...]:
    return ledger.sink, ledger.table, ledger.hung_after_s, ledger.lock_wait_s


def test_a_coordinator_that_works_is_waited_for_and_not_disconnected(database, table, root) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    database.run(
        f"CREATE FUNCTION {table.split('.')[0]}.slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END$$"
    )
    database.run(
        f"CREATE TRIGGER slow BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION"
        f" {table.split('.')[0]}.slow()"
    )
    case = case_of(database, table, root)
    staged = staged_rows(case.open(), 1, *range(1, 61))
    problems: list[BaseException] = []

    def work() -> None:
        try:
            case.open().commit(1, None, [staged])
        except BaseException as error:  # noqa: BLE001 - it is looked at
            problems.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    time.sleep(0.4)
    with pytest.raises(StoreUnavailable, match="another coordinator"):
        impatient(case.open(), wait_s=0.2).commit(1, None, [staged])
    impatient(case.open()).commit(1, None, [staged])
    worker.join()

    assert problems == []
    assert seen(case) == rows(*range(1, 61))


def test_when_the_answer_to_commit_is_lost_somebody_tries_again_and_finds_the_note(
    database, table, root, monkeypatch
) -> None:
    """The server commits, and the connection breaks before it can say so."""
    import psycopg

    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    case = case_of(database, table, root)
    publish(case.open(), 1, None, rows(1))
    staged = staged_rows(case.open(), 2, 2)
    commit = psycopg.Connection.commit
    lost: list[int] = []

    def commit_and_lose(self: psycopg.Connection) -> None:
        noted = self.execute(
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        ).fetchone()
        commit(self)
        if noted and not lost:
            lost.append(1)
            os.close(os.dup(self.fileno()))
            self.pgconn.finish()
            commit(self)

    monkeypatch.setattr(psycopg.Connection, "commit", commit_and_lose)
    with pytest.raises(StoreUnavailable):
        case.open().commit(2, 1, [staged])
    case.open().commit(2, 1, [staged])

    assert lost == [1]
    assert seen(case) == rows(1, 2)


def test_a_server_killed_in_the_transaction_is_unavailable_and_the_next_try_publishes(
    database, table, root, monkeypatch
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    case = case_of(database, table, root)
    staged = staged_rows(case.open(), 1, 1)
    note = Ledger.note

    def note_and_die(self, connection, checkpoint_id: int, count: int) -> None:
        note(self, connection, checkpoint_id, count)
        database.run("SELECT pg_terminate_backend(%s)", connection.info.backend_pid)

    monkeypatch.setattr(Ledger, "note", note_and_die)
    with pytest.raises(StoreUnavailable):
        case.open().commit(1, None, [staged])
    monkeypatch.undo()
    assert seen(case) == []
    case.open().commit(1, None, [staged])

    assert seen(case) == rows(1)


def test_a_commit_survives_a_crash_of_a_server_that_does_not_flush(database, table, root) -> None:
    """The devstack's server has synchronous_commit off; what is staged is deleted after it."""
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    sink = sink_of(database, table, root)
    shown: list[str] = []

    class Asking(Ledger):
        def note(self, connection, checkpoint_id: int, count: int) -> None:
            super().note(connection, checkpoint_id, count)
            shown.append(connection.execute("SHOW synchronous_commit").fetchone()[0])

    ledger = Asking(*_fields(sink.target.ledger))
    publish(replace(sink, target=replace(sink.target, ledger=ledger)), 1, None, rows(1))

    assert database.run("SHOW synchronous_commit") == [("off",)]
    assert shown == ["on"]


def test_a_roll_back_leaves_rows_of_nobody_and_refuses_a_table_that_two_sinks_write(
    database, table, root
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS}, epoch bigint)")
    database.run(f"INSERT INTO {table} (id) VALUES (0)")
    case = case_of(database, table, root, checkpoint_column="epoch")
    for checkpoint_id in (1, 2):
        publish(case.open(), checkpoint_id, checkpoint_id - 1 or None, rows(checkpoint_id))
    assert case.open().rolls_back is RollBack.ON_REQUEST

    case.open().recover(1, through=2, roll_back=True)

    assert [row["id"] for row in seen(case)] == [0, 1]
    other = case_of(database, table, root, checkpoint_column="epoch", ledger_name="another")
    publish(other.open(), 1, None, rows(8))
    publish(case.open(), 3, 1, rows(3))
    with pytest.raises(ConfigurationError, match="cannot be rolled back: 'another' writes it"):
        case.open().recover(1, through=3, roll_back=True)
    assert [row["id"] for row in seen(case)] == [0, 1, 3, 8]


def test_a_damaged_staged_file_publishes_nothing_of_its_checkpoint(database, table, root) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    case = case_of(database, table, root)
    sink = case.open()
    staged = [staged_rows(sink, 1, 1), replace(staged_rows(sink, 1, 2), file="data/gone.parquet")]

    with pytest.raises(ProtocolViolation, match="missing"):
        sink.commit(1, None, staged)

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
    columns, options, words, database, table, root
) -> None:
    database.run(f"CREATE TABLE {table} ({columns})")
    sink = sink_of(database, table, root, **options)
    staged = sink.stage(NUMBERS, checkpoint_id=1, subtask=0, attempt_token="1-a")  # noqa: S106
    assert staged is not None

    with pytest.raises(ConfigurationError, match=words):
        sink.commit(1, None, [staged])

    assert database.run(f"SELECT count(*) FROM {table}") == [(0,)]
    assert not sink.is_published(1)


def test_a_column_with_a_default_and_a_wider_one_are_fine(database, table, root) -> None:
    database.run(
        f"CREATE TABLE {table} (price numeric, id numeric(30, 2), made timestamptz NOT NULL"
        " DEFAULT now(), number bigint GENERATED ALWAYS AS IDENTITY)"
    )
    sink = sink_of(database, table, root)
    given = NUMBERS.set_column(1, "price", pa.array(["1.25"]).cast(pa.decimal128(10, 4)))
    staged = sink.stage(given, checkpoint_id=1, subtask=0, attempt_token="1-a")  # noqa: S106
    sink.commit(1, None, [staged])

    assert database.run(f"SELECT id::text, price::text, number FROM {table}") == [
        ("1.00", "1.2500", 1)
    ]


def test_a_missing_table_and_a_missing_privilege_name_the_fix(database, table, root) -> None:
    sink = sink_of(database, table, root)
    with pytest.raises(ConfigurationError, match=r"no table .*; make it, or declare create=True"):
        publish(sink, 1, None, rows(1))

    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    database.run(f"GRANT USAGE ON SCHEMA {table.split('.')[0]} TO guest")
    guest = PostgresTable(database.guest_dsn, table).open("orders", {}, root.below("guest"))
    with pytest.raises(ConfigurationError, match=r"\(42501\).*GRANT"):
        publish(guest, 1, None, rows(1))


def test_a_guest_with_the_documented_privileges_can_write(database, table, root) -> None:
    schema = table.split(".")[0]
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


def test_no_message_shows_a_password(database, table, root) -> None:
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


def test_a_look_at_a_table_that_was_never_written_makes_nothing(database, table, root) -> None:
    sink = sink_of(database, table, root)

    assert (sink.is_published(1), sink.published_after(None)) == (False, ())
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s)", [f"{table.split('.')[0]}.sluice_ledger"])
        assert cursor.fetchone() == (None,)


def test_sinks_of_one_schema_keep_their_notes_apart(database, root) -> None:
    schema = database.new_schema()
    first, second = (
        case_of(database, f"{schema}.{name}", root.below(name), create=True)
        for name in ("first", "second")
    )
    publish(first.open(), 1, None, rows(1))
    publish(first.open(), 5, 1, rows(5))
    publish(second.open(), 2, None, rows(2))

    assert first.open().published_after(None) == (1, 5)
    assert second.open().published_after(None) == (2,)
    assert [row_ids(one) for one in (first, second)] == [[1, 5], [2]]


def row_ids(case: SinkCase) -> list[Row]:
    return [row["id"] for row in seen(case)]
