"""Snapshots of an Iceberg table that expire, are rolled back, or are held for a source."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.table import Table

from sluice.errors import ConfigurationError
from tests.contract.test_iceberg_source import a_source, append, read_after
from tests.iceberg_catalog import interfere, loaded


def expire(table: Table, *snapshot_ids: int) -> None:
    table.maintenance.expire_snapshots().by_ids([*snapshot_ids]).commit()


def test_expired_snapshots_that_were_not_read_are_named(folder: Path) -> None:
    append(folder, 0, 1)
    source = a_source(folder)
    barrier = source.plan((), max_records=None, parallelism=1)
    gone = append(folder, 1, 2)
    append(folder, 2, 3)
    last = append(folder, 3, 4)
    table = loaded(folder)
    first = table.metadata.snapshots[0].snapshot_id

    expire(table, first, gone, table.metadata.snapshots[2].snapshot_id)

    message = rf"sequence numbers 2 to 3 have expired .*, is {last} \(4\)"
    with pytest.raises(ConfigurationError, match=message):
        source.plan(barrier.position, max_records=None, parallelism=1)


def test_the_snapshot_that_was_read_last_may_expire(folder: Path) -> None:
    append(folder, 0, 1)
    source = a_source(folder)
    barrier = source.plan((), max_records=None, parallelism=1)
    append(folder, 1, 2)
    table = loaded(folder)

    expire(table, table.metadata.snapshots[0].snapshot_id)

    assert read_after(source, barrier.position) == [1]


def test_expired_snapshots_before_an_empty_position_are_missed_too(folder: Path) -> None:
    source = a_source(folder)
    empty = source.plan((), max_records=None, parallelism=1)
    first = append(folder, 0, 1)
    append(folder, 1, 2)

    expire(loaded(folder), first)

    with pytest.raises(ConfigurationError, match="sequence numbers 1 to 1 have expired"):
        source.plan(empty.position, max_records=None, parallelism=1)
    # A source that begins now has them all from the oldest snapshot.
    assert read_after(source) == [0, 1]


def test_a_table_that_was_rolled_back_behind_the_position_is_named(folder: Path) -> None:
    first = append(folder, 0, 1)
    read = append(folder, 1, 2)
    source = a_source(folder)
    barrier = source.plan((), max_records=None, parallelism=1)
    loaded(folder).manage_snapshots().rollback_to_snapshot(first).commit()

    with pytest.raises(ConfigurationError, match=f"read to snapshot {read}.* rolled back to"):
        source.plan(barrier.position, max_records=None, parallelism=1)
    append(folder, 5, 6)
    with pytest.raises(ConfigurationError, match=f"read to snapshot {read}.* rolled back to"):
        source.plan(barrier.position, max_records=None, parallelism=1)


def test_a_hold_keeps_the_snapshots_that_a_position_needs(folder: Path) -> None:
    append(folder, 0, 2)
    reading = append(folder, 2, 4)
    source = a_source(folder)
    cut = source.plan((), max_records=None, parallelism=1)
    append(folder, 4, 8)
    cut = source.plan(cut.position, max_records=1, parallelism=1)
    append(folder, 8, 9)

    for _ in range(2):
        source.hold("sluice-shop-sales-7", cut.position)
    tomorrow = datetime.now(tz=UTC) + timedelta(days=1)
    loaded(folder).maintenance.expire_snapshots().older_than(tomorrow).commit()

    assert source.held("sluice-shop-") == ("sluice-shop-sales-7",)
    assert source.held("sluice-other-") == ()
    assert loaded(folder).snapshot_by_id(reading) is not None
    assert read_after(source, cut.position) == [5, 6, 7, 8]
    for _ in range(2):
        source.release("sluice-shop-sales-7")
    assert source.held("") == ()
    loaded(folder).maintenance.expire_snapshots().older_than(tomorrow).commit()
    with pytest.raises(ConfigurationError, match="have expired before they were read"):
        source.plan(cut.position, max_records=None, parallelism=1)


def test_a_hold_survives_commits_of_others_in_between(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(folder, 0, 2)
    source = a_source(folder)
    cut = source.plan((), max_records=None, parallelism=1)
    others = iter(range(10, 13))
    conflicts = interfere(
        monkeypatch, lambda: append(folder, number := next(others), number + 1), 3
    )

    source.hold("sluice-a-b-1", cut.position)

    assert conflicts.count == 3
    assert source.held("sluice-a-b-") == ("sluice-a-b-1",)
    assert read_after(source, cut.position) == [10, 11, 12]
