"""Commits to an Iceberg table that are raced, killed, fenced, or whose answer is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException

from sluice.connectors.iceberg.sink import IcebergSink, encoded_property, noted, property_of
from sluice.core.timeline import Recovery, TimelineComparison
from sluice.errors import ConfigurationError, FencedError
from tests.contract.sink_rules import (
    ANEW,
    JOB,
    RESTORED,
    RESTORED_AGAIN,
    publish,
    rows,
    seen,
    staged_rows,
)
from tests.iceberg_catalog import (
    a_sink,
    append_by_hand,
    case_in,
    expire_all_but_the_head,
    interfere,
    loaded,
)


def test_other_writers_in_between_cost_nothing_and_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_in(tmp_path, "id", create=True)
    publish(case.open(), 1, None, rows(1, 2))
    staged = staged_rows(case.open(), 2, 2, 3)
    others = iter((101, 102, 103))
    conflicts = interfere(monkeypatch, lambda: append_by_hand(tmp_path, next(others)), 3)

    case.open().commit(JOB, 2, 1, [staged])

    assert conflicts.count == 3
    assert seen(case) == rows(1, 2, 3, 101, 102, 103)
    assert not [one for one in case.open().unpublished().staged if "rewrite" in one.file]


def test_another_coordinator_that_was_faster_is_found_by_its_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_in(tmp_path, create=True)
    publish(case.open(), 1, None, rows(1))
    staged = staged_rows(case.open(), 2, 2)
    conflicts = interfere(monkeypatch, lambda: case.open().commit(JOB, 2, 1, [staged]), 1)

    case.open().commit(JOB, 2, 1, [staged])

    assert conflicts.count == 1
    assert seen(case) == rows(1, 2)


@pytest.mark.parametrize("before_the_catalog_looks", [False, True])
@pytest.mark.parametrize("roll_back", [False, True])
def test_a_restore_in_the_middle_of_a_commit_fences_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    roll_back: bool,
    before_the_catalog_looks: bool,
) -> None:
    case = case_in(tmp_path, create=True)
    publish(case.open(), 1, None, rows(1))
    late = staged_rows(case.open(), 2, 2)

    def restore() -> None:
        """Another coordinator published it, and a restore undid that: the head is as before."""
        if roll_back:
            case.open().commit(JOB, 2, 1, [late])
        case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=roll_back))

    interfere(monkeypatch, restore, 1, before_the_catalog_looks=before_the_catalog_looks)

    with pytest.raises(FencedError, match=r"Iceberg table shop\.sales: generation 2 of the job"):
        case.open().commit(JOB, 2, 1, [late])
    assert seen(case) == rows(1)


@pytest.mark.parametrize("has_landed", [False, True])
def test_a_commit_whose_answer_was_lost_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_landed: bool
) -> None:
    case = case_in(tmp_path, create=True)
    publish(case.open(), 1, None, rows(1))
    commit = SqlCatalog.commit_table
    lost = iter([True])

    def lose_the_answer(*arguments: Any) -> Any:
        if next(lost, False):
            if has_landed:
                commit(*arguments)
            raise CommitStateUnknownException("the line went dead")
        return commit(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", lose_the_answer)
    publish(case.open(), 2, 1, rows(2))

    assert seen(case) == rows(1, 2)


def test_rolling_back_keeps_what_others_wrote_before_and_refuses_what_came_between(
    tmp_path: Path,
) -> None:
    case = case_in(tmp_path, create=True)
    publish(case.open(), 1, None, rows(1))
    append_by_hand(tmp_path, 101)
    publish(case.open(), 2, 1, rows(2))
    case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=True))
    assert seen(case) == rows(1, 101)

    publish(case.open(), 3, 1, rows(3), RESTORED)
    foreign = append_by_hand(tmp_path, 102)

    with pytest.raises(ConfigurationError, match=rf"{foreign} \(append\)"):
        case.open().recover(RESTORED_AGAIN, Recovery(version=1, through=3, roll_back=True))
    assert seen(case) == rows(1, 3, 101, 102)


def test_what_has_expired_is_still_noted_and_cannot_be_rolled_back(tmp_path: Path) -> None:
    case = case_in(tmp_path, create=True)
    for checkpoint_id in (1, 2, 3):
        publish(case.open(), checkpoint_id, checkpoint_id - 1 or None, rows(checkpoint_id))
    staged = staged_rows(case.open(), 2, 2)

    expire_all_but_the_head(tmp_path)

    case.open().commit(JOB, 2, 1, [staged])
    assert case.open().standing(JOB.life, None).ahead == (1, 2, 3)
    assert "has expired" in case.open().describe(1)
    for version in (1, 2):
        with pytest.raises(ConfigurationError, match="cannot be rolled back"):
            case.open().recover(RESTORED, Recovery(version=version, through=3, roll_back=True))
    assert seen(case) == rows(1, 2, 3)


def test_a_table_that_somebody_emptied_is_rolled_back_whatever_has_expired(tmp_path: Path) -> None:
    case = case_in(tmp_path, create=True)
    for checkpoint_id in (1, 2):
        publish(case.open(), checkpoint_id, checkpoint_id - 1 or None, rows(checkpoint_id))
    loaded(tmp_path).delete()
    expire_all_but_the_head(tmp_path)

    assert case.open().is_empty()
    taken = Recovery(version=None, through=2, roll_back=True, replaces=(JOB.life,))
    case.open().recover(ANEW, taken)
    publish(case.open(), 3, None, rows(3), ANEW)

    assert case.open().standing(ANEW.life, None) == TimelineComparison(ahead=(3,), newest=3)
    assert seen(case) == rows(3)


def test_a_table_is_not_rolled_back_behind_what_its_note_remembers(tmp_path: Path) -> None:
    case = case_in(tmp_path, create=True)
    for checkpoint_id, parent in ((1, None), (3, 1), (5, 3), (7, 5)):
        publish(case.open(), checkpoint_id, parent, rows(checkpoint_id))
    sink = case.open()
    assert isinstance(sink, IcebergSink)
    table = loaded(tmp_path)
    short = noted(table.properties, sink.identity).shortened(2)
    with table.transaction() as transaction:
        transaction.set_properties({property_of(sink.identity): encoded_property(short)})

    for version in (None, 1, 3):
        choice = Recovery(version=version, through=7, roll_back=True, accepts=True)
        with pytest.raises(ConfigurationError, match="forgotten which checkpoints it shows bef"):
            sink.recover(RESTORED, choice)
    sink.recover(RESTORED, Recovery(version=5, through=7, roll_back=True))
    assert seen(case) == rows(1, 3, 5)


def test_two_sinks_share_a_table_and_do_not_mix_their_checkpoints(tmp_path: Path) -> None:
    case = case_in(tmp_path, create=True)
    publish(case.open(), 1, None, rows(1))
    other = a_sink(tmp_path, root="s3://jobs/other/shop/tables/sales")

    publish(other, 1, None, rows(2))

    assert seen(case) == rows(1, 2)
    with pytest.raises(ConfigurationError, match="other writers' snapshots would be lost"):
        case.open().recover(RESTORED, Recovery(version=None, through=1, roll_back=True))


def test_a_restore_before_the_first_row_fences_who_comes_late(tmp_path: Path) -> None:
    case = case_in(tmp_path, create=True)
    for _ in range(2):
        case.open().recover(RESTORED, Recovery(version=None, through=2))
    late = staged_rows(case.open(), 2, 2)

    with pytest.raises(FencedError):
        case.open().commit(JOB, 2, None, [late])
    publish(case.open(), 3, None, rows(3), RESTORED)

    assert seen(case) == rows(3)
