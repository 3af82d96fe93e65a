"""A PostgreSQL table that people change: what no longer fits is refused, and nothing is lost."""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from harness.postgres_database import Database
from sluice.errors import ConfigurationError
from sluice.store.open import StoreLocation
from tests.contract.sink_rules import (
    JOB,
    SCHEMA,
    publish,
    rows,
    seen,
    stage,
    stage_deletes,
    staged_rows,
)
from tests.contract.test_postgres_sink import COLUMNS, case_of, sink_of


@pytest.fixture
def table(database: Database) -> str:
    return f"{database.new_schema()}.orders"


@pytest.fixture
def root(tmp_path: Path) -> StoreLocation:
    return StoreLocation(root=f"file://{tmp_path}/staged")


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
    does, says, mends = (
        one if one is says_ else one.format(table, table.partition(".")[0])
        for says_ in [change[1]]
        for one in change
    )
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    database.run(f"CREATE UNIQUE INDEX by_id ON {table} (id)")
    case = case_of(database, table, root, upsert_key=key)
    sink = case.open()
    sink.check(None, SCHEMA, ())
    publish(sink, 1, None, rows(1))
    staged = staged_rows(sink, 2, 2, 3)
    database.run(does)

    with pytest.raises(ConfigurationError, match=says):
        case.open().check(1, SCHEMA, ())  # What a checkpoint is told that is not complete yet.
    for _ in range(2):  # And what is owed: it is tried again.
        with pytest.raises(ConfigurationError, match=says):
            case.open().commit(JOB, 2, 1, [staged])
        assert not case.open().is_published(2)
    database.run(mends)
    case.open().commit(JOB, 2, 1, [staged])

    ids = [row["id"] for row in database.rows(f"SELECT id FROM {table} ORDER BY id")]
    assert ids == [1, 2, 3]
    assert case.open().is_published(2)


@pytest.mark.parametrize("is_empty", [False, True], ids=["alone", "with rows"])
def test_a_table_is_made_by_a_first_checkpoint_that_takes_rows_away(
    is_empty: bool, database: Database, table: str, root: StoreLocation
) -> None:
    case = case_of(database, table, root, upsert_key=("id",), create=True)
    sink = case.open()
    staged = [stage_deletes(sink, 1, rows(7))]
    written = stage(sink, 1, rows(1, 2), subtask=1) if is_empty else None
    sink.check(None, SCHEMA, ())

    sink.commit(JOB, 1, None, [*staged, *([written] if written is not None else [])])
    publish(sink, 2, 1, rows(3))

    assert seen(case) == rows(*([1, 2, 3] if is_empty else [3]))


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
    case.open().commit(JOB, 2, 1, [staged])

    assert seen(case) == rows(3)


NESTED = {
    "bytes": (pa.struct([("b", pa.binary())]), {"b": b"\x00\xffhi"}),
    "no number": (
        pa.list_(pa.struct([("f", pa.float64())])),
        [{"f": float("nan")}, {"f": float("-inf")}, {"f": 1.5}, None],
    ),
    "a map": (pa.map_(pa.string(), pa.binary()), [("k", b"\x01"), ("l", None)]),
}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bytes", {"b": "\\x00ff6869"}),
        ("no number", [{"f": "NaN"}, {"f": "-Infinity"}, {"f": 1.5}, None]),
        ("a map", [["k", "\\x01"], ["l", None]]),
    ],
    ids=[*NESTED],
)
def test_nested_values_are_in_jsonb_as_postgresql_says_them(
    kind: str, expected: object, database: Database, table: str, root: StoreLocation
) -> None:
    type_, value = NESTED[kind]
    database.run(f"CREATE TABLE {table} (j jsonb)")
    sink = sink_of(database, table, root)
    given = pa.table({"j": pa.array([value, None], type_)})
    staged = sink.stage(given, checkpoint_id=1, subtask=0, attempt_token="1-a")  # noqa: S106
    assert staged is not None

    sink.commit(JOB, 1, None, [staged])

    assert database.run(f"SELECT j FROM {table}") == [(expected,), (None,)]


def test_a_database_that_was_put_back_while_its_commit_is_owed_is_told_again(
    database: Database, table: str, root: StoreLocation
) -> None:
    """The journal does not say *committed* yet, so what was staged is still there."""
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    case = case_of(database, table, root)
    publish(case.open(), 1, None, rows(1))
    schema = table.partition(".")[0]
    names = ("orders", "sluice_ledger", "sluice_sinks")
    for name in names:
        database.run(f"CREATE TABLE {schema}.backup_{name} AS TABLE {schema}.{name}")
    staged = staged_rows(case.open(), 2, 2)
    case.open().commit(JOB, 2, 1, [staged])
    for name in names:
        database.run(f"TRUNCATE {schema}.{name}")
        database.run(f"INSERT INTO {schema}.{name} TABLE {schema}.backup_{name}")
    assert seen(case) == rows(1)

    case.open().commit(JOB, 2, 1, [staged])

    assert seen(case) == rows(1, 2)
