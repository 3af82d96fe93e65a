"""Rows of Parquet files: any cut, any row groups, one schema, nothing that changes."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.files.parquet import ParquetSource
from sluice.core.plan import PartitionOffset, Slice, Unread
from sluice.declaration.places import Barrier
from sluice.errors import ConfigurationError
from tests.contract.source_rules import check_replay, places, plan_all
from tests.examples import examples


def write(path: Path, start: int, end: int, *, group: int = 1_000) -> None:
    pq.write_table(pa.table({"n": pa.array(range(start, end))}), path, row_group_size=group)


def planned(folder: Path) -> tuple[ParquetSource, Slice]:
    """The source of a folder of one file, and the one slice of all its rows."""
    source = ParquetSource(str(folder))
    [piece] = plan_all(source, parallelism=1).slices
    return source, piece


def bounds(barrier: Barrier) -> list[tuple[int, int]]:
    return [(piece.start, piece.end) for piece in barrier.slices]


@examples(12)
@given(
    files=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=4),
    cuts=st.lists(st.tuples(st.none() | st.integers(1, 15), st.integers(1, 5)), max_size=20),
)
def test_any_sequence_of_cuts_covers_every_row_exactly_once(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[int, int]],
    cuts: list[tuple[int | None, int]],
) -> None:
    folder = tmp_path_factory.mktemp("cuts")
    total = 0
    for number, (rows, group) in enumerate(files):
        schema = pa.schema([("n", pa.int64())])
        table = pa.table({"n": range(total, total + rows)}, schema=schema)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=group)
        total += rows
    source = ParquetSource(str(folder))

    check_replay(source, cuts, [{"n": n} for n in range(total)], files=len(files))


def test_a_slice_ends_where_a_row_group_does_if_that_is_near(tmp_path: Path) -> None:
    write(tmp_path / "a", 0, 1_000, group=280)
    write(tmp_path / "b", 0, 1_000, group=700)
    three = plan_all(ParquetSource(str(tmp_path / "a")), parallelism=3)
    four = plan_all(ParquetSource(str(tmp_path / "b")), parallelism=4)

    assert bounds(three) == [(0, 280), (280, 560), (560, 1_000)]
    assert bounds(four) == [(0, 250), (250, 500), (500, 700), (700, 1_000)]  # 700 is far from 500.


def test_a_barrier_from_outside_is_a_row(tmp_path: Path) -> None:
    write(tmp_path / "a", 0, 5)
    write(tmp_path / "b", 5, 9)
    source = ParquetSource(str(tmp_path))

    first = source.plan((), max_records=None, parallelism=1, until={"b": 3})
    second = source.plan(first.position, max_records=2, parallelism=1, until={"b": 4, "a": 2})

    assert bounds(first) == [(0, 3)]
    assert places(second.position) == (
        PartitionOffset(partition="a", offset=2, records=2),
        PartitionOffset(partition="b", offset=3, records=3),
    )
    with pytest.raises(ConfigurationError, match=r"offset 5 of 'b' .* to 4, what can be read"):
        source.plan(first.position, max_records=None, parallelism=1, until={"b": 5})


INSTANT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
LOCAL, UTC_TIME = INSTANT.replace(tzinfo=None), pa.timestamp("us", tz="UTC")
DEEP = pa.list_(pa.struct([("u", pa.uint32())]))
# A column as it is written; its type and its value as a stage reads it.
COLUMNS: dict[str, tuple[pa.Array, pa.DataType, Any]] = {
    "naive": (pa.array([LOCAL], pa.timestamp("ns")), UTC_TIME, INSTANT),
    "zoned": (
        pa.array([INSTANT], pa.timestamp("ms", tz="Europe/Zurich")),
        UTC_TIME,
        INSTANT.replace(microsecond=678_000),
    ),
    "nested": (
        pa.array([{"at": [LOCAL]}], pa.struct([("at", pa.list_(pa.timestamp("ns")))])),
        pa.struct([("at", pa.list_(UTC_TIME))]),
        {"at": [INSTANT]},
    ),
    "word": (pa.array(["x"]).dictionary_encode(), pa.string(), "x"),
    "text": (pa.array(["y"], pa.large_string()), pa.string(), "y"),
    "day": (pa.array([date(2026, 1, 2)]), pa.date32(), date(2026, 1, 2)),
    "u8": (pa.array([255], pa.uint8()), pa.int16(), 255),
    "u16": (pa.array([65_535], pa.uint16()), pa.int32(), 65_535),
    "u32": (pa.array([2**32 - 1], pa.uint32()), pa.int64(), 2**32 - 1),
    "u64": (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0), Decimal(2**64 - 1)),
    "half": (pa.array([1.5], pa.float16()), pa.float32(), 1.5),
    "pair": (pa.array([[1, 2]], pa.list_(pa.uint8(), 2)), pa.list_(pa.int16()), [1, 2]),
    "code": (pa.array([b"abc"], pa.binary(3)), pa.binary(), b"abc"),
    "deep": (
        pa.array([[{"u": 7}]], DEEP),
        pa.list_(pa.struct([("u", pa.int64())])),
        [{"u": 7}],
    ),
}


def test_types_are_those_of_spark_and_times_are_utc(tmp_path: Path) -> None:
    written = {name: column for name, (column, _, _) in COLUMNS.items()}
    pq.write_table(pa.table(written), tmp_path / "a")
    source, piece = planned(tmp_path)
    [batch] = source.read(piece)

    assert source.schema() == pa.schema([(name, kind) for name, (_, kind, _) in COLUMNS.items()])
    assert batch.schema == source.schema()
    assert batch.to_pylist() == [{name: value for name, (_, _, value) in COLUMNS.items()}]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"n": [1.5], "m": [1]}, "column 'n' of b is double, and of a int64"),
        ({"n": [1]}, "column 'm' of b is no such column, and of a int64"),
        ({"n": [1], "m": [1], "o": [1]}, "column 'o' of b is int64, and of a no such column"),
        ({"m": [1], "n": [1]}, "column 'm' of b is where a has 'n'"),
    ],
)
def test_a_file_with_other_columns_is_named_with_its_column(
    tmp_path: Path, columns: dict[str, list[Any]], sentence: str
) -> None:
    pq.write_table(pa.table({"n": [1], "m": [2]}), tmp_path / "a")
    pq.write_table(pa.table(columns), tmp_path / "b")

    with pytest.raises(ConfigurationError, match=sentence):
        ParquetSource(str(tmp_path)).plan((), max_records=1, parallelism=1)


def test_what_is_no_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not at all")

    with pytest.raises(ConfigurationError, match=r"notes\.txt of .* is not a whole Parquet file"):
        ParquetSource(str(tmp_path)).plan((), max_records=1, parallelism=1)


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("_delta_log/00000000000000000000.json", "Delta"),
        ("sales/_delta_log/00000000000000000007.json", "Delta"),
        ("metadata/00000-1f.metadata.json", "Iceberg"),
    ],
)
def test_the_files_of_a_table_with_a_log_are_refused_as_soon_as_it_is_there(
    tmp_path: Path, log: str, kind: str
) -> None:
    """Some of these rows were removed, or never committed."""
    (tmp_path / log).parent.mkdir(parents=True)
    write(tmp_path / "a", 0, 5)
    source = ParquetSource(str(tmp_path), bounded=False)
    position = source.plan((), max_records=1, parallelism=1).position

    (tmp_path / log).write_text("{}")

    of_it = f"{log}, so files in it are a table of {kind}, and .*; read them with {kind}Table"
    with pytest.raises(ConfigurationError, match=of_it):
        source.plan(position, max_records=1, parallelism=1)


def test_an_empty_folder_has_no_rows_and_no_columns_yet(tmp_path: Path) -> None:
    source = ParquetSource(str(tmp_path), bounded=False)

    barrier = source.plan((), max_records=None, parallelism=2)

    nothing = Unread(records=0, size_bytes=0)
    assert barrier == Barrier(position=(), slices=(), exhausted=False, unread=nothing, size_bytes=0)
    with pytest.raises(ConfigurationError, match=r"no complete Parquet file at .* yet, so"):
        source.schema()


def test_a_file_that_is_still_being_written_has_no_columns_yet(tmp_path: Path) -> None:
    write(tmp_path / "a", 0, 5)
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-1])

    with pytest.raises(ConfigurationError, match=r"no complete .* yet \(a ends too early\), so"):
        ParquetSource(str(tmp_path), bounded=False).schema()


def test_a_file_that_vanished_half_read_stops_the_source(tmp_path: Path) -> None:
    write(tmp_path / "a", 0, 5)
    write(tmp_path / "b", 0, 5)
    source = ParquetSource(str(tmp_path))
    first = source.plan((), max_records=3, parallelism=1)
    (tmp_path / "a").unlink()

    unbounded = ParquetSource(str(tmp_path), bounded=False)
    for one in (source, unbounded):
        with pytest.raises(ConfigurationError, match=r"a of .* read to row 3 and is gone"):
            plan_all(one, first.position)
    with pytest.raises(ConfigurationError, match=r"a of .* is gone"):
        list(source.read(first.slices[0]))
    later = plan_all(replace(unbounded, skips_lost=True), first.position, parallelism=1)
    assert [piece.partition for piece in later.slices] == ["b"]


@pytest.mark.parametrize("rows", [2, 9])
def test_a_file_with_more_or_fewer_rows_is_refused_by_another_process_too(
    tmp_path: Path, rows: int
) -> None:
    """The position is all that another process knows."""
    write(tmp_path / "a", 0, rows)
    read = PartitionOffset(partition="a", offset=5, records=5, sealed=True)

    with pytest.raises(ConfigurationError, match=f"a of .* to row 5 and has {rows} rows now"):
        plan_all(ParquetSource(str(tmp_path)), (read,))


@pytest.mark.parametrize(("rows", "start"), [(4, 0), (6, 0), (5, 1)])
def test_a_file_that_was_replaced_after_the_plan_is_not_read(
    tmp_path: Path, rows: int, start: int
) -> None:
    write(tmp_path / "a", 0, 5)
    source, piece = planned(tmp_path)
    write(tmp_path / "a", start, start + rows)

    with pytest.raises(ConfigurationError, match=r"a of .* was replaced after this epoch was plan"):
        list(source.read(piece))


def test_a_file_that_was_touched_or_copied_after_the_plan_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a", 0, 5)
    source, piece = planned(tmp_path)
    (tmp_path / "b").write_bytes((tmp_path / "a").read_bytes())
    (tmp_path / "b").replace(tmp_path / "a")

    [batch] = source.read(piece)

    assert batch.column("n").to_pylist() == [0, 1, 2, 3, 4]


def test_a_file_that_is_replaced_while_it_is_read_gives_no_epoch(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(100_000)}), tmp_path / "a")
    source, piece = planned(tmp_path)
    batches = source.read(piece)
    next(batches)
    write(tmp_path / "b", 0, 5)
    (tmp_path / "b").replace(tmp_path / "a")

    with pytest.raises(ConfigurationError, match=r"a of .* was replaced after this epoch was plan"):
        list(batches)


def test_times_of_int96_are_read_as_they_were_written(tmp_path: Path) -> None:
    times = [datetime(year, 1, 1, tzinfo=UTC) for year in (1, 1677, 2026, 9999)]
    table = pa.table({"at": pa.array(times, pa.timestamp("us", tz="UTC"))})
    pq.write_table(table, tmp_path / "a", use_deprecated_int96_timestamps=True)
    source, piece = planned(tmp_path)

    [batch] = source.read(piece)

    assert batch.column("at").to_pylist() == times


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([2**62], pa.timestamp("ms")), "timestamp"),
        (pa.array([[2**62]], pa.list_(pa.timestamp("ms", tz="UTC"))), "list"),
        (pa.array([b"ok", b"\xff\xfe"], pa.binary()).view(pa.string()), "string"),
    ],
    ids=["a time beyond microseconds", "one in a list", "text that is not UTF-8"],
)
def test_a_value_that_its_type_cannot_hold_is_an_error_with_its_column(
    tmp_path: Path, values: pa.Array, kind: str
) -> None:
    pq.write_table(pa.table({"c": values}), tmp_path / "a")
    source, piece = planned(tmp_path)

    with pytest.raises(ConfigurationError, match=f"'c' of a of .* has a value that is no {kind}"):
        list(source.read(piece))


@pytest.mark.parametrize("name", ["n", "_record", "_malformed", "_raw", "_source", "_weight"])
def test_a_name_that_no_stage_can_use_is_refused(tmp_path: Path, name: str) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array(["x"])], names=["n", name])
    pq.write_table(table, tmp_path / "a")
    what = "two columns 'n'" if name == "n" else f"a column '{name}', a name that sluice"

    with pytest.raises(ConfigurationError, match=f"a of .* has {what}"):
        plan_all(ParquetSource(str(tmp_path)))


def test_a_columns_name_that_is_not_utf_8_is_damage(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": [1]}), tmp_path / "a", store_schema=False)
    body = (tmp_path / "a").read_bytes().replace(b"name", b"n\xffme")
    (tmp_path / "a").write_bytes(body)

    with pytest.raises(ConfigurationError, match=r"a of .* is not a whole Parquet file .*utf-8"):
        ParquetSource(str(tmp_path)).schema()


def test_damage_within_a_file_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(1000)}), tmp_path / "a", compression="zstd")
    body = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(body[:4] + bytes(200) + body[204:])
    source, piece = planned(tmp_path)

    with pytest.raises(ConfigurationError, match=r"a of .* is damaged .*; restore it"):
        list(source.read(piece))


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.time64("us"), 5), (pa.null(), None), (pa.time32("ms"), 5)]
)
def test_a_type_that_no_stage_knows_is_refused_with_its_column(
    tmp_path: Path, kind: pa.DataType, value: int | None
) -> None:
    pq.write_table(pa.table({"n": [1], "v": pa.array([value], kind)}), tmp_path / "a")
    source, piece = planned(tmp_path)

    with pytest.raises(
        ConfigurationError, match=f"'v' of a of .* is of type {re.escape(str(kind))}"
    ):
        list(source.read(piece))
    with pytest.raises(ConfigurationError, match=r"'v' of a of .* leave it out"):
        list(source.read(piece, ["v"]))


def test_a_column_that_no_stage_knows_stops_none_that_does_not_read_it(tmp_path: Path) -> None:
    kinds = [pa.null(), pa.int64(), pa.time64("us")]
    for name, kind in zip("abc", kinds, strict=True):
        table = pa.table({"v": pa.array([None], kind), "n": [ord(name)]})
        pq.write_table(table, tmp_path / name)
    source = ParquetSource(str(tmp_path))
    slices = plan_all(source, parallelism=1).slices

    found = [batch["n"].to_pylist() for piece in slices for batch in source.read(piece, ["n"])]

    assert found == [[97], [98], [99]]


def test_wide_rows_are_decoded_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.connectors.files.parquet.BATCH_BYTES", 100_000)
    rows = [f"{number:05d}" * 2_000 for number in range(50)]
    pq.write_table(pa.table({"doc": rows}), tmp_path / "a", use_dictionary=False)
    source, piece = planned(tmp_path)

    batches = list(source.read(piece))

    assert max(batch.num_rows for batch in batches) <= 10
    assert [row["doc"] for batch in batches for row in batch.to_pylist()] == rows
