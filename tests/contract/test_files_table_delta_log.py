"""Strangers read a table of files as a Delta table: whole versions, and none that was left behind.

Polars, deltalake and, where its extension is there, DuckDB read by ``_delta_log`` alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable as Table
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from sluice.connectors.delta.declared_source import DeltaTable as DeltaSource
from sluice.connectors.delta_log import DeltaPlace, Snapshot
from sluice.connectors.files_table.table import ManifestTable
from sluice.core.answers import Attempt
from sluice.core.timeline import Recovery, Writer
from sluice.declaration.places import Sink
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.sinks import DeltaTable, FilesTable
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation
from tests.builders import ATTEMPTED, PLANNED
from tests.contract.conftest import BUCKET
from tests.contract.faults import Faults
from tests.contract.sink_case import JOB, RESTORED, SCHEMA, SinkCase, publish, rows, seen
from tests.contract.sink_rules import APPEND_RULES
from tests.contract.source_rules import rows_of
from tests.contract.test_files_table_readers import snippet

PLACES: dict[str, dict[str, Any]] = {
    "flat": {},
    "partitioned": {"partition_by": ("name",)},
    "merged at 2 files": {"compact_when_files": 2},
}


def a_table(folder: Path, *, layer: Faults | None = None, **options: Any) -> ManifestTable:
    spec = FilesTable(f"file://{folder}/table", delta_log=True, **options)
    return spec.open("alerts", {}, StoreLocation(f"file://{folder}/root/alerts", layer=layer))


def loaded(folder: Path) -> Table:
    return Table(str(folder / "table"))


def by_polars(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "table/_delta_log").exists():
        return []
    names: dict[str, Any] = {"pl": pl}
    exec(snippet("polars-delta").replace("TABLE", f"{folder}/table"), names)  # noqa: S102 - the documentation's own
    found: list[dict[str, Any]] = names["rows"].collect().to_arrow().to_pylist()
    return found


def case_in(folder: Path, **options: Any) -> SinkCase:
    return SinkCase(lambda: a_table(folder, **options), lambda: by_polars(folder))


def publish_table(
    sink: Sink, checkpoint_id: int, parent: int | None, table: pa.Table, writer: Writer = JOB
) -> None:
    by = Attempt(
        checkpoint_id=checkpoint_id, subtask=0, checkpoint_token=PLANNED, attempt_token=ATTEMPTED
    )
    staged = sink.stage(table, by)
    assert staged is not None
    sink.check(parent, table.schema, [staged])
    sink.commit(writer, checkpoint_id, parent, [staged])


@pytest.mark.parametrize("options", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended(
    tmp_path: Path, rule: Callable[[SinkCase], None], options: dict[str, Any]
) -> None:
    rule(case_in(tmp_path, **options))


def test_the_readers_of_the_documentation_see_each_version_whole(tmp_path: Path) -> None:
    table = a_table(tmp_path, partition_by=("name",))
    publish(table, 1, None, rows(1, 7))
    publish(table, 2, 1, rows(2))
    table.stage(
        pa.Table.from_pylist(rows(3), SCHEMA),
        Attempt(checkpoint_id=3, subtask=0, checkpoint_token=PLANNED, attempt_token=ATTEMPTED),
    )

    assert seen(case_in(tmp_path)) == rows(1, 2, 7)
    found = pa.table(loaded(tmp_path).to_pyarrow_table()).sort_by("id")
    assert found.cast(table.read().schema).to_pylist() == rows(1, 2, 7)
    assert sorted(Table(f"{tmp_path}/table", version=0).to_pyarrow_table()["id"].to_pylist()) == [
        1,
        7,
    ]
    told = loaded(tmp_path).history()
    assert [(one["version"], one["sluice.checkpoint-id"]) for one in told] == [(1, 2), (0, 1)]


def test_duckdb_reads_it(tmp_path: Path) -> None:
    table = a_table(tmp_path, partition_by=("name",))
    publish(table, 1, None, rows(1, 7))
    publish(table, 2, 1, rows(2))
    table.recover(RESTORED, Recovery(version=1, through=2, roll_back=True))
    fetches_nothing: dict[str, Any] = {"autoinstall_known_extensions": "false"}
    with duckdb.connect(config=fetches_nothing) as connection:
        try:
            connection.execute("LOAD delta")
        except duckdb.Error as error:
            pytest.skip(f"DuckDB's extension delta is not here; INSTALL delta ({error})")
        code = snippet("duckdb-delta").replace("TABLE", f"{tmp_path}/table")
        found = connection.sql(code.rstrip(";\n ")).to_arrow_table()

    assert found.sort_by("id").select(["id", "name"]).to_pylist() == [
        {"id": row["id"], "name": row["name"]} for row in rows(1, 7)
    ]


def test_nobody_else_can_write_the_log_or_vacuum_what_it_does_not_name(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    publish(table, 1, None, rows(1))
    publish(table, 2, 1, rows(2))
    table.recover(RESTORED, Recovery(version=1, through=2, roll_back=True))
    more = pa.Table.from_pylist(rows(9), SCHEMA)

    for write in (
        lambda: write_deltalake(loaded(tmp_path), more, mode="append"),
        lambda: loaded(tmp_path).vacuum(0, False, enforce_retention_duration=False, full=True),
        lambda: loaded(tmp_path).delete(),
    ):
        with pytest.raises(DeltaError, match="sluiceFilesTable"):
            write()
    into = DeltaTable(f"file://{tmp_path}/table")
    sink = into.open("sales", {}, StoreLocation(f"file://{tmp_path}/root/sales"))
    with pytest.raises(ConfigurationError, match="the feature sluiceFilesTable"):
        publish_table(sink, 1, None, more)

    table.recover(Writer(life=JOB.life, generation=3), Recovery(version=2, through=2))
    assert [row["id"] for row in table.read(2).to_pylist()] == [1, 2]


def test_the_log_goes_back_and_forward_with_the_table(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    for checkpoint_id in (1, 2, 3):
        publish(table, checkpoint_id, checkpoint_id - 1 or None, rows(checkpoint_id))
    table.recover(RESTORED, Recovery(version=1, through=3, roll_back=True))
    assert seen(case_in(tmp_path)) == rows(1)

    forward = Writer(life=JOB.life, generation=3)
    table.recover(forward, Recovery(version=3, through=3, roll_back=True))
    assert seen(case_in(tmp_path)) == rows(1, 2, 3)
    table.recover(
        Writer(life=JOB.life, generation=4), Recovery(version=None, through=3, roll_back=True)
    )
    assert loaded(tmp_path).to_pyarrow_table().num_rows == 0
    publish(table, 4, None, rows(4), Writer(life=JOB.life, generation=4))
    assert seen(case_in(tmp_path)) == rows(4)


def test_merged_files_are_shown_once_vacuum_relies_on_them_and_change_no_row(
    tmp_path: Path,
) -> None:
    table = a_table(tmp_path)
    for checkpoint_id in (1, 2, 3):
        publish(table, checkpoint_id, checkpoint_id - 1 or None, rows(checkpoint_id))
    table.compact(2)
    before = {*loaded(tmp_path).file_uris()}
    assert loaded(tmp_path).version() == 2
    assert table.view is not None

    table.view.show(grace_ms=0)

    assert loaded(tmp_path).version() == 3
    after = {*loaded(tmp_path).file_uris()}
    assert (len(before), len(after), len(before & after)) == (3, 2, 1)
    assert seen(case_in(tmp_path)) == rows(1, 2, 3)
    log = tmp_path / f"table/_delta_log/{3:020}.json"
    told = [one for line in log.read_text().splitlines() for one in json.loads(line).items()]
    kinds = {kind: one["dataChange"] for kind, one in told if "dataChange" in one}
    assert kinds == {"add": False, "remove": False}
    publish(table, 4, 3, rows(4))
    assert seen(case_in(tmp_path)) == rows(1, 2, 3, 4)
    source = DeltaSource(f"file://{tmp_path}/table", start=0, bounded=True).open({}, None)
    barrier = source.plan((), max_records=None, parallelism=1)
    assert sorted(row["id"] for row in rows_of(source, barrier)) == [1, 2, 3, 4]


def test_vacuum_shows_what_stays_before_it_deletes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = a_table(tmp_path)
    for checkpoint_id in (1, 2, 3, 4):
        publish(table, checkpoint_id, checkpoint_id - 1 or None, rows(checkpoint_id))
    deleted: list[list[str]] = []

    def refused(_: ObjectStore, keys: Iterable[str]) -> None:
        deleted.append([*keys])
        raise StoreUnavailable("deleting is not answered")

    with monkeypatch.context() as patch:
        patch.setattr(type(table.store), "delete", refused)
        with suppress(StoreUnavailable):
            table.vacuum(3, grace_ms=0)
    assert deleted
    live = {Path(file).name for file in loaded(tmp_path).file_uris()}
    assert len(live) == 2  # Those of versions 1 to 3 are merged.

    table.vacuum(3, grace_ms=0)

    assert {Path(file).name for file in loaded(tmp_path).file_uris()} == live
    assert len([*(tmp_path / "table/data").iterdir()]) < 4
    assert seen(case_in(tmp_path)) == rows(1, 2, 3, 4)
    publish(table, 5, 4, rows(5))
    assert seen(case_in(tmp_path)) == rows(1, 2, 3, 4, 5)


@pytest.mark.parametrize("is_restored", [False, True], ids=["goes on", "restored"])
def test_what_vacuum_deleted_without_grace_is_not_shown_again(
    tmp_path: Path, is_restored: bool
) -> None:
    table = a_table(tmp_path)
    publish(table, 1, None, rows(1))
    publish(table, 2, 1, rows(2))
    table.recover(RESTORED, Recovery(version=1, through=2, roll_back=True))
    publish(table, 3, 1, rows(3), RESTORED)
    table.vacuum(2, grace_ms=0)  # Version 1 stays, as 2 continues it; of 3 the merged file does.
    publish(table, 4, 3, rows(4), RESTORED)

    if is_restored:
        again = Writer(life=JOB.life, generation=RESTORED.generation + 1)
        table.recover(again, Recovery(version=3, through=4, roll_back=True))
    else:
        table.compact()

    assert seen(case_in(tmp_path)) == (rows(1, 3) if is_restored else rows(1, 3, 4))


def test_a_young_merge_is_not_shown_so_its_files_may_vanish(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    publish(table, 1, None, rows(1))
    publish(table, 2, 1, rows(2))
    table.compact()
    for file in (tmp_path / "table/compacted").iterdir():
        file.unlink()
    publish(table, 3, 2, rows(3))

    assert seen(case_in(tmp_path)) == rows(1, 2, 3)


@pytest.mark.parametrize("fate", ["request lost", "answer lost", "sent twice"])
def test_a_version_is_there_once_whatever_was_answered(tmp_path: Path, fate: str) -> None:
    publish(a_table(tmp_path), 1, None, rows(1))
    layer = Faults("_delta_log/", [fate])

    for _ in range(2):
        with suppress(StoreUnavailable):
            publish(a_table(tmp_path, layer=layer), 2, 1, rows(2))

    assert [one["sluice.checkpoint-id"] for one in loaded(tmp_path).history()] == [2, 1]
    assert seen(case_in(tmp_path)) == rows(1, 2)


def test_a_writer_that_slept_does_not_show_what_was_left_behind(tmp_path: Path) -> None:
    publish(a_table(tmp_path), 1, None, rows(1))
    layer = Faults(
        "_delta_log/",
        ["overtaken"],
        lambda: a_table(tmp_path).recover(RESTORED, Recovery(version=1, through=2, roll_back=True)),
    )

    publish(a_table(tmp_path, layer=layer), 2, 1, rows(2))

    assert not layer.fates
    assert [one["sluice.checkpoint-id"] for one in loaded(tmp_path).history()] == [1, 1]
    assert seen(case_in(tmp_path)) == rows(1)
    publish(a_table(tmp_path), 3, 1, rows(3), RESTORED)
    assert seen(case_in(tmp_path)) == rows(1, 3)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_restore_beside_the_reading_of_the_log_is_what_it_shows(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(a_table(tmp_path), 1, None, rows(1))
    restores = [Recovery(version=1, through=2, roll_back=True)]
    load = DeltaPlace.load

    def restored() -> None:
        if restores:
            a_table(tmp_path).recover(RESTORED, restores.pop())

    def beside(place: DeltaPlace, version: int | None = None) -> Snapshot | None:
        if when == "before":
            restored()
        found = load(place, version)
        restored()
        return found

    monkeypatch.setattr(DeltaPlace, "load", beside)

    publish(a_table(tmp_path), 2, 1, rows(2))

    assert not restores
    assert seen(case_in(tmp_path)) == rows(1)


def test_a_process_that_died_before_the_log_leaves_it_to_the_next(tmp_path: Path) -> None:
    publish(a_table(tmp_path), 1, None, rows(1))
    dies = Faults("_delta_log/", ["request lost"])
    with pytest.raises(StoreUnavailable):
        publish(a_table(tmp_path, layer=dies), 2, 1, rows(2))
    assert seen(case_in(tmp_path)) == rows(1)

    publish(a_table(tmp_path), 3, 2, rows(3))

    assert seen(case_in(tmp_path)) == rows(1, 2, 3)


COLUMNS = {
    "wider": (pa.table({"v": pa.array([1], pa.int32())}), pa.table({"v": [2]}), "'v' .* is int32"),
    "spelt": (pa.table({"v": [1]}), pa.table({"V": [2]}), "'v' .* have 'V'"),
    "unsigned": (None, pa.table({"v": pa.array([1], pa.uint32())}), "Delta has no uint32"),
    "nanos": (None, pa.table({"v": [pa.array([1], pa.timestamp("ns"))[0]]}), r"no timestamp\[ns\]"),
    "null": (None, pa.table({"v": pa.nulls(1)}), "Delta has no null"),
    "nested": (None, pa.table({"v": pa.array([[1]], pa.list_(pa.uint8()))}), "no uint8"),
}


@pytest.mark.parametrize(("before", "after", "message"), COLUMNS.values(), ids=COLUMNS)
def test_what_not_every_reader_reads_is_refused_before_its_checkpoint_completes(
    tmp_path: Path, before: pa.Table | None, after: pa.Table, message: str
) -> None:
    table, parent = a_table(tmp_path), None
    if before is not None:
        publish_table(table, 1, None, before)
        parent = 1

    for _ in range(2):
        with pytest.raises(ConfigurationError, match=message):
            table.check(parent, after.schema, ())


def test_a_column_may_come_later_and_another_type_after_it_went_back(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    publish_table(table, 1, None, pa.table({"v": [1]}))
    publish_table(table, 2, 1, pa.table({"v": [2], "x": ["a text"]}))
    found = pl.read_delta(f"{tmp_path}/table").sort("v")
    assert found.to_dicts() == [{"v": 1, "x": None}, {"v": 2, "x": "a text"}]
    table.recover(RESTORED, Recovery(version=1, through=2, roll_back=True))

    publish_table(table, 3, 1, pa.table({"v": [3], "x": [3]}), RESTORED)

    found = pl.read_delta(f"{tmp_path}/table").sort("v")
    assert found.to_dicts() == [{"v": 1, "x": None}, {"v": 3, "x": 3}]


def test_another_table_at_the_place_or_json_in_it_is_refused_by_name(tmp_path: Path) -> None:
    write_deltalake(f"{tmp_path}/table", pa.Table.from_pylist(rows(1), SCHEMA))
    with pytest.raises(ConfigurationError, match="a Delta log that no FilesTable wrote"):
        a_table(tmp_path).check(None, SCHEMA, ())
    lines = FilesTable(f"file://{tmp_path}/lines/table", format="json")
    sink = lines.open("alerts", {}, StoreLocation(f"file://{tmp_path}/lines/root/alerts"))
    publish(sink, 1, None, rows(1))
    with pytest.raises(ConfigurationError, match=r"\.json, and a Delta log names Parquet alone"):
        a_table(tmp_path / "lines").check(1, SCHEMA, ())
    for declared in ({"upsert_key": ("id",)}, {"format": "json"}):
        with pytest.raises(ConfigurationError, match=r"delta_log=True\) has .*declare a DeltaTabl"):
            FilesTable(delta_log=True, **declared)


def test_a_log_that_is_no_longer_declared_is_refused_until_its_readers_fail(tmp_path: Path) -> None:
    kept = a_table(tmp_path)
    plain = replace(kept, view=None)
    publish_table(plain, 1, None, pa.table({"id": [1]}))
    publish_table(kept, 2, 1, pa.table({"id": [2]}))
    for _ in range(2):
        with pytest.raises(
            ConfigurationError, match="declare delta_log=True, or delete _delta_log/"
        ):
            publish_table(plain, 3, 2, pa.table({"id": [3]}))
    publish_table(kept, 3, 2, pa.table({"id": [4]}))
    assert sorted(row["id"] for row in by_polars(tmp_path)) == [1, 2, 4]

    rmtree(tmp_path / "table/_delta_log")
    publish_table(plain, 4, 3, pa.table({"id": [5]}))
    with pytest.raises(DeltaError):
        loaded(tmp_path)
    publish_table(kept, 5, 4, pa.table({"id": [6]}))

    assert sorted(row["id"] for row in by_polars(tmp_path)) == [1, 2, 4, 5, 6]


def test_the_log_begins_with_a_table_that_is_there_already(tmp_path: Path) -> None:
    without = FilesTable(f"file://{tmp_path}/table")
    at = StoreLocation(f"file://{tmp_path}/root/alerts")
    for checkpoint_id in (1, 2, 3):
        publish(without.open("alerts", {}, at), checkpoint_id, checkpoint_id - 1 or None,
                rows(checkpoint_id))  # fmt: skip
    without.open("alerts", {}, at).vacuum(2, grace_ms=0)

    publish(a_table(tmp_path), 4, 3, rows(4))

    assert seen(case_in(tmp_path)) == rows(1, 2, 3, 4)


def test_a_commit_reads_no_more_of_the_table_the_older_it_is(tmp_path: Path) -> None:
    """Of the table's own objects; the log is summed up every ten versions."""
    read: list[str] = []

    class Counting(Faults):
        def store_of(
            self, root: str, opened: Callable[[], ObjectStore], patience_s: float
        ) -> ObjectStore:
            store = super().store_of(root, opened, patience_s)

            class Noting:
                def __getattr__(self, name: str) -> Any:
                    return getattr(store, name)

                def get(self, key: str) -> bytes | None:
                    read.append(key)
                    return store.get(key)

            return Noting()

    counts = []
    for checkpoint_id in range(1, 26):
        read.clear()
        table = a_table(tmp_path, layer=Counting("", []))
        publish(table, checkpoint_id, checkpoint_id - 1 or None, rows(checkpoint_id))
        counts.append(len(read))

    assert counts[4] == counts[24], counts
    assert [*(tmp_path / "table/_delta_log").glob("*.checkpoint.parquet")]
    assert [row["id"] for row in seen(case_in(tmp_path))] == [*range(1, 26)]


@pytest.mark.s3
def test_in_a_bucket(tmp_path: Path, s3_endpoint: str) -> None:
    place = f"s3://{BUCKET}/{tmp_path.name}/table"
    spec = FilesTable(place, delta_log=True, partition_by=("name",))
    root = StoreLocation(f"s3://{BUCKET}/{tmp_path.name}/root", endpoint_url=s3_endpoint)
    options = {"aws_endpoint": s3_endpoint, "aws_allow_http": "true"}
    case = SinkCase(
        lambda: spec.open("alerts", {}, root),
        lambda: (
            pa.table(Table(place, storage_options=options).to_pyarrow_table())
            .cast(SCHEMA)
            .to_pylist()
        ),
    )
    publish(case.open(), 1, None, rows(1, 7))
    publish(case.open(), 2, 1, rows(2))
    assert seen(case) == rows(1, 2, 7)

    case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=True))

    assert seen(case) == rows(1, 7)
