"""The recovery of tables that a restore or submission decides: journaled, then owed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.configuration import JobStatus
from sluice.core.coordinator import step
from sluice.core.events import Event, Verdict
from sluice.core.ids import CheckpointId
from sluice.core.state import CoordinatorState
from sluice.core.tables import TableDecision, TableRecovery
from tests.builders import (
    a_checkpoint,
    a_submitted,
    after,
    committed,
    completed,
    restored,
    stopped,
    submitted,
    triggered,
)
from tests.core_events import (
    tables_recovered,
)


def test_tables_are_recovered_once_through_the_last_id_that_was_handed_out() -> None:
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1))
    state = after(state, triggered(3, parent=2))
    decided = TableDecision(
        versions={"alerts": 1}, roll_back=True, accepts=True, replaces={"alerts": ("theirs",)}
    )

    restored_state = after(state, restored(1, tables=decided))
    again = step(restored_state, tables_recovered())

    assert restored_state.tables == {"alerts": 1}
    assert restored_state.table_recovery == TableRecovery(
        through=CheckpointId(3), roll_back=True, accepts=True, replaces={"alerts": ("theirs",)}
    )
    assert again.state == replace(
        restored_state, table_recovery=None, tables_recovered_by=restored_state.generation
    )
    assert step(again.state, tables_recovered()).verdict is Verdict.IGNORED
    assert step(restored_state, tables_recovered(generation=1)).verdict is Verdict.FENCED


def test_ids_begin_behind_those_that_a_sink_knows_and_the_recovery_covers_them() -> None:
    knows = TableDecision(newest=40)

    submitted_ = after(CoordinatorState(), replace(submitted(), tables=knows))
    restored_ = after(a_submitted(), restored(7, savepoint="s", tables=knows))

    for state in (submitted_, restored_):
        assert state.next_checkpoint_id == 41
        assert state.table_recovery == TableRecovery(through=CheckpointId(40))


def test_tables_that_nobody_wrote_to_are_owed_nothing() -> None:
    assert a_submitted().table_recovery is None
    assert after(a_submitted(), restored(7, savepoint="s")).table_recovery is None


def test_the_latest_checkpoint_changes_nothing_for_the_tables() -> None:
    state = after(a_submitted(), *a_checkpoint(1), triggered(2, parent=1))

    state = after(state, restored(1))

    assert (state.tables, state.table_recovery) == (None, None)


@pytest.mark.parametrize(
    ("chosen", "events"),
    [
        (restored(1), [triggered(2, parent=1), completed(2)]),
        (restored(2, tables=TableDecision(continues=CheckpointId(2))),
         [triggered(2, parent=1), completed(2), committed(2)]),
        (restored(2, tables=TableDecision(continues=CheckpointId(2))), []),
    ],
    ids=["another completed", "it was committed", "it is gone"],
)  # fmt: skip
def test_what_was_decided_of_tables_is_not_journaled_once_it_is_not_so_any_more(
    chosen: Event, events: list[Event]
) -> None:
    state = after(a_submitted(), *a_checkpoint(1), *events)

    assert step(state, chosen).verdict is Verdict.REFUSED


def test_a_job_that_nobody_submitted_gets_its_life_from_the_restore() -> None:
    nobodys = CoordinatorState()

    state = after(nobodys, restored(None, generation=1, life="mine", tables=TableDecision()))

    assert (state.life, state.status) == ("mine", JobStatus.RUNNING)
    for chosen in (restored(None, generation=1), restored(None, generation=1, life="mine")):
        assert step(nobodys, chosen).verdict is Verdict.REFUSED


def test_a_life_begins_once_and_those_before_it_are_remembered() -> None:
    ended = after(a_submitted(), stopped(JobStatus.CANCELED))

    second = after(ended, submitted(generation=2), stopped(JobStatus.CANCELED, generation=2))

    assert (second.life, second.earlier_lives) == ("life-2", ("life-1",))
    for life in ("", "life-1", "life-2"):
        again = replace(submitted(generation=3), life=life)
        assert step(second, again).verdict is Verdict.REFUSED


def test_what_is_owed_to_the_tables_outlives_a_failure_a_cancel_and_a_new_submission() -> None:
    back = restored(1, tables=TableDecision(versions={"alerts": 1}, roll_back=True))
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1), back)
    owed = TableRecovery(through=CheckpointId(2), roll_back=True)

    failed_over = after(state, restored(1, generation=3))
    canceled = after(failed_over, stopped(JobStatus.CANCELED, generation=3))
    resubmitted = after(canceled, submitted(generation=4))

    for one in (failed_over, canceled):
        assert (one.tables, one.table_recovery) == ({"alerts": 1}, owed)
    assert not canceled.must_recover_tables
    assert resubmitted.table_recovery == TableRecovery(through=CheckpointId(2))


def test_a_later_decision_about_the_tables_replaces_one_that_is_owed() -> None:
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1))
    state = after(state, restored(1, tables=TableDecision(versions={"a": 1}, roll_back=True)))

    state = after(state, restored(2, generation=3, tables=TableDecision(versions={"a": 2})))

    assert state.tables == {"a": 2}
    assert state.table_recovery == TableRecovery(through=CheckpointId(2))


def test_a_commit_that_is_owed_is_the_one_that_may_still_happen_and_moves_the_tables() -> None:
    """It was left behind before its commit, and is restored: the tables are recovered before."""
    state = after(a_submitted(), *a_checkpoint(1), triggered(2, parent=1), completed(2))
    state = after(state, restored(1, tables=TableDecision(versions={"a": 1, "b": 1})))
    owes = TableDecision(versions={"a": 1, "b": 1}, continues=CheckpointId(2))

    state = after(state, restored(2, generation=3, tables=owes))
    suspended = after(state, stopped(JobStatus.SUSPENDED, generation=3))
    published = after(state, replace(committed(2, generation=3), sinks=("a",)))
    late = after(state, replace(committed(1, generation=3), sinks=("a",)))

    assert state.table_recovery == TableRecovery(through=CheckpointId(2), continues=CheckpointId(2))
    assert suspended.must_recover_tables
    assert published.tables == {"a": 2, "b": 1}
    assert late.tables == {"a": 1, "b": 1}


def test_once_a_checkpoint_has_completed_it_says_itself_what_the_tables_show() -> None:
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1))
    state = after(state, restored(1, tables=TableDecision(versions={"a": 1})), tables_recovered())

    state = after(state, triggered(3, parent=1, generation=2), completed(3, generation=2))

    assert state.tables is None
    assert after(state, committed(3, generation=2)).tables is None
