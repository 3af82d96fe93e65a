"""Writers that reach a table by another table's name are waited for, too."""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from harness.postgres_database import Database
from tests.contract.test_postgres_source import IDENTITY, names_of, plan, source_of


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


@contextmanager
def stuck(
    database: Database, statement: str, lock: str, *, is_number_taken: Callable[[], bool]
) -> Iterator[Callable[[], None]]:
    """A session runs *statement* while another holds *lock*; yields what lets it go on."""
    with closing(database.connect()) as holder:
        holder.autocommit = False
        holder.cursor().execute(lock)
        writer = threading.Thread(target=database.run, args=(statement,))
        writer.start()
        while not is_number_taken():
            pass

        def let_go() -> None:
            holder.commit()
            writer.join()

        try:
            yield let_go
        finally:
            let_go()


def waits_for(database: Database, locktype: str) -> Callable[[], bool]:
    statement = f"SELECT count(*) FROM pg_locks WHERE locktype = '{locktype}' AND NOT granted"
    return lambda: database.run(statement) == [(1,)]


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
    waits = waits_for(database, "advisory")
    with stuck(
        database, statement, "SELECT pg_advisory_xact_lock(78)", is_number_taken=waits
    ) as go:
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
    with stuck(
        database,
        f"INSERT INTO {orders} (name) VALUES ('by the root')",
        f"CREATE INDEX ON {orders}_1_7 (name)",
        is_number_taken=waits_for(database, "relation"),
    ) as go:
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
    with stuck(
        database,
        f"INSERT INTO {inbox} (name) VALUES ('passed on')",
        "SELECT pg_advisory_xact_lock(79)",
        is_number_taken=waits_for(database, "advisory"),
    ) as go:
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
    with closing(database.connect()) as writer:
        writer.autocommit = False
        writer.cursor().execute(f"INSERT INTO {schema}.customers (name) VALUES ('c')")
        assert names_of(source, plan(source)) == ["a"]
