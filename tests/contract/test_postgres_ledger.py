"""The ledger in a PostgreSQL database: the notes of published checkpoints."""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from harness.postgres_database import Database
from sluice.core.timeline import Recovery, Timeline
from sluice.errors import TableMismatch
from sluice.store.open import StoreLocation
from tests.contract.sink_case import JOB, RESTORED, RESTORED_AGAIN, publish, rows
from tests.contract.test_postgres_sink import COLUMNS, case_of, row_ids, sink_of, target_of


@pytest.fixture
def table(database: Database) -> str:
    return f"{database.new_schema()}.orders"


@pytest.fixture
def root(tmp_path: Path) -> StoreLocation:
    return StoreLocation(root=f"file://{tmp_path}/staged")


def test_a_database_that_was_put_back_is_not_published_to(
    database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    case = case_of(database, table, root)
    schema = table.partition(".")[0]
    names = (table, f"{schema}.sluice_ledger", f"{schema}.sluice_sinks")
    for checkpoint_id in (1, 2, 3, 4):
        publish(case.open(), checkpoint_id, checkpoint_id - 1 or None, rows(checkpoint_id))
        if checkpoint_id == 2:
            for name in names:
                database.run(f"CREATE TABLE {name}_backup AS TABLE {name}")
    for name in names:
        database.run(f"TRUNCATE {name}")
        database.run(f"INSERT INTO {name} SELECT * FROM {name}_backup")

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
    database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    case = case_of(database, table, root)
    publish(case.open(), 1, None, rows(1))
    case.open().recover(RESTORED, Recovery(version=1, through=2, continues=2))
    publish(case.open(), 2, 1, rows(2, 3), RESTORED)
    case.open().recover(RESTORED_AGAIN, Recovery(version=1, through=4))
    schema = table.partition(".")[0]

    ledger = f"SELECT checkpoint_id, rows, life, generation FROM {schema}.sluice_ledger ORDER BY 1"
    assert database.run(ledger) == [(1, 1, JOB.life, 1), (2, 2, JOB.life, 2)]
    sinks = (
        f"SELECT life, generation, fenced_by, through, continues, past FROM {schema}.sluice_sinks"
    )
    assert database.run(sinks) == [(JOB.life, 3, 3, 4, None, [])]
    assert target_of(case.open()).timeline() == Timeline(
        life=JOB.life, generation=3, fenced_by=3, through=4, published=((1, 2),)
    )


def test_a_long_time_line_is_not_read_whole_to_publish(
    database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    publish(sink_of(database, table, root), 1, None, rows(1))
    target = target_of(sink_of(database, table, root))
    database.run(
        f"INSERT INTO {table.partition('.')[0]}.sluice_ledger SELECT sink, one, 0, life, 1"
        f" FROM {table.partition('.')[0]}.sluice_sinks, generate_series(3, 300000, 2) AS one"
    )

    with target.server.session(read_only=True) as connection:
        for since, spans, is_cut in ((299_997, 2, True), (400_000, 1, True), (0, 150_000, False)):
            timeline = target.ledger.timeline(connection, since)
            assert (timeline.newest, timeline.is_cut) == (299_999, is_cut)
            assert len(timeline.published) == spans


def test_notes_that_another_coordinator_has_just_made_are_not_those_of_an_older_sluice(
    database: Database, table: str, root: StoreLocation
) -> None:
    """Names are looked up as of now, and columns as of the statement's beginning: what was made
    in between has a name, and no columns yet.
    """
    ledger = target_of(sink_of(database, table, root)).ledger
    with psycopg.connect(database.dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")  # All later statements see the columns of this moment.
        with psycopg.connect(database.dsn) as other:
            ledger.create(other)

        assert ledger.exists(connection)
