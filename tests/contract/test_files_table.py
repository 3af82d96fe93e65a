"""The two-phase table of files, on every store: whole checkpoints or nothing, and rollback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from sluice.connectors.files_table.table import ManifestTable
from sluice.core.answers import Committable
from sluice.core.handles import checksum
from sluice.declaration.places import Sink
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.store.object_store import ObjectStore
from tests.contract.sink_case import JOB

if TYPE_CHECKING:
    import pyarrow as pa

TOKEN = "a-0"


def rows(*values: tuple[str, int]) -> pa.Table:
    import pyarrow as pa

    return pa.table(
        {
            "key": pa.array([value[0] for value in values], pa.string()),
            "count": pa.array([value[1] for value in values], pa.int32()),
        }
    )


def values_of(table: ManifestTable, version: int | None = None) -> list[tuple[str, int]]:
    return [(row["key"], row["count"]) for row in table.read(version).to_pylist()]


def publish(
    table: ManifestTable, checkpoint_id: int, parent: int | None, *values: tuple[str, int]
) -> Sequence[Committable]:
    """Stage each row in a subtask of its own, the last subtask first, and commit."""
    committables = [
        table.stage(rows(value), checkpoint_id=checkpoint_id, subtask=subtask, attempt_token=TOKEN)
        for subtask, value in reversed([*enumerate(values)])
    ]
    staged = [committable for committable in committables if committable is not None]
    assert len(staged) == len(values)
    table.commit(JOB, checkpoint_id, parent, staged)
    return staged


def test_what_is_staged_is_not_seen_before_its_checkpoint_commits(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)
    sink: Sink = table

    staged = sink.stage(rows(("a", 1)), checkpoint_id=7, subtask=2, attempt_token=TOKEN)

    assert staged is not None
    assert staged == Committable(
        sink="alerts",
        file="data/00000000000000000007-00002-a-0.parquet",
        rows=1,
        size_bytes=len(store.get(staged.file) or b""),
        checksum=checksum(store.get(staged.file) or b""),
    )
    assert table.read().num_rows == 0
    assert table.versions() == ()
    sink.commit(JOB, 7, None, [staged])
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

    assert table.stage(rows(), checkpoint_id=2, subtask=0, attempt_token=TOKEN) is None
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
    staged = table.stage(wider, checkpoint_id=2, subtask=0, attempt_token=TOKEN)
    assert staged is not None

    table.commit(JOB, 2, 1, [staged])

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
        table.stage(rows(("a", 1), ("a", 2)), checkpoint_id=1, subtask=0, attempt_token=TOKEN)
    assert [*store.list("")] == []


def test_aborting_deletes_what_is_not_committed_and_nothing_else(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)
    publish(table, 1, None, ("a", 1))
    for checkpoint_id, token in [(1, "slow-attempt"), (2, "t0"), (2, "t1"), (3, "t0")]:
        table.stage(rows(("x", 0)), checkpoint_id=checkpoint_id, subtask=0, attempt_token=token)

    for checkpoint_id in (1, 2, 2, 99):
        table.abort(checkpoint_id)

    assert [listed.key for listed in store.list("data/")] == [
        "data/00000000000000000001-00000-a-0.parquet",
        "data/00000000000000000003-00000-t0.parquet",
    ]
    assert values_of(table) == [("a", 1)]


def replaced(body: bytes) -> bytes:
    return body[:-1] + b"?"


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("data/00000000000000000001-00000-a-0.parquet", None, "was committed and is missing"),
        ("data/00000000000000000001-00000-a-0.parquet", lambda b: b[:-1], "were committed"),
        ("data/00000000000000000001-00000-a-0.parquet", replaced, "is not the file that was"),
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
