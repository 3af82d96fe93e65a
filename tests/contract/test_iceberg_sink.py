"""An Iceberg table keeps every sink's promises; strangers read it with Polars.

Commits are raced, fenced, rolled back, or lose their answer.  Of a table that people change: staged
rows are mapped by field, or refused with the fix.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import IntegerType, LongType, StringType
from requests import RequestException

from harness.gateway import A_PAGE
from sluice.connectors.iceberg.catalog import CatalogTable
from sluice.connectors.iceberg.declared_sink import IcebergTable
from sluice.connectors.iceberg.declared_source import IcebergTable as Source
from sluice.connectors.iceberg.sink import CHECKPOINT, BranchLineage, IcebergSink, property_of
from sluice.core.answers import Attempt, Committable
from sluice.core.timeline import Recovery, TimelineComparison
from sluice.declaration.places import DELETED
from sluice.errors import (
    ConfigurationError,
    FencedError,
    ProtocolViolation,
    StoreUnavailable,
    TableMismatch,
)
from sluice.protocol.records import checksum
from sluice.store.open import StoreLocation
from tests.builders import PLANNED
from tests.contract.conftest import BUCKET, IF_FETCHED
from tests.contract.restore_rules import (
    a_table_has_one_writer_whichever_root_its_job_is_in,
    publish_in_turn,
)
from tests.contract.sink_case import (
    ANEW,
    JOB,
    RESTORED,
    RESTORED_AGAIN,
    SCHEMA,
    Row,
    SinkCase,
    publish,
    rows,
    seen,
    stage,
    staged_rows,
)
from tests.contract.sink_rules import APPEND_RULES, UPSERT_RULES
from tests.contract.source_rules import rows_of
from tests.iceberg_catalog import (
    ROOT,
    TABLE,
    a_catalog,
    a_sink,
    a_table,
    append_by_hand,
    case_in,
    expire_all_but_the_head,
    interfere,
    loaded,
    properties,
    read_by_polars,
    read_of,
)
from tests.planted import Caught, assert_is_caught

ATTEMPT = "1-a"
KEYS = pytest.mark.parametrize("key", [(), ("id",)], ids=["appended", "upserted"])


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    """Rows are appended to a table that the sink creates."""
    return case_in(tmp_path, create=True)


def stage_table(sink: IcebergSink, checkpoint_id: int, table: pa.Table) -> Committable:
    staged = sink.stage(
        table,
        Attempt(
            checkpoint_id=checkpoint_id, subtask=0, checkpoint_token=PLANNED, attempt_token=ATTEMPT
        ),
    )
    assert staged is not None
    return staged


@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended(tmp_path: Path, rule: Callable[[SinkCase], None]) -> None:
    a_table(tmp_path, SCHEMA)

    rule(case_in(tmp_path))


@pytest.mark.parametrize("rule", UPSERT_RULES, ids=lambda rule: rule.__name__)
def test_upserted(tmp_path: Path, rule: Callable[[SinkCase], None]) -> None:
    rule(case_in(tmp_path, "id", create=True))


@pytest.mark.parametrize("rule", UPSERT_RULES, ids=lambda rule: rule.__name__)
def test_upserted_into_partitions(tmp_path: Path, rule: Callable[[SinkCase], None]) -> None:
    table = a_table(tmp_path, SCHEMA)
    with table.update_spec() as update:
        update.add_field("id", "identity", "part")

    rule(case_in(tmp_path, "id"))


@IF_FETCHED
@pytest.mark.parametrize("rule", UPSERT_RULES, ids=lambda rule: rule.__name__)
def test_upserted_by_a_rest_catalog(
    rest_catalog: str, tmp_path: Path, rule: Callable[[SinkCase], None]
) -> None:
    name, catalog = f"shop.{rule.__name__}", {"type": "rest", "uri": rest_catalog}
    spec = IcebergTable(name, catalog, upsert_key=("id",), create=True)
    root = StoreLocation(f"file://{tmp_path}/tables/sales")

    def read() -> list[Row]:
        with load_catalog("default", **catalog) as opened:
            return read_of(opened, name)

    rule(SinkCase(lambda: spec.open("sales", {}, root), read))


def test_a_commit_is_one_snapshot_that_says_whose_it_is(tmp_path: Path) -> None:
    case = case_in(tmp_path, "id", create=True)
    publish(case.open(), 1, None, rows(1, 2))
    publish(case.open(), 2, 1, rows(2, 3, name="new"))

    snapshots = loaded(tmp_path).metadata.snapshots

    marks = [one.summary.additional_properties for one in snapshots if one.summary]
    assert [one["sluice.checkpoint-id"] for one in marks] == ["1", "2"]
    assert {one["sluice.sink"] for one in marks} == {a_sink(tmp_path).identity}
    assert str(snapshots[1].snapshot_id) in case.open().describe(2)


def test_no_row_is_written_a_second_time(case: SinkCase, tmp_path: Path) -> None:
    staged = [stage(case.open(), 1, rows(number), number) for number in (1, 2)]
    before = {file.name for file in tmp_path.rglob("*.parquet")}

    case.open().commit(JOB, 1, None, [one for one in staged if one is not None])

    assert {file.name for file in tmp_path.rglob("*.parquet")} == before
    assert case.open().unpublished().staged == ()


def test_what_is_published_is_never_listed_nor_aborted_also_after_an_upsert(
    tmp_path: Path,
) -> None:
    case = case_in(tmp_path, "id", create=True)
    publish(case.open(), 1, None, rows(1, 2, 3))
    publish(case.open(), 2, 1, rows(3, 4, name="new"))
    case.open().abort(1, PLANNED)
    case.open().abort(2, PLANNED)

    assert case.open().unpublished().staged == ()
    assert seen(case) == [*rows(1, 2), *rows(3, 4, name="new")]


def test_null_is_a_key_like_any_other(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    sink = a_sink(tmp_path, "k", create=True)
    for checkpoint_id, given in ((1, [None, "a"]), (2, [None, "b"])):
        table = pa.table({"k": given, "v": [checkpoint_id] * 2}, schema)
        staged = stage_table(sink, checkpoint_id, table)
        sink.commit(JOB, checkpoint_id, checkpoint_id - 1 or None, [staged])

    found = loaded(tmp_path).scan().to_arrow().sort_by("k").to_pylist()

    assert found == [{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": None, "v": 2}]


def test_keys_of_several_columns_and_partitions_that_are_rewritten_in_part(tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.string()), ("id", pa.int64()), ("v", pa.int64())])
    table = a_table(tmp_path, schema)
    with table.update_spec() as update:
        update.add_field("day", "identity", "day_part")
    sink = a_sink(tmp_path, "day", "id")
    epochs = {
        1: [("mon", 1, 1), ("mon", 2, 1), ("tue", 1, 1)],
        2: [("mon", 2, 2), ("wed", 1, 2)],
    }
    for checkpoint_id, given in epochs.items():
        dicts = [dict(zip(schema.names, row, strict=True)) for row in given]
        staged = stage_table(sink, checkpoint_id, pa.Table.from_pylist(dicts, schema))
        sink.commit(JOB, checkpoint_id, checkpoint_id - 1 or None, [staged])
        sink.discard_copied([staged])

    found = [tuple(row.values()) for row in loaded(tmp_path).scan().to_arrow().to_pylist()]
    assert sorted(found) == [("mon", 1, 1), ("mon", 2, 2), ("tue", 1, 1), ("wed", 1, 2)]
    monday = loaded(tmp_path).scan("day = 'mon'").plan_files()
    assert sorted(task.file.partition[0] for task in monday) == ["mon", "mon"]
    assert sink.unpublished().staged == ()


NESTED = pa.schema(
    {
        "id": pa.int64(),
        "part": pa.string(),
        "numbers": pa.list_(pa.int64()),
        "structs": pa.list_(pa.struct({"a": pa.int64(), "l": pa.list_(pa.string())})),
        "counts": pa.map_(pa.string(), pa.int64()),
        "lists": pa.map_(pa.string(), pa.list_(pa.struct({"a": pa.int64()}))),
        "struct": pa.struct({"m": pa.map_(pa.string(), pa.struct({"a": pa.int64()}))}),
    }
)
OF_NESTED: list[dict[str, Any]] = [
    {"id": 1, "part": "a", **dict.fromkeys(NESTED.names[2:])},
    {"id": 2, "part": "a", **{name: [] for name in NESTED.names[2:6]}, "struct": {"m": None}},
    {
        "id": 3,
        "part": None,
        "numbers": [1, None],
        "structs": [None, {"a": None, "l": None}, {"a": 1, "l": []}],
        "counts": [("k", None)],
        "lists": [("k", None), ("l", []), ("m", [None])],
        "struct": {"m": [("k", None)]},
    },
]


@pytest.mark.parametrize("is_partitioned", [False, True], ids=["whole", "in partitions"])
@KEYS
def test_null_lists_and_maps_stay_null(
    tmp_path: Path, key: tuple[str, ...], is_partitioned: bool
) -> None:
    a_table(tmp_path, NESTED)
    if is_partitioned:
        with loaded(tmp_path).update_spec() as change:
            change.add_field("part", "identity", "part")
    sink = a_sink(tmp_path, *key)
    first = stage_table(sink, 1, pa.Table.from_pylist(OF_NESTED, NESTED))
    sink.commit(JOB, 1, None, [first])
    fourth = pa.Table.from_pylist([OF_NESTED[0] | {"id": 4}, OF_NESTED[2]][: 1 + len(key)], NESTED)

    sink.commit(JOB, 2, 1, [stage_table(sink, 2, fourth)])

    assert raw_rows(tmp_path) == [*OF_NESTED, OF_NESTED[0] | {"id": 4}]


@pytest.mark.parametrize("of", [pa.float64(), pa.float32()], ids=str)
def test_a_row_is_in_one_partition_whatever_its_number_is_equal_to(
    tmp_path: Path, of: pa.DataType
) -> None:
    a_table(tmp_path, pa.schema([("id", pa.int64()), ("x", of)]))
    with loaded(tmp_path).update_spec() as change:
        change.add_field("x", "identity", "x")
    numbers = [0.0, -0.0, math.nan, 1.5, None, math.nan, -0.0]
    table = pa.table({"id": range(len(numbers)), "x": pa.array(numbers, of)})
    sink = a_sink(tmp_path)

    sink.commit(JOB, 1, None, [stage_table(sink, 1, table)])

    assert [str(row) for row in raw_rows(tmp_path)] == [str(row) for row in table.to_pylist()]
    with pytest.raises(ConfigurationError, match=rf"partitioned by 'x', a {of}, where pyiceberg"):
        stage_table(a_sink(tmp_path, "id"), 2, table)


def test_rows_are_replaced_where_a_partition_by_a_number_was_given_up(tmp_path: Path) -> None:
    a_table(tmp_path, pa.schema([("id", pa.int64()), ("x", pa.float64())]))
    loaded(tmp_path).update_spec().add_field("x", VoidTransform(), "x").commit()
    first = pa.table({"id": [1, 2, 3], "x": [math.nan, 0.0, None]})
    then = pa.table({"id": [1, 2], "x": [1.5, -0.0]})
    sink = a_sink(tmp_path, "id")

    sink.commit(JOB, 1, None, [stage_table(sink, 1, first)])
    sink.commit(JOB, 2, 1, [stage_table(sink, 2, then)])

    assert {row["id"]: str(row["x"]) for row in raw_rows(tmp_path)} == {
        1: "1.5",
        2: "-0.0",
        3: "None",
    }


def raw_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of the data files, as they are there: pyiceberg's own scan makes nulls empty."""
    files = [task.file.file_path for task in loaded(folder).scan().plan_files()]
    read = [pq.ParquetFile(file.removeprefix("file://")).read().to_pylist() for file in files]
    return sorted((row for one in read for row in one), key=lambda row: row["id"])


def test_rows_that_do_not_fit_are_refused_when_they_are_staged(tmp_path: Path) -> None:
    a_table(tmp_path, SCHEMA)
    sink = a_sink(tmp_path)

    for table, message in (
        (pa.table({"id": [1], "nme": ["a"]}), "has no column 'nme'"),
        (pa.table({"name": ["a"]}), "column 'id' .* is required"),
        (pa.table({"id": ["one"]}), "column 'id' is string, and int64"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            stage_table(sink, 1, table)
    with pytest.raises(ConfigurationError, match="several rows of one key"):
        stage(a_sink(tmp_path, "id"), 1, rows(1, 1))
    assert sink.unpublished().staged == ()


def test_a_time_finer_than_that_of_the_table_is_refused_when_it_is_staged(tmp_path: Path) -> None:
    a_table(tmp_path, pa.schema([("at", pa.timestamp("us"))]))

    with pytest.raises(ConfigurationError, match=r"column 'at' is .*would lose data"):
        stage_table(a_sink(tmp_path), 1, pa.table({"at": pa.array([1_001], pa.timestamp("ns"))}))


BOTH = pa.struct([("a", pa.int64()), ("b", pa.int64())])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.float64(), pa.float32()),
        (pa.list_(pa.float64()), pa.list_(pa.float32())),
        (pa.float64(), pa.decimal128(10, 2)),
        (pa.decimal128(38, 19), pa.float64()),
        (pa.timestamp("us", "UTC"), pa.date32()),
        (pa.timestamp("us", "UTC"), pa.time64("us")),
        (pa.int64(), pa.bool_()),
        (pa.int64(), pa.timestamp("us")),
        (BOTH, pa.struct([("a", pa.int64())])),
        (pa.list_(BOTH), pa.list_(pa.struct([("a", pa.int64())]))),
        (pa.map_(pa.string(), BOTH), pa.map_(pa.string(), pa.struct([("a", pa.int64())]))),
    ],
    ids=str,
)
def test_a_value_that_the_table_would_change_is_refused_when_it_is_staged(
    tmp_path: Path, given: pa.DataType, wanted: pa.DataType
) -> None:
    a_table(tmp_path, pa.schema([("x", wanted)]))
    rows = pa.table({"x": pa.nulls(1, given)})

    with pytest.raises(ConfigurationError, match=r"'x' is .*: .* (would|does) .*; cast it in"):
        stage_table(a_sink(tmp_path), 1, rows)

    assert stage_table(a_sink(tmp_path), 1, pa.table({"x": pa.nulls(1, wanted)})).rows == 1


def test_a_table_that_nobody_made_is_named(tmp_path: Path) -> None:
    named = CatalogTable("shop.sales", (*properties(tmp_path).items(), ("name", "lake")))

    with pytest.raises(ConfigurationError, match=r"no Iceberg table shop\.sales .* create=True"):
        stage(a_sink(tmp_path), 1, rows(1))
    with pytest.raises(ConfigurationError, match="in the catalog 'lake'; create it"):
        named.load()


def test_a_column_that_was_dropped_does_not_come_back_under_its_name(
    case: SinkCase, tmp_path: Path
) -> None:
    publish(case.open(), 1, None, rows(1))
    with loaded(tmp_path).update_schema() as update:
        update.delete_column("name")
    with loaded(tmp_path).update_schema() as update:
        update.add_column("name", StringType())

    assert [row["name"] for row in case.read()] == [None]


def test_a_branch_is_written_and_main_stays_as_it_is(tmp_path: Path) -> None:
    publish(a_sink(tmp_path, create=True), 1, None, rows(1))
    table = loaded(tmp_path)
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    spec = IcebergTable(TABLE, properties(tmp_path), branch="audit", identity="audit")
    sink = spec.open("sales", {}, StoreLocation(root=ROOT))
    publish(sink, 1, None, rows(2))
    publish(sink, 2, 1, rows(3))
    sink.recover(RESTORED, Recovery(version=1, through=2, roll_back=True))

    assert sorted(row["id"] for row in read_by_polars(tmp_path)) == [1]
    on_branch = loaded(tmp_path).scan().use_ref("audit").to_arrow()
    assert sorted(on_branch["id"].to_pylist()) == [1, 2]
    nowhere = IcebergTable(TABLE, properties(tmp_path), branch="nowhere")
    with pytest.raises(ConfigurationError, match="no branch 'nowhere'"):
        publish(nowhere.open("sales", {}, StoreLocation(root=ROOT)), 1, None, rows(9))


def test_a_staged_file_is_known_by_its_checksum_whichever_byte_is_another(tmp_path: Path) -> None:
    a_table(tmp_path, SCHEMA)
    sink = a_sink(tmp_path)
    staged = [stage(sink, 1, rows(*range(n, n + 50)), subtask=n) for n in range(3)]
    whole, flipped, gone = (one for one in staged if one is not None)
    files = {one.file: next(tmp_path.rglob(one.file)) for one in (whole, flipped, gone)}
    place, body = files[flipped.file], files[flipped.file].read_bytes()
    assert (flipped.checksum, flipped.size_bytes) == (checksum(body), len(body))
    assert sink.damage_of([whole, flipped, gone]) == []
    files[gone.file].unlink()

    for position in range(0, len(body), 7):
        place.write_bytes(body[:position] + bytes([body[position] ^ 1]) + body[position + 1 :])

        found = sink.damage_of([whole, flipped, gone])

        assert [one.rpartition("/")[2] for one in found] == [
            f"{flipped.file}, staged for sink 'sales', is damaged",
            f"{gone.file}, staged for sink 'sales', is missing",
        ]


def test_a_page_that_comes_for_a_staged_file_is_an_outage(tmp_path: Path) -> None:
    """As of a network that wants its users to sign in: nothing is wrong with the file."""
    a_table(tmp_path, SCHEMA)
    sink = a_sink(tmp_path)
    staged = staged_rows(sink, 1, 1, 2)
    place = next(tmp_path.rglob(staged.file))
    body = place.read_bytes()

    place.write_bytes(A_PAGE)
    for asked in (lambda: sink.commit(JOB, 1, None, [staged]), lambda: sink.damage_of([staged])):
        with pytest.raises(StoreUnavailable, match=f"{staged.file}.*page of something in between"):
            asked()
    place.write_bytes(body)
    sink.commit(JOB, 1, None, [staged])

    assert seen(case_in(tmp_path)) == rows(1, 2)


def remove_orphan_files(folder: Path, *, older_than: float) -> set[str]:
    """What Spark's procedure does: the files below the table's location that no metadata names."""
    table = loaded(folder)
    named = {table.metadata_location, *(log.metadata_file for log in table.metadata.metadata_log)}
    for snapshot in table.snapshots():
        named.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            named.add(manifest.manifest_path)
            named |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io)}
    below = Path(table.location().removeprefix("file://"))
    alive = {name.removeprefix("file://") for name in named}
    orphans = [
        file
        for file in below.rglob("*")
        if file.is_file() and str(file) not in alive and file.stat().st_mtime < older_than
    ]
    for file in orphans:
        file.unlink()
    return {file.name for file in orphans}


@KEYS
def test_orphans_are_removed_beside_a_commit_that_is_owed(
    tmp_path: Path, key: tuple[str, ...]
) -> None:
    case = case_in(tmp_path, *key, create=True)
    publish(case.open(), 1, None, rows(1))
    owed = stage(case.open(), 2, rows(2))
    assert owed is not None
    place = next(tmp_path.rglob(owed.file))
    os.utime(place, (1e9, 1e9))

    assert remove_orphan_files(tmp_path, older_than=1e9 - 1) == set()  # It reaches far enough back.

    case.open().commit(JOB, 2, 1, [owed])
    assert seen(case) == rows(1, 2)
    assert remove_orphan_files(tmp_path, older_than=1e10) == set()
    missed = stage(case.open(), 3, rows(3))
    assert missed is not None
    assert remove_orphan_files(tmp_path, older_than=1e10) == {missed.file}
    with pytest.raises(ProtocolViolation, match=f"{missed.file} was committed and is missing"):
        case.open().commit(JOB, 3, 2, [missed])
    assert seen(case) == rows(1, 2)


@pytest.mark.s3
def test_a_warehouse_in_a_bucket(tmp_path: Path, s3_endpoint: str) -> None:
    warehouse = f"s3://{BUCKET}/{tmp_path.name}"
    catalog = properties(tmp_path, warehouse) | {
        "s3.access-key-id": "test",
        "s3.secret-access-key": "test",
        "s3.region": "us-east-1",
    }
    spec = IcebergTable(TABLE, catalog, upsert_key=("id",), create=True)

    def open_() -> IcebergSink:
        return spec.open("sales", {}, StoreLocation(root=ROOT, endpoint_url=s3_endpoint))

    publish(open_(), 1, None, rows(1, 2))
    publish(open_(), 2, 1, rows(2, 3, name="new"))
    stage(open_(), 3, rows(4))
    assert [one.checkpoint_id for one in open_().unpublished().staged] == [3]
    open_().abort(3, PLANNED)
    assert open_().unpublished().staged == ()

    source = Source(TABLE, catalog, skip_overwrites=True).open({}, s3_endpoint)
    barrier = source.plan((), max_records=None, parallelism=2)
    assert [row["id"] for row in rows_of(source, barrier)] == [1, 2]
    table = load_catalog("default", **catalog, **{"s3.endpoint": s3_endpoint}).load_table(TABLE)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]


def test_other_writers_in_between_cost_nothing_and_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_in(tmp_path, "id", create=True)
    publish(case.open(), 1, None, rows(1, 2))
    staged = staged_rows(case.open(), 2, 2, 3)
    others = iter((101, 102, 103))
    conflicts = interfere(monkeypatch, lambda: append_by_hand(tmp_path, next(others)), 3)

    case.open().commit(JOB, 2, 1, [staged])

    assert conflicts.count == 3
    assert seen(case) == rows(1, 2, 3, 101, 102, 103)
    assert not [one for one in case.open().unpublished().staged if "rewrite" in one.file]


def test_another_coordinator_that_was_faster_is_found_by_its_note(
    case: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(case.open(), 1, None, rows(1))
    staged = staged_rows(case.open(), 2, 2)
    conflicts = interfere(monkeypatch, lambda: case.open().commit(JOB, 2, 1, [staged]), 1)

    case.open().commit(JOB, 2, 1, [staged])

    assert conflicts.count == 1
    assert seen(case) == rows(1, 2)


@pytest.mark.parametrize("before_the_catalog_looks", [False, True])
@pytest.mark.parametrize("roll_back", [False, True])
def test_a_restore_in_the_middle_of_a_commit_fences_it(
    case: SinkCase,
    monkeypatch: pytest.MonkeyPatch,
    roll_back: bool,
    before_the_catalog_looks: bool,
) -> None:
    publish(case.open(), 1, None, rows(1))
    late = staged_rows(case.open(), 2, 2)

    def restore() -> None:
        """Another coordinator published it, and a restore undid that: the head is as before."""
        if roll_back:
            case.open().commit(JOB, 2, 1, [late])
        case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=roll_back))

    interfere(monkeypatch, restore, 1, before_the_catalog_looks=before_the_catalog_looks)

    with pytest.raises(FencedError, match=r"Iceberg table shop\.sales: generation 2 of the job"):
        case.open().commit(JOB, 2, 1, [late])
    assert seen(case) == rows(1)


ANSWERS = (
    CommitFailedException("the requirement failed: a gateway has sent the request twice"),
    CommitStateUnknownException("the line went dead"),
    UnauthorizedError("the token has expired"),
    AuthorizationExpiredError("the token has expired"),
    ForbiddenError("this key may only read"),
    ServiceUnavailableError("come back later"),
    RequestException("the line went dead"),
    ValueError("half an answer"),
)


def answer(
    patch: pytest.MonkeyPatch,
    error: Exception,
    *,
    has_landed: bool,
    can_be_asked: bool = True,
    first: Callable[[], object] = lambda: None,
) -> None:
    """The catalog's next commit ends with *error*, and is done before if it *has_landed*."""
    commit, load = SqlCatalog.commit_table, SqlCatalog.load_table
    answers = iter([error])
    refusals = iter([] if can_be_asked else [error])

    def commit_table(*arguments: Any) -> Any:
        if (lost := next(answers, None)) is None:
            return commit(*arguments)
        if has_landed:
            commit(*arguments)
        patch.setattr(SqlCatalog, "load_table", load_table)
        raise lost

    def load_table(*arguments: Any) -> Any:
        if (lost := next(refusals, None)) is not None:
            raise lost
        return load(*arguments)

    patch.setattr(SqlCatalog, "commit_table", commit_table)


def left_of_rewrites(folder: Path) -> set[str]:
    return {one.file for one in a_sink(folder).unpublished().staged if "rewrite" in one.file}


@pytest.mark.parametrize(
    ("error", "can_be_asked"),
    [*((error, True) for error in ANSWERS), (ANSWERS[0], False), (ANSWERS[2], False)],
    ids=lambda given: {True: "asked", False: "silent"}.get(given, type(given).__name__),
)
@KEYS
def test_a_commit_that_arrived_is_found_whatever_was_answered(
    key: tuple[str, ...],
    can_be_asked: bool,
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of it is deleted: manifests, lists and files are what every reader needs."""
    case = case_in(tmp_path, *key, create=True)
    publish(case.open(), 1, None, rows(1, 2))
    staged = staged_rows(case.open(), 2, 3) if not key else staged_rows(case.open(), 2, 2, 3)
    answer(monkeypatch, error, has_landed=True, can_be_asked=can_be_asked)

    for _ in range(2):  # Where the table does not answer either, the task is tried again.
        with suppress(ConfigurationError, StoreUnavailable, ValueError):
            case.open().commit(JOB, 2, 1, [staged])
    publish(case.open(), 3, 2, rows(4))

    assert seen(case) == rows(1, 2, 3, 4)
    ids = [one.summary for one in loaded(tmp_path).snapshots() if one.summary]
    assert [one.additional_properties["sluice.checkpoint-id"] for one in ids] == ["1", "2", "3"]


@pytest.mark.parametrize("error", ANSWERS, ids=lambda error: type(error).__name__)
def test_only_what_the_table_certainly_lacks_is_withdrawn(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that was refused for another one cannot arrive any more; others may."""
    case = case_in(tmp_path, "id", create=True)
    publish(case.open(), 1, None, rows(1, 2))
    staged = staged_rows(case.open(), 2, 2, 3)
    answer(monkeypatch, error, has_landed=False)

    for _ in range(2):
        with suppress(ConfigurationError, StoreUnavailable, ValueError):
            case.open().commit(JOB, 2, 1, [staged])

    assert seen(case) == rows(1, 2, 3)
    assert bool(left_of_rewrites(tmp_path)) == (not isinstance(error, CommitFailedException))


@pytest.mark.parametrize("error", ANSWERS, ids=lambda error: type(error).__name__)
def test_a_restore_that_arrived_is_found_whatever_was_answered(
    error: Exception, case: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_in_turn(case, 1, 2)
    answer(monkeypatch, error, has_landed=True)

    case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=True))
    publish(case.open(), 3, 1, rows(3), RESTORED)

    assert seen(case) == rows(1, 3)


def test_rolling_back_keeps_what_others_wrote_before_and_refuses_what_came_between(
    case: SinkCase,
    tmp_path: Path,
) -> None:
    publish(case.open(), 1, None, rows(1))
    append_by_hand(tmp_path, 101)
    publish(case.open(), 2, 1, rows(2))
    case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=True))
    assert seen(case) == rows(1, 101)

    publish(case.open(), 3, 1, rows(3), RESTORED)
    foreign = append_by_hand(tmp_path, 102)

    with pytest.raises(ConfigurationError, match=rf"{foreign} \(append\)"):
        case.open().recover(RESTORED_AGAIN, Recovery(version=1, through=3, roll_back=True))
    assert seen(case) == rows(1, 3, 101, 102)


def test_what_has_expired_is_still_noted_and_cannot_be_rolled_back(
    case: SinkCase, tmp_path: Path
) -> None:
    publish_in_turn(case, 1, 2, 3)
    staged = staged_rows(case.open(), 2, 2)

    expire_all_but_the_head(tmp_path)

    case.open().commit(JOB, 2, 1, [staged])
    assert case.open().compare(JOB.life, None).ahead == (1, 2, 3)
    assert "has expired" in case.open().describe(1)
    for version in (1, 2):
        with pytest.raises(ConfigurationError, match="cannot be rolled back"):
            case.open().recover(RESTORED, Recovery(version=version, through=3, roll_back=True))
    assert seen(case) == rows(1, 2, 3)


def test_a_table_that_somebody_emptied_is_rolled_back_whatever_has_expired(
    case: SinkCase, tmp_path: Path
) -> None:
    publish_in_turn(case, 1, 2)
    loaded(tmp_path).delete()
    expire_all_but_the_head(tmp_path)

    assert case.open().is_empty()
    taken = Recovery(version=None, through=2, roll_back=True, replaces=(JOB.life,))
    case.open().recover(ANEW, taken)
    publish(case.open(), 3, None, rows(3), ANEW)

    assert case.open().compare(ANEW.life, None) == TimelineComparison(ahead=(3,), newest=3)
    assert seen(case) == rows(3)


def test_a_table_is_not_rolled_back_behind_what_its_note_remembers(
    case: SinkCase, tmp_path: Path
) -> None:
    publish_in_turn(case, 1, 3, 5, 7)
    sink = case.open()
    assert isinstance(sink, IcebergSink)
    lineage = BranchLineage(loaded(tmp_path), "main", sink.identity)
    with lineage.table.transaction() as transaction:
        lineage.write_note(transaction, lineage.timeline().shortened(2))

    for version in (None, 1, 3):
        choice = Recovery(version=version, through=7, roll_back=True, accepts=True)
        with pytest.raises(ConfigurationError, match="forgotten which checkpoints it shows bef"):
            sink.recover(RESTORED, choice)
    sink.recover(RESTORED, Recovery(version=5, through=7, roll_back=True))
    assert seen(case) == rows(1, 3, 5)


def test_a_table_has_one_writer(case: SinkCase, tmp_path: Path) -> None:
    def other() -> IcebergSink:
        return a_sink(tmp_path, create=True, root="s3://jobs/copy/shop/tables/sales")

    elsewhere = SinkCase(other, case.read)
    a_table_has_one_writer_whichever_root_its_job_is_in(case, elsewhere)


def rolled_back(folder: Path, checkpoint_id: int = 1) -> None:
    """As Spark does it: CALL rollback_to_snapshot."""
    table = loaded(folder)
    (found,) = (
        one.snapshot_id
        for one in table.snapshots()
        if one.summary and one.summary.additional_properties.get(CHECKPOINT) == str(checkpoint_id)
    )
    table.manage_snapshots().set_current_snapshot(snapshot_id=found).commit()


def replaced_by(folder: Path, *ids: int) -> None:
    """CREATE OR REPLACE TABLE leaves the properties, and the branch begins anew."""
    loaded(folder).manage_snapshots().remove_branch("main").commit()
    if ids:
        append_by_hand(folder, *ids)


CHANGES = {
    "rolled back": (rolled_back, (1,)),
    "emptied": (replaced_by, ()),
    "replaced": (lambda folder: replaced_by(folder, 101), ()),
}


@pytest.mark.parametrize(("change", "left"), CHANGES.values(), ids=CHANGES)
def test_a_branch_that_somebody_put_back_is_told_before_a_commit_and_refused(
    change: Callable[[Path], None], left: tuple[int, ...], case: SinkCase, tmp_path: Path
) -> None:
    """The table's properties stay, and the note among them."""
    publish_in_turn(case, 1, 2, 3)
    change(tmp_path)
    before = seen(case)

    assert case.open().compare(JOB.life, 3).lacks
    assert case.open().compare(JOB.life, None) == TimelineComparison(ahead=left, newest=3)
    with pytest.raises(TableMismatch, match="does not show checkpoint 3, which the job continues"):
        case.open().check(3, SCHEMA, [staged_rows(case.open(), 4, 4)])
    with pytest.raises(TableMismatch, match="continues checkpoint 3, which the table does not"):
        publish(case.open(), 4, 3, rows(4))
    with pytest.raises(TableMismatch, match="does not show checkpoint 3"):
        case.open().recover(RESTORED, Recovery(version=3, through=4))
    assert seen(case) == before
    case.open().recover(RESTORED, Recovery(version=max(left, default=None), through=4))
    publish(case.open(), 5, max(left, default=None), rows(5), RESTORED)
    publish(case.open(), 6, 5, rows(6), RESTORED)
    assert seen(case) == sorted([*before, *rows(5, 6)], key=lambda row: row["id"])


def test_a_commit_that_was_rolled_back_while_it_is_owed_is_published_again(
    case: SinkCase, tmp_path: Path
) -> None:
    publish(case.open(), 1, None, rows(1))
    owed = staged_rows(case.open(), 2, 2)
    case.open().commit(JOB, 2, 1, [owed])
    rolled_back(tmp_path)

    case.open().commit(JOB, 2, 1, [owed])

    assert seen(case) == rows(1, 2)


def test_maintenance_by_others_leaves_the_time_line(case: SinkCase, tmp_path: Path) -> None:
    """Whatever it expires: of a branch whose history is gone the note is believed."""
    publish_in_turn(case, 1, 2)
    for id_ in (101, 102):
        append_by_hand(tmp_path, id_)
        expire_all_but_the_head(tmp_path)

    publish(case.open(), 3, 2, rows(3))

    assert seen(case) == rows(1, 2, 3, 101, 102)


@pytest.mark.parametrize("is_at_the_head", [True, False])
def test_a_sink_that_is_declared_for_another_branch_is_not_published_over_a_hole(
    is_at_the_head: bool, case: SinkCase, tmp_path: Path
) -> None:
    publish_in_turn(case, 1, 2)
    first, second = (one.snapshot_id for one in loaded(tmp_path).snapshots())
    at = second if is_at_the_head else first
    loaded(tmp_path).manage_snapshots().create_branch(at, "audit").commit()
    spec = IcebergTable(TABLE, properties(tmp_path), branch="audit")
    sink = spec.open("sales", {}, StoreLocation(root=ROOT))

    assert sink.compare(JOB.life, 2).lacks
    with pytest.raises(TableMismatch, match="continues checkpoint 2, which the table does not"):
        publish(sink, 3, 2, rows(3))


def test_a_note_that_was_copied_with_its_table_is_another_tables(
    case: SinkCase, tmp_path: Path
) -> None:
    """A table of the same name, with the properties and other rows."""
    publish_in_turn(case, 1, 2)
    copied = dict(loaded(tmp_path).properties)
    a_catalog(tmp_path).drop_table(TABLE)
    a_table(tmp_path, SCHEMA, properties=copied)
    append_by_hand(tmp_path, 101)

    assert case.open().compare(JOB.life, 2) == TimelineComparison(lacks=True)
    with pytest.raises(TableMismatch, match="continues checkpoint 2, which the table does not"):
        publish(case.open(), 3, 2, rows(3))


def test_the_note_of_an_older_sluice_is_refused_by_name(case: SinkCase, tmp_path: Path) -> None:
    publish(case.open(), 1, None, rows(1))
    table = loaded(tmp_path)
    with table.transaction() as transaction:
        transaction.remove_properties(property_of("main"))
        transaction.set_properties({"sluice.shop.sales-1f7a2b90": '{"v":2,"life":"a"}'})

    words = r"property sluice\.shop\.sales-1f7a2b90 of .* is no note .*--accept-tables"
    with pytest.raises(ProtocolViolation, match=words):
        case.open().is_published(1)


def test_a_restore_before_the_first_row_fences_who_comes_late(case: SinkCase) -> None:
    for _ in range(2):
        case.open().recover(RESTORED, Recovery(version=None, through=2))
    late = staged_rows(case.open(), 2, 2)

    with pytest.raises(FencedError):
        case.open().commit(JOB, 2, None, [late])
    publish(case.open(), 3, None, rows(3), RESTORED)

    assert seen(case) == rows(3)


NARROW = pa.schema([("id", pa.int32()), ("v", pa.string())])


def staged(
    folder: Path,
    checkpoint_id: int,
    given: list[Row],
    *key: str,
    gone: list[Row] | None = None,
    subtask: int = 0,
) -> list[Committable]:
    sink, found = a_sink(folder, *key, create=True), []
    for is_gone, some in enumerate((given, gone or [])):
        table = pa.Table.from_pylist(some, NARROW)
        if is_gone:
            table = table.append_column(DELETED, pa.array([True] * len(some), pa.bool_()))
        one = sink.stage(
            table,
            Attempt(
                checkpoint_id=checkpoint_id,
                subtask=subtask,
                checkpoint_token=PLANNED,
                attempt_token=ATTEMPT,
            ),
        )
        found += [one] if one is not None else []
    return found


def commit(
    folder: Path, checkpoint_id: int, parent: int | None, given: list[Committable], *key: str
) -> None:
    sink = a_sink(folder, *key, create=True)
    sink.commit(JOB, checkpoint_id, parent, given)
    sink.discard_copied(given)


def found(folder: Path) -> list[Row]:
    rows: list[Row] = loaded(folder).scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: str([*row.values()]))


def of(*pairs: tuple[int, str | None], **names: str) -> list[Row]:
    return [{names.get("id", "id"): id_, names.get("v", "v"): v} for id_, v in pairs]


Change = Callable[[Table], None]


def schema_change(change: Callable[[UpdateSchema], object], **options: bool) -> Change:
    def apply(table: Table) -> None:
        with table.refresh().update_schema(**options) as update:
            change(update)

    return apply


renamed = schema_change(lambda update: update.rename_column("v", "w"))
key_renamed = schema_change(lambda update: update.rename_column("id", "number"))
widened = schema_change(lambda update: update.update_column("id", LongType()))
added = schema_change(lambda update: update.add_column("z", StringType()))
dropped = schema_change(lambda update: update.delete_column("v"))
created = schema_change(lambda update: update.add_column("v", StringType()))
moved = schema_change(lambda update: update.move_first("v"))


def made_anew(table: Table) -> None:
    dropped(table)
    created(table)


def partitioned(table: Table) -> None:
    with table.update_spec() as update:
        update.add_field("v", "identity", "part")


BEFORE, CAME = ((1, "a"), (2, "b")), ((2, "B"), (3, "c"))  # Of the checkpoints 1 and 2.


def begin(folder: Path, *key: str) -> None:
    """A table with a first checkpoint."""
    a_table(folder, NARROW)
    commit(folder, 1, None, staged(folder, 1, of(*BEFORE), *key), *key)


def all_of(key: tuple[str, ...]) -> list[tuple[int, str]]:
    return sorted((*BEFORE[: 1 if key else 2], *CAME))


@KEYS
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (renamed, lambda all_: of(*all_, v="w")),
        (key_renamed, lambda all_: of(*all_, id="number")),
        (widened, lambda all_: of(*all_)),
        (added, lambda all_: [{**row, "z": None} for row in of(*all_)]),
        (dropped, lambda all_: [{"id": id_} for id_, _ in all_]),
        (moved, lambda all_: [{"v": v, "id": id_} for id_, v in all_]),
        (partitioned, lambda all_: of(*all_)),
        (
            made_anew,
            lambda all_: [{"id": id_, "v": v if (id_, v) in CAME else None} for id_, v in all_],
        ),
    ],
    ids=["renamed", "key", "widened", "added", "dropped", "moved", "partitioned", "made anew"],
)
def test_rows_staged_before_a_change_are_in_the_table_as_if_they_had_been_there_before_it(
    key: tuple[str, ...],
    change: Change,
    expected: Callable[[Any], list[Row]],
    tmp_path: Path,
) -> None:
    """But for a column made anew, which has what the stage writes to that name."""
    begin(tmp_path, *key)
    given = staged(tmp_path, 2, of(*CAME), *key)
    change(loaded(tmp_path))

    commit(tmp_path, 2, 1, given, *key)

    assert found(tmp_path) == sorted(expected(all_of(key)), key=lambda row: str([*row.values()]))
    sink = a_sink(tmp_path, *key)
    assert sink.unpublished().staged == ()
    commit(tmp_path, 2, 1, given, *key)
    assert len(found(tmp_path)) == len(all_of(key))


def test_deleted_keys_are_found_by_their_field_when_it_was_renamed(tmp_path: Path) -> None:
    begin(tmp_path, "id")
    given = staged(tmp_path, 2, of((3, "c")), "id", gone=of((1, None)))
    key_renamed(loaded(tmp_path))

    commit(tmp_path, 2, 1, given, "id")

    assert found(tmp_path) == of((2, "b"), (3, "c"), id="number")


required = schema_change(
    lambda update: update.add_column("z", StringType(), required=True),
    allow_incompatible_changes=True,
)
value_required = schema_change(
    lambda update: update.update_column("v", required=True), allow_incompatible_changes=True
)
key_dropped = schema_change(lambda update: update.delete_column("id"))
key_is_back = schema_change(lambda update: update.add_column("id", IntegerType()))


def optional_again(table: Table) -> None:
    with table.update_schema() as update:
        for field in table.schema().fields:
            update.update_column(field.name, required=False)


@pytest.mark.parametrize(
    ("key", "change", "says", "mend"),
    [
        ((), required, "column 'z' .* is required, .* make the column optional", optional_again),
        ((), value_required, "column 'v' .* required, and 1 rows have no", optional_again),
        (("id",), key_dropped, "'id', by which a sink upserts, was dropped .*; add", key_is_back),
    ],
    ids=["a column that nobody fills", "no value", "the key dropped"],
)
def test_what_cannot_be_mapped_is_refused_and_published_when_the_table_is_mended(
    key: tuple[str, ...],
    change: Change,
    says: str,
    mend: Change,
    tmp_path: Path,
) -> None:
    begin(tmp_path, *key)
    given = [
        *staged(tmp_path, 2, of((4, "d")), *key),
        *staged(tmp_path, 2, of((3, None)), *key, subtask=5),
    ]
    change(loaded(tmp_path))

    files = sorted(tmp_path.rglob("*.parquet"))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=says):
            commit(tmp_path, 2, 1, given, *key)
    assert sorted(tmp_path.rglob("*.parquet")) == files
    mend(loaded(tmp_path))
    commit(tmp_path, 2, 1, given, *key)

    ids = {row["id"] for row in found(tmp_path)}
    assert {3, 4} <= ids
    assert len(found(tmp_path)) == 4


@KEYS
def test_a_table_that_was_dropped_is_not_made_anew_over_the_loss(
    key: tuple[str, ...], tmp_path: Path
) -> None:
    begin(tmp_path, *key)
    given = staged(tmp_path, 2, of(*CAME), *key)
    metadata = loaded(tmp_path).metadata_location
    a_catalog(tmp_path).drop_table(TABLE)

    with pytest.raises(
        TableMismatch, match="continues checkpoint 1, which the table does not show"
    ):
        commit(tmp_path, 2, 1, given, *key)
    with pytest.raises(ConfigurationError, match="there is no Iceberg table"):
        a_sink(tmp_path, *key).commit(JOB, 2, 1, given)
    assert not a_catalog(tmp_path).table_exists(TABLE)
    a_catalog(tmp_path).register_table(TABLE, metadata)
    commit(tmp_path, 2, 1, given, *key)

    assert found(tmp_path) == of(*all_of(key))


@KEYS
def test_what_was_staged_for_a_table_made_anew_meanwhile_is_found_by_name(
    key: tuple[str, ...], tmp_path: Path
) -> None:
    """Its field ids are others: the first column of one is the last of the other."""
    given = staged(tmp_path, 1, of(*CAME), *key)
    a_catalog(tmp_path).drop_table(TABLE)
    a_table(tmp_path, pa.schema([("v", pa.string()), ("more", pa.int64()), ("id", pa.int64())]))

    commit(tmp_path, 1, None, given, *key)

    assert found(tmp_path) == [
        {"v": "B", "more": None, "id": 2},
        {"v": "c", "more": None, "id": 3},
    ]


@pytest.mark.parametrize("with_rows", [False, True], ids=["alone", "with rows"])
def test_a_table_is_made_by_a_first_checkpoint_that_takes_rows_away(
    with_rows: bool, tmp_path: Path
) -> None:
    given = staged(tmp_path, 1, of(*CAME) if with_rows else [], "id", gone=of((9, None)))

    commit(tmp_path, 1, None, given, "id")
    commit(tmp_path, 2, 1, staged(tmp_path, 2, of((4, "d")), "id"), "id")

    assert found(tmp_path) == of(*(CAME if with_rows else ()), (4, "d"))


def test_a_made_table_that_was_dropped_before_its_first_commit_is_made_of_what_is_staged(
    tmp_path: Path,
) -> None:
    given = staged(tmp_path, 1, of(*CAME), "id")
    a_catalog(tmp_path).drop_table(TABLE)

    commit(tmp_path, 1, None, given, "id")

    assert found(tmp_path) == of(*CAME)


def test_a_change_is_refused_before_the_checkpoint_completes(tmp_path: Path) -> None:
    table = a_table(tmp_path, NARROW)
    sink = a_sink(tmp_path)
    sink.check(None, NARROW, ())
    required(table)

    with pytest.raises(
        ConfigurationError, match=r"'z' .* is required, and the rows have only id, v"
    ):
        sink.check(None, NARROW, ())
    unknown = pa.schema([("id", pa.int32()), ("x", pa.string()), ("z", pa.string())])
    with pytest.raises(ConfigurationError, match="has no column 'x'; add it"):
        sink.check(None, unknown, ())


def test_who_passes_over_overwrites_sees_no_row_twice_after_the_partitions_changed(
    tmp_path: Path,
) -> None:
    """What stays of an older file is part of the overwrite, whatever partitions it goes to."""
    begin(tmp_path, "id")
    source = Source(TABLE, properties(tmp_path), skip_overwrites=True).open({}, None)
    partitioned(loaded(tmp_path))

    commit(tmp_path, 2, 1, staged(tmp_path, 2, of(*CAME), "id"), "id")

    table = loaded(tmp_path)
    operations = [one.summary.operation.value for one in table.metadata.snapshots if one.summary]
    assert operations == ["append", "overwrite"]
    barrier = source.plan((), max_records=None, parallelism=1)
    assert [(row["id"], row["v"]) for row in rows_of(source, barrier)] == [*BEFORE]
    assert found(tmp_path) == of(*all_of(("id",)))


LINEAGE = "connectors.iceberg.sink:BranchLineage"
FAULTS = [
    Caught(
        "the note need not be in the branch's history", f"{LINEAGE}.timeline",
        "return note.timeline if shown is None else", "return note.timeline if True else",
        test_a_branch_that_somebody_put_back_is_told_before_a_commit_and_refused,
        {"change": rolled_back, "left": (1,)},
    ),
    Caught(
        "the note of a table of that name is believed", f"{LINEAGE}.note",
        "if note.table == str(self.table.metadata.table_uuid) else None", "",
        test_a_note_that_was_copied_with_its_table_is_another_tables,
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
