"""AT_LEAST_ONCE: rows show as soon as their stage has answered, and an abort takes them back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness.jobs import STAGES, a_pipeline, a_running_job, published_records, results, trigger_one
from sluice.connectors.files_table.table import ManifestTable
from sluice.coordinator import staged
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, start_attempt
from sluice.coordinator.garbage import collect_garbage
from sluice.coordinator.publication import commit, publish_early
from sluice.coordinator.restore import restore
from sluice.core.configuration import CheckpointingMode
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import Latest
from sluice.declaration.places import Sink
from sluice.errors import FencedError, NotYetAcknowledged, StageFailed
from sluice.job.job import Job
from sluice.job.places import open_sinks
from sluice.store.object_store import CreateResult, ObjectStore
from tests.subtasks import acknowledge, state_records, take_checkpoint

COUNT, RANK = STAGES
ONE, TWO = CheckpointId(1), CheckpointId(2)


def an_early_job(**checkpointing: Any) -> Job:
    return a_running_job(
        a_pipeline(
            mode=CheckpointingMode.AT_LEAST_ONCE, tolerable_failed_checkpoints=9, **checkpointing
        )
    )


def answer(job: Job, plan: CheckpointPlan, stage: str, *, attempt: int = 1) -> None:
    """Acknowledge and then publish, as ``run_stage`` does."""
    acknowledge(job, plan, stage, attempt=attempt)
    publish_early(job, plan.checkpoint_id, stage)


def complete(job: Job, checkpoint_id: CheckpointId) -> None:
    finalize(job, checkpoint_id)
    commit(job, checkpoint_id)


def test_rows_show_once_their_stage_has_answered() -> None:
    job = an_early_job()
    plan = trigger_one(job)
    answer(job, plan, COUNT)
    assert published_records(job) == []
    with pytest.raises(NotYetAcknowledged, match="0 of 2 subtasks of stage 'rank_bids'"):
        publish_early(job, ONE, RANK)

    answer(job, plan, RANK)

    assert published_records(job) == list(range(10))
    publish_early(job, ONE, RANK)
    complete(job, ONE)
    assert published_records(job) == list(range(10))
    assert job.metadata(ONE).tables["results"] == 1


def test_what_was_shown_too_early_is_replaced_after_an_abort() -> None:
    job = an_early_job()
    take_checkpoint(job)
    plan = trigger_one(job)
    answer(job, plan, COUNT)
    answer(job, plan, RANK)

    fail_checkpoint(job, TWO, Reason.CHECKPOINT_EXPIRED, "too slow")

    assert published_records(job) == list(range(20))  # Once or more: two is still to be replaced.
    with pytest.raises(FencedError, match="checkpoint 2 was aborted"):
        publish_early(job, TWO, RANK)
    third = trigger_one(job)
    answer(job, third, COUNT)
    answer(job, third, RANK)
    assert [manifest.checkpoint_id for manifest in results(job).chain()] == [1, 3]
    complete(job, third.checkpoint_id)
    assert published_records(job) == list(range(20))


def test_rows_show_after_those_of_a_checkpoint_that_is_completed_and_not_published() -> None:
    job = an_early_job(max_concurrent_checkpoints=2)
    one, two = trigger_one(job), trigger_one(job)
    acknowledge(job, one)
    finalize(job, ONE)
    acknowledge(job, two)

    publish_early(job, TWO, RANK)

    assert published_records(job) == list(range(20))


class Interrupted:
    """The place of the results, whose first create of a manifest is preceded by something else."""

    def __init__(self, store: ObjectStore, before: Callable[[], object]) -> None:
        self._store = store
        self._before = before

    def create(self, key: str, body: bytes) -> CreateResult:
        if "_manifests/" in key:
            self._before()
        return self._store.create(key, body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_an_abort_while_rows_are_being_shown_leaves_them_readable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The publisher sleeps just before it, while the watchdog and the garbage collector run."""
    job = an_early_job()
    take_checkpoint(job)
    plan = trigger_one(job)
    answer(job, plan, COUNT)
    acknowledge(job, plan, RANK)

    def abort() -> None:
        fail_checkpoint(job, TWO, Reason.CHECKPOINT_EXPIRED, "too slow")
        collect_garbage(job, grace_ms=0)

    def interrupted(job: Job, params: Mapping[str, str]) -> dict[str, Sink]:
        tables = open_sinks(job, params)
        table = tables["results"]
        assert isinstance(table, ManifestTable)
        return tables | {"results": replace(table, store=Interrupted(table.store, abort))}

    monkeypatch.setattr(staged, "open_sinks", interrupted)
    publish_early(job, TWO, RANK)

    assert published_records(job) == list(range(20))
    assert collect_garbage(job, grace_ms=0).files == ()


def test_rows_are_not_shown_once_an_abort_was_journaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher looks before the aborting process has deleted anything."""
    job = an_early_job()
    take_checkpoint(job)
    plan = trigger_one(job)
    answer(job, plan, COUNT)
    acknowledge(job, plan, RANK)
    create = type(job.store).create

    def aborting(self: ObjectStore, key: str, body: bytes) -> CreateResult:
        if "/early/" in key:
            monkeypatch.undo()
            fail_checkpoint(job, TWO, Reason.CHECKPOINT_EXPIRED, "too slow")
        return create(self, key, body)

    monkeypatch.setattr(type(job.store), "create", aborting)
    with pytest.raises(FencedError, match="checkpoint 2 was aborted, CHECKPOINT_EXPIRED"):
        publish_early(job, TWO, RANK)

    assert published_records(job) == list(range(10))
    assert results(job).versions() == (1,)


def test_after_a_failure_every_row_is_there_once() -> None:
    job = an_early_job()
    for number in range(1, 6):
        plan = trigger_one(job)
        answer(job, plan, COUNT)
        answer(job, plan, RANK)
        if number in (2, 4):
            fail_checkpoint(
                job, plan.checkpoint_id, Reason.TASK_FAILURE, "lost", is_task_failure=True
            )
            restore(job, Latest())
        else:
            complete(job, plan.checkpoint_id)

    assert published_records(job) == list(range(30))
    assert state_records(job, job.metadata(plan.checkpoint_id), RANK) == list(range(30))


def test_the_rows_of_another_attempt_than_readers_see_complete_no_checkpoint() -> None:
    """They need not be the same, as a transform may ask the time; the next epoch brings them."""
    job = an_early_job()
    plan = trigger_one(job)
    answer(job, plan, COUNT)
    answer(job, plan, RANK)
    start_attempt(job, ONE, RANK)
    acknowledge(job, plan, RANK, attempt=2)

    with pytest.raises(StageFailed, match="readers of 'results' may see what an earlier attempt"):
        finalize(job, ONE)

    fail_checkpoint(job, ONE, Reason.FINALIZE_CHECKPOINT_FAILURE, "shown before")
    second = trigger_one(job)
    answer(job, second, COUNT)
    answer(job, second, RANK)
    complete(job, TWO)
    assert published_records(job) == list(range(10))
    assert [manifest.checkpoint_id for manifest in results(job).chain()] == [2]


def test_an_attempt_shows_nothing_where_an_earlier_one_is_about_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = an_early_job()
    plan = trigger_one(job)
    answer(job, plan, COUNT)
    acknowledge(job, plan, RANK)
    with monkeypatch.context() as patch:
        patch.setattr(Job, "state", _dies_behind_the_note(Job.state, calls=2))
        with pytest.raises(InterruptedError):
            publish_early(job, ONE, RANK)
    start_attempt(job, ONE, RANK)

    with pytest.raises(StageFailed, match="its rows come again with the next one"):
        answer(job, plan, RANK, attempt=2)

    assert published_records(job) == []


def _dies_behind_the_note(state: Callable[[Job], Any], *, calls: int) -> Callable[[Job], Any]:
    made = iter(range(1, calls + 1))

    def dying(job: Job) -> Any:
        if next(made) == calls:
            raise InterruptedError
        return state(job)

    return dying


def test_an_attempt_shows_nothing_where_the_checkpoint_names_the_rows_of_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A coordinator wrote ``_metadata``, died before it was journaled, and the stage ran again."""
    job = an_early_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    with monkeypatch.context() as patch:
        patch.setattr("sluice.coordinator.completion.require_shown", _dies)
        with pytest.raises(InterruptedError):
            finalize(job, ONE)
    start_attempt(job, ONE, RANK)

    with pytest.raises(StageFailed, match="cannot complete with the rows of another"):
        answer(job, plan, RANK, attempt=2)

    assert published_records(job) == []


def _dies(*_: object) -> None:
    raise InterruptedError


def test_a_commit_shows_what_nobody_showed_early() -> None:
    job = an_early_job()

    take_checkpoint(job)

    assert published_records(job) == list(range(10))


def test_overlapping_epochs_show_in_order() -> None:
    job = an_early_job(max_concurrent_checkpoints=2)
    one, two = trigger_one(job), trigger_one(job)
    acknowledge(job, one)
    acknowledge(job, two)

    publish_early(job, TWO, RANK)  # The driver of one's stage has not come to it yet.

    assert results(job).versions() == (1, 2)
    assert published_records(job) == list(range(20))
    complete(job, ONE)
    complete(job, TWO)
    assert published_records(job) == list(range(20))


def test_exactly_once_shows_nothing_before_the_checkpoint_is_complete() -> None:
    job = a_running_job()
    acknowledge(job, trigger_one(job))

    finalize(job, ONE)

    assert results(job).versions() == ()
