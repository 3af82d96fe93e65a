"""Files of a table's store that no manifest names: they are found, and deleted on request."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from sluice.connectors.files_table.table import ManifestTable
from sluice.core.answers import Committable
from sluice.errors import ProtocolViolation
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import Listed, ObjectStore
from tests.contract.sink_case import JOB


def stage(table: ManifestTable, checkpoint_id: int, attempt: str) -> Committable:
    rows = pa.table({"n": [checkpoint_id]})
    staged = table.stage(rows, checkpoint_id=checkpoint_id, subtask=0, attempt_token=attempt)
    assert staged is not None
    return staged


def test_a_file_is_unpublished_until_a_manifest_names_it(store: ObjectStore) -> None:
    table = ManifestTable("results", store)
    empty = table.unpublished()
    assert (empty.root, empty.staged, empty.newest_ms) == (store.root, (), 0)
    published, fenced = stage(table, 1, "1-a"), stage(table, 1, "1-b")
    newer = stage(table, 2, "1-a")

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
        table.commit(JOB, checkpoint_id, parent, [stage(table, checkpoint_id, "1-a")])

    assert table.unpublished().staged == ()


def test_discarding_leaves_what_is_published(store: ObjectStore) -> None:
    table = ManifestTable("results", store)
    published, fenced = stage(table, 1, "1-a"), stage(table, 1, "1-b")
    table.commit(JOB, 1, None, [published])

    table.discard([fenced.file])
    table.discard([fenced.file])

    assert table.unpublished().staged == ()
    assert table.read().num_rows == 1


def test_a_file_whose_name_is_not_of_a_table_is_nobodys(store: ObjectStore) -> None:
    store.put("data/notes.txt", b"mine")
    store.put("data/00000000000000000001-00000-.parquet", b"mine")

    assert ManifestTable("results", store).unpublished().staged == ()


def test_a_commit_during_the_look_is_seen() -> None:
    class CommittedMeanwhile(InMemoryStore):
        def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
            yield from super().list(prefix, start_after=start_after)
            if prefix == "data/":
                table.commit(JOB, 1, None, [staged])

    table = ManifestTable("results", CommittedMeanwhile())
    staged = stage(table, 1, "1-a")

    assert table.unpublished().staged == ()


def test_a_manifest_that_vanishes_or_cannot_be_read_is_a_violation(store: ObjectStore) -> None:
    table = ManifestTable("results", store)
    table.commit(JOB, 1, None, [stage(table, 1, "1-a")])
    (manifest,) = [listed.key for listed in store.list("_manifests/")]
    store.put(manifest, b"{}")

    with pytest.raises(ProtocolViolation, match=manifest):
        table.unpublished()
