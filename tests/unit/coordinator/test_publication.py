"""A checkpoint that was completed, and not yet committed when the job was restored: it is published
once, by the coordinator that continues it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.hooked import hooked
from harness.jobs import SINK, trigger_one
from harness.noted_target import NotedTable
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit, publish_early
from sluice.coordinator.restore import restore
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.tables import writer_of
from sluice.core.configuration import CheckpointingMode, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import Latest, RestoreOptions, Stop
from sluice.errors import FencedError, ProtocolViolation
from sluice.job.job import Job
from sluice.job.places import open_sinks
from tests.subtasks import acknowledge, complete_one, take_checkpoint
from tests.table_cases import PLAIN, ROLL_BACK, Case, a_case, complete, to


@pytest.fixture(params=["files", "noted"])
def case(request: pytest.FixtureRequest) -> Case:
    return a_case(request.param)


@pytest.fixture
def noted() -> Case:
    return a_case("noted")


def test_a_checkpoint_left_behind_before_its_commit_is_published_when_it_is_restored(
    case: Case,
) -> None:
    take_checkpoint(case.job)
    complete(case.job)
    restore(case.job, to(1))
    planned = plan_restore(case.job, to(2))

    restored = restore(case.job, to(2))

    assert not isinstance(planned, Stop)
    assert planned.replays_commit
    assert [done.is_committed for done in restored.state.completed] == [True, True]
    assert case.seen() == list(range(20))
    restore(case.job, Latest())
    take_checkpoint(case.job)
    assert case.seen() == list(range(30))


def discard_staged(job: Job, plan: CheckpointPlan) -> None:
    token = job.paths.checkpoint_token(plan.token)
    open_sinks(job, {})[SINK].abort(plan.checkpoint_id, token)


def test_a_commit_that_finds_its_rows_gone_was_left_behind(
    noted: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps while the job is restored to before it, and what it staged is cleaned up."""
    take_checkpoint(noted.job)
    plan = complete_one(noted.job)
    publish = NotedTable.publish

    def late(self: NotedTable, *arguments: Any) -> None:
        monkeypatch.undo()
        restore(noted.job, to(1), ROLL_BACK)
        discard_staged(noted.job, plan)
        publish(self, *arguments)

    monkeypatch.setattr(NotedTable, "publish", late)
    with pytest.raises(FencedError, match="checkpoint 2 was left behind by a restore"):
        commit(noted.job, CheckpointId(2))

    assert noted.seen() == list(range(10))


def test_a_commit_whose_rows_are_gone_and_nobody_knows_why_says_so(noted: Case) -> None:
    take_checkpoint(noted.job)
    plan = complete_one(noted.job)
    discard_staged(noted.job, plan)

    with pytest.raises(ProtocolViolation, match="was committed and is missing"):
        commit(noted.job, CheckpointId(2))


def test_it_is_published_though_another_took_its_place_in_between(case: Case) -> None:
    """Readers see 1 and 3, which both continue 1, and the job goes back to 2."""
    take_checkpoint(case.job)
    complete(case.job)
    restore(case.job, to(1))
    assert take_checkpoint(case.job) == 3

    told = restore(case.job, to(2), ROLL_BACK).state

    assert told.base == 2
    assert case.seen() == list(range(20))
    take_checkpoint(case.job)
    assert case.seen() == list(range(30))


@pytest.mark.parametrize("kind", ["files", "noted"])
def test_the_last_epoch_of_a_bounded_job_is_seen_before_the_job_is_finished(kind: str) -> None:
    case = a_case(kind, events=20)
    take_checkpoint(case.job)
    complete(case.job)
    restore(case.job, to(1))

    restored = restore(case.job, to(2))

    assert (restored.state.status, case.seen()) == (JobStatus.FINISHED, list(range(20)))


def test_a_failure_between_the_recovery_and_the_commit_that_is_owed_loses_nothing(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_checkpoint(case.job)
    complete(case.job)
    restore(case.job, to(1))
    with monkeypatch.context() as patch:
        patch.setattr("sluice.coordinator.publication.notify_complete", _dies)
        with pytest.raises(ZeroDivisionError):
            restore(case.job, to(2))

    restored = restore(case.job, Latest())

    assert restored.state.completed[-1].is_committed
    assert case.seen() == list(range(20))
    take_checkpoint(case.job)
    assert case.seen() == list(range(30))


@pytest.mark.parametrize("options", [PLAIN, ROLL_BACK], ids=["as it is", "rolled back"])
def test_what_was_published_without_the_journal_knowing_is_not_taken_back(
    case: Case, monkeypatch: pytest.MonkeyPatch, options: RestoreOptions
) -> None:
    """Its staged rows may be deleted by then: they could not be published again."""
    take_checkpoint(case.job)
    complete(case.job)
    with monkeypatch.context() as patch:
        patch.setattr("sluice.coordinator.publication.notify_complete", _dies)
        with pytest.raises(ZeroDivisionError):
            commit(case.job, CheckpointId(2))
    assert case.seen() == list(range(20))

    restore(case.job, Latest(), options)

    assert case.seen() == list(range(20))
    take_checkpoint(case.job)
    assert case.seen() == list(range(30))


def test_a_commit_that_is_faster_than_the_recovery_is_not_taken_back(
    noted: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It publishes between the look at the table and the transaction."""
    take_checkpoint(noted.job)
    checkpoint_id = complete(noted.job)
    before = writer_of(noted.job.state())
    metadata = noted.job.metadata(checkpoint_id)
    mine = [one for one in metadata.committables if one.sink == SINK]
    recover = NotedTable.recover

    def late(self: NotedTable, *given: Any) -> None:
        if 2 not in self.place.rows:
            open_sinks(noted.job, {})[SINK].commit(before, checkpoint_id, 1, mine)
        recover(self, *given)

    monkeypatch.setattr(NotedTable, "recover", late)
    restore(noted.job, Latest(), ROLL_BACK)

    assert noted.seen() == list(range(20))
    take_checkpoint(noted.job)
    assert noted.seen() == list(range(30))


def test_a_late_commit_of_a_generation_before_the_restore_publishes_nothing(noted: Case) -> None:
    """Its coordinator loaded the journal before the restore, and slept in front of the sink."""
    take_checkpoint(noted.job)
    checkpoint_id = complete(noted.job)
    metadata = noted.job.metadata(checkpoint_id)
    sink = open_sinks(noted.job, {})[SINK]
    mine = [one for one in metadata.committables if one.sink == SINK]
    before = writer_of(noted.job.state())
    restore(noted.job, to(1))
    restore(noted.job, to(2))

    with pytest.raises(FencedError, match="generation 3 of the job has written the table"):
        sink.commit(before, 4, 2, [])
    sink.commit(before, checkpoint_id, 1, mine)
    assert noted.seen() == list(range(20))


def asleep_before_it_journals(job: Job, act: Callable[[], object]) -> Job:
    """A coordinator that sleeps in front of its first write to the journal, while *act* happens."""
    is_asleep = True

    def before(verb: str, key: str) -> None:
        nonlocal is_asleep
        if is_asleep and verb == "create" and "/journal/" in key:
            is_asleep = False
            act()

    return hooked(job, before)


def test_a_commit_is_journaled_for_the_generation_that_it_loaded(case: Case) -> None:
    """Its coordinator published, and slept while the job was put back to before it."""
    take_checkpoint(case.job)
    checkpoint_id = complete(case.job)
    sleeper = asleep_before_it_journals(case.job, lambda: restore(case.job, to(1), ROLL_BACK))

    with pytest.raises(FencedError, match=r"restored while checkpoint 2 was published for gener"):
        commit(sleeper, checkpoint_id)

    assert not case.job.state().completed[-1].is_committed
    assert case.seen() == list(range(10))
    restore(case.job, to(2))
    take_checkpoint(case.job)
    assert case.seen() == list(range(30))


def test_a_commit_that_wakes_up_between_a_restore_and_its_recovery_stops_nothing(
    case: Case,
) -> None:
    """The restore is of the checkpoint that was published."""
    take_checkpoint(case.job)
    checkpoint_id = complete(case.job)
    woken: list[BaseException] = []

    def restored_twice() -> None:
        restore(case.job, to(1), ROLL_BACK)

        def wake() -> None:
            try:
                commit(case.job, checkpoint_id)
            except FencedError as error:
                woken.append(error)

        restore(asleep_before_it_journals(case.job, wake), to(2))

    with pytest.raises(FencedError):
        commit(asleep_before_it_journals(case.job, restored_twice), checkpoint_id)

    assert woken
    take_checkpoint(case.job)
    assert case.seen() == list(range(30))


@pytest.mark.parametrize("kind", ["files", "noted"])
def test_rows_that_were_shown_early_are_not_left_out_after_a_restore(kind: str) -> None:
    case = a_case(kind, mode=CheckpointingMode.AT_LEAST_ONCE)
    take_checkpoint(case.job)
    plan = trigger_one(case.job)
    acknowledge(case.job, plan)
    publish_early(case.job, plan.checkpoint_id, "rank_bids")
    fail_checkpoint(case.job, plan.checkpoint_id, Reason.TASK_FAILURE, "lost", is_task_failure=True)

    restore(case.job, Latest())
    take_checkpoint(case.job)

    assert {*case.seen()} == {*range(20)}


def _dies(*_: object) -> None:
    raise ZeroDivisionError
