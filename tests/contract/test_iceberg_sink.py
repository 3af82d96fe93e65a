"""An Iceberg table keeps every sink's promises; strangers read it with Polars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.types import StringType

from sluice.connectors.iceberg.declared_sink import IcebergTable
from sluice.connectors.iceberg.declared_source import IcebergTable as Rows
from sluice.connectors.iceberg.sink import IcebergSink
from sluice.core.handles import checksum
from sluice.core.timeline import Recovery
from sluice.errors import ConfigurationError
from sluice.store.open import StoreLocation
from tests.contract.conftest import BUCKET
from tests.contract.sink_rules import (
    APPEND_RULES,
    JOB,
    RESTORED,
    SCHEMA,
    UPSERT_RULES,
    SinkCase,
    publish,
    rows,
    seen,
    stage,
)
from tests.contract.source_rules import rows_of
from tests.iceberg_catalog import (
    ROOT,
    TABLE,
    a_sink,
    a_table,
    case_in,
    loaded,
    properties,
    read_by_polars,
)

ATTEMPT = "1-a"


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


def test_a_commit_is_one_snapshot_that_says_whose_it_is(tmp_path: Path) -> None:
    case = case_in(tmp_path, "id", create=True)
    publish(case.open(), 1, None, rows(1, 2))
    publish(case.open(), 2, 1, rows(2, 3, name="new"))

    snapshots = loaded(tmp_path).metadata.snapshots

    marks = [one.summary.additional_properties for one in snapshots if one.summary]
    assert [one["sluice.checkpoint-id"] for one in marks] == ["1", "2"]
    assert {one["sluice.sink"] for one in marks} == {a_sink(tmp_path).identity}
    assert str(snapshots[1].snapshot_id) in case.open().describe(2)


def test_no_row_is_written_a_second_time(tmp_path: Path) -> None:
    case = case_in(tmp_path, create=True)
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
    case.open().abort(1)
    case.open().abort(2)

    assert case.open().unpublished().staged == ()
    assert seen(case) == [*rows(1, 2), *rows(3, 4, name="new")]


def test_null_is_a_key_like_any_other(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    sink = a_sink(tmp_path, "k", create=True)
    for checkpoint_id, given in ((1, [None, "a"]), (2, [None, "b"])):
        table = pa.table({"k": given, "v": [checkpoint_id] * 2}, schema)
        staged = sink.stage(table, checkpoint_id=checkpoint_id, subtask=0, attempt_token=ATTEMPT)
        assert staged is not None
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
        rows_ = pa.Table.from_pylist(
            [dict(zip(schema.names, one, strict=True)) for one in given], schema
        )
        staged = sink.stage(rows_, checkpoint_id=checkpoint_id, subtask=0, attempt_token=ATTEMPT)
        assert staged is not None
        sink.commit(JOB, checkpoint_id, checkpoint_id - 1 or None, [staged])
        sink.discard_copied([staged])

    found = [tuple(row.values()) for row in loaded(tmp_path).scan().to_arrow().to_pylist()]
    assert sorted(found) == [("mon", 1, 1), ("mon", 2, 2), ("tue", 1, 1), ("wed", 1, 2)]
    monday = loaded(tmp_path).scan("day = 'mon'").plan_files()
    assert sorted(task.file.partition[0] for task in monday) == ["mon", "mon"]
    assert sink.unpublished().staged == ()


def test_rows_that_do_not_fit_are_refused_when_they_are_staged(tmp_path: Path) -> None:
    a_table(tmp_path, SCHEMA)
    sink = a_sink(tmp_path)

    def refused(table: pa.Table, message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            sink.stage(table, checkpoint_id=1, subtask=0, attempt_token=ATTEMPT)

    refused(pa.table({"id": [1], "nme": ["a"]}), "has no column 'nme'")
    refused(pa.table({"name": ["a"]}), "column 'id' .* is required")
    refused(pa.table({"id": ["one"]}), "column 'id' is string, and int64")
    with pytest.raises(ConfigurationError, match="several rows of one key"):
        stage(a_sink(tmp_path, "id"), 1, rows(1, 1))
    assert sink.unpublished().staged == ()


def test_a_table_that_nobody_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no Iceberg table shop\.sales .* create=True"):
        stage(a_sink(tmp_path), 1, rows(1))


def test_a_column_that_was_dropped_does_not_come_back_under_its_name(tmp_path: Path) -> None:
    case = case_in(tmp_path, create=True)
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
    whole, flipped, gone = (
        stage(sink, 1, rows(*range(number, number + 50)), subtask=number) for number in range(3)
    )
    assert whole is not None
    assert flipped is not None
    assert gone is not None
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
    open_().abort(3)
    assert open_().unpublished().staged == ()

    source = Rows(TABLE, catalog, skip_overwrites=True).open({}, s3_endpoint)
    barrier = source.plan((), max_records=None, parallelism=2)
    assert [row["id"] for row in rows_of(source, barrier)] == [1, 2]
    table = load_catalog("default", **catalog, **{"s3.endpoint": s3_endpoint}).load_table(TABLE)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
