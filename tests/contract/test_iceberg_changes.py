"""An Iceberg table's changes as rows with weights: copied on write, or merged on read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import LongType, StringType

from sluice.connectors.iceberg.declared_source import IcebergTable
from sluice.connectors.iceberg.source import SNAPSHOTS
from sluice.declaration.changelog import Retract
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import WEIGHT, Barrier, Source, SourcePosition
from sluice.errors import ConfigurationError
from tests.contract.source_rules import rows_of
from tests.iceberg_catalog import (
    TABLE,
    a_table,
    compact,
    delete_places,
    expire_all_but_the_head,
    loaded,
    places_of,
    properties,
)
from tests.planted import Caught, assert_is_caught

SCHEMA = pa.schema([("n", pa.int64()), ("v", pa.string())])


def append(folder: Path, *numbers: int, v: str = "a") -> None:
    loaded(folder).append(pa.table({"n": numbers, "v": [v] * len(numbers)}, schema=SCHEMA))


def delete_on_read(folder: Path, *numbers: int) -> None:
    table = loaded(folder)
    named = {n: {*places_of(table, "n", n)} - {*places_of(table, "n", n + 1)} for n in numbers}
    delete_places(table, sorted(place for of in named.values() for place in of))


def a_source(folder: Path, **fields: Any) -> Source:
    return IcebergTable(TABLE, properties(folder), changes="rows", **fields).open({}, None)


def plan(source: Source, position: SourcePosition = (), max_records: int | None = None) -> Barrier:
    return source.plan(position, max_records=max_records, parallelism=3)


def weighed(source: Source, barrier: Barrier) -> dict[Any, int]:
    """The sum of the weights by row."""
    total: Counter[Any] = Counter()
    for row in rows_of(source, barrier):
        total[tuple(v for k, v in row.items() if k != WEIGHT)] += row[WEIGHT]
    return {row: count for row, count in total.items() if count}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    a_table(tmp_path, SCHEMA)
    append(tmp_path, *range(6))
    return tmp_path


def test_rows_that_were_rewritten_or_deleted_on_writing_are_taken_back(folder: Path) -> None:
    source = a_source(folder)
    first = plan(source)
    assert source.schema().names == ["n", "v", WEIGHT]
    assert weighed(source, first) == {(n, "a"): 1 for n in range(6)}
    loaded(folder).delete("n < 2")
    compact(loaded(folder))
    loaded(folder).overwrite(pa.table({"n": [5], "v": ["b"]}, schema=SCHEMA), "n = 5")

    changes = plan(source, first.position)

    gone = {(0, "a"): -1, (1, "a"): -1}
    assert weighed(source, changes) == {**gone, (5, "a"): -1, (5, "b"): 1}
    assert plan(source, changes.position).slices == ()


def test_rows_that_are_deleted_on_reading_are_taken_back_once(folder: Path) -> None:
    source = a_source(folder)
    first = plan(source)
    delete_on_read(folder, 1, 3)
    once = plan(source, first.position)
    delete_on_read(folder, 3, 4)  # One place is named again.
    again = plan(source, once.position)

    assert weighed(source, once) == {(1, "a"): -1, (3, "a"): -1}
    assert once.records == 2  # And no row that stays is read.
    assert weighed(source, again) == {(4, "a"): -1}
    assert weighed(source, plan(a_source(folder))) == {(n, "a"): 1 for n in (0, 2, 5)}

    loaded(folder).delete("n >= 0")
    rest = plan(source, again.position)
    assert weighed(source, rest) == {(n, "a"): -1 for n in (0, 2, 5)}


def test_a_compaction_brings_no_changes_whatever_was_deleted_before(folder: Path) -> None:
    delete_on_read(folder, 1, 3)
    source = a_source(folder)
    first = plan(source)
    assert weighed(source, first) == {(n, "a"): 1 for n in (0, 2, 4, 5)}

    compact(loaded(folder))

    assert plan(source, first.position).slices == ()


def test_an_epoch_has_all_changes_of_a_snapshot_whatever_its_limit(folder: Path) -> None:
    source = a_source(folder)
    first = plan(source, (), 4)
    assert (first.records, first.is_backlog) == (4, True)  # Of the first table nothing goes yet.
    delete_on_read(folder, 0, 1, 2)
    append(folder, 9)

    read = []
    position = first.position
    for _ in range(4):
        barrier = plan(source, position, 2)
        position = barrier.position
        read.append((barrier.records, [one.partition for one in position] == [SNAPSHOTS]))

    assert read == [(2, True), (3, True), (1, True), (0, True)]


def test_equality_deletes_are_refused(folder: Path) -> None:
    source = a_source(folder)
    first = plan(source)
    delete_places(loaded(folder), places_of(loaded(folder), "n", 5), is_equality=True)

    with pytest.raises(ConfigurationError, match="has equality deletes, as Flink writes them, and"):
        plan(source, first.position)


def test_a_column_that_was_read_and_is_dropped_is_named(folder: Path) -> None:
    source = a_source(folder)
    first = plan(source)
    with loaded(folder).update_schema() as update:
        update.add_column("more", LongType())
    delete_on_read(folder, 5)
    added = plan(source, first.position)
    assert weighed(source, added) == {(5, "a", None): -1}

    with loaded(folder).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("v")

    for attempt in (lambda: plan(source, added.position), lambda: rows_of(source, added)):
        with pytest.raises(
            ConfigurationError, match=r"column 'v' .* was read, and is dropped or r"
        ):
            attempt()
    few = a_source(folder, columns=("n",))
    assert weighed(few, plan(few, first.position)) == {(5,): -1}
    with pytest.raises(ConfigurationError, match="has no column 'v'; it has n, more"):
        plan(a_source(folder, columns=("v",)), first.position)


def test_a_column_that_was_dropped_and_added_again_is_another(tmp_path: Path) -> None:
    schema = pa.schema(
        [("n", pa.int64()), ("v", pa.string()), ("s", pa.struct([("a", pa.int64())]))]
    )
    a_table(tmp_path, schema)
    loaded(tmp_path).append(pa.table({"n": [1], "v": ["x"], "s": [{"a": 7}]}, schema=schema))
    few, nested = (a_source(tmp_path, columns=("n", one)) for one in ("v", "s"))
    rest = a_source(tmp_path, columns=("n",))
    read = [plan(one).position for one in (few, nested, rest)]
    with loaded(tmp_path).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("v")
        update.delete_column("s.a")
    with loaded(tmp_path).update_schema() as update:
        update.add_column("v", StringType())
        update.add_column(("s", "a"), LongType())
    loaded(tmp_path).delete("n = 1")

    for source, position, name in ((few, read[0], "v"), (nested, read[1], "s.a")):
        with pytest.raises(ConfigurationError, match=rf"column '{name}' .* was read, and is dropp"):
            plan(source, position)
    assert weighed(rest, plan(rest, read[2])) == {(1,): -1}


def test_a_table_whose_columns_were_renamed_before_it_is_read_is_read(folder: Path) -> None:
    with loaded(folder).update_schema() as update:
        update.rename_column("v", "w")
    source = a_source(folder)
    first = plan(source, (), 4)  # The rest of the first table is still to be read.
    with loaded(folder).update_schema() as update:
        update.add_column("more", LongType())
    rest = plan(source, first.position)
    loaded(folder).delete("n = 0")

    assert weighed(source, rest) == {(n, "a", None): 1 for n in (4, 5)}
    assert weighed(source, plan(source, rest.position)) == {(0, "a", None): -1}


def test_what_has_expired_or_is_gone_is_named(folder: Path) -> None:
    append(folder, 9)
    source = a_source(folder)
    first = plan(source)
    files = {*loaded(folder).inspect.files()["file_path"].to_pylist()}
    loaded(folder).delete("n < 2")
    changes = plan(source, first.position)
    (removed,) = files - {*loaded(folder).inspect.files()["file_path"].to_pylist()}
    Path(removed.removeprefix("file://")).unlink()
    with pytest.raises(ConfigurationError, match=r"is gone; restore it, or begin anew"):
        rows_of(source, changes)
    expire_all_but_the_head(folder)

    with pytest.raises(ConfigurationError, match=r"snapshot before .* has expired, so the rows"):
        plan(source, first.position)
    with pytest.raises(ConfigurationError, match=r"snapshot \d+ .* expired before its changes"):
        rows_of(source, changes)


def test_changes_do_not_begin_behind_the_rows_that_they_take_back(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="would take back rows that were never read; begi"):
        a_source(folder, start="latest")


def test_a_changing_table_retracts() -> None:
    changing = IcebergTable("shop.sales", {"type": "sql"}, changes="rows")
    appended = IcebergTable("shop.sales", {"type": "sql"})
    pipeline = Pipeline("sales")
    pipeline.source("rows", changing)

    assert isinstance(pipeline.kind_of("rows", ()), Retract)
    assert changing.meaning({}) != appended.meaning({})


SOURCE = "connectors.iceberg.source"
FAULTS = [
    Caught(
        "a place that is named again is taken back again", f"{SOURCE}:places_of",
        "(new, own) if", "(new, own[:0]) if",
        test_rows_that_are_deleted_on_reading_are_taken_back_once,
    ),
    Caught(
        "rows that were deleted before go with their file", f"{SOURCE}:_places",
        "change.did == CAME else change.parent", "change.did == CAME else 0",
        test_rows_that_are_deleted_on_reading_are_taken_back_once,
    ),
    Caught(
        "a compaction takes all rows back and brings them", f"{SOURCE}:IcebergHistory.files",
        "return [] if is_compacted and", "return [] if False and",
        test_a_compaction_brings_no_changes_whatever_was_deleted_before,
    ),
    Caught(
        "any delete file names places", f"{SOURCE}:Rows.deletes",
        "if file.content is DataFileContent.EQUALITY_DELETES:", "if False:",
        test_equality_deletes_are_refused,
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
