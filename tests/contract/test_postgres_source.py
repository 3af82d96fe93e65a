"""A PostgreSQL table keeps every source's promises, whoever writes it meanwhile."""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.connectors.postgres.source import PostgresTableSource, Wait
from sluice.connectors.source import RECORD, Barrier, SourcePosition
from sluice.core.plan import Slice
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.sources.postgres import PostgresTable
from tests.contract.source_rules import check_replay
from tests.postgres_database import Database, running_postgres

IDENTITY = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with running_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def table(database: Database) -> str:
    """A table of rows that are numbered from 1."""
    name = f"{database.new_schema()}.orders"
    database.run(f"CREATE TABLE {name} ({IDENTITY})")
    return name


def insert(database: Database, table: str, *names: str) -> None:
    for name in names:
        database.run(f"INSERT INTO {table} (name) VALUES (%s)", name)


def source_of(database: Database, table: str, **options: Any) -> PostgresTableSource:
    source = PostgresTable(database.dsn, table, "id", **options).open({}, None)
    is_waiting = isinstance(source.late_commits, Wait)
    return replace(source, late_commits=Wait(patience_s=0.1)) if is_waiting else source


def plan(
    source: PostgresTableSource, position: SourcePosition = (), most: int | None = None
) -> Barrier:
    return source.plan(position, max_records=most, parallelism=2)


def names_of(source: PostgresTableSource, barrier: Barrier) -> list[str]:
    return [
        row["name"]
        for piece in barrier.slices
        for batch in source.read(piece)
        for row in batch.to_pylist()
    ]


@pytest.fixture(scope="module")
def hundred(database: Database) -> str:
    name = f"{database.new_schema()}.hundred"
    database.run(f"CREATE TABLE {name} ({IDENTITY})")
    database.run(f"INSERT INTO {name} (name) SELECT 'n' || i FROM generate_series(1, 100) i")
    return name


@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cuts=st.lists(st.tuples(st.integers(1, 40) | st.none(), st.integers(1, 3)), max_size=2))
def test_epochs_of_any_size_are_the_whole_table(cuts, database, hundred) -> None:
    expected = [{"id": n, "name": f"n{n}", RECORD: n} for n in range(1, 101)]

    check_replay(source_of(database, hundred, bounded=True), cuts, expected, files=1)


def test_rows_that_are_added_are_the_next_epoch(database, table) -> None:
    source = source_of(database, table)
    empty = plan(source)
    insert(database, table, "a", "b")
    first = plan(source, empty.position)
    insert(database, table, "c")
    second = plan(source, first.position)

    assert [names_of(source, one) for one in (empty, first, second)] == [[], ["a", "b"], ["c"]]
    assert names_of(source, first) == ["a", "b"]
    assert not plan(source, second.position).slices


def test_a_gap_is_passed_in_one_step_and_the_record_is_the_offset(database, table) -> None:
    insert(database, table, "a")
    first = plan(source_of(database, table))
    database.run(f"ALTER TABLE {table} ALTER COLUMN id RESTART WITH 5000000000")
    insert(database, table, "b", "c")

    source = source_of(database, table)
    second = plan(source, first.position, most=1)
    third = plan(source, second.position, most=1)

    assert [names_of(source, one) for one in (second, third)] == [["b"], ["c"]]
    assert (second.is_backlog, third.is_backlog) == (True, False)
    (row,) = [
        row for one in third.slices for batch in source.read(one) for row in batch.to_pylist()
    ]
    assert row[RECORD] == 5000000001


def test_a_table_of_large_numbers_is_not_read_from_0(database, table) -> None:
    database.run(f"ALTER TABLE {table} ALTER COLUMN id RESTART WITH 7000000000")
    insert(database, table, "a")
    source = source_of(database, table)

    assert names_of(source, plan(source, most=1)) == ["a"]


def test_a_row_that_commits_behind_a_larger_one_is_not_lost(database, table) -> None:
    """Two sessions: the first takes number 1 and commits after the second, with number 2."""
    source = source_of(database, table)
    with closing(database.connect()) as first:
        first.autocommit = False
        first.cursor().execute(f"INSERT INTO {table} (name) VALUES ('early number')")
        insert(database, table, "late number")
        assert database.run(f"SELECT id FROM {table}") == [(2,)]
        waiting = plan(source)
        assert names_of(source, waiting) == []
        again = plan(source, waiting.position)
        assert names_of(source, again) == []
        first.commit()

    assert names_of(source, plan(source, again.position)) == ["early number", "late number"]


def test_what_was_verified_is_read_while_later_transactions_run_for_ever(database, table) -> None:
    """Each overlaps with the next, so that some transaction runs at every moment."""
    source = source_of(database, table)
    position: SourcePosition = ()
    read: list[str] = []
    writers = [database.connect() for _ in range(6)]
    try:
        for number, writer in enumerate(writers):
            writer.autocommit = False
            writer.cursor().execute(f"INSERT INTO {table} (name) VALUES ('w{number}')")
            if number:
                writers[number - 1].commit()
            barrier = plan(source, position, most=10)
            read += names_of(source, barrier)
            position = barrier.position
        assert read == ["w0", "w1", "w2", "w3", "w4"]
        writers[-1].commit()
    finally:
        for writer in writers:
            writer.close()

    assert names_of(source, plan(source, position)) == ["w5"]


def test_a_capped_backlog_is_read_on_while_a_transaction_runs(database, table) -> None:
    insert(database, table, *"abcd")
    source = source_of(database, table)
    first = plan(source, most=1)
    with closing(database.connect()) as writer:
        writer.autocommit = False
        writer.cursor().execute(f"INSERT INTO {table} (name) VALUES ('e')")
        second = plan(source, first.position, most=2)
        third = plan(source, second.position)
        assert [names_of(source, one) for one in (second, third)] == [["b", "c"], ["d"]]
        writer.commit()
    assert names_of(source, plan(source, third.position)) == ["e"]


def test_a_plan_waits_for_a_short_transaction_and_reads_its_rows(database, table) -> None:
    source = replace(source_of(database, table), late_commits=Wait(patience_s=10))
    with closing(database.connect()) as writer:
        writer.autocommit = False
        writer.cursor().execute(f"INSERT INTO {table} (name) VALUES ('a')")
        timer = threading.Timer(0.3, writer.commit)
        timer.start()
        barrier = plan(source)
        timer.join()

    assert names_of(source, barrier) == ["a"]


def test_a_number_of_a_transaction_that_wrote_nothing_yet_is_waited_for(database, table) -> None:
    """It holds the table's lock and a number, but has no transaction id that a snapshot knows."""
    source = source_of(database, table)
    schema = table.split(".")[0]
    database.run(
        f"CREATE FUNCTION {schema}.stop() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_advisory_lock_shared(77); RETURN NEW; END$$"
    )
    database.run(
        f"CREATE TRIGGER stop BEFORE INSERT ON {table} FOR EACH ROW WHEN (NEW.name = 'slow')"
        f" EXECUTE FUNCTION {schema}.stop()"
    )
    with closing(database.connect()) as gate:
        gate.cursor().execute("SELECT pg_advisory_lock(77)")
        thread = threading.Thread(target=insert, args=(database, table, "slow"))
        thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while database.run(waiting) != [(1,)]:
            pass
        insert(database, table, "quick")
        assert database.run(f"SELECT id FROM {table}") == [(2,)]
        first = plan(source)
        assert names_of(source, first) == []
    thread.join()

    assert names_of(source, plan(source, first.position)) == ["slow", "quick"]


def test_a_prepared_transaction_is_waited_for_though_it_changed_its_name(database, table) -> None:
    source = source_of(database, table)
    with closing(database.connect()) as writer:
        cursor = writer.cursor()
        cursor.execute("BEGIN")
        cursor.execute(f"INSERT INTO {table} (name) VALUES ('prepared')")
        insert(database, table, "b")
        first = plan(source)
        cursor.execute(f"PREPARE TRANSACTION '{table}'")
    second = plan(source, first.position)
    assert [names_of(source, one) for one in (first, second)] == [[], []]
    database.run(f"COMMIT PREPARED '{table}'")

    assert names_of(source, plan(source, second.position)) == ["prepared", "b"]


def test_who_writes_a_partition_of_the_table_is_waited_for(database) -> None:
    table = f"{database.new_schema()}.orders"
    database.run(
        f"CREATE TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY, name text)"
        " PARTITION BY RANGE (id)"
    )
    database.run(f"CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES FROM (1) TO (1000)")
    source = source_of(database, table)
    with closing(database.connect()) as writer:
        writer.autocommit = False
        writer.cursor().execute(f"INSERT INTO {table}_1 (name) VALUES ('a')")
        insert(database, table, "b")
        first = plan(source)
        assert names_of(source, first) == []
        writer.commit()

    assert names_of(source, plan(source, first.position)) == ["a", "b"]


def test_a_row_that_was_rolled_back_does_not_hold_the_others_up(database, table) -> None:
    with closing(database.connect()) as writer:
        writer.autocommit = False
        writer.cursor().execute(f"INSERT INTO {table} (name) VALUES ('no')")
        writer.rollback()
    insert(database, table, "yes")
    source = source_of(database, table)

    assert names_of(source, plan(source)) == ["yes"]


def test_many_sessions_at_once_lose_nothing_and_repeat_nothing(database, table) -> None:
    source = replace(source_of(database, table), late_commits=Wait(patience_s=0.02))
    sessions, least, most = 6, 40, 4000
    enough = threading.Event()
    written: list[list[str]] = [[] for _ in range(sessions)]

    def write(number: int) -> None:
        with closing(database.connect()) as writer:
            writer.autocommit = False
            names = written[number]
            while len(names) < least or not (enough.is_set() or len(names) >= most):
                names.append(f"{number}-{len(names)}")
                writer.cursor().execute(f"INSERT INTO {table} (name) VALUES ('{names[-1]}')")
                if len(names) % 3 == 2:
                    writer.cursor().execute(f"SELECT pg_sleep({number / 1000})")
                if len(names) % 4 == 3:
                    writer.commit()
            writer.commit()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(sessions)]
    for thread in threads:
        thread.start()
    read: list[str] = []
    position: SourcePosition = ()
    epochs = 0
    while any(thread.is_alive() for thread in threads):
        barrier = plan(source, position)
        read += names_of(source, barrier)
        position = barrier.position
        epochs += bool(barrier.slices)
        if epochs > 4:
            enough.set()
    read += names_of(source, plan(source, position))

    assert enough.is_set()
    assert len(read) == len(set(read))
    assert sorted(read) == sorted(name for names in written for name in names)


def test_a_bounded_source_ends_with_the_numbers_of_its_first_plan(database, table) -> None:
    source = source_of(database, table, bounded=True)
    with closing(database.connect()) as writer:
        writer.autocommit = False
        writer.cursor().execute(f"INSERT INTO {table} (name) VALUES ('a')")
        insert(database, table, "b")
        first = plan(source)
        insert(database, table, "c")
        assert (first.exhausted, first.slices) == (False, ())
        writer.commit()
    second = plan(source, first.position)

    assert (second.exhausted, names_of(source, second)) == (True, ["a", "b"])


def test_deleted_rows_that_were_read_are_no_matter_and_a_table_made_anew_is(
    database, table
) -> None:
    insert(database, table, *"abc")
    source = source_of(database, table)
    first = plan(source)
    database.run(f"DELETE FROM {table}")
    assert plan(source, first.position).slices == ()
    insert(database, table, "d")
    assert names_of(source, plan(source, first.position)) == ["d"]

    database.run(f"TRUNCATE {table} RESTART IDENTITY")
    with pytest.raises(ConfigurationError, match="was read to offset 4 and ends at 1 now"):
        plan(source, first.position)
    insert(database, table, "x")
    with pytest.raises(ConfigurationError, match="truncated or made anew"):
        plan(source, first.position)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER COLUMN id SET CACHE 20", "CACHE 20.*ALTER SEQUENCE"),
        ("ALTER COLUMN id SET CYCLE", "without CYCLE"),
        ("ALTER COLUMN id DROP IDENTITY", "has no sequence"),
        ("DROP COLUMN id, ADD COLUMN id numeric", "is of type numeric"),
        ("RENAME COLUMN id TO number", "column .id. does not exist"),
        ("RENAME TO elsewhere", "there is no table"),
    ],
)
def test_waiting_is_refused_where_it_would_not_be_sound(change, words, database, table) -> None:
    insert(database, table, "a")
    database.run(f"ALTER TABLE {table} {change}")

    with pytest.raises(ConfigurationError, match=words):
        plan(source_of(database, table))


def test_a_serial_and_a_default_from_a_sequence_are_numbers_in_order_too(database) -> None:
    schema = database.new_schema()
    database.run(f"CREATE TABLE {schema}.serial (id bigserial, name text)")
    database.run(f"CREATE SEQUENCE {schema}.numbers")
    database.run(
        f"CREATE TABLE {schema}.orders (id bigint DEFAULT nextval('{schema}.numbers'), name text)"
    )
    for name in ("serial", "orders"):
        insert(database, f"{schema}.{name}", "a")
        source = source_of(database, f"{schema}.{name}")
        assert names_of(source, plan(source)) == ["a"]


def test_a_guest_needs_select_on_table_and_sequence_and_is_told_so(database, table) -> None:
    schema = table.split(".")[0]
    insert(database, table, "a")
    source = PostgresTable(database.guest_dsn, table, "id").open({}, None)
    database.run(f"GRANT USAGE ON SCHEMA {schema} TO guest")
    with pytest.raises(ConfigurationError, match="42501"):
        plan(source)
    database.run(f"GRANT SELECT ON {table} TO guest")
    with pytest.raises(ConfigurationError, match="GRANT SELECT ON SEQUENCE"):
        plan(source)
    database.run(f"GRANT SELECT ON SEQUENCE {table}_id_seq TO guest")

    assert names_of(source, plan(source)) == ["a"]


LAGGING = "id bigint, name text, at timestamptz DEFAULT now()"


def test_with_a_lag_rows_are_read_once_they_are_old_enough(database) -> None:
    table = f"{database.new_schema()}.orders"
    database.run(f"CREATE TABLE {table} ({LAGGING})")
    source = source_of(
        database, table, bounded=True, late_commits=timedelta(seconds=60), lag_column="at"
    )
    assert plan(source).exhausted
    for number, seconds in ((1, 300), (3, 200), (2, 121), (4, 119), (5, 10)):
        database.run(
            f"INSERT INTO {table} VALUES ({number}, 'n{number}', now() - interval '{seconds} s')"
        )
    first = plan(source)
    assert (names_of(source, first), first.exhausted) == (["n1", "n2", "n3"], False)

    database.run(f"UPDATE {table} SET at = at - interval '1 hour'")
    second = plan(source, first.position)
    assert (names_of(source, second), second.exhausted) == (["n4", "n5"], True)
    database.run(f"DELETE FROM {table} WHERE id > 1")
    with pytest.raises(ConfigurationError, match="truncated or made anew"):
        plan(source, second.position)
    database.run(f"DELETE FROM {table}")
    assert plan(source, second.position).slices == ()


def test_a_condition_leaves_rows_out_and_an_unread_region_is_passed(database, hundred) -> None:
    source = source_of(database, hundred, where="name LIKE '%7'", bounded=True)
    first = plan(source, most=10)

    assert names_of(source, first) == ["n7"]
    rest = plan(source, first.position)
    assert names_of(source, rest) == [f"n{n}" for n in range(17, 100, 10)]
    assert rest.exhausted


def test_a_slice_read_half_way_leaves_no_session_behind(database, hundred) -> None:
    source = replace(source_of(database, hundred), batch_bytes=1)
    piece = plan(source).slices[0]
    batches = source.read(piece)
    assert next(batches).to_pylist()[0]["name"] == "n1"
    batches.close()

    assert len([*source.read(piece)]) == piece.records
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sluice'"
    for _ in range(200):
        if database.run(left) == [(0,)]:
            break
    assert database.run(left) == [(0,)]


def test_a_session_that_breaks_while_it_reads_is_unavailable(database, hundred) -> None:
    database.run(
        f"CREATE TABLE {hundred}_wide AS SELECT id, repeat(name, 20000) AS name FROM {hundred}"
    )
    source = replace(
        source_of(database, f"{hundred}_wide", late_commits=timedelta(1), lag_column="at"),
        batch_bytes=1,
    )
    batches = source.read(Slice(partition="p", start=1, end=101, first_record=0, records=100))
    next(batches)
    database.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sluice'"
    )

    with pytest.raises(StoreUnavailable):
        list(batches)


def test_a_declaration_is_picklable_and_light_and_its_source_is_its_like(
    database, hundred, monkeypatch
) -> None:
    from sluice.params import env, param

    monkeypatch.setenv("SHOP_DSN", database.dsn)
    spec = PostgresTable(env("SHOP_DSN"), param("table"), "id", columns=("name",))
    assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301 - our own
    assert [one.name for one in spec.params] == ["table"]
    source = spec.open({"table": hundred}, None)

    assert source.schema().names == ["name", RECORD]
    assert database.password not in repr(source) + repr(spec)
    with pytest.raises(ConfigurationError, match=r"with its schema; write it as public\.orders"):
        spec.open({"table": "orders"}, None)


def test_slices_share_an_epoch_without_a_gap_between_them(database, hundred) -> None:
    barrier = source_of(database, hundred).plan((), max_records=None, parallelism=3)

    assert len(barrier.slices) == 3
    assert all(one.end == two.start for one, two in pairwise(barrier.slices))
    assert barrier.records == 100
