"""Numbers are taken before rows are visible: real sessions that commit late lose nothing.

Nor do writers that reach the table by another table's name.
"""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from harness.postgres_database import Database
from sluice.connectors.postgres.source import Wait
from sluice.declaration.places import SourcePosition
from sluice.errors import ConfigurationError
from tests.contract.test_postgres_source import IDENTITY, insert, names_of, plan, source_of


@pytest.fixture
def table(database: Database) -> str:
    """A table of rows that are numbered from 1."""
    name = f"{database.new_schema()}.orders"
    database.run(f"CREATE TABLE {name} ({IDENTITY})")
    return name


@contextmanager
def inserted(database: Database, table: str, name: str) -> Iterator[Any]:
    """A session that has inserted a row and not committed."""
    with closing(database.connect()) as writer:
        writer.autocommit = False
        writer.cursor().execute(f"INSERT INTO {table} (name) VALUES ('{name}')")
        yield writer


@contextmanager
def stuck(
    database: Database, statement: str, lock: str, locktype: str = "advisory"
) -> Iterator[Callable[[], None]]:
    """A session runs *statement* while another holds *lock*; yields what lets it go on."""
    waiting = f"SELECT count(*) FROM pg_locks WHERE locktype = '{locktype}' AND NOT granted"
    with closing(database.connect()) as holder:
        holder.autocommit = False
        holder.cursor().execute(lock)
        writer = threading.Thread(target=database.run, args=(statement,))
        writer.start()
        while database.run(waiting) != [(1,)]:
            pass

        def let_go() -> None:
            holder.commit()
            writer.join()

        try:
            yield let_go
        finally:
            let_go()


def test_a_row_that_commits_behind_a_larger_one_is_not_lost(database: Database, table: str) -> None:
    """Two sessions: the first takes number 1 and commits after the second, with number 2."""
    source = source_of(database, table)
    with inserted(database, table, "early number") as first:
        insert(database, table, "late number")
        assert database.run(f"SELECT id FROM {table}") == [(2,)]
        waiting = plan(source)
        assert names_of(source, waiting) == []
        again = plan(source, waiting.position)
        assert names_of(source, again) == []
        first.commit()

    assert names_of(source, plan(source, again.position)) == ["early number", "late number"]


def test_what_was_verified_is_read_while_later_transactions_run_for_ever(
    database: Database, table: str
) -> None:
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


def test_a_capped_backlog_is_read_on_while_a_transaction_runs(
    database: Database, table: str
) -> None:
    insert(database, table, *"abcd")
    source = source_of(database, table)
    first = plan(source, most=1)
    with inserted(database, table, "e") as writer:
        second = plan(source, first.position, most=2)
        third = plan(source, second.position)
        assert [names_of(source, one) for one in (second, third)] == [["b", "c"], ["d"]]
        writer.commit()
    assert names_of(source, plan(source, third.position)) == ["e"]


def test_a_plan_waits_for_a_short_transaction_and_reads_its_rows(
    database: Database, table: str
) -> None:
    source = replace(source_of(database, table), late_commits=Wait(patience_s=10))
    with inserted(database, table, "a") as writer:
        timer = threading.Timer(0.3, writer.commit)
        timer.start()
        barrier = plan(source)
        timer.join()

    assert names_of(source, barrier) == ["a"]


def test_a_number_of_a_transaction_that_wrote_nothing_yet_is_waited_for(
    database: Database, table: str
) -> None:
    """It holds the table's lock and a number, but has no transaction id that a snapshot knows."""
    source = source_of(database, table)
    insert(database, table, "first")  # Logs the next 32 numbers, for which it needs an id.
    start = plan(source).position
    schema = table.partition(".")[0]
    database.run(
        f"CREATE FUNCTION {schema}.stop() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_advisory_lock_shared(77); RETURN NEW; END$$"
    )
    database.run(
        f"CREATE TRIGGER stop BEFORE INSERT ON {table} FOR EACH ROW WHEN (NEW.name = 'slow')"
        f" EXECUTE FUNCTION {schema}.stop()"
    )
    slow = f"INSERT INTO {table} (name) VALUES ('slow')"
    with stuck(database, slow, "SELECT pg_advisory_xact_lock(77)"):
        insert(database, table, "quick")
        assert database.run(f"SELECT id FROM {table}") == [(1,), (3,)]
        first = plan(source, start)
        assert names_of(source, first) == []

    assert names_of(source, plan(source, first.position)) == ["slow", "quick"]


def test_a_prepared_transaction_is_waited_for_though_its_session_is_gone(
    database: Database, table: str
) -> None:
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


def test_who_writes_a_partition_of_the_table_is_waited_for(database: Database) -> None:
    table = f"{database.new_schema()}.orders"
    database.run(
        f"CREATE TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY, name text)"
        " PARTITION BY RANGE (id)"
    )
    database.run(f"CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES FROM (1) TO (1000)")
    source = source_of(database, table)
    with inserted(database, f"{table}_1", "a") as writer:
        insert(database, table, "b")
        first = plan(source)
        assert names_of(source, first) == []
        writer.commit()

    assert names_of(source, plan(source, first.position)) == ["a", "b"]


def test_a_row_that_was_rolled_back_does_not_hold_the_others_up(
    database: Database, table: str
) -> None:
    with inserted(database, table, "no") as writer:
        writer.rollback()
    insert(database, table, "yes")
    source = source_of(database, table)

    assert names_of(source, plan(source)) == ["yes"]


def test_many_sessions_at_once_lose_nothing_and_repeat_nothing(
    database: Database, table: str
) -> None:
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


def test_a_bounded_source_ends_with_the_numbers_of_its_first_plan(
    database: Database, table: str
) -> None:
    source = source_of(database, table, bounded=True)
    with inserted(database, table, "a") as writer:
        insert(database, table, "b")
        first = plan(source)
        insert(database, table, "c")
        assert (first.exhausted, first.slices) == (False, ())
        writer.commit()
    second = plan(source, first.position)

    assert (second.exhausted, names_of(source, second)) == (True, ["a", "b"])


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
def test_waiting_is_refused_where_it_would_not_be_sound(
    change: str, words: str, database: Database, table: str
) -> None:
    insert(database, table, "a")
    database.run(f"ALTER TABLE {table} {change}")

    with pytest.raises(ConfigurationError, match=words):
        plan(source_of(database, table))


def test_a_serial_and_a_default_from_a_sequence_are_numbers_in_order_too(
    database: Database,
) -> None:
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


LAGGING = "id bigint, name text, at timestamptz DEFAULT now()"


@pytest.mark.parametrize("kind", ["timestamp", "date"])
def test_with_a_lag_the_column_is_an_instant_whatever_time_zone_a_writer_has(
    database: Database, kind: str
) -> None:
    """Where a session's day is behind UTC's, a row of now looks hours old and is read at once."""
    table = f"{database.new_schema()}.orders"
    database.run(f"CREATE TABLE {table} ({LAGGING.replace('timestamptz', kind)})")
    source = source_of(database, table, late_commits=timedelta(seconds=60), lag_column="at")
    zone = "SET TimeZone = 'America/New_York'; "
    with closing(database.connect()) as late:
        late.autocommit = False
        late.cursor().execute(f"{zone}INSERT INTO {table} VALUES (1, 'late')")
        database.run(f"{zone}INSERT INTO {table} VALUES (2, 'first')")

        with pytest.raises(ConfigurationError, match=f"'at' of {table} is {kind}.*, which has no"):
            plan(source)


def test_with_a_lag_rows_are_read_once_they_are_old_enough(database: Database) -> None:
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


@pytest.fixture
def orders(database: Database) -> str:
    """Partitioned by day and then by shop; ``{orders}_1_7`` is a leaf."""
    name = f"{database.new_schema()}.orders"
    columns = "id bigserial, day int DEFAULT 1, shop int DEFAULT 7, name text"
    database.run(f"CREATE TABLE {name} ({columns}) PARTITION BY LIST (day)")
    database.run(
        f"CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES IN (1) PARTITION BY LIST (shop)"
    )
    database.run(f"CREATE TABLE {name}_1_7 PARTITION OF {name}_1 FOR VALUES IN (7)")
    return name


@pytest.mark.parametrize("inserts_into", ["orders", "orders_1"])
def test_a_leaf_waits_for_who_inserts_by_a_table_above_it_and_has_not_reached_it(
    database: Database, orders: str, inserts_into: str
) -> None:
    """The number is taken before the row is routed: no lock of the leaf is held or asked for."""
    source = source_of(database, f"{orders}_1_7")
    into = orders.replace("orders", inserts_into)
    default = f"nextval(pg_get_serial_sequence('{orders}', 'id'))"
    statement = (
        f"INSERT INTO {into} (id, day, shop, name) SELECT {default}, 1, 7,"
        " 'slow' || pg_advisory_xact_lock_shared(78)::text"
    )
    with stuck(database, statement, "SELECT pg_advisory_xact_lock(78)") as go:
        database.run(f"INSERT INTO {orders} (name) VALUES ('quick')")
        assert database.run(f"SELECT id FROM {orders}_1_7") == [(2,)]
        first = plan(source)
        assert names_of(source, first) == []
        go()

    assert names_of(source, plan(source, first.position)) == ["slow", "quick"]


def test_a_leaf_waits_for_who_waits_for_its_lock_with_a_number_in_hand(
    database: Database, orders: str
) -> None:
    """CREATE INDEX holds SHARE on the leaf; the writer by the root queues for ROW EXCLUSIVE."""
    source = source_of(database, f"{orders}_1_7")
    insert_by_root = f"INSERT INTO {orders} (name) VALUES ('by the root')"
    with stuck(database, insert_by_root, f"CREATE INDEX ON {orders}_1_7 (name)", "relation") as go:
        first = plan(source)
        assert names_of(source, first) == []
        go()
    database.run(f"INSERT INTO {orders} (name) VALUES ('next')")

    assert names_of(source, plan(source, first.position)) == ["by the root", "next"]


def test_who_takes_a_number_at_another_table_and_is_passed_on_by_its_trigger_is_waited_for(
    database: Database,
) -> None:
    """No inheritance connects the two: only that their numbers are of one sequence."""
    schema = database.new_schema()
    inbox, orders = f"{schema}.inbox", f"{schema}.orders"
    database.run(f"CREATE TABLE {inbox} (id bigserial, name text)")
    database.run(f"CREATE TABLE {orders} (LIKE {inbox} INCLUDING DEFAULTS)")
    database.run(
        f"CREATE FUNCTION {schema}.pass_on() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_advisory_xact_lock_shared(79);"
        f" INSERT INTO {orders} VALUES (NEW.id, NEW.name); RETURN NULL; END$$"
    )
    database.run(
        f"CREATE TRIGGER pass_on BEFORE INSERT ON {inbox} FOR EACH ROW"
        f" EXECUTE FUNCTION {schema}.pass_on()"
    )
    source = source_of(database, orders)
    passed_on = f"INSERT INTO {inbox} (name) VALUES ('passed on')"
    with stuck(database, passed_on, "SELECT pg_advisory_xact_lock(79)") as go:
        database.run(f"INSERT INTO {orders} (name) VALUES ('direct')")
        first = plan(source)
        assert names_of(source, first) == []
        go()

    assert names_of(source, plan(source, first.position)) == ["passed on", "direct"]


def test_writers_of_tables_that_no_number_comes_from_are_not_waited_for(database: Database) -> None:
    schema = database.new_schema()
    for name in ("orders", "customers"):
        database.run(f"CREATE TABLE {schema}.{name} ({IDENTITY})")
    source = source_of(database, f"{schema}.orders")
    database.run(f"INSERT INTO {schema}.orders (name) VALUES ('a')")
    with inserted(database, f"{schema}.customers", "c"):
        assert names_of(source, plan(source)) == ["a"]
