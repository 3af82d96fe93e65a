"""The table of files, on every store: whole checkpoints or nothing, rollback, every sink's rules.

In a folder and on S3 the rules run in the fullest form alone, with a key: what a store promises has
a suite of its own, and ``UPSERT_RULES`` has every rule.  With ``SLUICE_CONTRACT=all`` each form
runs, with and without a key.

Rows go into a table when its columns can hold them, which is checked before they do.  Files of its
store that no manifest names are found, and deleted on request.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness.counting_store import CountingStore
from sluice.connectors.files_table.declared import FilesTable
from sluice.connectors.files_table.table import ManifestTable
from sluice.core.answers import Attempt, Committable
from sluice.core.timeline import Recovery, Writer
from sluice.errors import ConfigurationError, ProtocolViolation, StoreUnavailable, TableMismatch
from sluice.protocol.records import checksum
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import Listed, ObjectStore
from sluice.store.open import StoreLocation, open_store
from tests.builders import PLANNED
from tests.contract.faults import Faults
from tests.contract.restore_rules import a_table_has_one_writer_whichever_root_its_job_is_in
from tests.contract.sink_case import JOB, RESTORED, Row, SinkCase
from tests.contract.sink_rules import APPEND_RULES, UPSERT_RULES

TOKEN = "a-0"


def rows(*values: tuple[str, int]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([value[0] for value in values], pa.string()),
            "count": pa.array([value[1] for value in values], pa.int32()),
        }
    )


def of(*values: object, type_: pa.DataType | None = None) -> pa.Table:
    return pa.table({"v": pa.array([*values], type_)})


def values_of(table: ManifestTable, version: int | None = None) -> list[tuple[str, int]]:
    return [(row["key"], row["count"]) for row in table.read(version).to_pylist()]


def stage(
    table: ManifestTable,
    checkpoint_id: int,
    rows: pa.Table,
    *,
    attempt: str = TOKEN,
    subtask: int = 0,
) -> Committable:
    staged = table.stage(
        rows,
        Attempt(
            checkpoint_id=checkpoint_id,
            subtask=subtask,
            checkpoint_token=PLANNED,
            attempt_token=attempt,
        ),
    )
    assert staged is not None
    return staged


def publish(
    table: ManifestTable, checkpoint_id: int, parent: int | None, *values: tuple[str, int]
) -> Sequence[Committable]:
    """Stage each row in a subtask of its own, the last subtask first, and commit."""
    staged = [
        stage(table, checkpoint_id, rows(value), subtask=subtask)
        for subtask, value in reversed([*enumerate(values)])
    ]
    table.commit(JOB, checkpoint_id, parent, staged)
    return staged


def test_what_is_staged_is_not_seen_before_its_checkpoint_commits(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)

    staged = stage(table, 7, rows(("a", 1)), subtask=2)

    assert staged == Committable(
        sink="alerts",
        file="data/00000000000000000007-a_b-00002-a-0.parquet",
        rows=1,
        size_bytes=len(store.get(staged.file) or b""),
        checksum=checksum(store.get(staged.file) or b""),
    )
    assert table.read().num_rows == 0
    assert table.versions() == ()
    table.commit(JOB, 7, None, [staged])
    assert values_of(table) == [("a", 1)]


def test_rows_come_in_the_order_of_checkpoints_and_files(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)
    publish(table, 9, None, ("a", 1), ("b", 2))
    publish(table, 10, 9, ("a", 3))

    assert values_of(table) == [("a", 1), ("b", 2), ("a", 3)]
    assert table.versions() == (9, 10)
    assert values_of(table, 9) == [("a", 1), ("b", 2)]
    with pytest.raises(ConfigurationError, match="has no version 8; it has 9, 10"):
        table.read(8)


def test_without_rows_nothing_is_staged_but_the_chain_goes_on(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)
    publish(table, 1, None, ("a", 1))

    assert (
        table.stage(
            rows(),
            Attempt(checkpoint_id=2, subtask=0, checkpoint_token=PLANNED, attempt_token=TOKEN),
        )
        is None
    )
    table.commit(JOB, 2, 1, [])
    publish(table, 3, 2, ("b", 2))

    assert values_of(table) == [("a", 1), ("b", 2)]
    assert table.versions() == (1, 2, 3)


def test_a_repeated_commit_is_done_already(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)
    staged = publish(table, 1, None, ("a", 1), ("b", 2))

    table.commit(JOB, 1, None, list(reversed(staged)))

    assert values_of(table) == [("a", 1), ("b", 2)]


def test_another_commit_of_the_same_checkpoint_is_a_violation(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)
    publish(table, 1, None, ("a", 1))

    with pytest.raises(ProtocolViolation, match=r"checkpoint 1 .* committed with other files"):
        table.commit(JOB, 1, None, [])
    assert values_of(table) == [("a", 1)]


def test_a_restore_to_an_older_checkpoint_rolls_the_table_back(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store, upsert_key=("key",))
    publish(table, 1, None, ("a", 1), ("b", 1))
    publish(table, 2, 1, ("a", 2))
    publish(table, 3, 2, ("b", 3))

    publish(table, 4, 1, ("c", 4))

    assert values_of(table) == [("a", 1), ("b", 1), ("c", 4)]
    assert values_of(table, 3) == [("a", 2), ("b", 3)]
    publish(table, 5, None, ("d", 5))
    assert values_of(table) == [("d", 5)]


def test_the_newest_row_of_a_key_wins_and_types_are_kept(store: ObjectStore) -> None:
    table = ManifestTable("totals", store, upsert_key=("key",))
    publish(table, 1, None, ("a", 1), ("b", 1), ("c", 1))
    publish(table, 2, 1, ("b", 2))
    publish(table, 3, 2, ("a", 3), ("d", 3))

    assert values_of(table) == [("c", 1), ("b", 2), ("a", 3), ("d", 3)]
    assert table.read().schema == rows().schema


def test_a_column_that_came_later_is_null_before(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)
    publish(table, 1, None, ("a", 1))
    wider = rows(("b", 2)).append_column("note", [["x"]])

    table.commit(JOB, 2, 1, [stage(table, 2, wider)])

    assert table.read()["note"].to_pylist() == [None, "x"]


@pytest.mark.parametrize(
    ("key", "message"),
    [(("key",), "several rows of one key"), (("key", "day"), "its rows have no day")],
)
def test_rows_that_contradict_the_upsert_key_are_refused(
    store: ObjectStore, key: tuple[str, ...], message: str
) -> None:
    table = ManifestTable("totals", store, upsert_key=key)

    with pytest.raises(ConfigurationError, match=message):
        table.stage(
            rows(("a", 1), ("a", 2)),
            Attempt(checkpoint_id=1, subtask=0, checkpoint_token=PLANNED, attempt_token=TOKEN),
        )
    assert [*store.list("")] == []


def test_aborting_deletes_what_is_not_committed_and_nothing_else(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)
    publish(table, 1, None, ("a", 1))
    for checkpoint_id, token in [(1, "slow-attempt"), (2, "t0"), (2, "t1"), (3, "t0")]:
        stage(table, checkpoint_id, rows(("x", 0)), attempt=token)

    for checkpoint_id in (1, 2, 2, 99):
        table.abort(checkpoint_id, PLANNED)

    assert [listed.key for listed in store.list("data/")] == [
        "data/00000000000000000001-a_b-00000-a-0.parquet",
        "data/00000000000000000003-a_b-00000-t0.parquet",
    ]
    assert values_of(table) == [("a", 1)]


def replaced(body: bytes) -> bytes:
    return body[:-1] + b"?"


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("data/00000000000000000001-a_b-00000-a-0.parquet", None, "was committed and is missing"),
        ("data/00000000000000000001-a_b-00000-a-0.parquet", lambda b: b[:-1], "were committed"),
        ("data/00000000000000000001-a_b-00000-a-0.parquet", replaced, "is not the file that was"),
        ("_manifests/00000000000000000001.json", None, "is missing, and version 2 continues it"),
        ("_manifests/00000000000000000001.json", lambda _: b"{}", "is no manifest"),
    ],
)
def test_a_damaged_table_is_not_read(
    store: ObjectStore, key: str, change: Any, message: str
) -> None:
    table = ManifestTable("alerts", store)
    publish(table, 1, None, ("a", 1))
    publish(table, 2, 1, ("b", 2))
    body = store.get(key)
    assert body is not None
    store.delete([key])
    if change is not None:
        store.put(key, change(body))

    with pytest.raises(ProtocolViolation, match=message):
        table.read()


@dataclass(frozen=True)
class Form:
    name: str
    options: dict[str, Any] = field(default_factory=dict)


FORMS = (
    Form("parquet"),
    Form("json", {"format": "json", "latest": True}),
    Form("partitioned", {"partition_by": ("name",), "latest": True}),
    Form("compacted at 2 files", {"compact_when_files": 2, "latest": True}),
    Form(
        "partitioned JSON, compacted at 2 files",
        {"format": "json", "partition_by": ("name", "id"), "compact_when_files": 2},
    ),
)
IS_WHOLE = os.environ.get("SLUICE_CONTRACT") == "all"


def each_form(*elsewhere: Form) -> pytest.MarkDecorator:
    """Every form in memory; those *elsewhere*, or all, in a folder and on S3."""
    played = [pytest.param("memory", form, id=f"memory-{form.name}") for form in FORMS]
    for form in FORMS if IS_WHOLE else elsewhere:
        played.append(pytest.param("file", form, id=f"file-{form.name}"))
        played.append(pytest.param("s3", form, id=f"s3-{form.name}", marks=pytest.mark.s3))
    return pytest.mark.parametrize(("location", "form"), played, indirect=["location"])


def case_at(location: StoreLocation, form: Form, *key: str) -> SinkCase:
    def open_() -> ManifestTable:
        return ManifestTable("alerts", open_store(location), upsert_key=key, **form.options)

    def read() -> list[Row]:
        found: list[Row] = open_().read().to_pylist()
        return found

    return SinkCase(open_, read)


@each_form()
@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended(location: StoreLocation, form: Form, rule: Callable[[SinkCase], None]) -> None:
    rule(case_at(location, form))


@each_form(FORMS[-1])
@pytest.mark.parametrize("rule", UPSERT_RULES, ids=lambda rule: rule.__name__)
def test_upserted(location: StoreLocation, form: Form, rule: Callable[[SinkCase], None]) -> None:
    rule(case_at(location, form, "id"))


def test_a_table_has_one_writer() -> None:
    spec = FilesTable(f"memory://{secrets.token_hex(6)}")

    def at(root: str) -> SinkCase:
        place = StoreLocation(root=f"memory://{root}/shop/tables/alerts")

        def read() -> list[Row]:
            found: list[Row] = spec.open("alerts", {}, place).read().to_pylist()
            return found

        return SinkCase(lambda: spec.open("alerts", {}, place), read)

    a_table_has_one_writer_whichever_root_its_job_is_in(at("jobs"), at("copy"))


def test_a_table_that_somebody_emptied_is_told_before_a_commit_and_refused() -> None:
    store = InMemoryStore()
    table = ManifestTable("alerts", store, at="memory://jobs/shop/tables/alerts")
    for parent, checkpoint_id in ((None, 1), (1, 2)):
        check_and_publish(table, checkpoint_id, parent, rows(("a", checkpoint_id)))
    store.delete([listed.key for listed in store.list("")])

    assert table.compare(JOB.life, 2).lacks
    with pytest.raises(TableMismatch, match="does not show checkpoint 2, which the job continues"):
        table.check(2, rows(("a", 3)).schema, ())
    with pytest.raises(TableMismatch, match="continues checkpoint 2, which the table does not"):
        table.commit(JOB, 3, 2, [stage(table, 3, rows(("a", 3)))])


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def check_and_publish(
    table: ManifestTable,
    checkpoint_id: int,
    parent: int | None,
    rows: pa.Table,
    writer: Writer = JOB,
) -> None:
    """Check and commit the rows, as a coordinator does."""
    staged = stage(table, checkpoint_id, rows)
    table.check(parent, rows.schema, ())
    table.commit(writer, checkpoint_id, parent, [staged])


@pytest.mark.parametrize("form", ["parquet", "json"])
@pytest.mark.parametrize(
    ("before", "now"),
    [
        (of(1), of("one")),
        (of(1), of(1.5)),
        (of(NOW.date()), of(NOW.replace(tzinfo=None))),
        (of(NOW.replace(tzinfo=None)), of(NOW, type_=pa.timestamp("us", "UTC"))),
    ],
    ids=["text", "double", "time", "instant"],
)
def test_a_column_of_another_type_is_refused_before_its_checkpoint_completes(
    store: ObjectStore, form: str, before: pa.Table, now: pa.Table
) -> None:
    table = ManifestTable("alerts", store, format=form, compact_when_files=2)
    check_and_publish(table, 1, None, before)
    check_and_publish(table, 2, 1, before)
    types = [one.schema.field("v").type for one in (before, now)]

    with pytest.raises(ConfigurationError) as refused:
        check_and_publish(table, 3, 2, now)

    assert str(refused.value) == (
        f"column 'v' of the table at {store.root} is {types[0]}, and the rows to be added have "
        f"{types[1]}, which no type holds both of; cast it to {types[0]} in the stage, give the "
        "column another name, or begin a table elsewhere"
    )
    table.abort(3, PLANNED)
    check_and_publish(table, 4, 2, before)  # The stage was mended: nothing is lost or in the way.
    assert table.read()["v"].to_pylist() == before["v"].to_pylist() * 3


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_wider_types_and_other_columns_are_read_and_merged_together(
    store: ObjectStore, form: str
) -> None:
    table = ManifestTable("alerts", store, format=form)
    check_and_publish(table, 1, None, pa.table({"id": pa.array([1], pa.int32()), "v": [1.5]}))
    check_and_publish(table, 2, 1, pa.table({"id": [2**40], "w": ["x"]}))
    check_and_publish(table, 3, 2, pa.table({"w": ["y"], "id": pa.array([-1], pa.int8())}))
    expected = [
        {"id": 1, "v": 1.5, "w": None},
        {"id": 2**40, "v": None, "w": "x"},
        {"id": -1, "v": None, "w": "y"},
    ]

    assert table.read().to_pylist() == expected
    assert table.compact() is not None
    assert table.read().to_pylist() == expected
    check_and_publish(table, 4, 3, pa.table({"id": [5]}))
    assert table.read().num_rows == 4
    with pytest.raises(ConfigurationError, match=r"column 'id' of the table .* is int64"):
        table.check(4, pa.schema([("id", pa.string())]), ())


def test_a_type_that_was_rolled_back_is_no_hindrance(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)
    check_and_publish(table, 1, None, of(1))
    check_and_publish(table, 2, 1, pa.table({"v": [2], "x": ["a text"]}))
    table.recover(RESTORED, Recovery(version=1, through=2, roll_back=True))

    check_and_publish(table, 3, 1, pa.table({"v": [3], "x": [3]}), RESTORED)

    assert table.read().to_pylist() == [{"v": 1, "x": None}, {"v": 3, "x": 3}]


def test_a_type_of_an_aborted_checkpoint_is_no_hindrance_and_no_licence(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)
    check_and_publish(table, 1, None, of(1))
    text, number = (pa.table({"v": [1], "x": [x]}) for x in ("a text", 2))
    stage(table, 2, text)
    table.check(1, text.schema, ())
    table.abort(2, PLANNED)

    check_and_publish(table, 3, 1, number)

    with pytest.raises(ConfigurationError, match=r"column 'x' of the table .* is int64"):
        table.check(3, text.schema, ())


def test_a_table_that_already_has_two_types_is_named_where_it_is_read_and_still_committed_to(
    store: ObjectStore,
) -> None:
    """It was written by an older build, which did not check."""
    table = ManifestTable("alerts", store, compact_when_files=2)
    for checkpoint_id, rows in enumerate((of(1), of("two"), of("three")), start=1):
        table.commit(
            JOB, checkpoint_id, checkpoint_id - 1 or None, [stage(table, checkpoint_id, rows)]
        )

    with pytest.raises(ConfigurationError, match=r"column 'v' of the table .* is int64"):
        table.read()
    with pytest.raises(ConfigurationError, match=r"column 'v' of the table .* is int64"):
        table.check(3, pa.schema([("v", pa.string())]), ())
    assert table.versions() == (1, 2, 3)


def test_a_check_costs_one_request_however_large_the_table_is() -> None:
    store = CountingStore(InMemoryStore())
    table = ManifestTable("alerts", store)
    for checkpoint_id in range(1, 9):
        check_and_publish(table, checkpoint_id, checkpoint_id - 1 or None, of(checkpoint_id))

    store.requests.clear()
    table.check(8, of(9).schema, ())

    assert dict(store.requests) == {"get": 1}


def test_a_file_is_unpublished_until_a_manifest_names_it(store: ObjectStore) -> None:
    table = ManifestTable("results", store)
    empty = table.unpublished()
    assert (empty.root, empty.staged, empty.newest_ms) == (store.root, (), 0)
    published, fenced = stage(table, 1, of(1), attempt="1-a"), stage(table, 1, of(1), attempt="1-b")
    newer = stage(table, 2, of(1), attempt="1-a")

    table.commit(JOB, 1, None, [published])

    found = table.unpublished()
    assert [(one.file, one.checkpoint_id, one.size_bytes) for one in found.staged] == [
        (fenced.file, 1, fenced.size_bytes),
        (newer.file, 2, newer.size_bytes),
    ]
    assert found.newest_ms == max(listed.modified_ms for listed in store.list("data/"))


def test_what_was_rolled_back_was_published(store: ObjectStore) -> None:
    table = ManifestTable("results", store)
    for checkpoint_id, parent in ((1, None), (2, 1), (3, 1)):
        table.commit(
            JOB, checkpoint_id, parent, [stage(table, checkpoint_id, of(1), attempt="1-a")]
        )

    assert table.unpublished().staged == ()


def test_discarding_leaves_what_is_published(store: ObjectStore) -> None:
    table = ManifestTable("results", store)
    published, fenced = stage(table, 1, of(1), attempt="1-a"), stage(table, 1, of(1), attempt="1-b")
    table.commit(JOB, 1, None, [published])

    table.discard([fenced.file])
    table.discard([fenced.file])

    assert table.unpublished().staged == ()
    assert table.read().num_rows == 1


def test_a_file_whose_name_is_not_of_a_table_is_nobodys(store: ObjectStore) -> None:
    store.put("data/notes.txt", b"mine")
    store.put("data/00000000000000000001-a_b-00000-.parquet", b"mine")
    store.put("data/00000000000000000001-00000-a.parquet", b"mine")

    assert ManifestTable("results", store).unpublished().staged == ()


def test_a_commit_during_the_listing_is_seen() -> None:
    class CommittedMeanwhile(InMemoryStore):
        def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
            yield from super().list(prefix, start_after=start_after)
            if prefix == "data/":
                table.commit(JOB, 1, None, [staged])

    table = ManifestTable("results", CommittedMeanwhile())
    staged = stage(table, 1, of(1), attempt="1-a")

    assert table.unpublished().staged == ()


def test_a_manifest_that_vanishes_or_cannot_be_read_is_a_violation(store: ObjectStore) -> None:
    table = ManifestTable("results", store)
    table.commit(JOB, 1, None, [stage(table, 1, of(1), attempt="1-a")])
    (manifest,) = [listed.key for listed in store.list("_manifests/")]
    store.put(manifest, b"{}")

    with pytest.raises(ProtocolViolation, match=manifest):
        table.unpublished()


@pytest.mark.parametrize("fate", ["request lost", "answer lost", "sent twice"])
@pytest.mark.parametrize("restores", [False, True], ids=["commit", "restore"])
def test_a_manifest_is_there_once_whatever_was_answered(
    tmp_path: Path, restores: bool, fate: str
) -> None:
    place = StoreLocation(root=f"file://{tmp_path}")
    plain = FilesTable().open("t", {}, place)
    for checkpoint_id in (1, 2):
        publish(plain, checkpoint_id, checkpoint_id - 1 or None, ("a", checkpoint_id))
    staged = stage(plain, 3, rows(("a", 3)))
    faults = Faults("_manifests/", [fate])
    table = FilesTable().open("t", {}, replace(place, layer=faults))

    for _ in range(2):
        with suppress(StoreUnavailable):
            if restores:
                table.recover(RESTORED, Recovery(version=1, through=3, roll_back=True))
            else:
                table.commit(JOB, 3, 2, [staged])

    assert faults.fates == []
    expected = [("a", 1)] if restores else [("a", 1), ("a", 2), ("a", 3)]
    assert values_of(FilesTable().open("t", {}, place)) == expected
