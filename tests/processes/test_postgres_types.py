"""Every type that is read and written survives, nulls and the odd values included."""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from harness.postgres_database import Database
from sluice.connectors.postgres.copy import SLICE_ROWS, as_csv, unhexed
from sluice.connectors.postgres.declared_sink import PostgresTable as SinkTable
from sluice.connectors.postgres.declared_source import PostgresTable as SourceTable
from sluice.connectors.postgres.server import TableName, table_name
from sluice.connectors.postgres.source import ReadFence, parsed_fence, remaining
from sluice.connectors.postgres.target import postgres_type
from sluice.core.plan import Slice
from sluice.declaration.places import RECORD
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.store.open import StoreLocation
from tests.contract.sink_case import JOB
from tests.contract.test_postgres_target import sink_of, stage_table

ALL = Slice(partition="p", start=0, end=1 << 62, first_record=0, records=1 << 62)


@pytest.fixture
def table(database: Database) -> str:
    return f"{database.new_schema()}.types"


@pytest.fixture
def root(tmp_path: Path) -> StoreLocation:
    return StoreLocation(root=f"file://{tmp_path}")


def read(database: Database, table: str, *columns: str) -> pa.Table:
    source = SourceTable(database.dsn, table, "id", columns=columns).open({}, None)
    return pa.Table.from_batches(source.read(ALL), source.schema())


WRITTEN = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "small": pa.array([-32768, None, 7], pa.int16()),
        "whole": pa.array([2**31 - 1, None, -1], pa.int32()),
        "big": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
        "real": pa.array([1.1, None, float("-inf")], pa.float32()),
        "double": pa.array([0.1 + 0.2, None, 5e-324]),
        "price": pa.array([Decimal("-1234567.8901"), None, Decimal(0)], pa.decimal128(38, 4)),
        "yes": pa.array([True, None, False]),
        "text": pa.array(["", None, '"q", \\ \n\r\n\tü🙂 \\N NULL \\.']),
        "bytes": pa.array([b"", None, bytes(range(256))], pa.binary()),
        "day": pa.array([date(1, 1, 1), None, date(9999, 12, 31)]),
        "at": pa.array(
            [
                datetime(1, 1, 1, tzinfo=UTC),
                None,
                datetime(2026, 3, 29, 1, 59, 59, 999999, tzinfo=UTC),
            ],
            pa.timestamp("us", tz="UTC"),
        ),
        "local": pa.array(
            [datetime(1969, 12, 31, 23, 59, 59, 1), None, datetime(9999, 12, 31)],  # noqa: DTZ001
            pa.timestamp("us"),
        ),
    }
)


@pytest.mark.parametrize("key", [(), ("id",)], ids=["appended", "upserted"])
def test_what_the_sink_writes_the_source_reads(
    key: tuple[str, ...], database: Database, table: str, root: StoreLocation
) -> None:
    sink = sink_of(database, table, root, upsert_key=key, create=True)
    sink.commit(JOB, 1, None, [stage_table(sink, WRITTEN)])

    found = read(database, table)

    assert found.drop_columns([RECORD]) == WRITTEN
    assert found[RECORD].to_pylist() == [1, 2, 3]
    shown = database.run(
        f"SELECT text IS NULL, length(text), length(bytes) FROM {table} ORDER BY id"
    )
    assert shown == [
        (False, 0, 0),
        (True, None, None),
        (False, len(WRITTEN["text"][2].as_py()), 256),
    ]


def test_kinds_that_arrow_does_not_have_are_read_as_text(database: Database, table: str) -> None:
    database.run(f"CREATE TYPE {table}_mood AS ENUM ('glad')")
    database.run(
        f"CREATE TABLE {table} (id smallint, j jsonb, u uuid, c char(3), m {table}_mood,"
        " numbers int[], words text[], kept varchar(9))"
    )
    database.run(
        f"INSERT INTO {table} VALUES (1, '{{\"a\": [1, null]}}',"
        " '00000000-0000-0000-0000-000000000001', 'x', 'glad', '{1,NULL,3}',"
        " ARRAY['a,b', NULL, '\"'], 'k'), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    )

    assert read(database, table).to_pylist() == [
        {
            "id": 1,
            "j": '{"a": [1, null]}',
            "u": "00000000-0000-0000-0000-000000000001",
            "c": "x  ",
            "m": "glad",
            "numbers": "[1,null,3]",
            "words": '["a,b",null,"\\""]',
            "kept": "k",
            RECORD: 1,
        },
        dict.fromkeys(["j", "u", "c", "m", "numbers", "words", "kept"]) | {"id": 2, RECORD: 2},
    ]


def test_a_cast_column_has_the_type_it_was_cast_to_and_its_own_name(
    database: Database, table: str
) -> None:
    database.run(f"CREATE TABLE {table} (id int, n numeric, t time, raw text)")
    database.run(f"INSERT INTO {table} VALUES (1, 1.25, '12:30', 'ab')")

    found = read(database, table, "n::numeric(20,4)", "t::text", "raw::bytea")

    assert found.schema.types == [pa.decimal128(20, 4), pa.string(), pa.binary(), pa.int64()]
    assert found.to_pylist() == [{"n": Decimal("1.2500"), "t": "12:30:00", "raw": b"ab", RECORD: 1}]


def test_a_column_that_is_cast_in_two_ways_is_refused(database: Database, table: str) -> None:
    database.run(f"CREATE TABLE {table} (id int, n numeric)")

    with pytest.raises(ConfigurationError, match=f"column 'n' of {table} is twice in `columns`"):
        read(database, table, "n::numeric(10, 2)", "n::text")


@pytest.mark.parametrize(
    ("type_", "words"),
    [
        ("numeric", r'numeric without a precision.*"v::numeric\(38, 9\)"'),
        ("numeric(50, 2)", r"numeric\(50, 2\), and 38 digits"),
        ("interval", "of type interval, which sluice does not read; leave it out"),
        ("point", "of type point"),
    ],
)
def test_a_type_that_has_no_counterpart_is_named_with_the_fix(
    type_: str, words: str, database: Database, table: str
) -> None:
    database.run(f"CREATE TABLE {table} (id int, v {type_})")

    with pytest.raises(ConfigurationError, match=words):
        read(database, table)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("timestamptz", "infinity"),
        ("timestamp", "-infinity"),
        ("date", "infinity"),
        ("date", "0044-03-15 BC"),
        ("timestamptz", "12026-01-01"),
        ("numeric(10, 2)", "NaN"),
    ],
)
def test_a_value_that_has_no_counterpart_is_an_error_and_never_another_value(
    type_: str, value: str, database: Database, table: str
) -> None:
    database.run(f"CREATE TABLE {table} (id int, v {type_})")
    database.run(f"INSERT INTO {table} VALUES (1, '{value}')")

    with pytest.raises(ConfigurationError, match="has no counterpart in Arrow"):
        read(database, table)
    assert read(database, table, "v::text")["v"].to_pylist() != [None]


def test_a_single_column_of_nulls_is_not_taken_for_empty_lines(
    database: Database, table: str
) -> None:
    database.run(f"CREATE TABLE {table} (id int, v text)")
    database.run(f"INSERT INTO {table} VALUES (1, NULL), (2, ''), (3, E'\\n')")

    assert read(database, table, "v")["v"].to_pylist() == [None, "", "\n"]


def test_large_slices_come_in_batches_of_whole_rows(database: Database, table: str) -> None:
    database.run(
        f"CREATE TABLE {table} AS SELECT i AS id, repeat(E'x\\n', 1 + i % 50) AS v"
        " FROM generate_series(1, 5000) i"
    )
    source = SourceTable(database.dsn, table, "id").open({}, None)
    batches = [*replace(source, batch_bytes=10_000).read(ALL)]

    assert len(batches) > 20
    assert [row["v"] for batch in batches for row in batch.to_pylist()] == [
        "x\n" * (1 + number % 50) for number in range(1, 5001)
    ]


@pytest.mark.parametrize(
    ("given", "column", "expected"),
    [
        (
            pa.array([{"a": 1, "b": [None, "ü"]}, None]),
            "jsonb",
            ['{"a": 1, "b": [null, "ü"]}', None],
        ),
        (pa.array(["a", None]).dictionary_encode(), "text", ["a", None]),
        (pa.array([b"ab", None], pa.binary(2)), "bytea", ["\\x6162", None]),
        (pa.array([b"", b"\x01"], pa.large_binary()), "bytea", ["\\x", "\\x01"]),
        (pa.array([None, None]), "integer", [None, None]),
        (pa.array([1, 2**64 - 1], pa.uint64()), "numeric(20)", ["1", str(2**64 - 1)]),
        (pa.array([1, None], pa.timestamp("ms", "UTC")), "timestamptz", None),
        (pa.array([1000, None], pa.timestamp("ns", "UTC")), "timestamptz", None),
    ],
)
def test_other_types_of_arrow_are_written_too(
    given: pa.Array,
    column: str,
    expected: list[object] | None,
    database: Database,
    table: str,
    root: StoreLocation,
) -> None:
    database.run(f"CREATE TABLE {table} (id bigint, v {column})")
    sink = sink_of(database, table, root)
    sink.commit(JOB, 1, None, [stage_table(sink, pa.table({"id": [1, 2], "v": given}))])

    found = [one for (one,) in database.run(f"SELECT v::text FROM {table} ORDER BY id")]
    if expected is None:
        (found, expected) = (
            database.run(f"SELECT extract(epoch FROM v)::float8 FROM {table} ORDER BY id"),
            [(given.cast(pa.timestamp("us", "UTC"))[0].as_py().timestamp(),), (None,)],
        )
    assert found == expected


@pytest.mark.parametrize(
    ("given", "column", "words"),
    [
        (pa.array(["no json"]), "json", r"refuses \(22P02\)"),
        (pa.array(["four"]), "varchar(3)", r"refuses \(22001\)"),
        (pa.array([[1]]), "integer[]", r"is integer\[\], and the rows have list"),
    ],
)
def test_a_value_that_postgresql_does_not_take_publishes_nothing(
    given: pa.Array, column: str, words: str, database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} (id bigint, v {column})")
    sink = sink_of(database, table, root)
    staged = stage_table(sink, pa.table({"id": [1], "v": given}))

    with pytest.raises(ConfigurationError, match=words):
        sink.commit(JOB, 1, None, [staged])
    assert not sink.is_published(1)


def test_csv_is_written_in_slices_whatever_the_chunks_are() -> None:
    values = pa.chunked_array([pa.array([bytes([n % 256]) for n in range(SLICE_ROWS)])] * 2)
    table = pa.table({"v": values.slice(3)})

    texts = [*as_csv(table)]

    assert len(texts) == 2
    lines = b"".join(texts).decode().splitlines()
    assert lines == [f'"\\x{n % 256:02x}"' for n in [*range(3, SLICE_ROWS), *range(SLICE_ROWS)]]


def test_hexadecimal_digits_become_bytes() -> None:
    assert unhexed(pa.array(["00ff", None, "", "41"])).to_pylist() == [b"\x00\xff", None, b"", b"A"]
    assert unhexed(pa.array([None], pa.string())).to_pylist() == [None]


@pytest.mark.parametrize("writers", [frozenset(), frozenset({"3/17", "-1/744"})])
def test_a_fence_travels_as_text(writers: frozenset[str]) -> None:
    fence = ReadFence(5, 9, writers)

    assert parsed_fence(str(fence)) == fence
    assert parsed_fence("") is None
    with pytest.raises(ProtocolViolation, match="is no fence"):
        parsed_fence("etag-12")


def test_a_prepared_transaction_that_outlived_a_restart_may_be_one_that_is_waited_for() -> None:
    """The server calls it -1/XID from then on; others of that time have ended."""
    before = frozenset({"3/17", "4/2"})

    assert remaining(before, frozenset({"4/2", "5/1"})) == {"4/2"}
    assert remaining(before, frozenset({"-1/744", "5/1"})) == {"-1/744"}
    assert remaining(before, frozenset()) == set()


@pytest.mark.parametrize("text", ["orders", "public.", ".orders", '"public"."orders"', ""])
def test_a_table_without_its_schema_is_refused(text: str) -> None:
    assert table_name("a.b.c") == TableName("a", "b.c")
    with pytest.raises(ConfigurationError, match="is not written with its schema"):
        table_name(text)


def test_a_table_made_for_rows_takes_all_of_them() -> None:
    assert [postgres_type(one) for one in WRITTEN.schema.types] == [
        "bigint",
        "smallint",
        "integer",
        "bigint",
        "real",
        "double precision",
        "numeric(38, 4)",
        "boolean",
        "text",
        "bytea",
        "date",
        "timestamptz",
        "timestamp",
    ]


def test_declarations_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="go together"):
        SourceTable("x", "a.b", "id", late_commits=timedelta(1))
    with pytest.raises(ConfigurationError, match="go together"):
        SourceTable("x", "a.b", "id", lag_column="at")
    with pytest.raises(ConfigurationError, match=r"late_commits is 0; use 0\.001 ms or more"):
        SourceTable("x", "a.b", "id", late_commits=timedelta(), lag_column="at")
    with pytest.raises(ConfigurationError, match="part of the upsert key"):
        SinkTable("x", "a.b", upsert_key=("id",), checkpoint_column="id")
