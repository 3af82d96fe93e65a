"""What is written to a Delta table is read once each, however it is cut: rows, or all changes.

Versions that changed rows are refused where rows are read; those that are gone are named.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable as Table
from deltalake import write_deltalake

from sluice.connectors.delta.declared_source import DeltaTable
from sluice.connectors.delta.source import VERSIONS
from sluice.connectors.delta_log import DeltaPlace
from sluice.core.plan import PartitionOffset
from sluice.declaration import aggregates as agg
from sluice.declaration.changelog import Retract
from sluice.declaration.operations import Tumbling
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import WEIGHT, Barrier, Source, SourcePosition
from sluice.errors import ConfigurationError
from tests.contract.sink_case import JOB, publish, stage_deletes, staged_rows
from tests.contract.sink_case import rows as sink_rows
from tests.contract.source_rules import check_replay, rows_of
from tests.delta_tables import a_sink

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("tags", pa.list_(pa.string()))])


def rows(start: int, end: int) -> list[dict[str, Any]]:
    return [{"n": n, "text": f"row {n}", "tags": ["a", str(n)]} for n in range(start, end)]


def append(folder: Path, start: int, end: int, **how: Any) -> int:
    place = str(folder / "sales")
    table = pa.Table.from_pylist(rows(start, end), SCHEMA)
    write_deltalake(place, table, mode="append", **how)
    return Table(place).version()


def a_source(folder: Path, **fields: Any) -> Source:
    return DeltaTable(f"file://{folder}/sales", **fields).open({}, None)


def plan(source: Source, position: SourcePosition = (), max_records: int | None = None) -> Barrier:
    return source.plan(position, max_records=max_records, parallelism=1)


def read_after(source: Source, position: SourcePosition = ()) -> list[int]:
    barrier = source.plan(position, max_records=None, parallelism=2)
    return sorted(row["n"] for row in rows_of(source, barrier))


CUTS = [[], [(1, 1), (2, 5), (3, 2)], [(7, 3), (None, 1)], [(1, 1)] * 12, [(4, 2)] * 4]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("start", ["earliest", 0])
def test_appends_are_read_in_order_however_they_are_cut(
    tmp_path: Path, cuts: list[tuple[int | None, int]], start: str | int
) -> None:
    for first in range(0, 12, 3):
        append(tmp_path, first, first + 3)

    source = a_source(tmp_path, bounded=True, start=start)

    if start == 0:
        check_replay(source, cuts, rows(0, 12), files=20)
        return
    read: list[dict[str, Any]] = []
    position: SourcePosition = ()
    for max_records, parallelism in [*cuts, (None, 2)]:
        barrier = source.plan(position, max_records=max_records, parallelism=parallelism)
        read += rows_of(source, barrier)
        position = barrier.position
    assert sorted(read, key=lambda row: row["n"]) == rows(0, 12)
    assert barrier.exhausted


def test_the_position_has_two_entries_at_most_and_later_versions_follow(tmp_path: Path) -> None:
    append(tmp_path, 0, 3)
    append(tmp_path, 3, 6)
    source = a_source(tmp_path)
    position: SourcePosition = ()
    for _ in range(6):
        barrier = plan(source, position, 1)
        position = barrier.position
        assert barrier.records == 1
        assert len(position) <= 2
        assert [one.sealed for one in position if one.partition == VERSIONS] == [True]

    append(tmp_path, 6, 8)

    assert read_after(source, position) == [6, 7]


def test_latest_begins_behind_what_is_there(tmp_path: Path) -> None:
    append(tmp_path, 0, 2)
    source = a_source(tmp_path, start="latest")
    empty = plan(source)
    assert empty.slices == ()

    append(tmp_path, 2, 4)

    assert read_after(source, empty.position) == [2, 3]
    with pytest.raises(ConfigurationError, match="has no version 7 yet; begin with one up to 1"):
        plan(a_source(tmp_path, start=7))
    with pytest.raises(ConfigurationError, match="the start 'now' of the Delta table"):
        a_source(tmp_path, start="now")
    with pytest.raises(ConfigurationError, match="would take back rows that were never read; begi"):
        a_source(tmp_path, start="latest", changes="rows")


def test_partitions_and_columns_that_were_added_later(tmp_path: Path) -> None:
    append(tmp_path, 0, 2, partition_by=["text"])
    wider = pa.table({"n": [2], "text": ["a b/ü"], "more": [0.5]})
    write_deltalake(str(tmp_path / "sales"), wider, mode="append", schema_mode="merge")
    source = a_source(tmp_path, start=0)

    found = sorted(rows_of(source, plan(source)), key=lambda row: row["n"])

    added = {"n": 2, "text": "a b/ü", "tags": None, "more": 0.5}
    assert found == [*(row | {"more": None} for row in rows(0, 2)), added]
    two = a_source(tmp_path, columns=("text", "n"))
    assert two.schema().names == ["text", "n"]
    assert read_after(two) == [0, 1, 2]
    with pytest.raises(ConfigurationError, match="has no column 'x'; it has n, tags"):
        a_source(tmp_path, columns=("x",)).schema()


def test_compactions_are_passed_over_and_changes_are_refused(tmp_path: Path) -> None:
    append(tmp_path, 0, 2)
    append(tmp_path, 2, 4)
    source = a_source(tmp_path)
    first = plan(source)
    table = Table(str(tmp_path / "sales"))
    table.optimize.compact()
    append(tmp_path, 4, 5)
    assert read_after(source, first.position) == [4]

    Table(str(tmp_path / "sales")).delete("n = 1")

    with pytest.raises(ConfigurationError, match=r"version 4 of .* changes or deletes rows \(DEL"):
        plan(source, first.position)
    assert plan(source, first.position, 1).records == 1  # Rows before it are read.
    append(tmp_path, 5, 6)
    assert read_after(a_source(tmp_path, skip_overwrites=True), first.position) == [4, 5]


def net(found: list[dict[str, Any]]) -> dict[Any, int]:
    """The sum of the changes: what a table of them has."""
    total: Counter[Any] = Counter()
    for row in found:
        sign = -1 if row["_change_type"] in ("delete", "update_preimage") else 1
        total[tuple(v for k, v in row.items() if not k.startswith("_"))] += sign
    return {row: count for row, count in total.items() if count}


@pytest.mark.parametrize("feeds", [False, True], ids=["files", "feed"])
@pytest.mark.parametrize("cap", [None, 1])
def test_changes_add_up_to_the_table(tmp_path: Path, feeds: bool, cap: int | None) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    place = str(tmp_path / "sales")
    setting = {"delta.enableChangeDataFeed": str(feeds).lower()}
    Table.create(place, schema, configuration=setting)
    write_deltalake(place, pa.table({"id": [1, 2, 3], "v": ["a"] * 3}, schema), mode="append")
    source = a_source(tmp_path, changes=True, start=0, bounded=True)
    Table(place).update({"v": "'b'"}, predicate="id = 2")
    Table(place).delete("id = 1")
    Table(place).optimize.compact()
    write_deltalake(place, pa.table({"id": [4], "v": ["a"]}, schema), mode="append")

    found: list[dict[str, Any]] = []
    position: SourcePosition = ()
    while True:
        barrier = plan(source, position, cap)
        found += rows_of(source, barrier)
        position = barrier.position
        if barrier.exhausted:
            break

    assert net(found) == {(2, "b"): 1, (3, "a"): 1, (4, "a"): 1}
    assert net(found) == dict.fromkeys(pl.read_delta(place).rows(), 1)
    commits = [row["_commit_version"] for row in found]
    assert commits == sorted(commits)
    assert ("update_preimage" in {row["_change_type"] for row in found}) == feeds


def test_what_an_upserting_sink_writes_is_read_as_changes(tmp_path: Path) -> None:
    sink = a_sink(tmp_path, "id")
    publish(sink, 1, None, sink_rows(1, 2, 3))
    staged = [staged_rows(sink, 2, 2, 4, name="new"), stage_deletes(sink, 2, sink_rows(3))]
    sink.commit(JOB, 2, 1, staged)
    source = a_source(tmp_path, changes=True, start=0)

    found = rows_of(source, plan(source))

    there = pl.read_delta(str(tmp_path / "sales")).rows()
    assert net(found) == dict.fromkeys(there, 1)


def weighed(found: list[dict[str, Any]]) -> dict[Any, int]:
    """The sum of the weights by row: what a table of them has."""
    total: Counter[Any] = Counter()
    for row in found:
        total[tuple(v for k, v in row.items() if k != WEIGHT)] += row[WEIGHT]
    return {row: count for row, count in total.items() if count}


@pytest.mark.parametrize("feeds", [False, True], ids=["files", "feed"])
def test_rows_that_an_update_or_a_delete_took_are_taken_back(tmp_path: Path, feeds: bool) -> None:
    place = str(tmp_path / "sales")
    setting = {"delta.enableChangeDataFeed": str(feeds).lower()}
    Table.create(place, pa.schema([("id", pa.int64()), ("v", pa.string())]), configuration=setting)
    write_deltalake(place, pa.table({"id": [1, 2, 3], "v": ["a"] * 3}), mode="append")
    source = a_source(tmp_path, changes="rows", start=0)
    first = plan(source)
    assert source.schema().names == ["id", "v", WEIGHT]
    assert weighed(rows_of(source, first)) == {(1, "a"): 1, (2, "a"): 1, (3, "a"): 1}
    Table(place).update({"v": "'b'"}, predicate="id = 2")
    Table(place).optimize.compact()
    Table(place).delete("id = 1")

    changes = plan(source, first.position)

    assert weighed(rows_of(source, changes)) == {(2, "a"): -1, (2, "b"): 1, (1, "a"): -1}
    assert weighed(rows_of(source, plan(source, changes.position))) == {}
    Table(place).restore(1)
    restored = plan(source, changes.position)
    assert weighed(rows_of(source, restored)) == {(2, "a"): 1, (2, "b"): -1, (1, "a"): 1}


def test_an_epoch_has_all_changes_of_a_version_whatever_its_limit(tmp_path: Path) -> None:
    append(tmp_path, 0, 4)
    source = a_source(tmp_path, changes="rows", start=0)
    first = plan(source, (), 3)
    assert (first.records, first.is_backlog) == (3, True)  # Of the first table nothing goes yet.
    append(tmp_path, 4, 5)
    place = str(tmp_path / "sales")
    Table(place).delete("n < 2")
    append(tmp_path, 5, 6)

    read: list[tuple[int, int]] = []
    position = first.position
    for _ in range(4):
        barrier = plan(source, position, 2)
        position = barrier.position
        mark = next(one for one in position if one.partition == VERSIONS)
        read.append((mark.offset, barrier.records))

    assert read == [(2, 2), (3, 6), (4, 1), (4, 0)]  # Version 2 rewrote four rows as two.


def test_a_column_that_was_read_and_is_gone_or_another_is_named(tmp_path: Path) -> None:
    append(tmp_path, 0, 2)
    place = str(tmp_path / "sales")
    source = a_source(tmp_path, changes="rows")
    first = plan(source)
    wider = pa.table({"n": [2], "text": ["a"], "more": [0.5]})
    write_deltalake(place, wider, mode="append", schema_mode="merge")
    added = plan(source, first.position)
    assert weighed(rows_of(a_source(tmp_path, changes="rows", columns=("n", "more")), added)) == {
        (2, 0.5): 1
    }

    other = pa.table({"n": [2], "text": [5]})
    write_deltalake(place, other, mode="overwrite", schema_mode="overwrite")

    for of in (first, added):
        with pytest.raises(ConfigurationError, match=r"column '(text|tags)' .* cannot be taken ba"):
            plan(source, of.position)
    with pytest.raises(ConfigurationError, match=r"'\w+' .* was read as .* in version 1 and is"):
        rows_of(source, added)
    few = a_source(tmp_path, changes="rows", columns=("n",))
    assert weighed(rows_of(few, plan(few, added.position))) == {(0,): -1, (1,): -1}
    feed = a_source(tmp_path, changes=True, start=0)
    with pytest.raises(ConfigurationError, match=r"column 'text' is \w*string in part-.* int64 in"):
        rows_of(feed, plan(feed))


@pytest.mark.parametrize(
    ("was", "now", "is_held"),
    [
        (pa.int32(), pa.float64(), True),
        (pa.int64(), pa.float64(), False),
        (pa.int64(), pa.int32(), False),
        (pa.int32(), pa.decimal128(12, 2), True),
        (pa.int32(), pa.decimal128(11, 2), False),
        (pa.decimal128(5, 2), pa.decimal128(7, 3), True),
        (pa.decimal128(5, 2), pa.decimal128(5, 1), False),
        (pa.float32(), pa.float64(), True),
        (pa.float64(), pa.float32(), False),
        (pa.date32(), pa.timestamp("us", "UTC"), True),
        (pa.timestamp("us", "UTC"), pa.date32(), False),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.string()), ("a", pa.int64())]), True),
        (pa.struct([("a", pa.int32()), ("b", pa.string())]), pa.struct([("a", pa.int32())]), False),
        (pa.list_(pa.float64()), pa.list_(pa.int64()), False),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), True),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.string()), False),
    ],
    ids=str,
)
def test_rows_are_taken_back_where_the_type_of_now_has_each_of_their_values(
    tmp_path: Path, was: pa.DataType, now: pa.DataType, is_held: bool
) -> None:
    place = str(tmp_path / "sales")
    write_deltalake(place, pa.table({"c": pa.nulls(2, was)}))
    source = a_source(tmp_path, changes="rows")
    first = plan(source)
    write_deltalake(
        place, pa.table({"c": pa.nulls(1, now)}), mode="overwrite", schema_mode="overwrite"
    )

    if is_held:
        assert len(rows_of(source, plan(source, first.position))) == 3
    else:
        with pytest.raises(ConfigurationError, match=r"'c' .* was read as .* cannot be taken back"):
            plan(source, first.position)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (pa.array([0.1]), pa.float32()),
        (pa.array([Decimal("0.1")]), pa.float64()),
        (pa.array([0.1]), pa.decimal128(9, 2)),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([datetime(2026, 1, 2, 3, tzinfo=UTC)]), pa.date32()),
        (pa.array([{"x": 0.1}]), pa.struct([("x", pa.float32())])),
        (pa.array([[0.1]]), pa.list_(pa.float32())),
    ],
    ids=str,
)
def test_a_file_whose_values_the_column_of_now_would_round_is_refused(
    tmp_path: Path, was: pa.Array, now: pa.DataType
) -> None:
    place = str(tmp_path / "sales")
    write_deltalake(place, pa.table({"c": was}))
    of_now = pa.table({"c": pa.nulls(1, now)})
    write_deltalake(place, of_now, mode="overwrite", schema_mode="overwrite")
    source = a_source(tmp_path, changes=True, start=0)

    with pytest.raises(ConfigurationError, match=r"'c' is .* in the table now, which does not ho"):
        rows_of(source, plan(source))


def test_a_file_of_a_partition_without_a_value_is_called_as_the_log_has_it(tmp_path: Path) -> None:
    parts = pa.table({"n": [1, 2], "part": ["", ""]})
    write_deltalake(str(tmp_path / "sales"), parts, partition_by=["part"])
    log = tmp_path / "sales" / "_delta_log" / f"{0:020d}.json"
    (add,) = [one["add"] for one in map(json.loads, log.read_text().splitlines()) if "add" in one]
    source = a_source(tmp_path, changes=True, start="latest")
    whole = plan(source).position
    write_deltalake(str(tmp_path / "sales"), parts, mode="append")

    (piece,) = plan(source, whole, 1).slices

    assert add["partitionValues"] == {"part": ""}
    assert piece.partition.endswith("?version=1&change=insert&%3Dpart=")  # Positions have it.
    assert [row["part"] for row in rows_of(source, plan(source, whole))] == [None, None]


def test_a_vector_without_a_feed_is_refused_where_changes_are_read(tmp_path: Path) -> None:
    append(tmp_path, 0, 2)
    source = a_source(tmp_path, changes="rows")
    position = plan(source).position
    log = tmp_path / "sales" / "_delta_log"
    lines = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    (add,) = [one["add"] for one in lines if "add" in one]
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    marked = add | {"deletionVector": vector}
    (log / f"{1:020d}.json").write_text(json.dumps({"add": marked}))

    with pytest.raises(ConfigurationError, match=r"vectors.* set delta.enableDeletionVectors to f"):
        plan(source, position)


def test_a_partition_of_the_empty_text_is_null_as_for_others(tmp_path: Path) -> None:
    place = str(tmp_path / "sales")
    parts = pa.table({"n": [1, 2, 3], "part": ["", None, "x=/ü"]})
    write_deltalake(place, parts, partition_by=["part"])
    source = a_source(tmp_path, changes="rows", start=0)
    first = plan(source)
    Table(place).delete("n < 3")

    found = [rows_of(source, first), rows_of(source, plan(source, first.position))]

    assert weighed(found[0]) == {(1, None): 1, (2, None): 1, (3, "x=/ü"): 1}
    assert weighed(found[1]) == {(1, None): -1, (2, None): -1}


@pytest.mark.parametrize("start", ["earliest", 0])
@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us")], ids=str)
def test_a_partition_by_time_is_read_as_writers_put_it_into_the_log(
    tmp_path: Path, kind: pa.DataType, start: str | int
) -> None:
    times = [datetime(2026, 3, 1, 10, 0, 0, 5, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), None]
    parts = pa.table({"n": [0, 1, 2], "at": pa.array(times, kind)})
    for _ in range(2):
        write_deltalake(str(tmp_path / "sales"), parts, partition_by=["at"], mode="append")

    source = a_source(tmp_path, start=start)

    read = rows_of(source, plan(source))
    assert sorted((row["n"], row["at"]) for row in read) == [
        (n, at) for n, at in enumerate(times) for _ in range(2)
    ]


def test_a_partition_of_spark_s_form_of_a_time_is_an_instant_of_utc(tmp_path: Path) -> None:
    parts = pa.table({"n": [0], "at": pa.array([datetime(2026, 3, 1, tzinfo=UTC)])})
    forms = ["2026-03-01 00:00:00", "2026-03-01 00:00:00.0", "2026-03-01T00:00:00.000000Z"]
    for version, form in enumerate(forms):
        write_deltalake(str(tmp_path / "sales"), parts, partition_by=["at"], mode="append")
        entry = tmp_path / f"sales/_delta_log/{version:020d}.json"
        entry.write_text(entry.read_text().replace("2026-03-01 00:00:00.000000", form))

    source = a_source(tmp_path, start=0)

    read = rows_of(source, plan(source))
    assert [row["at"] for row in read] == [datetime(2026, 3, 1, tzinfo=UTC)] * 3


def test_a_partition_by_bytes_is_refused_by_name(tmp_path: Path) -> None:
    parts = pa.table({"n": [0], "key": pa.array([b"a\xff"], pa.binary())})
    write_deltalake(str(tmp_path / "sales"), parts, partition_by=["key"])

    with pytest.raises(ConfigurationError, match=r"'key' of the Delta table .* is binary"):
        a_source(tmp_path).schema()

    assert read_after(a_source(tmp_path, columns=["n"])) == [0]


@pytest.mark.parametrize("said", [{}, {"partitionValues": None}, {"partitionValues": {}}], ids=str)
def test_a_removed_file_of_a_writer_that_says_no_partition_has_that_of_the_version_before(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    append(tmp_path, 0, 3, partition_by=["text"])
    source = a_source(tmp_path, changes="rows", start=0, columns=("n", "text"))
    first = plan(source)
    Table(str(tmp_path / "sales")).delete("n < 2")
    log = tmp_path / "sales" / "_delta_log" / f"{1:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for one in actions:
        if "remove" in one:
            del one["remove"]["partitionValues"]
            one["remove"] |= said
    log.write_text("\n".join(map(json.dumps, actions)))

    found = rows_of(source, plan(source, first.position))

    assert weighed(found) == {(0, "row 0"): -1, (1, "row 1"): -1}


@pytest.mark.parametrize("changes", [False, "rows"])
def test_a_copy_that_was_put_back_and_written_again_is_refused(
    tmp_path: Path, changes: Any
) -> None:
    append(tmp_path, 0, 2)
    shutil.copytree(tmp_path / "sales", tmp_path / "copy")
    append(tmp_path, 2, 4)
    source = a_source(tmp_path, changes=changes)
    position = plan(source).position
    assert plan(source, position).slices == ()

    shutil.rmtree(tmp_path / "sales")
    (tmp_path / "copy").rename(tmp_path / "sales")
    append(tmp_path, 4, 6)
    append(tmp_path, 6, 8)

    with pytest.raises(ConfigurationError, match=r"its version 1 is another one now, so .* put ba"):
        plan(source, position)


def test_a_removed_file_that_was_vacuumed_is_named(tmp_path: Path) -> None:
    append(tmp_path, 0, 2)
    source = a_source(tmp_path, changes="rows")
    position = plan(source).position
    table = Table(str(tmp_path / "sales"))
    table.delete("n = 1")
    barrier = plan(source, position)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    with pytest.raises(ConfigurationError, match=r"is gone; .* \(delta.deletedFileRetentionDurat"):
        rows_of(source, barrier)


def test_a_changing_table_retracts_and_is_refused_where_rows_cannot_be_taken_back() -> None:
    spec = DeltaTable("file:///lake/sales", changes="rows")
    pipeline = Pipeline("sales")
    rows = pipeline.source("rows", spec, event_time="at")
    assert isinstance(pipeline.kind_of("rows", ()), Retract)
    with pytest.raises(ConfigurationError, match=r"window\(\) cannot take a row back"):
        rows.key_by("n").window("hours", Tumbling(timedelta(hours=1)), rows=agg.count())
    with pytest.raises(ConfigurationError, match=r"leave out what takes rows back \(replaced=, ch"):
        pipeline.source("table", spec, table=True)
    appended = DeltaTable("file:///lake/sales")
    assert spec.meaning({}) != appended.meaning({})
    with pytest.raises(ConfigurationError, match="changes"):
        DeltaTable("file:///lake/sales", changes="feed")  # type: ignore[arg-type]


def test_a_table_made_anew_or_put_back_is_refused(tmp_path: Path) -> None:
    append(tmp_path, 0, 2)
    append(tmp_path, 2, 4)
    source = a_source(tmp_path)
    position = plan(source).position
    (tmp_path / "sales" / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(ConfigurationError, match=r"was read to version 1 .* made anew or put back"):
        plan(source, position)

    (tmp_path / "sales").rename(tmp_path / "old")
    append(tmp_path, 0, 2)
    append(tmp_path, 2, 4)

    with pytest.raises(ConfigurationError, match=r"was read to version 1 .* made anew or put back"):
        plan(source, position)
    with pytest.raises(ConfigurationError, match="there is no Delta table at"):
        plan(a_source(tmp_path / "nowhere"))


def test_what_is_gone_is_named(tmp_path: Path) -> None:
    append(tmp_path, 0, 2)
    source = a_source(tmp_path)
    position = plan(source).position
    append(tmp_path, 2, 4)
    barrier = plan(source, position)
    ahead = Table(str(tmp_path / "sales"))
    (file,) = [one for one in ahead.file_uris() if one.split("/")[-1] in str(barrier.slices)]
    Path(file).unlink()
    with pytest.raises(ConfigurationError, match=r"is in the log .* and is gone; put it back"):
        rows_of(source, barrier)

    append(tmp_path, 4, 5)
    Table(str(tmp_path / "sales")).create_checkpoint()
    (tmp_path / "sales" / "_delta_log" / f"{1:020d}.json").unlink()

    with pytest.raises(ConfigurationError, match=r"version 1 of .* was cleaned out of its log"):
        plan(source, position)


def test_a_mapping_of_columns_and_vectors_are_refused(tmp_path: Path) -> None:
    append(tmp_path, 0, 2)
    log = tmp_path / "sales" / "_delta_log"
    lines = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    (metadata,) = [one["metaData"] for one in lines if "metaData" in one]
    mapped = metadata | {"configuration": {"delta.columnMapping.mode": "name"}}
    (log / f"{1:020d}.json").write_text(json.dumps({"metaData": mapped}))

    with pytest.raises(ConfigurationError, match=r"columns to other names|cannot be read"):
        plan(a_source(tmp_path))


def test_nothing_is_read_where_a_barrier_stays_amid_a_version(tmp_path: Path) -> None:
    append(tmp_path, 0, 5)
    append(tmp_path, 5, 9)
    source = a_source(tmp_path)
    position = plan(source, (), 2).position

    barrier = source.plan(position, max_records=None, parallelism=1, until={})

    assert (barrier.position, barrier.slices) == (position, ())
    assert barrier.unread is not None
    assert (barrier.unread.records, barrier.waiting) == (7, (VERSIONS,))


def test_an_induced_barrier_lies_after_a_version(tmp_path: Path) -> None:
    append(tmp_path, 0, 2)
    append(tmp_path, 2, 4)
    source = a_source(tmp_path, start=0)

    barrier = source.plan((), max_records=None, parallelism=1, until={VERSIONS: 1})

    assert [row["n"] for row in rows_of(source, barrier)] == [0, 1]
    (entry,) = barrier.position
    identity = Table(str(tmp_path / "sales")).metadata().id
    assert entry.version.startswith(f"{identity} ")
    assert entry == PartitionOffset(
        partition=VERSIONS, offset=1, records=0, sealed=True, version=entry.version
    )


@pytest.mark.parametrize("changes", [False, "rows"])
def test_a_log_is_read_once_however_many_versions_are_read(
    tmp_path: Path, changes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(0, 24, 2):
        append(tmp_path, first, first + 2)
    loads: list[int | None] = []
    load = DeltaPlace.load

    def counted(place: DeltaPlace, version: int | None = None) -> Any:
        loads.append(version)
        return load(place, version)

    monkeypatch.setattr(DeltaPlace, "load", counted)
    source = a_source(tmp_path, start=0, changes=changes)

    barrier = plan(source)

    assert len(barrier.slices) == 12
    assert sorted(row["n"] for row in rows_of(source, barrier)) == [*range(24)]
    assert loads.count(None) == 1
    assert len(loads) <= 3  # The version that it begins with is loaded, too.
    append(tmp_path, 24, 26)
    assert read_after(source, barrier.position) == [24, 25]


def test_a_table_that_is_made_anew_with_as_many_versions_is_seen_as_it_is(tmp_path: Path) -> None:
    append(tmp_path, 0, 2)
    append(tmp_path, 2, 4)
    assert a_source(tmp_path).schema().names == SCHEMA.names
    shutil.rmtree(tmp_path / "sales")
    for numbers in ([1], [2]):
        write_deltalake(str(tmp_path / "sales"), pa.table({"m": numbers}), mode="append")

    source = a_source(tmp_path)

    assert source.schema().names == ["m"]
    assert sorted(row["m"] for row in rows_of(source, plan(source))) == [1, 2]
