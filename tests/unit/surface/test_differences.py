"""The difference of two snapshots of a real job: pages, counts, filters, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from sluice.core.configuration import CheckpointType
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.state.cache import SegmentCache
from sluice.surface.differences import (
    About,
    ChangeKind,
    Cut,
    DifferenceQuery,
    Pair,
    SnapshotName,
    TableDifference,
    open_pair,
    snapshot_difference,
    table_difference,
)
from tests.begun import begun
from tests.unit.surface.epochs import COUNTING, a_counting_job, play, take


@pytest.fixture(name="job")
def _job() -> Job:
    return two_epochs()


@begun
def two_epochs() -> Job:
    """Checkpoints 1 and 2."""
    job = a_counting_job()
    play(job, 2)
    return job


def a_pair(job: Job, before: str, after: str) -> Pair:
    return open_pair(job, SnapshotName(named=before), SnapshotName(named=after))


def rows_of(pair: Pair, **given: Any) -> TableDifference:
    tables = pair.table(COUNTING, pair.tables(COUNTING)[0])
    return table_difference(*tables, DifferenceQuery(**{"limit": 1_000, **given}))


def test_every_key_that_differs_is_on_one_page_with_both_values(job: Job) -> None:
    pair = a_pair(job, "1", "latest")
    before, after = (
        {row["bid_auction"]: row["bids"] for row in table.frame().to_dicts()}
        for table in pair.table(COUNTING, pair.tables(COUNTING)[0])
    )

    whole = rows_of(pair)
    pages = [rows_of(pair, limit=3)]
    while pages[-1].next is not None:
        assert pages[-1].cut is Cut.LIMIT
        pages.append(rows_of(pair, limit=3, after=pages[-1].next))

    assert whole.cut is None
    assert [change for page in pages for change in page.changes] == [*whole.changes]
    assert {change.kind for change in whole.changes} == {ChangeKind.ADDED, ChangeKind.CHANGED}
    assert {c.key["bid_auction"]: (c.before or {}).get("bids") for c in whole.changes} == {
        auction: before.get(auction)
        for auction, bids in after.items()
        if before.get(auction) != bids
    }
    changed = next(change for change in whole.changes if change.kind is ChangeKind.CHANGED)
    assert "bids" in changed.changed
    assert {column.name: column.is_key for column in whole.columns}["bid_auction"]
    assert msgspec.json.decode(msgspec.json.encode(whole))["changes"]


def test_a_key_and_a_kind_choose(job: Job) -> None:
    pair = a_pair(job, "1", "2")
    chosen = rows_of(pair).changes[0]
    auction = chosen.key["bid_auction"]

    found = rows_of(pair, key=(f"bid_auction={auction}",))
    none = rows_of(pair, kinds=frozenset({ChangeKind.REMOVED}))

    assert found.changes == (chosen,)
    assert (none.changes, none.counts.removed, none.cut) == ((), 0, None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"key": ("bids=1",)}, "'bids' is no column of the key; it has bid_auction"),
        ({"key": ("bid_auction=x",)}, "'x' is no Int64, which 'bid_auction' of the key is"),
        ({"after": "7"}, "'7' is no place in a difference"),
        ({"after": f"{2**64}.0"}, "is no place in a difference"),
    ],
)
def test_what_is_not_understood_is_named(job: Job, given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        rows_of(a_pair(job, "1", "2"), **given)


def test_the_bound_on_rows_is_said_with_the_place_to_go_on(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.surface.differences.WINDOW_ROWS", 4)
    pair = a_pair(job, "1", "2")
    whole = rows_of(pair, limit=0)

    pages = [rows_of(pair, limit=0, most_rows=1)]
    while pages[-1].next is not None:
        assert pages[-1].cut is Cut.ROWS
        pages.append(rows_of(pair, limit=0, most_rows=1, after=pages[-1].next))

    assert len(pages) > 2
    assert all(page.rows_compared <= 4 for page in pages)
    assert sum(page.counts.changed for page in pages) == whole.counts.changed
    assert sum(page.counts.added for page in pages) == whole.counts.added


def test_a_savepoint_that_copied_the_files_differs_in_no_key_and_no_file_is_opened(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(job, type=CheckpointType.SAVEPOINT, savepoint_name="mine", is_periodic=False)
    pair = a_pair(job, "3", "mine")
    monkeypatch.setattr(SegmentCache, "open", lambda *_: pytest.fail("it was opened"))

    found, summary = rows_of(pair), snapshot_difference(pair)

    assert (found.changes, found.cut, found.rows_compared) == ((), None, 0)
    assert [table.may_differ for table in summary.tables] == [False]
    assert summary.tables[0].shared == summary.tables[0].after


def test_the_summary_names_what_differs_but_rows(job: Job) -> None:
    summary = snapshot_difference(a_pair(job, "1", "2"))

    facts = {(d.about, d.name, d.what): (d.before, d.after) for d in summary.differences}
    assert facts[About.SOURCE, "events", "records"] == (100, 200)
    assert facts[About.SINK, "counts", "version of the table"] == (1, 2)
    (files,) = summary.tables
    assert files.may_differ
    assert files.after.rows > files.before.rows
    assert (summary.before.id, summary.after.id) == (1, 2)
    assert not {what for _, _, what in facts} & {"parallelism", "max parallelism", "life"}
    assert snapshot_difference(a_pair(job, "2", "2")).differences == ()


def test_another_root_is_compared_by_what_its_files_hold(job: Job) -> None:
    other = SnapshotName(named="1", root=job.store.root)

    pair = open_pair(job, other, SnapshotName(named="2"))

    assert rows_of(pair).changes == rows_of(a_pair(job, "1", "2")).changes
    assert snapshot_difference(pair).before.root == job.store.root


def test_a_side_without_the_stage_has_only_keys_to_add(job: Job) -> None:
    pair = a_pair(job, "1", "2")
    without = replace(pair, before=replace(pair.before, stages=()))

    found = rows_of(without)

    assert {change.kind for change in found.changes} == {ChangeKind.ADDED}
    assert len(found.changes) == pair.table(COUNTING, pair.tables(COUNTING)[0])[1].frame().height
