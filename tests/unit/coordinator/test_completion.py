"""A checkpoint becomes true, and its sinks publish: finalize and commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from harness.jobs import (
    STAGES,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    results,
    trigger_one,
)
from sluice.connectors.staged_sink import EpochRows
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, start_attempt
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target, stop
from sluice.coordinator.submission import configure
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.errors import FencedError, NotYetAcknowledged, StoreUnavailable
from sluice.job.job import Job
from sluice.store.journal import Journal
from sluice.store.object_store import Created
from sluice.surface.checkpoints import history
from tests.builders import SUBTASKS
from tests.contract.journals import Delayed
from tests.noted_target import NotedTable
from tests.subtasks import a_savepoint, acknowledge, state_records, take_checkpoint

ONE, TWO = CheckpointId(1), CheckpointId(2)
EXPIRED, TASK_FAILURE = Reason.CHECKPOINT_EXPIRED, Reason.TASK_FAILURE
SAVEPOINT = CheckpointType.SAVEPOINT


def test_a_checkpoint_goes_from_its_plan_to_published_rows() -> None:
    job = a_running_job()

    plan = trigger_one(job)
    assert job.state().pending_checkpoint(ONE) is not None
    acknowledge(job, plan)
    assert published_records(job) == []
    completed = finalize(job, ONE)
    assert published_records(job) == []
    state = commit(job, ONE)

    assert published_records(job) == list(range(10))
    assert (completed.checkpoint_id, completed.records, completed.checkpointed_bytes) == (1, 10, 40)
    assert (state.base, state.latest_completed) == (1, replace(completed, is_committed=True))


def test_its_keys_are_those_of_the_layout() -> None:
    job = a_running_job()
    take_checkpoint(job)

    keys = keys_of(job)

    own = [key for key in keys if key.startswith("auctions/checkpoints/")]
    assert own == [
        "auctions/checkpoints/0000000001/_metadata",
        *(f"auctions/checkpoints/0000000001/acks/{subtask}.1" for subtask in SUBTASKS),
        "auctions/checkpoints/0000000001/plan",
        *(f"auctions/checkpoints/0000000001/stages/{stage}.1" for stage in STAGES),
    ]
    assert [key for key in keys if "journal" in key] == [
        f"auctions/journal/{seq:012d}" for seq in (1, 2, 3, 4)
    ]
    assert len([key for key in keys if key.startswith("auctions/shared/")]) == 4
    assert len([key for key in keys if key.startswith("auctions/streams/count_bids/")]) == 2
    assert "auctions/tables/results/_manifests/00000000000000000001.json" in keys


def test_an_epoch_continues_where_the_one_before_ended() -> None:
    job = a_running_job()
    first, second = take_checkpoint(job), take_checkpoint(job)

    metadata = job.metadata(second)

    assert (metadata.parent, metadata.checkpoint_id) == (first, second)
    assert metadata.sources[0].slices[0].start == 10
    assert metadata.previous_tables["results"] == 1
    assert metadata.tables["results"] == 2
    for stage in STAGES:
        assert state_records(job, metadata, stage) == list(range(20))
    assert published_records(job) == list(range(20))


def test_the_last_epoch_of_a_bounded_source_finishes_the_job() -> None:
    job = a_running_job(a_pipeline(events=15))
    take_checkpoint(job)
    assert job.state().status is JobStatus.RUNNING

    last = take_checkpoint(job)

    assert last == 2
    assert job.state().status is JobStatus.FINISHED
    assert published_records(job) == list(range(15))


def test_finalizing_without_an_ack_names_the_subtask() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan, "count_bids")
    acknowledge(job, plan, "rank_bids", only=[0])

    with pytest.raises(NotYetAcknowledged, match=r"^checkpoint 1 lacks the acks of rank_bids/1$"):
        finalize(job, ONE)
    assert job.state().pending_checkpoint(ONE) is not None


def test_an_ack_of_an_earlier_attempt_does_not_complete_the_checkpoint() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    assert start_attempt(job, ONE, "rank_bids") == 2
    acknowledge(job, plan, "rank_bids", attempt=2, only=[1])

    with pytest.raises(NotYetAcknowledged, match=r"lacks the acks of rank_bids/0$"):
        finalize(job, ONE)
    (late,) = acknowledge(job, plan, "rank_bids", attempt=2, only=[0])
    finalize(job, ONE)
    commit(job, ONE)

    assert late.committables[0] in job.metadata(ONE).committables
    assert published_records(job) == list(range(10))


def test_finalizing_and_committing_again_change_nothing() -> None:
    job = a_running_job()
    take_checkpoint(job)
    before = keys_of(job)

    assert finalize(job, ONE) == job.state().completed[0]
    assert commit(job, ONE) == job.state()
    assert keys_of(job) == before


def test_a_coordinator_that_died_between_metadata_and_journal_is_taken_over() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    finalize(job, ONE)
    head = max(key for key in keys_of(job) if "/journal/" in key)
    job.store.delete([head])  # As if it had died right before this entry.
    raw = job.store.get(job.paths.metadata(ONE))

    finalize(job, ONE)
    commit(job, ONE)

    assert job.store.get(job.paths.metadata(ONE)) == raw
    assert published_records(job) == list(range(10))


@pytest.mark.parametrize("act", [finalize, commit])
def test_an_aborted_checkpoint_is_neither_finalized_nor_committed(
    act: Callable[[Job, CheckpointId], object],
) -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    fail_checkpoint(job, ONE, EXPIRED, "too slow")

    with pytest.raises(FencedError, match="checkpoint 1 was aborted, CHECKPOINT_EXPIRED: too slow"):
        act(job, ONE)


def test_an_unknown_checkpoint_is_fenced_and_not_an_error() -> None:
    job = a_running_job()

    for act in (finalize, commit):
        with pytest.raises(FencedError, match="checkpoint 7 is neither pending nor retained"):
            act(job, CheckpointId(7))


def test_the_history_tells_how_each_checkpoint_ended() -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=1, num_retained=1))
    take_checkpoint(job)
    take_checkpoint(job)
    fail_checkpoint(job, trigger_one(job).checkpoint_id, EXPIRED, "too slow")
    trigger_one(job)

    records = history(job)

    assert [(r.id, r.status, r.reason, r.committed) for r in records] == [
        (1, "COMPLETED", None, True),
        (2, "COMPLETED", None, True),
        (3, "FAILED", "CHECKPOINT_EXPIRED", False),
        (4, "IN_PROGRESS", None, False),
    ]
    assert [r.records for r in records] == [10] * 4
    assert results(job).versions() == (1, 2)


def test_a_stage_without_its_bundle_is_read_ack_by_ack() -> None:
    job = a_running_job()
    acknowledge(job, trigger_one(job))
    job.store.delete([job.paths.stage_acks(ONE, "rank_bids", 1)])  # Its driver died before it.

    finalize(job, ONE)

    assert state_records(job, job.metadata(ONE), "rank_bids") == list(range(10))


def test_a_retried_subtask_answers_with_the_ack_that_is_there() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    first = acknowledge(job, plan)

    assert acknowledge(job, plan) == first


def test_small_state_travels_inside_the_ack() -> None:
    job = a_running_job(a_pipeline(data_inline_threshold=20_480))
    take_checkpoint(job)

    second = job.metadata(take_checkpoint(job))

    assert (second.files, keys_of(job, "auctions/shared/")) == ((), [])
    assert state_records(job, second, "rank_bids") == list(range(20))
    a_savepoint(job)
    job.store.delete([key for key in keys_of(job) if "/savepoints/" not in key])
    restored = restore(
        job, savepoint_target(job, "mine"), configuration=configure(job.pipeline, {})
    )
    assert restored.checkpoint_id == 3


def test_ending_a_checkpoint_that_another_coordinator_completed_tells_what_it_became() -> None:
    job = a_running_job()
    acknowledge(job, trigger_one(job))
    completed = finalize(job, ONE)

    state = fail_checkpoint(job, ONE, EXPIRED, "too slow")

    assert (state.failed, state.completed) == ((), (completed,))
    assert job.plan(ONE) is not None


def test_a_stray_journal_entry_does_not_deceive_who_finalizes() -> None:
    """A suspension arrives late, when its number was taken and truncated long ago."""
    job = a_running_job()
    late = Delayed(job.store)
    with pytest.raises(StoreUnavailable):
        stop(replace(job, journal=Journal(late, job.paths)), JobStatus.SUSPENDED)
    plan = trigger_one(job)
    for attempt in range(2, 7):
        assert start_attempt(job, ONE, "rank_bids") == attempt
    job.journal.truncate(keep=2)
    assert late.deliver() == Created()
    assert job.journal.load(after=plan.journal_seq).state.status is JobStatus.SUSPENDED
    acknowledge(job, plan, "count_bids")
    acknowledge(job, plan, "rank_bids", attempt=6)

    finalize(job, ONE)

    assert commit(job, ONE).status is JobStatus.RUNNING
    assert published_records(job) == list(range(10))


def asked_while(ends: Callable[[Job], object], patch: pytest.MonkeyPatch) -> Job:
    """A job whose first checkpoint *ends* while its sink's place is asked about the rows."""
    job = a_running_job(a_pipeline(sink=NotedTable()))
    acknowledge(job, trigger_one(job))

    def check(_: NotedTable, __: pa.Schema, rows: EpochRows) -> None:
        patch.undo()
        ends(job)
        assert rows.schema() is not None  # It reads what was staged.

    patch.setattr(NotedTable, "check", check)
    return job


def test_a_checkpoint_that_was_aborted_while_its_place_was_asked_is_not_called_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = asked_while(lambda job: fail_checkpoint(job, ONE, EXPIRED, "too slow"), monkeypatch)

    with pytest.raises(FencedError, match="checkpoint 1 was aborted, CHECKPOINT_EXPIRED"):
        finalize(job, ONE)


def test_a_checkpoint_that_was_committed_while_its_place_was_asked_is_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = asked_while(lambda job: (finalize(job, ONE), commit(job, ONE)), monkeypatch)

    assert finalize(job, ONE) == job.state().completed_checkpoint(ONE)
