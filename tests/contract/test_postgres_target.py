"""A PostgreSQL table keeps every sink's promises, and those of one transaction per checkpoint.

Of a table that people change: rows that no longer fit are refused, and nothing is lost.  Of the
ledger: each published checkpoint is noted, and a database that was put back is noticed.
"""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from harness.postgres_database import Database
from sluice.connectors.postgres.declared_sink import PostgresTable
from sluice.connectors.postgres.target import PostgresTarget
from sluice.connectors.staged_sink import StagedSink
from sluice.core.answers import Attempt, Committable
from sluice.core.timeline import Recovery, Timeline, TimelineComparison
from sluice.declaration.places import RollBack, Sink
from sluice.errors import ConfigurationError, ProtocolViolation, StoreUnavailable, TableMismatch
from sluice.store.open import StoreLocation
from tests.builders import PLANNED
from tests.contract.restore_rules import (
    a_table_has_one_writer_whichever_root_its_job_is_in,
    publish_in_turn,
)
from tests.contract.sink_case import (
    JOB,
    RESTORED,
    RESTORED_AGAIN,
    SCHEMA,
    SinkCase,
    publish,
    rows,
    seen,
    stage,
    stage_deletes,
    staged_rows,
)
from tests.contract.sink_rules import APPEND_RULES, UPSERT_RULES
from tests.planted import Caught, assert_is_caught

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


@pytest.fixture
def case(database: Database, table: str, root: StoreLocation) -> SinkCase:
    """A table to which rows are appended."""
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    return case_of(database, table, root)


def sink_of(database: Database, table: str, root: StoreLocation, **options: Any) -> StagedSink:
    return PostgresTable(database.dsn, table, **options).open("orders", {}, root)


def target_of(sink: Sink) -> PostgresTarget:
    assert isinstance(sink, StagedSink)
    assert isinstance(sink.target, PostgresTarget)
    return sink.target


def stage_table(
    sink: StagedSink, given: pa.Table, checkpoint_id: int = 1, subtask: int = 0
) -> Committable:
    token = "1-a"
    staged = sink.stage(
        given,
        Attempt(
            checkpoint_id=checkpoint_id,
            subtask=subtask,
            checkpoint_token=PLANNED,
            attempt_token=token,
        ),
    )
    assert staged is not None
    return staged


@pytest.mark.parametrize("options", [{}, {"checkpoint_column": "epoch"}], ids=["plain", "stamped"])
@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended(
    rule: Callable[[SinkCase], None],
    options: dict[str, str],
    database: Database,
    table: str,
    root: StoreLocation,
) -> None:
    stamp = ", epoch bigint" if options else ""
    database.run(f"CREATE TABLE {table} ({COLUMNS}{stamp})")
    rule(case_of(database, table, root, **options))


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
    go = threading.Barrier(6)

    def begin(number: int) -> None:
        """Six tables are made at once: each by two coordinators of its sink."""
        name = f"t{number % 3}"
        sink = sink_of(database, f"{schema}.{name}", root.below(name), create=True)
        staged = staged_rows(sink, 1, number % 3)
        go.wait()
        sink.commit(JOB, 1, None, [staged])

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(begin, range(6)))  # Raises what one of them raised.

    for number in range(3):
        found = database.run(f"SELECT id FROM {schema}.t{number} ORDER BY id")
        assert found == [(number,)]


def test_a_roll_back_leaves_rows_of_nobody(
    database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS}, epoch bigint)")
    database.run(f"INSERT INTO {table} (id) VALUES (0)")
    case = case_of(database, table, root, checkpoint_column="epoch")
    publish_in_turn(case, 1, 2)
    assert case.open().rolls_back is RollBack.ON_REQUEST

    case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=True))

    assert [row["id"] for row in seen(case)] == [0, 1]


@pytest.mark.parametrize("has_landed", [True, False], ids=["answer lost", "request lost"])
@pytest.mark.parametrize("restores", [False, True], ids=["commit", "restore"])
def test_a_transaction_is_there_once_whatever_became_of_its_answer(
    database: Database,
    table: str,
    root: StoreLocation,
    monkeypatch: pytest.MonkeyPatch,
    restores: bool,
    has_landed: bool,
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS}, epoch bigint)")
    case = case_of(database, table, root, checkpoint_column="epoch")
    publish_in_turn(case, 1, 2)
    staged = staged_rows(case.open(), 3, 3)
    commit = psycopg.Connection.commit

    def lost(connection: psycopg.Connection[Any]) -> None:
        """The line goes dead at the COMMIT of the transaction that writes."""
        if connection.info.transaction_status.name != "INTRANS" or not is_writing(connection):
            commit(connection)
            return
        monkeypatch.setattr(psycopg.Connection, "commit", commit)
        if has_landed:
            commit(connection)
        connection.close()
        raise psycopg.OperationalError("the line went dead")

    def act() -> None:
        if restores:
            case.open().recover(RESTORED, Recovery(version=1, through=3, roll_back=True))
        else:
            case.open().commit(JOB, 3, 2, [staged])

    monkeypatch.setattr(psycopg.Connection, "commit", lost)
    with pytest.raises(StoreUnavailable, match="the line went dead"):
        act()
    assert ([row["id"] for row in seen(case)] != [1, 2]) == has_landed
    act()

    assert [row["id"] for row in seen(case)] == ([1] if restores else [1, 2, 3])


def is_writing(connection: psycopg.Connection[Any]) -> bool:
    """Whether the transaction has changed something."""
    (id_,) = connection.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() or (None,)
    return id_ is not None


def test_a_damaged_staged_file_publishes_nothing_of_its_checkpoint(case: SinkCase) -> None:
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
        ("id bigint, price real", {}, "'price' .* is real, and the rows have double"),
        ("id numeric(18), price float8", {}, r"'id' .* is numeric\(18,0\), and .* int64"),
        ("id bigint GENERATED ALWAYS AS IDENTITY, price float8", {}, "'id' .* is GENERATED ALWAYS"),
        ("id bigint, price float8", {"checkpoint_column": "epoch"}, "no bigint column 'epoch'"),
        ("id bigint, price float8", {"checkpoint_column": "price"}, "no bigint column 'price'"),
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
    staged = stage_table(sink, NUMBERS)

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
    sink.commit(JOB, 1, None, [stage_table(sink, given)])

    assert database.run(f"SELECT id::text, price::text, number FROM {table}") == [
        ("1.00", "1.2500", 1)
    ]


def test_a_missing_privilege_names_the_fix(
    database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    publish(sink_of(database, table, root), 1, None, [])  # Makes the ledger.
    database.run(f"GRANT USAGE ON SCHEMA {table.partition('.')[0]} TO guest")
    guest = PostgresTable(database.guest_dsn, table).open("orders", {}, root.below("guest"))
    with pytest.raises(ConfigurationError, match=r"\(42501\).*GRANT"):
        publish(guest, 1, None, rows(1))


def test_a_table_whose_policies_hide_rows_from_the_role_is_refused(
    database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS}, PRIMARY KEY (id))")
    database.run(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    publish(sink_of(database, table, root), 1, None, rows(1))  # The owner sees all of them.
    database.run(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")

    with pytest.raises(ConfigurationError, match=f"row level security of table {table} hides rows"):
        publish(sink_of(database, table, root), 2, 1, rows(2))


def test_a_guest_with_the_documented_privileges_can_write(
    database: Database, table: str, root: StoreLocation
) -> None:
    schema = table.partition(".")[0]
    database.run(f"CREATE TABLE {table} ({COLUMNS}, PRIMARY KEY (id))")
    other = f"{schema}.other"
    publish(sink_of(database, other, root, create=True), 1, None, [])  # Makes the ledger.
    database.run(f"GRANT USAGE ON SCHEMA {schema} TO guest")
    database.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO guest")
    for name in ("sluice_ledger", "sluice_tables"):
        database.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.{name} TO guest")

    guest = PostgresTable(database.guest_dsn, table, upsert_key=("id",))
    publish(guest.open("orders", {}, root), 1, None, rows(1))
    publish(guest.open("orders", {}, root), 2, 1, rows(1, 2, name="new"))

    assert seen(case_of(database, table, root)) == rows(1, 2, name="new")


def test_no_message_shows_a_password(database: Database, table: str, root: StoreLocation) -> None:
    secret = f"hush{secrets.token_hex(8)}"
    for dsn, error in (
        (f"postgresql://airflow:{secret}@127.0.0.1:{database.port}/airflow", ConfigurationError),
        (
            f"host=127.0.0.1 port={database.port} dbname=airflow user=airflow password={secret}",
            ConfigurationError,
        ),
        (f"postgres//airflow:{secret}@127.0.0.1/airflow", ConfigurationError),
        (f"postgresql://airflow:{secret}@127.0.0.1:1/airflow", StoreUnavailable),
    ):
        sink = PostgresTable(dsn, table).open("orders", {}, root)
        with pytest.raises(error) as raised:
            sink.is_published(1)

        assert secret not in str(raised.value) + repr(sink)
        assert raised.value.__cause__ is None


def test_a_look_at_a_table_that_was_never_written_makes_nothing(
    database: Database, table: str, root: StoreLocation
) -> None:
    sink = sink_of(database, table, root)

    assert (sink.is_published(1), sink.compare(JOB.life, None)) == (False, TimelineComparison())
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s)", [f"{table.partition('.')[0]}.sluice_ledger"])
        assert cursor.fetchone() == (None,)


def test_tables_of_one_schema_keep_their_notes_apart(
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

    assert first.open().compare(JOB.life, None).ahead == (1, 5)
    assert second.open().compare(JOB.life, None).ahead == (2,)
    assert [row_ids(one) for one in (first, second)] == [[1, 5], [2]]


def row_ids(case: SinkCase) -> list[int]:
    return [row["id"] for row in seen(case)]


# A change of the table, the error's message, and the fix.
CHANGES = {
    "a column renamed": (
        "ALTER TABLE {0} RENAME price TO amount",
        "has no column 'price', and the rows do; it has id, name, amount, at; add it",
        "ALTER TABLE {0} RENAME amount TO price",
    ),
    "a column dropped": (
        "ALTER TABLE {0} DROP price",
        r"has no column 'price', .* add it \(double precision\) or select without it",
        "ALTER TABLE {0} ADD price double precision",
    ),
    "a type changed": (
        "ALTER TABLE {0} ALTER id TYPE integer",
        "column 'id' of table .* is integer, and the rows have int64, which goes into bigint; cast",
        "ALTER TABLE {0} ALTER id TYPE bigint",
    ),
    "a column that nobody fills": (
        """ALTER TABLE {0} ADD shop text DEFAULT '' NOT NULL;
        ALTER TABLE {0} ALTER shop DROP DEFAULT""",
        r"column 'shop' \(text\) of table .* is NOT NULL without a default, .* give it a default",
        "ALTER TABLE {0} ALTER shop SET DEFAULT ''",
    ),
    "the table gone": (
        "ALTER TABLE {0} RENAME TO elsewhere",
        "there is no table .*; make it, or declare create=True",
        "ALTER TABLE {1}.elsewhere RENAME TO orders",
    ),
}
CHANGES_OF_A_KEY = {
    "its column renamed": (
        "ALTER TABLE {0} RENAME id TO number",
        "has no column 'id', by which the sink upserts; .* give it its name back",
        "ALTER TABLE {0} RENAME number TO id",
    ),
    "its index dropped": (
        "DROP INDEX {1}.by_id",
        r"no unique index on exactly \(id\), .*; CREATE UNIQUE INDEX",
        "CREATE UNIQUE INDEX by_id ON {0} (id)",
    ),
    "its column may be null": (
        "ALTER TABLE {0} ALTER id DROP NOT NULL",
        "'id' of table .* may be null, .* SET NOT NULL",
        "ALTER TABLE {0} ALTER id SET NOT NULL",
    ),
}


@pytest.mark.parametrize(
    ("key", "change"),
    [
        *((key, change) for key in ((), ("id",)) for change in CHANGES.values()),
        *((("id",), change) for change in CHANGES_OF_A_KEY.values()),
    ],
    ids=[
        *(f"{kind}: {name}" for kind in ("appended", "upserted") for name in CHANGES),
        *CHANGES_OF_A_KEY,
    ],
)
def test_a_table_changed_after_rows_were_staged_is_refused_and_published_when_mended(
    key: tuple[str, ...],
    change: tuple[str, str, str],
    database: Database,
    table: str,
    root: StoreLocation,
) -> None:
    names = (table, table.partition(".")[0])
    does, says, mends = change[0].format(*names), change[1], change[2].format(*names)
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    database.run(f"CREATE UNIQUE INDEX by_id ON {table} (id)")
    case = case_of(database, table, root, upsert_key=key)
    sink = case.open()
    sink.check(None, SCHEMA, ())
    publish(sink, 1, None, rows(1))
    staged = staged_rows(sink, 2, 2, 3)
    database.run(does)

    with pytest.raises(ConfigurationError, match=says):
        case.open().check(1, SCHEMA, ())  # Before a checkpoint completes.
    for _ in range(2):  # A commit that is owed is tried again.
        with pytest.raises(ConfigurationError, match=says):
            case.open().commit(JOB, 2, 1, [staged])
        assert not case.open().is_published(2)
    database.run(mends)
    case.open().commit(JOB, 2, 1, [staged])

    ids = [row["id"] for row in database.rows(f"SELECT id FROM {table} ORDER BY id")]
    assert ids == [1, 2, 3]
    assert case.open().is_published(2)


@pytest.mark.parametrize("has_rows", [False, True], ids=["alone", "with rows"])
def test_a_table_is_made_by_a_first_checkpoint_that_takes_rows_away(
    has_rows: bool, database: Database, table: str, root: StoreLocation
) -> None:
    case = case_of(database, table, root, upsert_key=("id",), create=True)
    sink = case.open()
    deletes = stage_deletes(sink, 1, rows(7))
    written = stage(sink, 1, rows(1, 2), subtask=1) if has_rows else None
    sink.check(None, SCHEMA, ())

    sink.commit(JOB, 1, None, [deletes, *([written] if written is not None else [])])
    publish(sink, 2, 1, rows(3))

    assert seen(case) == rows(*([1, 2, 3] if has_rows else [3]))


def test_a_table_that_was_made_and_is_gone_is_not_made_anew_over_the_loss(
    database: Database, table: str, root: StoreLocation
) -> None:
    case = case_of(database, table, root, create=True)
    publish(case.open(), 1, None, rows(1, 2))
    staged = staged_rows(case.open(), 2, 3)
    database.run(f"DROP TABLE {table}")

    with pytest.raises(ConfigurationError, match=r"is gone, and 2 rows of earlier .*; put it back"):
        case.open().commit(JOB, 2, 1, [staged])
    with pytest.raises(ConfigurationError, match=r"is gone, and 2 rows of earlier .*; put it back"):
        case.open().check(1, SCHEMA, ())
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    with pytest.raises(TableMismatch, match="continues checkpoint 1, which the table does not"):
        case.open().commit(JOB, 2, 1, [staged])
    case.open().recover(RESTORED, Recovery(version=1, through=2, continues=2, accepts=True))
    case.open().commit(RESTORED, 2, 1, [staged])

    assert seen(case) == rows(3)


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        (pa.struct([("b", pa.binary())]), {"b": b"\x00\xffhi"}, {"b": "AP9oaQ=="}),
        (
            pa.list_(pa.struct([("f", pa.float64())])),
            [{"f": float("nan")}, {"f": float("-inf")}, {"f": 1.5}, None],
            [{"f": "NaN"}, {"f": "-Infinity"}, {"f": 1.5}, None],
        ),
        (
            pa.map_(pa.string(), pa.binary()),
            [("k", b"\x01"), ("l", None)],
            {"k": "AQ==", "l": None},
        ),
        (
            pa.list_(pa.map_(pa.date32(), pa.timestamp("us", "UTC"))),
            [[(date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC))]],
            [{"2026-01-01": "2026-01-01T00:00:00Z"}],
        ),
    ],
    ids=["bytes", "no number", "a map", "times"],
)
def test_nested_values_are_in_jsonb_in_the_one_form_of_every_sink(
    type_: pa.DataType,
    value: object,
    expected: object,
    database: Database,
    table: str,
    root: StoreLocation,
) -> None:
    database.run(f"CREATE TABLE {table} (j jsonb)")
    sink = sink_of(database, table, root)

    sink.commit(JOB, 1, None, [stage_table(sink, pa.table({"j": pa.array([value, None], type_)}))])

    assert database.run(f"SELECT j FROM {table}") == [(expected,), (None,)]


def back_up(database: Database, schema: str) -> Callable[[], None]:
    """Copy the sink's tables; what it returns puts the copies back."""
    names = [f"{schema}.{name}" for name in ("orders", "sluice_ledger", "sluice_tables")]
    for name in names:
        database.run(f"CREATE TABLE {name}_backup AS TABLE {name}")

    def put_back() -> None:
        for name in names:
            database.run(f"TRUNCATE {name}")
            database.run(f"INSERT INTO {name} TABLE {name}_backup")

    return put_back


def test_a_database_that_was_put_back_while_its_commit_is_owed_gets_it_again(
    case: SinkCase, database: Database, table: str
) -> None:
    """The journal does not say *committed* yet, so the staged files are still there."""
    publish(case.open(), 1, None, rows(1))
    put_back = back_up(database, table.partition(".")[0])
    staged = staged_rows(case.open(), 2, 2)
    case.open().commit(JOB, 2, 1, [staged])
    put_back()
    assert seen(case) == rows(1)

    case.open().commit(JOB, 2, 1, [staged])

    assert seen(case) == rows(1, 2)


def test_a_database_that_was_put_back_is_not_published_to(
    case: SinkCase, database: Database, table: str
) -> None:
    publish_in_turn(case, 1, 2)
    put_back = back_up(database, table.partition(".")[0])
    publish(case.open(), 3, 2, rows(3))
    publish(case.open(), 4, 3, rows(4))
    put_back()

    with pytest.raises(
        TableMismatch,
        match=rf"PostgreSQL table {table}: checkpoint 5 continues checkpoint 4, .* newest is 2",
    ):
        publish(case.open(), 5, 4, rows(5))
    assert row_ids(case) == [1, 2]
    case.open().recover(RESTORED, Recovery(version=2, through=5))
    publish(case.open(), 6, 2, rows(3, 4, 5, 6), RESTORED)
    assert row_ids(case) == [1, 2, 3, 4, 5, 6]


def test_each_checkpoint_is_a_row_that_says_who_published_it(
    case: SinkCase, database: Database, table: str, root: StoreLocation
) -> None:
    publish(case.open(), 1, None, rows(1))
    case.open().recover(RESTORED, Recovery(version=1, through=2, continues=2))
    publish(case.open(), 2, 1, rows(2, 3), RESTORED)
    case.open().recover(RESTORED_AGAIN, Recovery(version=1, through=4))
    schema = table.partition(".")[0]

    ledger = f"SELECT checkpoint_id, rows, life, generation FROM {schema}.sluice_ledger ORDER BY 1"
    assert database.run(ledger) == [(1, 1, JOB.life, 1), (2, 2, JOB.life, 2)]
    place = f"{root.root}"
    tables = (
        "SELECT table_name, sink, life, generation, fenced_by, through, continues, past"
        f" FROM {schema}.sluice_tables"
    )
    assert database.run(tables) == [(table, place, JOB.life, 3, 3, 4, None, [])]
    assert target_of(case.open()).timeline() == Timeline(
        life=JOB.life, sink=place, generation=3, fenced_by=3, through=4, published=((1, 2),)
    )


def test_a_table_has_one_writer(
    case: SinkCase, database: Database, table: str, root: StoreLocation
) -> None:
    other = case_of(database, table, root.below("copy/shop/tables/orders"))
    a_table_has_one_writer_whichever_root_its_job_is_in(case, other)


def test_a_sink_that_is_declared_for_another_table_is_not_published_over_a_hole(
    case: SinkCase, database: Database, table: str, root: StoreLocation
) -> None:
    """Neither to one that nobody wrote, nor to that of another sink, which has equal ids."""
    schema = table.partition(".")[0]
    database.run(f"CREATE TABLE {schema}.new ({COLUMNS})")
    theirs = case_of(database, f"{schema}.theirs", root.below("theirs"), create=True)
    publish_in_turn(case, 1, 2, 3)
    publish_in_turn(theirs, 1, 2, 3, 4)

    for name, words in (
        ("new", "continues checkpoint 3, which the table does not show"),
        ("theirs", "belongs to life 'first-life' of a job at .*theirs, not to"),
    ):
        moved = case_of(database, f"{schema}.{name}", root)
        assert moved.open().compare(JOB.life, 3).lacks == (name == "new")
        with pytest.raises(TableMismatch, match=words):
            publish(moved.open(), 4, 3, rows(9))
    with pytest.raises(TableMismatch, match="does not show checkpoint 3, which the job continues"):
        case_of(database, f"{schema}.new", root).open().check(3, SCHEMA, ())
    assert row_ids(theirs) == [1, 2, 3, 4]
    theirs.open().recover(RESTORED, Recovery(version=3, through=4))
    assert row_ids(case) == [1, 2, 3]


@pytest.mark.parametrize(
    "changes",
    [
        ("TRUNCATE {table}",),
        ("DROP TABLE {table}", "CREATE TABLE {table} ({columns})"),
        ("ALTER TABLE {table} RENAME TO old", "CREATE TABLE {table} (LIKE {schema}.old)"),
        (
            "CREATE TABLE {schema}.copy AS TABLE {table}",
            "DROP TABLE {table}",
            "ALTER TABLE {schema}.copy RENAME TO {name}",
        ),
    ],
    ids=["truncated", "made anew", "swapped", "a copy"],
)
def test_a_table_that_somebody_emptied_or_replaced_is_told_before_a_commit_and_refused(
    changes: tuple[str, ...], case: SinkCase, database: Database, table: str
) -> None:
    publish_in_turn(case, 1, 2, 3)
    schema, _, name = table.partition(".")
    for change in changes:
        database.run(change.format(table=table, schema=schema, name=name, columns=COLUMNS))
    before = seen(case)

    assert case.open().compare(JOB.life, 3).lacks
    with pytest.raises(TableMismatch, match="does not show checkpoint 3, which the job continues"):
        case.open().check(3, SCHEMA, ())
    with pytest.raises(TableMismatch, match="continues checkpoint 3, which the table does not"):
        publish(case.open(), 4, 3, rows(4))
    with pytest.raises(TableMismatch, match="does not show checkpoint 3"):
        case.open().recover(RESTORED, Recovery(version=3, through=4))
    assert seen(case) == before
    case.open().recover(RESTORED, Recovery(version=3, through=4, accepts=True))
    publish(case.open(), 5, 3, rows(5), RESTORED)
    publish(case.open(), 6, 5, rows(6), RESTORED)
    assert seen(case) == [*before, *rows(5, 6)]


def test_maintenance_and_a_new_name_leave_the_time_line(
    case: SinkCase, database: Database, table: str, root: StoreLocation
) -> None:
    publish_in_turn(case, 1, 2)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(f"VACUUM FULL {table}".encode())
    publish(case.open(), 3, 2, rows(3))
    database.run(f"ALTER TABLE {table} RENAME TO purchases")
    renamed = case_of(database, f"{table.partition('.')[0]}.purchases", root)

    publish(renamed.open(), 4, 3, rows(4))

    assert row_ids(renamed) == [1, 2, 3, 4]


def test_the_notes_of_an_older_sluice_are_refused_by_name(
    case: SinkCase, database: Database, table: str
) -> None:
    database.run(f"CREATE TABLE {table.partition('.')[0]}.sluice_sinks (sink text)")

    with pytest.raises(ProtocolViolation, match=r"sluice_sinks has the notes of an older sluice"):
        publish(case.open(), 1, None, rows(1))


def test_a_long_time_line_is_not_read_whole_to_publish(
    database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    publish(sink_of(database, table, root), 1, None, rows(1))
    target = target_of(sink_of(database, table, root))
    database.run(
        f"INSERT INTO {table.partition('.')[0]}.sluice_ledger SELECT table_id, one, 0, life, 1"
        f" FROM {table.partition('.')[0]}.sluice_tables, generate_series(3, 300000, 2) AS one"
    )

    with target.server.session(read_only=True) as connection:
        for since, spans, is_cut in ((299_997, 2, True), (400_000, 1, True), (0, 150_000, False)):
            timeline = target.ledger.timeline(connection, since)
            assert (timeline.newest, timeline.is_cut) == (299_999, is_cut)
            assert len(timeline.published) == spans


def test_notes_that_another_coordinator_has_just_made_are_not_those_of_an_older_sluice(
    database: Database, table: str, root: StoreLocation
) -> None:
    """The server finds names as of now, and columns as of the statement's beginning: a table made
    in between has a name, and no columns yet.
    """
    ledger = target_of(sink_of(database, table, root)).ledger
    with psycopg.connect(database.dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")  # All later statements see the columns of this moment.
        with psycopg.connect(database.dsn) as other:
            ledger.create(other)

        assert ledger.exists(connection)


LEDGER = "connectors.postgres.ledger:Ledger"
FAULTS = [
    Caught(
        "the note is found by the table's name", f"{LEDGER}.row", '"oid": oid,', '"oid": 0,',
        test_a_table_that_somebody_emptied_or_replaced_is_told_before_a_commit_and_refused,
        {"changes": ("DROP TABLE {table}", "CREATE TABLE {table} ({columns})")},
    ),
    Caught(
        "a table that was truncated shows what its note says", f"{LEDGER}.row",
        "is_emptied = had_rows and", "is_emptied = False and",
        test_a_table_that_somebody_emptied_or_replaced_is_told_before_a_commit_and_refused,
        {"changes": ("TRUNCATE {table}",)},
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
