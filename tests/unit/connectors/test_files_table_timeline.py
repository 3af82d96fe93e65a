"""The time line in the names of a files table's manifests: its life, fences and versions."""

from __future__ import annotations

import msgspec
import pytest

from sluice.connectors.files_table.table import ManifestTable
from sluice.connectors.staged_files import fence_key, manifest_key, name_of
from sluice.core.timeline import Recovery, TimelineComparison, Writer
from sluice.errors import FencedError, ProtocolViolation, TableMismatch
from sluice.store.memory import InMemoryStore

FIRST, SECOND, THIRD = (Writer(life="a", generation=number) for number in (1, 2, 3))
THEIRS = Writer(life="b", generation=1)


@pytest.fixture
def table() -> ManifestTable:
    return ManifestTable("alerts", InMemoryStore())


def publish(table: ManifestTable, writer: Writer, *ids: int, parent: int | None = None) -> None:
    """Without rows: here it is the names that count."""
    for checkpoint_id in ids:
        table.commit(writer, checkpoint_id, parent, [])
        parent = checkpoint_id


def seen(table: ManifestTable) -> list[int]:
    return [manifest.checkpoint_id for manifest in table.chain()]


def names(table: ManifestTable) -> list[str]:
    return [listed.key.removeprefix("_manifests/") for listed in table.store.list("_manifests/")]


def test_fences_sort_behind_what_they_leave_out_and_by_generation() -> None:
    keys = [
        manifest_key(3),
        fence_key(3, 2, 3),
        fence_key(3, 3, None),
        fence_key(3, 3, 1),
        fence_key(3, 3, 2),
        fence_key(3, 10, 1),
        manifest_key(4),
    ]

    assert keys == sorted(keys)
    assert [(name.checkpoint_id, name.generation, name.shown) for key in keys
            if (name := name_of(key)) is not None] == [
        (3, None, 3), (3, 2, 3), (3, 3, None), (3, 3, 1), (3, 3, 2), (3, 10, 1), (4, None, 4),
    ]  # fmt: skip
    assert name_of("_manifests/00000000000000000003_0000000001.json") is None  # Format version 1.


def test_each_restore_has_a_fence_of_its_own(table: ManifestTable) -> None:
    publish(table, FIRST, 1, 2, 3)

    table.recover(SECOND, Recovery(version=1, through=3))
    assert seen(table) == [1, 2, 3]
    table.recover(THIRD, Recovery(version=1, through=3, roll_back=True))

    assert seen(table) == [1]
    assert names(table)[-2:] == [
        "00000000000000000003_0000000002_0000000003.json",
        "00000000000000000003_0000000003_0000000001.json",
    ]


def test_the_commit_that_is_owed_is_seen_once_it_happened_and_by_nobody_older(
    table: ManifestTable,
) -> None:
    publish(table, FIRST, 1)
    publish(table, FIRST, 3, parent=1)
    table.recover(SECOND, Recovery(version=1, through=3, continues=2))

    with pytest.raises(FencedError, match="generation 2 of the job has written the table"):
        publish(table, FIRST, 2, parent=1)
    assert (seen(table), table.is_published(2)) == ([1], False)
    for _ in range(2):
        publish(table, THIRD, 2, parent=1)  # After a failure in between.

    assert (seen(table), table.is_published(2), table.is_published(3)) == ([1, 2], True, False)
    publish(table, THIRD, 4, parent=2)
    assert seen(table) == [1, 2, 4]


def test_a_manifest_that_a_zombie_wrote_behind_the_fence_is_seen_when_its_turn_comes(
    table: ManifestTable,
) -> None:
    """It slept between its look at the table and its write: its version is not visible."""
    publish(table, FIRST, 1)
    fenced = [*table.store.list("_manifests/")]
    publish(table, FIRST, 2, parent=1)
    late = table.store.get(manifest_key(2)) or b""
    table.store.delete([manifest_key(2)])
    assert [*table.store.list("_manifests/")] == fenced
    table.recover(SECOND, Recovery(version=1, through=2))
    table.store.create(manifest_key(2), late)
    assert (seen(table), table.is_published(2)) == ([1], False)

    assert not table.standing("a", 2).lacks
    table.recover(THIRD, Recovery(version=2, through=2, continues=2))

    assert seen(table) == [1, 2]


def test_a_version_that_is_gone_is_missed(table: ManifestTable) -> None:
    publish(table, FIRST, 1, 2)
    table.store.delete([manifest_key(1)])

    assert table.standing("a", 1) == TimelineComparison(ahead=(2,), lacks=True, newest=2)
    with pytest.raises(TableMismatch, match="continues checkpoint 1, which the table does not"):
        publish(table, FIRST, 3, parent=1)
    with pytest.raises(TableMismatch, match="does not show checkpoint 1"):
        table.recover(SECOND, Recovery(version=1, through=2, roll_back=True))


def test_an_id_that_another_life_took_is_refused_by_both_names(table: ManifestTable) -> None:
    """Both looked before either wrote."""
    other = ManifestTable("alerts", InMemoryStore())
    publish(other, THEIRS, 1)
    table.store.create(manifest_key(1), other.store.get(manifest_key(1)) or b"")

    with pytest.raises(TableMismatch, match="belongs to life 'b' of a job, not to 'a'"):
        publish(table, FIRST, 1)
    log = table._log  # noqa: SLF001 - behind the first look of a publication
    mine = msgspec.structs.replace(table.chain()[0], life="a")
    with pytest.raises(TableMismatch, match="was committed by life 'b' of a job, not by 'a'"):
        log.add(mine)


def test_a_life_of_another_journal_takes_over_one_id_later(table: ManifestTable) -> None:
    """Its generations are lower than those of the life before it, whose fences sort by them."""
    publish(table, FIRST, 1)
    table.recover(THIRD, Recovery(version=1, through=1))
    taken = Recovery(version=1, through=1, replaces=("a",))

    with pytest.raises(TableMismatch, match="fenced by another life of a job"):
        table.recover(THEIRS, taken)
    table.recover(THEIRS, Recovery(version=1, through=2, replaces=("a",)))

    with pytest.raises(TableMismatch, match="belongs to life 'b' of a job, not to 'a'"):
        publish(table, THIRD, 2, parent=1)
    publish(table, THEIRS, 3, parent=1)
    assert seen(table) == [1, 3]


def test_a_commit_of_another_life_that_slept_over_its_fence_stops_the_next_one_by_name(
    table: ManifestTable,
) -> None:
    """Its id is above all that the fence knows of, so it is seen: what ADR 16 says of it."""
    publish(table, FIRST, 1)
    before = [*table.store.list("_manifests/")]
    publish(table, FIRST, 3, parent=1)  # It has looked at the table, and sleeps.
    late = table.store.get(manifest_key(3)) or b""
    table.store.delete([manifest_key(3)])
    assert [*table.store.list("_manifests/")] == before
    table.recover(THEIRS, Recovery(version=1, through=2, replaces=("a",)))
    table.store.create(manifest_key(3), late)
    assert seen(table) == [1, 3]

    with pytest.raises(TableMismatch, match="belongs to life 'a' of a job, not to 'b'"):
        publish(table, THEIRS, 3, parent=1)

    again = Writer(life="b", generation=2)
    table.recover(again, Recovery(version=1, through=3, replaces=("a",), roll_back=True))
    publish(table, again, 4, parent=1)
    assert seen(table) == [1, 4]


def test_a_table_of_an_earlier_format_is_refused_by_name(table: ManifestTable) -> None:
    before = b'{"version":1,"checkpoint_id":1,"parent":null,"files":[],"upsert_key":null}'
    table.store.create(manifest_key(1), before)

    for act in (table.read, lambda: table.standing("a", None), lambda: publish(table, FIRST, 2)):
        with pytest.raises(ProtocolViolation, match="is of format 1; this sluice reads format 2"):
            act()


def test_a_fence_that_vanished_is_a_violation(table: ManifestTable) -> None:
    class Vanishing(InMemoryStore):
        def get(self, key: str) -> bytes | None:
            return None if "_0000000002_" in key else super().get(key)

    vanishing = ManifestTable("alerts", Vanishing())
    publish(vanishing, FIRST, 1)
    vanishing.recover(SECOND, Recovery(version=1, through=1))

    with pytest.raises(ProtocolViolation, match="was listed and is gone"):
        vanishing.standing("a", 1)
