"""A PostgreSQL table keeps the rules of a source, while other sessions write it."""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.postgres_database import (
    Database,
    as_superuser,
    prepare_postgres,
    running_postgres,
    serving_postgres,
    standby_of,
)
from sluice.connectors.postgres.declared_source import PostgresTable
from sluice.connectors.postgres.server import Connection, Server, TableName
from sluice.connectors.postgres.source import PostgresTableSource, Wait
from sluice.core.plan import Slice
from sluice.declaration.places import RECORD, Barrier, SourcePosition
from sluice.errors import ConfigurationError, ProtocolViolation, StoreUnavailable
from tests.contract.source_rules import check_replay
from tests.planted import Caught, assert_is_caught

IDENTITY = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text"


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


def rows_in(source: PostgresTableSource, barrier: Barrier) -> list[dict[str, Any]]:
    return [
        row for piece in barrier.slices for batch in source.read(piece) for row in batch.to_pylist()
    ]


def names_of(source: PostgresTableSource, barrier: Barrier) -> list[str]:
    return [row["name"] for row in rows_in(source, barrier)]


class BusyServer(Server):
    """Others write before each session, so the server's log is at another place in each."""

    @contextmanager
    def session(
        self, *, read_only: bool = False, locked: TableName | None = None
    ) -> Iterator[Connection]:
        with super().session() as other:
            other.execute("SELECT pg_logical_emit_message(false, 'another', 'write')")
        with super().session(read_only=read_only, locked=locked) as connection:
            yield connection


def without_wal_positions(barrier: Barrier) -> Barrier:
    def without(version: str) -> str:
        table, _, *fence = version.split(" ")
        return " ".join([table, *fence])

    return replace(
        barrier,
        position=tuple(replace(one, version=without(one.version)) for one in barrier.position),
        slices=tuple(replace(one, version=without(one.version)) for one in barrier.slices),
    )


@pytest.fixture(scope="module")
def hundred(database: Database) -> str:
    name = f"{database.new_schema()}.hundred"
    database.run(f"CREATE TABLE {name} ({IDENTITY})")
    database.run(f"INSERT INTO {name} (name) SELECT 'n' || i FROM generate_series(1, 100) i")
    return name


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.tuples(st.integers(1, 40) | st.none(), st.integers(1, 3)), max_size=2))
def test_epochs_of_any_size_are_the_whole_table(
    cuts: list[tuple[int | None, int]], database: Database, hundred: str
) -> None:
    expected = [{"id": n, "name": f"n{n}", RECORD: n} for n in range(1, 101)]

    source = source_of(database, hundred, bounded=True)
    busy = replace(source, server=BusyServer(source.server.dsn, source.server.who))

    check_replay(busy, cuts, expected, files=1, replanned=without_wal_positions)


def test_rows_that_are_added_are_the_next_epoch(database: Database, table: str) -> None:
    source = source_of(database, table)
    empty = plan(source)
    insert(database, table, "a", "b")
    first = plan(source, empty.position)
    insert(database, table, "c")
    second = plan(source, first.position)

    assert [names_of(source, one) for one in (empty, first, second)] == [[], ["a", "b"], ["c"]]
    assert names_of(source, first) == ["a", "b"]
    assert not plan(source, second.position).slices


def test_a_gap_is_passed_in_one_step_and_the_record_is_the_offset(
    database: Database, table: str
) -> None:
    insert(database, table, "a")
    first = plan(source_of(database, table))
    database.run(f"ALTER TABLE {table} ALTER COLUMN id RESTART WITH 5000000000")
    insert(database, table, "b", "c")

    source = source_of(database, table)
    second = plan(source, first.position, most=1)
    third = plan(source, second.position, most=1)

    assert [names_of(source, one) for one in (second, third)] == [["b"], ["c"]]
    assert (second.is_backlog, third.is_backlog) == (True, False)
    (row,) = rows_in(source, third)
    assert row[RECORD] == 5000000001


def test_a_table_of_large_numbers_is_not_read_from_0(database: Database, table: str) -> None:
    database.run(f"ALTER TABLE {table} ALTER COLUMN id RESTART WITH 7000000000")
    insert(database, table, "a")
    source = source_of(database, table)

    assert names_of(source, plan(source, most=1)) == ["a"]


def test_deleted_rows_that_were_read_are_no_matter_and_a_table_made_anew_is(
    database: Database, table: str
) -> None:
    insert(database, table, *"abc")
    source = source_of(database, table)
    first = plan(source)
    database.run(f"DELETE FROM {table}")
    assert plan(source, first.position).slices == ()
    insert(database, table, "d")
    assert names_of(source, plan(source, first.position)) == ["d"]

    database.run(f"TRUNCATE {table} RESTART IDENTITY")
    with pytest.raises(ConfigurationError, match="truncated or made anew after it was read to 4"):
        plan(source, first.position)
    insert(database, table, "x")
    with pytest.raises(ConfigurationError, match="truncated or made anew"):
        plan(source, first.position)


def test_a_guest_needs_select_on_table_and_sequence_and_is_told_so(
    database: Database, table: str
) -> None:
    schema = table.partition(".")[0]
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


def test_rows_that_policies_hide_are_refused_before_and_while_they_are_read(
    database: Database, table: str
) -> None:
    insert(database, table, "a", "b", "c")
    schema = table.partition(".")[0]
    database.run(f"GRANT USAGE ON SCHEMA {schema} TO guest; GRANT SELECT ON {table} TO guest")
    database.run(f"GRANT SELECT ON SEQUENCE {table}_id_seq TO guest")
    source = PostgresTable(database.guest_dsn, table, "id").open({}, None)
    planned = plan(source)
    database.run(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")

    refused = f"row level security of table {table} hides rows from role 'guest'.*BYPASSRLS"
    for act in (source.schema, lambda: plan(source), lambda: names_of(source, planned)):
        with pytest.raises(ConfigurationError, match=refused):
            act()
    database.run(f"CREATE POLICY half ON {table} USING (id % 2 = 0)")
    with pytest.raises(ConfigurationError, match=refused):
        plan(source)
    owner = source_of(database, table, bounded=True)
    assert names_of(owner, plan(owner)) == ["a", "b", "c"]
    database.run(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    with pytest.raises(ConfigurationError, match="hides rows from role 'airflow'"):
        plan(owner)


def test_a_condition_leaves_rows_out_and_an_unread_region_is_passed(
    database: Database, hundred: str
) -> None:
    source = source_of(database, hundred, where="name LIKE '%7'", bounded=True)
    first = plan(source, most=10)

    assert names_of(source, first) == ["n7"]
    rest = plan(source, first.position)
    assert names_of(source, rest) == [f"n{n}" for n in range(17, 100, 10)]
    assert rest.exhausted


def test_a_slice_read_half_way_leaves_no_session_behind(database: Database, hundred: str) -> None:
    source = replace(source_of(database, hundred), batch_bytes=1)
    piece = plan(source).slices[0]
    batches = source.read(piece)
    assert isinstance(batches, Generator)
    assert next(batches).to_pylist()[0]["name"] == "n1"
    batches.close()

    assert len([*source.read(piece)]) == piece.records
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sluice'"
    for _ in range(200):
        if database.run(left) == [(0,)]:
            break
    assert database.run(left) == [(0,)]


def test_a_session_that_breaks_while_it_reads_is_unavailable(
    database: Database, hundred: str
) -> None:
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
    database: Database, hundred: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.declaration.params import env, param

    monkeypatch.setenv("SHOP_DSN", database.dsn)
    spec = PostgresTable(env("SHOP_DSN"), param("table"), "id", columns=("name",))
    assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301 - our own
    assert [one.name for one in spec.params] == ["table"]
    source = spec.open({"table": hundred}, None)

    assert source.schema().names == ["name", RECORD]
    assert database.password not in repr(source) + repr(spec)
    with pytest.raises(ConfigurationError, match=r"with its schema; write it as public\.orders"):
        spec.open({"table": "orders"}, None)


def test_slices_share_an_epoch_without_a_gap_between_them(database: Database, hundred: str) -> None:
    barrier = source_of(database, hundred).plan((), max_records=None, parallelism=3)

    assert len(barrier.slices) == 3
    assert all(one.end == two.start for one, two in pairwise(barrier.slices))
    assert barrier.records == 100


def test_a_table_that_was_made_anew_is_refused_however_far_its_numbers_are(
    database: Database, table: str
) -> None:
    """Also by an epoch that was planned before: its rows would be those of another table."""
    insert(database, table, *"abc")
    source = source_of(database, table)
    first = plan(source)
    database.run(f"DROP TABLE {table}")
    database.run(f"CREATE TABLE {table} ({IDENTITY})")
    insert(database, table, *"uvwxyz")

    with pytest.raises(ConfigurationError, match="truncated or made anew after it was read to 4"):
        plan(source, first.position)
    with pytest.raises(ConfigurationError, match="truncated or made anew after it was planned"):
        names_of(source, first)
    assert names_of(source, plan(source)) == [*"uvwxyz"]


@pytest.mark.parametrize("parts", ["", "PARTITION BY LIST (name)"], ids=["one", "partitions"])
def test_a_table_whose_numbers_began_anew_is_refused_and_one_that_was_rewritten_is_not(
    database: Database, table: str, parts: str
) -> None:
    name = f"{table}_again"
    database.run(f"CREATE TABLE {name} (id bigint GENERATED ALWAYS AS IDENTITY, name text) {parts}")
    if parts:
        database.run(f"CREATE TABLE {name}_rest PARTITION OF {name} DEFAULT")
    insert(database, name, *"abc")
    source = source_of(database, name)
    first = plan(source)
    database.run(f"VACUUM FULL {name}")
    insert(database, name, "d")
    assert names_of(source, first) == [*"abc"]
    second = plan(source, first.position)
    database.run(f"ALTER SEQUENCE {name}_id_seq MAXVALUE 1000000")
    third = plan(source, second.position)

    database.run(f"TRUNCATE {name} RESTART IDENTITY")
    insert(database, name, *"uvwxyz")
    with pytest.raises(ConfigurationError, match="truncated or made anew after it was read to 5"):
        plan(source, third.position)
    with pytest.raises(ConfigurationError, match="truncated or made anew after it was planned"):
        names_of(source, second)


def test_rows_without_a_number_are_refused(database: Database, table: str) -> None:
    database.run(f"ALTER TABLE {table} DROP CONSTRAINT orders_pkey")
    database.run(f"ALTER TABLE {table} ALTER COLUMN id DROP IDENTITY")
    database.run(f"ALTER TABLE {table} ALTER COLUMN id DROP NOT NULL")
    sequence = f"{table}_numbers"
    database.run(f"CREATE SEQUENCE {sequence} OWNED BY {table}.id")
    database.run(f"ALTER TABLE {table} ALTER COLUMN id SET DEFAULT nextval('{sequence}')")
    source = source_of(database, table)
    insert(database, table, "a")
    assert names_of(source, plan(source)) == ["a"]

    database.run(f"INSERT INTO {table} (id, name) VALUES (NULL, 'lost')")

    with pytest.raises(ConfigurationError, match="has rows whose 'id' is null, which are never"):
        plan(source)


@pytest.mark.parametrize("name", ["_malformed", "_record", "_Source"])
def test_a_column_with_a_name_of_ours_is_refused(database: Database, table: str, name: str) -> None:
    database.run(f'ALTER TABLE {table} ADD COLUMN "{name}" text')

    with pytest.raises(ConfigurationError, match=f"table {table} has a column '{name}', a name"):
        source_of(database, table).schema()
    assert source_of(database, table, columns=("name",)).schema().names == ["name", RECORD]


def test_names_may_have_any_letters_and_a_text_begins_with_any(
    database: Database, table: str
) -> None:
    """A byte order mark at the begin of what COPY sends is a letter of the first row's text."""
    schema, _, _ = table.partition(".")
    name, columns = "The %s orders", '"100%" text, "%(n)s" bigint GENERATED ALWAYS AS IDENTITY'
    at = "timestamptz DEFAULT now() - interval '1 hour'"
    database.run(f'CREATE TABLE {schema}."{name}" ({columns}, "%" {at})')
    database.run(f"INSERT INTO {schema}.\"{name}\" (\"100%\") VALUES ('\ufeffmark'), ('')")

    lagging: dict[str, Any] = {"late_commits": timedelta(seconds=1), "lag_column": "%"}
    for how in ({}, lagging):
        spec = PostgresTable(database.dsn, f"{schema}.{name}", "%(n)s", columns=("100%",), **how)
        source = spec.open({}, None)
        found = rows_in(source, plan(source))
        assert [row["100%"] for row in found] == ["\ufeffmark", ""]


# A promoted server answers when it is on its new timeline.
REPLICATED = {"wal_level": "replica", "restore_command": "false", "hot_standby": "off"}
MAY_READ_HISTORY = "GRANT EXECUTE ON FUNCTION pg_read_file(text) TO airflow"
MAY_REPLICATE = "ALTER ROLE airflow REPLICATION"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a server with a table of three rows."""
    folder = tmp_path_factory.mktemp("primary") / "one"
    prepare_postgres(folder)
    with serving_postgres(folder, **REPLICATED) as database:
        database.run(f"CREATE TABLE public.orders ({IDENTITY})")
        insert(database, "public.orders", *"abc")
    return folder


@pytest.mark.parametrize("right", ["", MAY_READ_HISTORY, MAY_REPLICATE])
def test_a_failover_goes_on_if_the_timelines_history_shows_that_nothing_read_is_missing(
    stopped: Path, tmp_path: Path, right: str
) -> None:
    primary, standby = tmp_path / "primary", tmp_path / "standby"
    standby_of(stopped, primary, is_promoted=False)
    if right:
        as_superuser(primary, right)
    with serving_postgres(primary, **REPLICATED) as database:
        source = source_of(database, "public.orders")
        half, whole = plan(source, most=1), plan(source)
        insert(database, "public.orders", "d")
        behind = plan(source, whole.position)
        database.run("CREATE TABLE public.others (n int)")
        # Nothing more was read, so what the server did since may be lost.
        assert plan(source, behind.position).position == behind.position
    standby_of(primary, standby)
    with serving_postgres(standby, **REPLICATED, max_wal_senders="4") as database:
        insert(database, "public.orders", "e")
        source = source_of(database, "public.orders")
        if not right:
            for barrier in (half, whole, behind):
                with pytest.raises(ConfigurationError, match="GRANT EXECUTE ON FUNCTION pg_read_"):
                    plan(source, barrier.position)
                with pytest.raises(ConfigurationError, match="on timeline 2 now, and may lack"):
                    names_of(source, barrier)
            name = f"{database_of(database)}@1"
            source = source_of(database, "public.orders", continues=name)
        assert names_of(source, whole) == [*"abc"]
        assert " 2@" in plan(source, whole.position).position[0].version
        assert names_of(source, plan(source, half.position)) == [*"bcde"]
        after = plan(source, behind.position)
        assert names_of(source, after) == [*"e"]
        insert(database, "public.orders", "f")
        assert names_of(source, plan(source, after.position)) == [*"f"]


def database_of(database: Database) -> str:
    found = database.run(
        "SELECT system_identifier || '/' || (SELECT oid FROM pg_database WHERE datname ="
        " current_database()) FROM pg_control_system()"
    )
    return str(found[0][0])


@pytest.mark.parametrize("is_promoted", [True, False], ids=["standby", "backup"])
def test_a_server_that_lacks_commits_that_were_read_is_refused_however_many_rows_it_gets(
    stopped: Path, tmp_path: Path, *, is_promoted: bool
) -> None:
    """A standby that is promoted, and a copy of the primary that is put back."""
    primary, standby = tmp_path / "primary", tmp_path / "standby"
    standby_of(stopped, primary, is_promoted=False)
    as_superuser(primary, MAY_READ_HISTORY)
    standby_of(primary, standby, is_promoted=is_promoted)
    with serving_postgres(primary, **REPLICATED) as database:
        source = source_of(database, "public.orders")
        early = plan(source)
        database.run("CREATE TABLE filler AS SELECT generate_series(1, 100000) AS n")
        insert(database, "public.orders", *"lost")
        late = plan(source, early.position)
        assert names_of(source, late) == [*"lost"]
    with serving_postgres(standby, **REPLICATED) as database:
        insert(database, "public.orders", *"rewritten")
        source = source_of(database, "public.orders")
        with pytest.raises(ConfigurationError, match="server that lacks commits, or was put back"):
            plan(source, late.position)
        with pytest.raises(ConfigurationError, match=r"when table public\.orders was planned"):
            names_of(source, late)
        assert len(names_of(source, plan(source))) == 12
        if is_promoted:  # Its log may be longer than what was read of the other.
            database.run("CREATE TABLE filler AS SELECT generate_series(1, 200000) AS n")
            with pytest.raises(ConfigurationError, match="server that lacks commits, or was put"):
                plan(source, late.position)
            with pytest.raises(ConfigurationError, match="server that lacks commits, or was put"):
                names_of(source, late)


def test_another_server_is_refused_unless_it_is_declared_that_it_has_all_rows(
    database: Database, table: str, tmp_path: Path
) -> None:
    insert(database, table, *"ab")
    position = plan(source_of(database, table)).position
    with running_postgres(tmp_path) as other:
        other.run(f"CREATE SCHEMA {table.partition('.')[0]}")
        other.run(f"CREATE TABLE {table} ({IDENTITY})")
        insert(other, table, *"abc")
        with pytest.raises(ConfigurationError, match="system identifier and oid") as refused:
            plan(source_of(other, table), position)
        name = str(refused.value).rpartition("continues='")[2].rstrip("')")
        moved = source_of(other, table, continues=name)

        assert name == f"{database_of(database)}@1"
        assert names_of(moved, plan(moved, position)) == ["c"]


def test_a_position_of_another_format_is_refused_by_name(database: Database, table: str) -> None:
    (entry,) = plan(source_of(database, table)).position
    identity, _, *fence = entry.version.split(" ")
    old = (replace(entry, version=" ".join([identity, *fence])),)

    with pytest.raises(ProtocolViolation, match="is no place in a write-ahead log"):
        plan(source_of(database, table), old)


SOURCE, SERVER = "connectors.postgres.source", "connectors.postgres.server"
FAULTS = [
    Caught(
        "a table is known by its name", f"{SERVER}:TableIdentity.is_other_than",
        "return self.table != before.table or (", "return False and (",
        test_a_table_that_was_made_anew_is_refused_however_far_its_numbers_are,
    ),
    Caught(
        "a table that was truncated is still itself", f"{SERVER}:TableIdentity.is_other_than",
        "is_emptied = self.file != before.file", "is_emptied = False",
        test_a_table_whose_numbers_began_anew_is_refused_and_one_that_was_rewritten_is_not,
        {"parts": ""},
    ),
    Caught(
        "an epoch that was planned does not ask whose table it reads",
        f"{SOURCE}:PostgresTableSource.read", "if piece.version:", "if False:",
        test_a_table_that_was_made_anew_is_refused_however_far_its_numbers_are,
    ),
    Caught(
        "another server has the same table", f"{SOURCE}:PostgresTableSource._check_continued",
        "if now.table.database != before.table.database:", "if False:",
        test_another_server_is_refused_unless_it_is_declared_that_it_has_all_rows,
    ),
    Caught(
        "a place in the log says all, whatever the timeline", f"{SERVER}:WalPosition.is_on",
        "now.lsn if now.timeline == self.timeline else history.get(self.timeline, -1)", "now.lsn",
        test_a_server_that_lacks_commits_that_were_read_is_refused_however_many_rows_it_gets,
        {"is_promoted": True},
    ),
    Caught(
        "a failover is followed whatever was lost", f"{SERVER}:WalPosition.is_on",
        "return self.lsn <= end", "return now.timeline != self.timeline or self.lsn <= end",
        test_a_server_that_lacks_commits_that_were_read_is_refused_however_many_rows_it_gets,
        {"is_promoted": True},
    ),
    Caught(
        "a server that was put back is the one that was read", f"{SERVER}:WalPosition.is_on",
        "return self.lsn <= end", "return now.timeline == self.timeline or self.lsn <= end",
        test_a_server_that_lacks_commits_that_were_read_is_refused_however_many_rows_it_gets,
        {"is_promoted": False},
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
