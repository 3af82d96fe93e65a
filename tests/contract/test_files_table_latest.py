"""``_latest`` follows the manifests, whichever process writes it, and in any order."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from sluice.connectors.files_table.maintenance import LATEST
from sluice.connectors.files_table.table import ManifestTable
from sluice.core.timeline import Recovery
from sluice.errors import FencedError
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import ObjectStore
from tests.contract.sink_rules import RESTORED, RESTORED_AGAIN, publish, rows


def latest_of(store: ObjectStore) -> tuple[dict[str, Any], list[str]]:
    header, *lines = (store.get(LATEST) or b"").decode().splitlines()
    return json.loads(header.removeprefix("# ")), lines


def expected(table: ManifestTable) -> list[str]:
    root = table.store.root.removeprefix("file://")
    return [f"{root}/{file.file}" for manifest in table.chain() for file in manifest.files]


def test_it_lists_what_a_reader_reads(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store, latest=True, upsert_key=("id",))
    for version in (1, 2, 3):
        publish(table, version, version - 1 or None, rows(version))

    header, lines = latest_of(store)

    assert lines == expected(table)
    assert (header["checkpoint_id"], header["upsert_key"]) == (3, ["id"])
    assert (header["files"], header["rows"], header["compacted"]) == (3, 3, None)
    assert header["size_bytes"] == sum(one.size_bytes for one in store.list("data/"))
    table.compact()
    header, lines = latest_of(store)
    assert (len(lines), header["compacted"], header["rows"]) == (1, 3, 3)


def test_it_goes_back_with_the_table(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store, latest=True)
    for version in (1, 2, 3):
        publish(table, version, version - 1 or None, rows(version))

    table.recover(RESTORED, Recovery(version=1, through=3, roll_back=True))

    assert latest_of(store)[1] == expected(table)
    assert len(expected(table)) == 1
    publish(table, 4, 1, rows(4), RESTORED)
    assert latest_of(store)[1] == expected(table)
    table.recover(RESTORED_AGAIN, Recovery(version=None, through=4, roll_back=True))
    assert latest_of(store)[1] == []
    assert latest_of(store)[0]["checkpoint_id"] is None
    publish(table, 5, None, rows(5), RESTORED_AGAIN)
    assert latest_of(store)[1] == expected(table)


@pytest.mark.parametrize("damage", [None, b"", b"# {}\n", b"\xff", "cut", "copied"])
def test_it_is_made_anew_when_it_is_lost_or_not_ours(store: ObjectStore, damage: Any) -> None:
    table = ManifestTable("alerts", store, latest=True)
    for version in (1, 2, 3):
        publish(table, version, version - 1 or None, rows(version))
    body = store.get(LATEST) or b""
    store.delete([LATEST])
    if damage == "cut":
        store.put(LATEST, body[: body.rindex(b"data/")])
    elif damage == "copied":
        store.put(LATEST, body.replace(store.root.encode(), b"file:///elsewhere"))
    elif damage is not None:
        store.put(LATEST, damage)

    publish(table, 4, 3, rows(4))

    assert latest_of(store)[1] == expected(table)
    assert len(expected(table)) == 4


def test_a_repeated_commit_writes_what_a_crash_left_out(store: ObjectStore) -> None:
    quiet = ManifestTable("alerts", store)
    publish(ManifestTable("alerts", store, latest=True), 1, None, rows(1))
    publish(quiet, 2, 1, rows(2))
    assert len(latest_of(store)[1]) == 1

    publish(ManifestTable("alerts", store, latest=True), 2, 1, rows(2))

    assert latest_of(store)[1] == expected(quiet)


def test_a_late_commit_does_not_show_itself(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store, latest=True)
    publish(table, 1, None, rows(1))
    publish(table, 3, 1, rows(3))

    with pytest.raises(FencedError, match="checkpoint 2 was left behind"):
        publish(table, 2, 1, rows(2))

    assert latest_of(store)[1] == expected(table)
    assert table.read().num_rows == 2


def test_who_is_overtaken_while_writing_looks_again() -> None:
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

    assert latest_of(store)[1] == expected(table)
    assert len(expected(table)) == 2


def test_a_paused_writer_is_healed_by_the_next_commit() -> None:
    store = InMemoryStore()
    table = ManifestTable("alerts", store, latest=True)
    publish(table, 1, None, rows(1))
    old = store.get(LATEST) or b""
    publish(table, 2, 1, rows(2))
    store.put(LATEST, old)

    publish(table, 3, 2, rows(3))

    assert latest_of(store)[1] == expected(table)
    assert len(expected(table)) == 3


def test_coordinators_at_once_leave_the_newest(store: ObjectStore) -> None:
    for version in range(1, 9):
        threads = [
            threading.Thread(
                target=publish,
                args=(
                    ManifestTable("alerts", store, latest=True, compact_when_files=3),
                    version,
                    version - 1 or None,
                    rows(version),
                ),
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert latest_of(store)[0]["checkpoint_id"] == 8
    assert ManifestTable("alerts", store).read().num_rows == 8
