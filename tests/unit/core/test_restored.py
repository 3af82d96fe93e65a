"""A job that was restored: where it continues, what it forgets, what it owes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.configuration import CheckpointType, ClaimMode, JobConfiguration, JobStatus
from sluice.core.coordinator import step
from sluice.core.events import DiscardPending, Verdict
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.plan import SnapshotOrigin
from sluice.core.state import CoordinatorState
from sluice.core.tables import TableDecision
from tests.builders import (
    a_checkpoint,
    a_request,
    a_submitted,
    after,
    completed,
    failed,
    ids_of,
    restored,
    triggered,
)
from tests.core_events import (
    discarded,
    hooks_restored,
    released,
    requested,
    with_backlog,
)


def test_a_restore_takes_the_next_generation_and_aborts_what_is_pending() -> None:
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1))
    state = after(state, triggered(3, parent=2), requested(a_request("waits")))

    transition = step(state, restored(1, tables=TableDecision()))

    state = transition.state
    assert transition.verdict is Verdict.APPLIED
    assert transition.commands == (DiscardPending(checkpoint_id=CheckpointId(3)),)
    assert (state.status, state.generation, state.base) == (JobStatus.RUNNING, 2, 1)
    assert (state.next_checkpoint_id, state.num_restarts) == (4, 1)
    assert ids_of(state.completed) == [1, 2]
    assert state.failed[0].reason is Reason.JOB_FAILOVER_REGION
    assert state.rejection("waits") is Reason.JOB_FAILOVER_REGION


def test_a_restore_ends_the_pause_of_a_restarting_job_and_forgets_the_backlog() -> None:
    state = after(a_submitted(), triggered(sources=with_backlog()), failed(is_task_failure=True))
    assert state.is_backlog

    state = after(state, restored(None))

    assert (state.status, state.restart_at_ms, state.base) == (JobStatus.RUNNING, None, None)
    assert not state.is_backlog


def test_a_restore_to_an_unknown_checkpoint_is_refused() -> None:
    state = after(a_submitted(), *a_checkpoint(1))

    transition = step(state, restored(7))

    assert (transition.verdict, transition.state) == (Verdict.REFUSED, state)


def test_a_restore_from_a_savepoint_continues_its_id() -> None:
    origin = SnapshotOrigin(checkpoint_id=CheckpointId(7), savepoint="moved-here")
    state = after(CoordinatorState(), restored(7, generation=1, savepoint="moved-here"))
    assert (state.base, state.origin, state.next_checkpoint_id) == (7, origin, 8)
    assert state.latest_completed is None

    state = after(state, *a_checkpoint(8, parent=7, origin=origin))

    assert (state.origin, state.latest_completed) == (None, state.completed[0])


def test_a_restore_from_an_older_snapshot_does_not_turn_ids_back() -> None:
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1))

    assert after(state, restored(1, savepoint="older")).next_checkpoint_id == 3
    assert after(state, restored(1, tables=TableDecision())).next_checkpoint_id == 3
    assert after(state, restored(None)).next_checkpoint_id == 3


def test_a_restore_may_bring_another_configuration() -> None:
    wider = JobConfiguration(parallelism=8)

    assert after(a_submitted(), restored(None, configuration=wider)).configuration == wider
    assert after(a_submitted(num_retained=9), restored(None)).configuration.num_retained == 9


def test_dropped_in_flight_data_is_dropped_until_a_checkpoint_without_it_completed() -> None:
    state = after(a_submitted(), *a_checkpoint(1), restored(1, ignores_in_flight=True))
    assert state.ignores_in_flight

    state = after(state, triggered(2, parent=1, generation=2), completed(2, generation=2))

    assert not state.ignores_in_flight


@pytest.mark.parametrize(
    ("claim_mode", "claimed"), [(ClaimMode.CLAIM, ("theirs",)), (ClaimMode.NO_CLAIM, ())]
)
def test_a_claimed_savepoint_is_ours_until_it_is_deleted(
    claim_mode: ClaimMode, claimed: tuple[str, ...]
) -> None:
    again = restored(7, savepoint="theirs", generation=3, claim_mode=claim_mode)
    state = after(a_submitted(), restored(7, savepoint="theirs", claim_mode=claim_mode), again)
    assert (state.claimed_savepoints, state.claim_mode) == (claimed, claim_mode)

    transition = step(state, discarded(savepoints=("theirs",), generation=3))

    assert transition.state.claimed_savepoints == ()
    assert transition.verdict is (Verdict.APPLIED if claimed else Verdict.IGNORED)


def test_a_checkpoint_of_another_root_has_nothing_to_claim() -> None:
    origin = SnapshotOrigin(checkpoint_id=CheckpointId(7), root="s3://other", pipeline="auctions")

    state = after(a_submitted(), restored(7, origin=origin, claim_mode=ClaimMode.CLAIM))

    assert state.claimed_savepoints == ()


def test_hooks_are_restored_once_and_by_the_generation_that_restored() -> None:
    state = after(a_submitted(), restored(None, has_hooks=True))
    assert state.must_restore_hooks

    transition = step(state, hooks_restored())

    assert transition.state == replace(state, must_restore_hooks=False)
    assert step(transition.state, hooks_restored()).verdict is Verdict.IGNORED
    assert step(state, hooks_restored(generation=1)).verdict is Verdict.FENCED


def test_a_restore_of_the_latest_is_refused_when_another_completed_meanwhile() -> None:
    """Its coordinator may be about to publish it: its rows would be published again."""
    chosen = after(a_submitted(), *a_checkpoint(1))
    meanwhile = after(chosen, triggered(2, parent=1), completed(2))

    assert step(meanwhile, restored(1, is_latest=True)).verdict is Verdict.REFUSED
    decided = TableDecision()
    is_latest = step(meanwhile, restored(1, is_latest=True, tables=decided))
    assert is_latest.verdict is Verdict.REFUSED
    assert step(meanwhile, restored(1, tables=decided)).verdict is Verdict.APPLIED
    assert step(chosen, restored(1, is_latest=True)).verdict is Verdict.APPLIED


def test_nothing_is_restored_from_a_claimed_savepoint_that_is_being_deleted() -> None:
    claimed = after(a_submitted(), restored(7, savepoint="theirs", claim_mode=ClaimMode.CLAIM))

    in_use = step(claimed, released("theirs", generation=2))
    free = after(claimed, *a_checkpoint(8, parent=7, generation=2, origin=claimed.origin))
    releasing = after(free, released("theirs", "not ours", generation=2))
    again = step(releasing, released("theirs", generation=2))
    restoring = step(releasing, restored(7, savepoint="theirs", generation=3))
    gone = after(releasing, discarded(savepoints=("theirs",), generation=2))

    assert in_use.verdict is Verdict.IGNORED
    assert releasing.releasing_savepoints == ("theirs",)
    assert (again.verdict, restoring.verdict) == (Verdict.IGNORED, Verdict.REFUSED)
    assert (gone.claimed_savepoints, gone.releasing_savepoints) == ((), ())


def test_an_owner_disposes_of_a_savepoint_that_the_job_does_not_need() -> None:
    """It is the job's to delete from then on, and no restore begins from it."""
    state = after(a_submitted(), *a_checkpoint(1))

    disposed = step(state, released("theirs", "theirs", is_disposal=True))
    restoring = step(disposed.state, restored(7, savepoint="theirs"))
    again = step(disposed.state, released("theirs", is_disposal=True))
    gone = after(disposed.state, discarded(savepoints=("theirs",)))

    assert disposed.state == replace(
        state, claimed_savepoints=("theirs",), releasing_savepoints=("theirs",)
    )
    assert (restoring.verdict, again.verdict) == (Verdict.REFUSED, Verdict.IGNORED)
    assert gone == state


def test_no_savepoint_is_disposed_of_that_is_restored_claimed_or_being_taken() -> None:
    running = after(a_submitted(), *a_checkpoint(1))
    of = CheckpointType.SAVEPOINT
    pending = after(running, triggered(2, parent=1, savepoint="theirs", type=of))
    busy = after(running, triggered(2, parent=1))
    used = {
        "restored": after(running, restored(7, savepoint="theirs")),
        "claimed": after(
            running,
            restored(7, savepoint="theirs", claim_mode=ClaimMode.CLAIM),
            restored(1, generation=3, tables=TableDecision()),
        ),
        "pending": pending,
        "not committed": after(pending, completed(2)),
        "queued": after(busy, requested(a_request("b", type=of, savepoint_name="theirs"))),
    }

    for state in used.values():
        named, other = (
            released(name, generation=state.generation, is_disposal=True)
            for name in ("theirs", "other")
        )
        assert step(state, named).verdict is Verdict.IGNORED
        assert step(state, other).verdict is Verdict.APPLIED


def test_a_start_from_empty_is_refused_once_a_checkpoint_has_completed() -> None:
    """A restore finds none, and before it is journaled another coordinator completes one."""
    transition = step(after(a_submitted(), *a_checkpoint(1)), restored(None))

    assert transition.verdict is Verdict.REFUSED
    assert transition.state.base == 1
