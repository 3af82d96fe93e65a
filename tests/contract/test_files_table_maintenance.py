"""Merging, vacuum and ``_latest``, on every store.

No version changes, what is kept can be read, and ``_latest`` follows the manifests, whichever
process writes it, and in any order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from typing import Any

import pyarrow as pa
import pytest

from harness.counting_store import CountingStore
from sluice.connectors.files_table.columns import MOST_PARTS, newest_in_parts
from sluice.connectors.files_table.log import TableLog
from sluice.connectors.files_table.maintenance import LATEST
from sluice.connectors.files_table.table import ManifestTable
from sluice.core.answers import Attempt
from sluice.core.timeline import Recovery
from sluice.declaration.places import DELETED
from sluice.errors import ConfigurationError, FencedError, ProtocolViolation, TableMismatch
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import CreateResult, ObjectStore
from tests.builders import ATTEMPTED, PLANNED
from tests.contract.sink_case import (
    JOB,
    RESTORED,
    RESTORED_AGAIN,
    Row,
    publish,
    rows,
    stage,
    stage_deletes,
)

FORMS: list[dict[str, Any]] = [
    {},
    {"format": "json"},
    {"partition_by": ("name",)},
    {"upsert_key": ("id",)},
    {"upsert_key": ("id",), "partition_by": ("name",), "format": "json"},
]
each_form = pytest.mark.parametrize("form", FORMS, ids=str)


def filled(store: ObjectStore, versions: int, **form: Any) -> ManifestTable:
    table = ManifestTable("alerts", store, **form)
    for version in range(1, versions + 1):
        publish(table, version, version - 1 or None, rows(version, version + 100))
    return table


def with_create(store: ObjectStore, created: Callable[[str, bytes], CreateResult]) -> ManifestTable:
    """The table of *store*, for a process whose ``create`` is *created*."""

    class Other(InMemoryStore):
        root = store.root
        get, list, put, delete = store.get, store.list, store.put, store.delete

        def create(self, key: str, body: bytes) -> CreateResult:
            return created(key, body)

    return ManifestTable("alerts", Other())


def shown(table: ManifestTable, version: int | None = None) -> Counter[str]:
    return counted(table.read(version).to_pylist())


def counted(found: list[Row]) -> Counter[str]:
    return Counter(f"{row['id']} {row['name']} {row['price']} {row['at']}" for row in found)


@each_form
def test_no_version_changes_when_files_are_merged(store: ObjectStore, form: dict[str, Any]) -> None:
    table = filled(store, 6, **form)
    if "upsert_key" in form:
        table.commit(JOB, 7, 6, [stage_deletes(table, 7, rows(2, 3))])
    before = {version: shown(table, version) for version in table.versions()}

    for version in (3, None, None):
        table.compact(version)

    assert {version: shown(table, version) for version in table.versions()} == before
    assert len(table.chain()) == 1
    assert table.unpublished().staged == ()
    publish(table, 9, table.versions()[-1], rows(9))
    assert shown(table) == before[table.versions()[-2]] + counted(rows(9))
    assert table.compare(JOB.life, 4).ahead == table.versions()[4:]


@each_form
def test_after_a_vacuum_what_is_kept_is_as_it_was(store: ObjectStore, form: dict[str, Any]) -> None:
    table = filled(store, 6, **form)
    for version, parent in ((8, 4), (9, 8)):  # 5 and 6 are rolled back.
        publish(table, version, parent, rows(version))
    before = {version: shown(table, version) for version in (8, 9)}

    freed = table.vacuum(8, grace_ms=0)

    assert freed.versions == (1, 2, 3, 4, 5, 6)
    assert {version: shown(table, version) for version in table.versions()} == before
    assert table.unpublished().staged == ()
    if "partition_by" not in form:  # A partition's only file is not written again.
        assert not [one.key for one in store.list("data/") if one.key < f"data/{8:020d}"]
    with pytest.raises(ConfigurationError, match="has no version 4; it has 8, 9"):
        table.read(4)
    assert table.compare(JOB.life, 4).lacks
    with pytest.raises(TableMismatch, match="does not show checkpoint 4, which the job continues"):
        table.recover(RESTORED, Recovery(version=4, through=9, roll_back=True))
    assert table.compare(JOB.life, None).ahead == (8, 9)
    assert table.vacuum(8, grace_ms=0).versions == ()
    publish(table, 10, 9, rows(10))
    assert shown(table) == before[9] + counted(rows(10))


def test_versions_of_another_branch_are_kept_when_they_are_new_enough(store: ObjectStore) -> None:
    table = filled(store, 4)
    publish(table, 5, 2, rows(5))
    before = {version: shown(table, version) for version in (3, 4, 5)}

    assert table.vacuum(3, grace_ms=0).versions == ()

    table.vacuum(3, grace_ms=0)
    assert {version: shown(table, version) for version in (3, 4, 5)} == before


def test_merged_files_that_are_young_are_not_relied_upon(store: ObjectStore) -> None:
    table = filled(store, 4)
    table.compact()

    assert table.vacuum(4).versions == ()
    assert shown(table, 1) == counted(rows(1, 101))


def test_the_table_is_never_emptied(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)
    assert table.vacuum(1).versions == ()
    publish(table, 2, None, rows(2))

    with pytest.raises(ConfigurationError, match="no version 3 or later; the newest is 2"):
        table.vacuum(3, grace_ms=0)
    assert shown(table) == counted(rows(2))


def test_large_files_are_not_written_again(store: ObjectStore) -> None:
    table = filled(store, 4)
    (file,) = table.chain()[0].files

    record = table.compact(target_bytes=file.size_bytes)

    assert record is not None
    assert [one.file for one in record.files] == [one.key for one in store.list("data/")]
    assert not [*store.list("compacted/")]


@pytest.mark.parametrize("form", [{}, {"partition_by": ("name",)}], ids=str)
def test_a_file_that_only_a_record_names_is_nobodys_garbage(
    store: ObjectStore, form: dict[str, Any]
) -> None:
    table = filled(store, 4, **form)
    before = shown(table)
    table.compact(4, target_bytes=1)  # Every file is large.
    table.vacuum(4, grace_ms=0)
    assert table.versions() == (4,)

    left = [one.file for one in table.unpublished().staged]
    for version in (1, 2, 3):
        table.abort(version, PLANNED)
    table.discard(one.key for one in store.list("data/"))

    assert left == []
    assert shown(table) == before


def test_so_many_versions_stay_and_what_a_commit_merged_is_not_merged_again(
    store: ObjectStore,
) -> None:
    """Versions without files are never merged by a commit; of them twice as many stay."""
    table = filled(store, 9, compact_when_files=4)
    before = {version: shown(table, version) for version in table.versions()}
    merged = max(version for version in TableLog(store).compacted() if version <= 7)
    files = [one.key for one in store.list("compacted/")]

    assert table.expire(9, []).versions == ()
    assert table.expire(3, [1, 8], grace_ms=0).versions == ()
    assert replace(table, compact_when_files=0).expire(3, [], grace_ms=0).versions == ()
    gone = table.expire(3, [8], grace_ms=0).versions

    assert gone == tuple(range(1, merged))
    assert {version: shown(table, version) for version in table.versions()} == {
        version: rows for version, rows in before.items() if version >= merged
    }
    assert [one.key for one in store.list("compacted/")] == files
    for version in range(10, 20):
        table.commit(JOB, version, version - 1, [])
        table.expire(3, [], grace_ms=0)
        assert len(table.versions()) <= 6
    assert shown(table) == before[9]


def test_versions_of_a_table_that_was_taken_over_are_its_new_owners(store: ObjectStore) -> None:
    """The old root's savepoints do not tell what the new one's show."""
    table = filled(store, 6, at="s3://ours/auctions/alerts", compact_when_files=99)
    old = replace(table, at="s3://old/auctions/alerts")

    assert old.expire(2, [], grace_ms=0).versions == ()
    assert table.versions() == tuple(range(1, 7))
    table.expire(2, [], grace_ms=0)
    assert table.versions() == (5, 6)


def test_merged_files_reach_the_target_and_no_more(store: ObjectStore) -> None:
    table = filled(store, 40)
    (file,) = table.chain()[0].files

    record = table.compact(target_bytes=10 * file.size_bytes)

    assert record is not None
    assert 4 <= len(record.files) <= 5
    assert sum(one.rows for one in record.files) == 80


@pytest.mark.parametrize("form", ["parquet", "json"])
@pytest.mark.parametrize("by", [(), ("kind",)], ids=["whole", "partitioned"])
def test_of_an_upserted_table_one_part_of_its_keys_is_in_memory(
    by: tuple[str, ...], form: Any
) -> None:
    """A column of the key has become wider, keys were deleted, and came again."""
    table = ManifestTable(
        "alerts", InMemoryStore(), format=form, upsert_key=("id", "kind"), partition_by=by
    )
    for version in range(1, 9):
        keys = [*range(version, 400 + version)]
        columns = {
            "id": pa.array(keys, pa.int32()).cast(pa.decimal128(12, 0 if version < 4 else 2)),
            "kind": pa.array([f"k{key % 3}" for key in keys]),
            "value": pa.array([version * key for key in keys]),
            DELETED: pa.array([key % 5 == version % 2 for key in keys]),
        }
        attempt = Attempt(
            checkpoint_id=version, subtask=0, checkpoint_token=PLANNED, attempt_token=ATTEMPTED
        )
        staged = table.stage(pa.table(columns), attempt)
        assert staged is not None
        table.commit(JOB, version, version - 1 or None, [staged])
    before = table.read().sort_by("id").to_pylist()
    files = [file for entry in table.chain() for file in entry.files]
    tenth = sum(file.size_bytes for file in files) // 10

    parts = [*newest_in_parts(table._staged, files, ("id", "kind"), tenth)]  # noqa: SLF001
    most = [*newest_in_parts(table._staged, files, ("id", "kind"), 1)]  # noqa: SLF001
    record = table.compact(target_bytes=tenth // 2)

    assert len(parts) >= 10
    assert len(most) == MOST_PARTS
    assert pa.concat_tables(most).sort_by("id").to_pylist() == before
    assert max(part.num_rows for part in parts) < len(before) // 4
    assert pa.concat_tables(parts).sort_by("id").to_pylist() == before
    assert record is not None
    assert sum(file.rows for file in record.files) == len(before)
    assert table.read().sort_by("id").to_pylist() == before


def test_a_process_that_loses_the_race_deletes_its_files(store: ObjectStore) -> None:
    table = filled(store, 3)

    def overtaken(key: str, body: bytes) -> CreateResult:
        assert table.compact() is not None
        return store.create(key, body)

    assert with_create(store, overtaken).compact() is None
    assert len([*store.list("compacted/")]) == 1
    assert shown(table) == counted(rows(1, 2, 3, 101, 102, 103))


def test_what_a_crash_leaves_is_listed_and_a_record_protects_what_it_names(
    store: ObjectStore,
) -> None:
    table = filled(store, 3)

    def crash(key: str, body: bytes) -> CreateResult:
        raise OSError(key)

    with pytest.raises(OSError, match="_compacted/"):
        with_create(store, crash).compact()

    (left,) = table.unpublished().staged
    assert left.checkpoint_id == 3
    table.compact()
    (kept,) = {one.key for one in store.list("compacted/")} - {left.file}
    table.discard([left.file, kept])
    assert [one.key for one in store.list("compacted/")] == [kept]


def test_without_its_merged_files_a_table_is_read_from_those_they_replace(
    store: ObjectStore,
) -> None:
    table = filled(store, 3)
    table.compact()
    store.delete([one.key for one in store.list("compacted/")])

    assert shown(table) == counted(rows(1, 2, 3, 101, 102, 103))
    table.vacuum(3, grace_ms=0)
    assert shown(table, 1) == counted(rows(1, 101))


def test_a_failed_merge_does_not_fail_the_commit(store: ObjectStore, caplog: Any) -> None:
    table = ManifestTable("alerts", store, compact_when_files=2)
    publish(table, 1, None, rows(1))
    (file,) = table.chain()[0].files
    body = store.get(file.file)
    store.put(file.file, b"broken")

    publish(table, 2, 1, rows(2))

    assert "table not compacted" in caplog.text
    with pytest.raises(ProtocolViolation):
        table.read()
    store.put(file.file, body or b"")
    assert shown(table) == counted(rows(1, 2))


@pytest.mark.parametrize("latest", [False, True])
def test_a_commit_costs_the_same_however_long_the_table_is(latest: bool) -> None:
    store = CountingStore(InMemoryStore())
    table = ManifestTable("alerts", store, latest=latest)
    costs = []
    for version in range(1, 301):
        staged = stage(table, version, rows(version))
        with store.counted() as asked:
            table.commit(JOB, version, version - 1 or None, [staged] if staged else [])
        costs.append(asked.total())

    assert len({*costs[1:]}) == 1
    assert costs[-1] <= (11 if latest else 2)


def test_readers_of_a_merged_table_ask_for_what_came_later_only() -> None:
    store = CountingStore(InMemoryStore())
    table = filled(store, 300)
    with store.counted() as before:
        table.chain()
    table.compact()
    publish(table, 301, 300, rows(301))
    with store.counted() as after:
        table.chain()

    assert before.total() > 300
    assert after.total() <= 6


def test_it_merges_by_itself_at_about_so_many_files() -> None:
    table = ManifestTable("alerts", InMemoryStore(), compact_when_files=40)
    most = 0
    for version in range(1, 131):
        publish(table, version, version - 1 or None, rows(version))
        most = max(most, len(table.chain()))

    assert 39 <= most <= 41
    assert table.read().num_rows == 130


def test_a_vacuum_reads_a_manifest_once_for_what_is_read_and_once_for_what_goes() -> None:
    """Beside what merging reads, which is the chain and its files."""
    asked = dict[int, int]()
    for versions in (10, 30):
        store = CountingStore(InMemoryStore())
        table = filled(store, versions)
        table.compact(versions - 1)
        with store.counted() as counter:
            table.vacuum(versions - 1, grace_ms=0)
        asked[versions] = counter["get"]

    assert asked[30] - asked[10] == 2 * (30 - 10)


def test_a_vacuum_that_dies_at_any_request_leaves_a_readable_table() -> None:
    class Dying(InMemoryStore):
        left = 10**9

        def delete(self, keys: Any) -> None:
            for key in keys:
                if not Dying.left:
                    raise OSError("killed")
                Dying.left -= 1
                super().delete([key])

    died = 0
    for allowed in range(30):
        Dying.left = 10**9
        table = filled(Dying(), 6)
        before = shown(table)
        Dying.left = allowed
        try:
            table.vacuum(5, grace_ms=0)
        except OSError:
            died += 1
        Dying.left = 10**9
        assert shown(table) == before
        table.vacuum(5, grace_ms=0)
        assert shown(table) == before
        assert table.versions() == (5, 6)
        table.discard(one.file for one in table.unpublished().staged)
        assert shown(table) == before
        assert len([*table.store.list("data/")]) == 1
    assert died > 5


def latest_of(store: ObjectStore) -> tuple[dict[str, Any], list[str]]:
    header, *lines = (store.get(LATEST) or b"").decode().splitlines()
    return json.loads(header.removeprefix("# ")), lines


def expected(table: ManifestTable) -> list[str]:
    root = table.store.root.removeprefix("file://")
    return [f"{root}/{file.file}" for manifest in table.chain() for file in manifest.files]


def check_latest(table: ManifestTable, files: int) -> None:
    _, lines = latest_of(table.store)
    assert lines == expected(table)
    assert len(lines) == files


def test_it_lists_what_a_reader_reads(store: ObjectStore) -> None:
    table = filled(store, 3, latest=True, upsert_key=("id",))

    header, lines = latest_of(store)

    assert lines == expected(table)
    assert (header["checkpoint_id"], header["upsert_key"]) == (3, ["id"])
    assert (header["files"], header["rows"], header["compacted"]) == (3, 6, None)
    assert header["size_bytes"] == sum(one.size_bytes for one in store.list("data/"))
    table.compact()
    header, lines = latest_of(store)
    assert (len(lines), header["compacted"], header["rows"]) == (1, 3, 6)


def test_it_goes_back_with_the_table(store: ObjectStore) -> None:
    table = filled(store, 3, latest=True)

    table.recover(RESTORED, Recovery(version=1, through=3, roll_back=True))

    check_latest(table, 1)
    publish(table, 4, 1, rows(4), RESTORED)
    check_latest(table, 2)
    table.recover(RESTORED_AGAIN, Recovery(version=None, through=4, roll_back=True))
    assert latest_of(store)[1] == []
    assert latest_of(store)[0]["checkpoint_id"] is None
    publish(table, 5, None, rows(5), RESTORED_AGAIN)
    check_latest(table, 1)


@pytest.mark.parametrize("damage", [None, b"", b"# {}\n", b"\xff", "cut", "copied"])
def test_it_is_made_anew_when_it_is_lost_or_not_ours(store: ObjectStore, damage: Any) -> None:
    table = filled(store, 3, latest=True)
    body = store.get(LATEST) or b""
    store.delete([LATEST])
    if damage == "cut":
        store.put(LATEST, body[: body.rindex(b"data/")])
    elif damage == "copied":
        store.put(LATEST, body.replace(store.root.encode(), b"file:///elsewhere"))
    elif damage is not None:
        store.put(LATEST, damage)

    publish(table, 4, 3, rows(4))

    check_latest(table, 4)


def test_a_repeated_commit_writes_what_a_crash_left_out(store: ObjectStore) -> None:
    quiet = ManifestTable("alerts", store)
    publish(ManifestTable("alerts", store, latest=True), 1, None, rows(1))
    publish(quiet, 2, 1, rows(2))
    assert len(latest_of(store)[1]) == 1

    publish(ManifestTable("alerts", store, latest=True), 2, 1, rows(2))

    check_latest(quiet, 2)


def test_a_late_commit_does_not_show_itself(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store, latest=True)
    publish(table, 1, None, rows(1))
    publish(table, 3, 1, rows(3))

    with pytest.raises(FencedError, match="checkpoint 2 was left behind"):
        publish(table, 2, 1, rows(2))

    check_latest(table, 2)
    assert table.read().num_rows == 2


def test_a_writer_that_is_overtaken_checks_again() -> None:
    """The put of version 1 arrives after version 2 was committed and shown."""

    class Slow(InMemoryStore):
        meanwhile: Any = None

        def put(self, key: str, body: bytes) -> None:
            if key == LATEST and self.meanwhile is not None:
                act, self.meanwhile = self.meanwhile, None
                act()
            super().put(key, body)

    store = Slow()
    table = ManifestTable("alerts", store, latest=True)
    store.meanwhile = lambda: publish(table, 2, 1, rows(2))

    publish(table, 1, None, rows(1))

    check_latest(table, 2)


def test_a_paused_writer_is_healed_by_the_next_commit() -> None:
    store = InMemoryStore()
    table = ManifestTable("alerts", store, latest=True)
    publish(table, 1, None, rows(1))
    old = store.get(LATEST) or b""
    publish(table, 2, 1, rows(2))
    store.put(LATEST, old)

    publish(table, 3, 2, rows(3))

    check_latest(table, 3)


def test_coordinators_at_once_leave_the_newest(store: ObjectStore) -> None:
    def publish_in_turn(table: ManifestTable, version: int) -> None:
        publish(table, version, version - 1 or None, rows(version))

    for version in range(1, 9):
        form: dict[str, Any] = {"latest": True, "compact_when_files": 3}
        tables = [ManifestTable("alerts", store, **form) for _ in range(3)]
        with ThreadPoolExecutor(len(tables)) as pool:
            list(pool.map(publish_in_turn, tables, repeat(version)))

    assert latest_of(store)[0]["checkpoint_id"] == 8
    assert ManifestTable("alerts", store).read().num_rows == 8
