"""Rows appended to an Iceberg table: read once each, however they are cut.

Of snapshots: those that expired before they were read, or were rolled back, are named; those that
are held for a source stay.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetCurrentSchemaUpdate,
)
from pyiceberg.types import LongType, NestedField, StringType

from sluice.connectors.appended import AddedFile
from sluice.connectors.iceberg.declared_source import IcebergTable
from sluice.connectors.iceberg.source import SNAPSHOTS, IcebergHistory, SnapshotRead
from sluice.core.plan import PartitionOffset, Unread
from sluice.declaration.places import Barrier, Source, SourcePosition
from sluice.errors import ConfigurationError
from tests.contract.source_rules import check_replay, rows_of
from tests.iceberg_catalog import (
    TABLE,
    a_catalog,
    a_table,
    expire_all_but_the_head,
    interfere,
    loaded,
    properties,
)
from tests.planted import Caught, assert_is_caught

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("tags", pa.list_(pa.string()))])


def rows(start: int, end: int) -> list[dict[str, Any]]:
    return [{"n": n, "text": f"row {n}", "tags": ["a", str(n)]} for n in range(start, end)]


def append(folder: Path, start: int, end: int) -> int:
    table = loaded(folder)
    table.append(pa.Table.from_pylist(rows(start, end), SCHEMA))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def a_source(folder: Path, **fields: Any) -> Source:
    return IcebergTable(TABLE, properties(folder), **fields).open({}, None)


def plan(source: Source, position: SourcePosition = (), max_records: int | None = None) -> Barrier:
    return source.plan(position, max_records=max_records, parallelism=1)


def numbers(source: Source, barrier: Barrier) -> list[int]:
    return [row["n"] for row in rows_of(source, barrier)]


def read_after(source: Source, position: SourcePosition = ()) -> list[int]:
    return numbers(source, source.plan(position, max_records=None, parallelism=2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small = {"write.parquet.page-row-limit": "3", "write.target-file-size-bytes": "1"}
    a_table(tmp_path, SCHEMA, properties=small)
    return tmp_path


CUTS = [
    [],
    [(1, 1), (2, 5), (3, 2)],
    [(7, 3), (None, 1)],
    [(1, 1)] * 12,
    [(4, 2), (4, 2), (4, 2), (4, 2)],
]


@pytest.mark.parametrize("cuts", CUTS)
def test_appends_are_read_in_order_however_they_are_cut(
    folder: Path, cuts: list[tuple[int | None, int]]
) -> None:
    for start in range(0, 12, 3):
        append(folder, start, start + 3)

    source = a_source(folder, bounded=True)

    check_replay(source, cuts, rows(0, 12), files=20)


def test_the_position_has_two_entries_at_most(folder: Path) -> None:
    for start in range(0, 12, 3):
        append(folder, start, start + 3)
    source = a_source(folder)
    position: SourcePosition = ()

    for _ in range(12):
        barrier = plan(source, position, 1)
        position = barrier.position
        assert barrier.records == 1
        assert len(position) <= 2
        assert [one.sealed for one in position if one.partition == SNAPSHOTS] == [True]


def test_what_is_appended_later_is_read_by_the_next_plan(folder: Path) -> None:
    source = a_source(folder)
    empty = plan(source)
    assert empty.slices == ()

    append(folder, 0, 2)
    first = plan(source, empty.position)
    append(folder, 2, 5)

    assert numbers(source, first) == [0, 1]
    assert read_after(source, first.position) == [2, 3, 4]


def test_it_begins_at_the_declared_start(folder: Path) -> None:
    append(folder, 0, 2)
    second = append(folder, 2, 4)
    append(folder, 4, 6)

    assert read_after(a_source(folder)) == [0, 1, 2, 3, 4, 5]
    assert read_after(a_source(folder, start=second)) == [0, 1, 2, 3, 4, 5]
    latest = a_source(folder, start="latest")
    barrier = plan(latest)
    assert barrier.slices == ()
    append(folder, 6, 7)
    assert read_after(latest, barrier.position) == [6]


def test_the_base_of_an_older_start_stays_what_it_was(folder: Path) -> None:
    first = append(folder, 0, 3)
    source = a_source(folder, start=first)
    cut = plan(source, (), 2)

    loaded(folder).delete("n < 2")

    with pytest.raises(ConfigurationError, match=r"\(delete\) changes or deletes rows"):
        plan(source, cut.position)
    assert read_after(a_source(folder, start=first, skip_overwrites=True), cut.position) == [2]


@pytest.mark.parametrize("scheme", ["file:", "file://", ""])
def test_a_file_is_found_where_its_writer_says_it_is(folder: Path, scheme: str) -> None:
    """Hadoop's, as Spark writes them, have one slash behind the scheme."""
    added = folder / "elsewhere.parquet"
    pq.write_table(pa.Table.from_pylist(rows(0, 2), SCHEMA), added)
    loaded(folder).add_files([f"{scheme}{added}"])

    assert read_after(a_source(folder)) == [0, 1]
    loaded(folder).append(pa.Table.from_pylist(rows(2, 3), SCHEMA))
    assert read_after(a_source(folder, changes="rows")) == [0, 1, 2]


@pytest.mark.parametrize("starts_at", [0, 1], ids=["the oldest", "one of version 1"])
def test_rows_from_before_an_upgrade_to_version_2_are_read(tmp_path: Path, starts_at: int) -> None:
    table = a_table(tmp_path, SCHEMA, properties={"format-version": "1"})
    append(tmp_path, 0, 2)
    second = append(tmp_path, 2, 4)
    with table.refresh().transaction() as change:
        change.upgrade_table_version(2)

    source = a_source(tmp_path, start=["earliest", second][starts_at])
    nothing = source.plan((), max_records=None, parallelism=1, until={})
    first = plan(source, nothing.position)
    cut, read = nothing, list[int]()
    while len(read) < 4:  # One record an epoch, of which each has one.
        cut = plan(source, cut.position, 1)
        read += numbers(source, cut)
    append(tmp_path, 4, 5)

    assert (nothing.slices, nothing.unread) == ((), Unread(partitions=1, records=4))
    assert sorted(numbers(source, first)) == sorted(read) == [0, 1, 2, 3]
    assert read_after(source, first.position) == read_after(source, cut.position) == [4]


@pytest.mark.parametrize(
    ("of", "told"),
    [
        ("variant", r"cannot read the metadata of .*shop.sales: Unsupported field type: 'variant'"),
        ("timestamp_ns", r"column 'note' of the Iceberg table is timestamp_ns, and no stage keeps"),
        ("unknown", r"column 'note' of the Iceberg table is of type null, which no stage knows"),
    ],
)
def test_a_type_of_version_3_that_no_stage_knows_is_named(
    tmp_path: Path, of: str, told: str
) -> None:
    table = a_table(tmp_path, pa.schema([("n", pa.int64()), ("note", pa.string())]))
    metadata = Path(table.metadata_location.removeprefix("file://"))
    known = json.loads(metadata.read_text()) | {"format-version": 3, "next-row-id": 0}
    known["schemas"][0]["fields"][1]["type"] = of
    metadata.write_text(json.dumps(known))

    with pytest.raises(ConfigurationError, match=told):
        a_source(tmp_path).schema()


def test_an_unknown_start_is_named(folder: Path) -> None:
    known = append(folder, 0, 1)
    with pytest.raises(ConfigurationError, match=f"snapshot 17 is not .* one of {known}"):
        plan(a_source(folder, start=17))
    with pytest.raises(ConfigurationError, match="the start 'newest'"):
        a_source(folder, start="newest")


def test_a_snapshot_that_changes_rows_is_named_or_passed_over(folder: Path) -> None:
    append(folder, 0, 3)
    source = a_source(folder)
    barrier = plan(source)
    table = loaded(folder)
    table.overwrite(pa.Table.from_pylist(rows(8, 9), SCHEMA), "n = 1")
    append(folder, 10, 12)

    with pytest.raises(ConfigurationError, match=r"snapshot \d+ of the Iceberg table shop.sales"):
        plan(source, barrier.position)
    lenient = a_source(folder, skip_overwrites=True)
    # pyiceberg's overwrite ends with an append of the new rows, which are new.
    assert read_after(lenient, barrier.position) == [8, 10, 11]


def test_columns_added_and_renamed_later_are_found_by_their_ids(folder: Path) -> None:
    append(folder, 0, 2)
    with loaded(folder).update_schema() as update:
        update.add_column("note", StringType())
        update.rename_column("text", "words")

    source = a_source(folder)
    barrier = source.plan((), max_records=None, parallelism=2)
    found = rows_of(source, barrier)

    assert found == [
        {"n": n, "words": f"row {n}", "tags": ["a", str(n)], "note": None} for n in range(2)
    ]
    only = a_source(folder, columns=("note",))
    assert rows_of(only, barrier) == [{"note": None}] * 2
    assert rows_of(a_source(folder, columns=("words", "n")), barrier)[1] == {
        "n": 1,
        "words": "row 1",
    }
    with pytest.raises(ConfigurationError, match="has no column 'text'"):
        a_source(folder, columns=("text",)).schema()


def test_a_column_added_later_has_its_initial_default_also_where_no_other_is_read(
    folder: Path,
) -> None:
    append(folder, 0, 2)
    table = loaded(folder)
    note = NestedField(9, "note", StringType(), required=False, initial_default="old")
    later = AddSchemaUpdate(schema=Schema(*table.schema().fields, note, schema_id=1))
    now = SetCurrentSchemaUpdate.model_validate({"schema-id": -1})  # The last one added.
    table.catalog.commit_table(table, (), (later, now))

    source = a_source(folder, columns=("note",))

    found = rows_of(source, plan(source))
    assert found == loaded(folder).scan(selected_fields=("note",)).to_arrow().to_pylist()
    assert found == [{"note": "old"}] * 2


def test_a_struct_stays_where_all_of_its_fields_were_replaced(tmp_path: Path) -> None:
    kind = pa.struct([("old", pa.int64())])
    kinds = {"one": kind, "many": pa.list_(kind), "named": pa.map_(pa.string(), kind)}
    row = {"one": {"old": 1}, "many": [{"old": 1}, None], "named": [("a", {"old": 1}), ("b", None)]}
    table = a_table(tmp_path, pa.schema(kinds))
    table.append(pa.Table.from_pylist([row], pa.schema(kinds)))
    with loaded(tmp_path).update_schema() as update:
        for path in (("one",), ("many", "element"), ("named", "value")):
            update.add_column((*path, "new"), LongType())
            update.delete_column((*path, "old"))

    for columns in ((), ("one",), ("many",), ("named",)):
        source = a_source(tmp_path, columns=columns)
        expected = loaded(tmp_path).scan(selected_fields=columns or ("*",)).to_arrow().to_pylist()
        assert rows_of(source, plan(source)) == expected
    assert expected == [{"named": [("a", {"new": None}), ("b", None)]}]


def test_a_column_that_was_dropped_does_not_come_back_under_its_name(folder: Path) -> None:
    append(folder, 0, 1)
    with loaded(folder).update_schema() as update:
        update.delete_column("text")
    with loaded(folder).update_schema() as update:
        update.add_column("text", StringType())

    source = a_source(folder, columns=("n", "text"))

    barrier = plan(source)
    assert rows_of(source, barrier) == [{"n": 0, "text": None}]


def test_only_the_row_groups_of_a_slice_are_read(folder: Path) -> None:
    table = loaded(folder)
    with table.transaction() as transaction:
        transaction.set_properties({"write.target-file-size-bytes": "100000000"})
    append(folder, 0, 1000)

    source = a_source(folder, bounded=True)

    check_replay(source, [(333, 7), (1, 1), (500, 2)], rows(0, 1000), files=1)


def test_an_induced_barrier_lies_behind_a_snapshot(folder: Path) -> None:
    append(folder, 0, 2)
    append(folder, 2, 4)
    append(folder, 4, 6)
    source = a_source(folder, bounded=True)

    barrier = source.plan((), max_records=None, parallelism=1, until={SNAPSHOTS: 2})

    assert numbers(source, barrier) == [0, 1, 2, 3]
    assert not barrier.exhausted
    with pytest.raises(ConfigurationError, match="it must be from 2"):
        source.plan(barrier.position, max_records=None, parallelism=1, until={SNAPSHOTS: 9})


def test_a_file_that_is_gone_is_named(folder: Path) -> None:
    append(folder, 0, 2)
    source = a_source(folder)
    barrier = plan(source)
    path = Path(loaded(folder).location().removeprefix("file://")) / barrier.slices[0].partition
    path.unlink()

    with pytest.raises(ConfigurationError, match="is gone; restore it"):
        list(source.read(barrier.slices[0]))


def test_a_position_of_another_table_of_that_name_is_refused(folder: Path) -> None:
    append(folder, 0, 2)
    append(folder, 2, 4)
    source = a_source(folder)
    strange = (
        PartitionOffset(partition="data/other.parquet", offset=1, records=1),
        PartitionOffset(
            partition=SNAPSHOTS,
            offset=1,
            records=0,
            sealed=True,
            version=str(loaded(folder).metadata.snapshots[0].snapshot_id),
        ),
    )
    with pytest.raises(ConfigurationError, match="was made anew"):
        plan(source, strange)


def test_a_table_that_was_made_anew_is_refused_however_many_snapshots_it_has(folder: Path) -> None:
    for start in range(0, 6, 3):
        append(folder, start, start + 3)
    source = a_source(folder)
    some = plan(source, (), 4)
    whole = plan(source)
    a_catalog(folder).drop_table(TABLE)
    a_table(folder, SCHEMA)
    for start in range(100, 112, 3):
        append(folder, start, start + 3)

    for barrier in (some, whole):
        with pytest.raises(ConfigurationError, match=r"shop\.sales .*(made anew|rolled back)"):
            plan(source, barrier.position)
    assert read_after(source) == [*range(100, 112)]
    # The files of what was planned are there still, and are those of that table.
    assert numbers(source, some) == [0, 1, 2, 3]


def test_a_null_list_or_map_of_structs_is_not_an_empty_one(tmp_path: Path) -> None:
    """Nor one within a struct, in any slice, after the table has got another column."""
    pair = pa.struct([("a", pa.int64())])
    schema = pa.schema(
        [
            ("list", pa.list_(pair)),
            ("map", pa.map_(pa.string(), pair)),
            ("struct", pa.struct([("list", pa.list_(pair))])),
        ]
    )
    values: list[dict[str, Any]] = [
        {"list": None, "map": None, "struct": {"list": None}},
        {"list": [], "map": [], "struct": None},
        {"list": [None, {"a": 1}], "map": [("k", None)], "struct": {"list": []}},
        {"list": None, "map": [("k", {"a": None})], "struct": {"list": None}},
    ]
    a_table(tmp_path, schema)
    pq.write_table(pa.Table.from_pylist(values, schema), tmp_path / "a.parquet")
    loaded(tmp_path).add_files([f"file://{tmp_path}/a.parquet"])
    with loaded(tmp_path).update_schema() as update:
        update.add_column(("list", "b"), StringType())
    source = a_source(tmp_path, bounded=True, columns=("map", "struct"))
    expected = [{name: row[name] for name in ("map", "struct")} for row in values]

    for cuts in ([], [(1, 1)] * 4, [(2, 2)] * 2):
        check_replay(source, cuts, expected, files=1)
    whole = a_source(tmp_path)
    found = rows_of(whole, plan(whole))
    assert [row["list"] for row in found] == [None, [], [None, {"a": 1, "b": None}], None]


def expire(table: Table, *snapshot_ids: int) -> None:
    table.maintenance.expire_snapshots().by_ids([*snapshot_ids]).commit()


def test_expired_snapshots_that_were_not_read_are_named(folder: Path) -> None:
    append(folder, 0, 1)
    source = a_source(folder)
    barrier = plan(source)
    gone = append(folder, 1, 2)
    append(folder, 2, 3)
    last = append(folder, 3, 4)
    table = loaded(folder)
    first = table.metadata.snapshots[0].snapshot_id

    expire(table, first, gone, table.metadata.snapshots[2].snapshot_id)

    message = rf"sequence numbers 2 to 3 have expired .*, is {last} \(4\)"
    with pytest.raises(ConfigurationError, match=message):
        plan(source, barrier.position)


def test_the_snapshot_that_was_read_last_may_expire(folder: Path) -> None:
    append(folder, 0, 1)
    source = a_source(folder)
    barrier = plan(source)
    append(folder, 1, 2)
    table = loaded(folder)

    expire(table, table.metadata.snapshots[0].snapshot_id)

    assert read_after(source, barrier.position) == [1]


def test_expired_snapshots_before_an_empty_position_are_missed_too(folder: Path) -> None:
    source = a_source(folder)
    empty = plan(source)
    first = append(folder, 0, 1)
    append(folder, 1, 2)

    expire(loaded(folder), first)

    with pytest.raises(ConfigurationError, match="sequence numbers 1 to 1 have expired"):
        plan(source, empty.position)
    # A source that begins now has them all from the oldest snapshot.
    assert read_after(source) == [0, 1]


def test_a_table_that_was_rolled_back_behind_the_position_is_named(folder: Path) -> None:
    first = append(folder, 0, 1)
    read = append(folder, 1, 2)
    source = a_source(folder)
    barrier = plan(source)
    loaded(folder).manage_snapshots().rollback_to_snapshot(first).commit()

    with pytest.raises(ConfigurationError, match=f"read to snapshot {read}.* is no ancestor"):
        plan(source, barrier.position)
    append(folder, 5, 6)
    with pytest.raises(ConfigurationError, match=f"read to snapshot {read}.* is no ancestor"):
        plan(source, barrier.position)


def replace_table(folder: Path) -> None:
    """What CREATE OR REPLACE TABLE does: the same uuid and count of snapshots, and no head."""
    table = loaded(folder)
    catalog = a_catalog(folder)
    remove = RemoveSnapshotRefUpdate.model_validate({"ref-name": "main"})
    catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (remove,))


@pytest.mark.parametrize("snapshots_after", [0, 1, 3])
@pytest.mark.parametrize("expires", [False, True], ids=["kept", "expired"])
def test_a_table_that_was_replaced_is_refused_by_what_was_read_of_it(
    folder: Path, snapshots_after: int, *, expires: bool
) -> None:
    """CREATE OR REPLACE TABLE, whose rows would count twice as appends."""
    append(folder, 0, 3)
    source = a_source(folder)
    half, whole = plan(source, (), 2), plan(source)
    behind = plan(source, whole.position)
    uuid = loaded(folder).metadata.table_uuid
    replace_table(folder)
    for number in range(snapshots_after):
        append(folder, 3 * number, 3 * number + 4)
    if expires and snapshots_after:
        expire(loaded(folder), loaded(folder).metadata.snapshots[0].snapshot_id)

    assert loaded(folder).metadata.table_uuid == uuid
    for barrier in (half, whole, behind):
        with pytest.raises(
            ConfigurationError, match=r"is no ancestor of what it has: .* begin anew"
        ):
            plan(source, barrier.position)
    expected = [n for number in range(snapshots_after) for n in range(3 * number, 3 * number + 4)]
    assert read_after(source) == expected


def test_a_table_that_was_empty_and_is_replaced_before_it_is_read_is_refused(folder: Path) -> None:
    source = a_source(folder)
    empty = plan(source)
    append(folder, 0, 1)
    replace_table(folder)
    append(folder, 1, 2)

    with pytest.raises(ConfigurationError, match="sequence numbers 1 to 1 have expired"):
        plan(source, empty.position)


def test_a_replacement_that_adds_rows_is_no_compaction(folder: Path) -> None:
    append(folder, 0, 3)
    appends = IcebergHistory(loaded(folder))

    def files_of(added: int, removed: int) -> list[AddedFile]:
        """pyiceberg, as which the tests write, has no compaction."""
        head = loaded(folder).current_snapshot()
        counts = {"added-records": str(added), "deleted-records": str(removed)}
        summary = Summary(Operation.REPLACE, **counts)
        assert head is not None
        return appends.files(SnapshotRead(head.model_copy(update={"summary": summary})))

    assert files_of(3, 3) == []
    assert files_of(2, 3) == []
    with pytest.raises(ConfigurationError, match=r"\(replace\) changes or deletes rows"):
        files_of(4, 3)


def test_a_hold_keeps_the_snapshots_that_a_position_needs(folder: Path) -> None:
    append(folder, 0, 2)
    reading = append(folder, 2, 4)
    source = a_source(folder)
    cut = plan(source)
    append(folder, 4, 8)
    cut = plan(source, cut.position, 1)
    append(folder, 8, 9)

    for _ in range(2):
        source.hold("sluice-shop-sales-7", cut.position)
    expire_all_but_the_head(folder)

    assert source.held("sluice-shop-") == ("sluice-shop-sales-7",)
    assert source.held("sluice-other-") == ()
    assert loaded(folder).snapshot_by_id(reading) is not None
    assert read_after(source, cut.position) == [5, 6, 7, 8]
    for _ in range(2):
        source.release("sluice-shop-sales-7")
    assert source.held("") == ()
    expire_all_but_the_head(folder)
    with pytest.raises(ConfigurationError, match="have expired before they were read"):
        plan(source, cut.position)


def test_a_hold_survives_commits_of_others_in_between(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(folder, 0, 2)
    source = a_source(folder)
    cut = plan(source)
    others = iter(range(10, 13))
    conflicts = interfere(
        monkeypatch, lambda: append(folder, number := next(others), number + 1), 3
    )

    source.hold("sluice-a-b-1", cut.position)

    assert conflicts.count == 3
    assert source.held("sluice-a-b-") == ("sluice-a-b-1",)
    assert read_after(source, cut.position) == [10, 11, 12]


APPENDS = "connectors.iceberg.source:IcebergHistory"
FAULTS = [
    Caught(
        "a table is known by its name and the number of its snapshot", f"{APPENDS}.after",
        "if str(snapshot.snapshot_id) != snapshot_id:", "if False:",
        test_a_table_that_was_made_anew_is_refused_however_many_snapshots_it_has,
    ),
    Caught(
        "what was read need be no ancestor of the head", f"{APPENDS}.after",
        "self._check_begin(steps[-1].snapshot, sequence, snapshot_id)", "pass",
        test_a_table_that_was_replaced_is_refused_by_what_was_read_of_it,
        {"snapshots_after": 3, "expires": False},
    ),
    Caught(
        "a table without a snapshot has nothing new", f"{APPENDS}.after",
        "elif sequence:", "elif False:",
        test_a_table_that_was_replaced_is_refused_by_what_was_read_of_it,
        {"snapshots_after": 0, "expires": False},
    ),
    Caught(
        "what follows what has expired is its child", f"{APPENDS}._check_begin",
        "elif not _inherits(oldest):", "elif False:",
        test_a_table_that_was_replaced_is_refused_by_what_was_read_of_it,
        {"snapshots_after": 3, "expires": True},
    ),
    Caught(
        "a snapshot that is read whole may have left the history",
        "connectors.iceberg.source:IcebergSource._steps",
        "raise appends.is_no_ancestor(read, cursor.sequence + 1)", "return []",
        test_a_table_that_was_replaced_is_refused_by_what_was_read_of_it,
        {"snapshots_after": 3, "expires": False},
        raises=(IndexError,),
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
