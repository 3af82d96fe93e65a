"""The life of a checkpoint in a bucket: trigger, finalize, commit, abort, subsume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from sluice import aggregates as agg
from sluice.core.acks import Ack
from sluice.core.coordinator import Verdict
from sluice.core.ids import CheckpointId
from sluice.core.messages import AttemptStarted, CheckpointTriggered
from sluice.core.plan import CheckpointPlan
from sluice.core.properties import CheckpointType, JobStatus
from sluice.core.reasons import CheckpointFailureReason as Reason
from sluice.errors import ConfigurationError, FencedError, StageFailed
from sluice.pipeline import Pipeline
from sluice.protocol.records import encode_plan
from sluice.runner.completion import commit, finalize
from sluice.runner.history import history
from sluice.runner.job import Job
from sluice.runner.recovery import fail_checkpoint
from sluice.runner.submission import configure, submit
from sluice.runner.trigger import NotTriggered, trigger
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.storage.answers import AnswerStore
from sluice.storage.memory import InMemoryStore
from tests.builders import (
    STAGES,
    SUBTASKS,
    ManualClock,
    a_job,
    a_pipeline,
    a_running_job,
    acknowledge,
    ids_of,
    keys_of,
    published_records,
    results,
    state_records,
    take_checkpoint,
    trigger_one,
)

ONE = CheckpointId(1)
EXPIRED = Reason.CHECKPOINT_EXPIRED


def orphan(job: Job, plan: CheckpointPlan, checkpoint_id: int) -> CheckpointPlan:
    """The plan of a coordinator that died before it journaled it."""
    made = replace(plan, checkpoint_id=CheckpointId(checkpoint_id), cause="somebody who died")
    job.store.create(job.paths.plan(checkpoint_id), encode_plan(made))
    return made


def retry(job: Job, stage: str, attempt: int) -> None:
    transition = job.journal.append(
        lambda state: AttemptStarted(
            generation=state.generation, checkpoint_id=ONE, stage=stage, attempt=attempt
        )
    )
    assert transition.verdict is Verdict.APPLIED


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


def test_one_pending_checkpoint_holds_back_the_next() -> None:
    job = a_running_job()
    trigger_one(job)

    outcome = trigger(job)

    assert outcome == NotTriggered(
        reason=Reason.TOO_MANY_CHECKPOINT_REQUESTS, message="checkpoint 1 is still pending"
    )


def test_a_job_that_does_not_run_takes_no_checkpoint() -> None:
    assert trigger(a_job()) == NotTriggered(
        reason=Reason.PERIODIC_SCHEDULER_SHUTDOWN, message="the job is CREATED"
    )


def test_min_pause_holds_back_the_periodic_and_not_a_persons() -> None:
    clock = ManualClock()
    job = a_running_job(a_pipeline(min_pause=timedelta(seconds=10)), clock=clock)
    take_checkpoint(job)
    clock.advance(4_000)

    assert trigger(job) == NotTriggered(
        reason=Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS, message="min_pause lasts 6000 ms more"
    )
    trigger_one(job, is_periodic=False)


def test_without_new_records_a_periodic_request_does_nothing_and_a_persons_does(
    tmp_path: Path,
) -> None:
    (tmp_path / "names.txt").write_text("ann\n")
    pipeline = Pipeline("auctions")
    lines = pipeline.source("lines", Files(str(tmp_path / "names.txt"), bounded=False))
    lines.key_by("line").aggregate("count_bids", n=agg.count()).sink("results", FilesTable())
    job = a_running_job(pipeline)
    take_checkpoint_without_state(job)

    assert trigger(job) == NotTriggered(
        reason=None, message="no new records since the last checkpoint"
    )
    assert trigger_one(job, is_periodic=False).records == 0


def take_checkpoint_without_state(job: Job) -> None:
    plan = trigger_one(job)
    acknowledge(job, plan, writes_state=False)
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)


def test_the_last_epoch_of_a_bounded_source_finishes_the_job() -> None:
    job = a_running_job(a_pipeline(events=15))
    take_checkpoint(job)
    assert job.state().status is JobStatus.RUNNING

    last = take_checkpoint(job)

    assert job.metadata(last).drains
    assert job.state().status is JobStatus.FINISHED
    assert published_records(job) == list(range(15))


def test_finalizing_without_an_ack_names_the_subtask() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan, "count_bids")
    acknowledge(job, plan, "rank_bids", only=[0])

    with pytest.raises(StageFailed, match=r"^checkpoint 1 lacks the acks of rank_bids/1$"):
        finalize(job, ONE)
    assert job.state().pending_checkpoint(ONE) is not None


def test_an_ack_of_an_earlier_attempt_does_not_complete_the_checkpoint() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    retry(job, "rank_bids", 2)
    acknowledge(job, plan, "rank_bids", attempt=2, only=[1])

    with pytest.raises(StageFailed, match=r"lacks the acks of rank_bids/0$"):
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


class DiscardedMeanwhile(InMemoryStore):
    """Between a listing and the read that follows, somebody aborts the checkpoint."""

    def get(self, key: str) -> bytes | None:
        self.delete([key])
        return super().get(key)


def test_an_abort_while_the_acks_are_read_fences_and_is_no_violation() -> None:
    job = a_running_job()
    (ack, *_) = acknowledge(job, trigger_one(job))
    answers = AnswerStore(DiscardedMeanwhile(), job.paths)
    answers.write_ack(ack)

    with pytest.raises(FencedError, match=r"0.1 was listed and is gone: its checkpoint ended"):
        answers.acks(ONE)


def test_an_unknown_checkpoint_is_fenced_and_not_an_error() -> None:
    job = a_running_job()

    for act in (finalize, commit):
        with pytest.raises(FencedError, match="checkpoint 7 is neither pending nor retained"):
            act(job, CheckpointId(7))


def test_aborting_deletes_exactly_its_own_files_and_the_plan_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=1))
    take_checkpoint(job)
    before = keys_of(job)
    plan = trigger_one(job)
    acknowledge(job, plan)
    journal = [key for key in keys_of(job) if "/journal/" in key]
    deleted: list[list[str]] = []
    delete = job.store.delete
    monkeypatch.setattr(
        job.store, "delete", lambda keys: (deleted.append([*keys]), delete(deleted[-1]))
    )

    state = fail_checkpoint(job, plan.checkpoint_id, EXPIRED, "too slow")

    left = [key for key in keys_of(job) if "/journal/" not in key]
    assert left == [key for key in before if "/journal/" not in key]
    assert len(keys_of(job, "auctions/journal/")) == len(journal) + 1
    assert deleted[-1] == [job.paths.plan(2)]
    assert job.paths.plan(2) not in deleted[0]
    assert (state.status, state.base) == (JobStatus.RUNNING, 1)
    assert [f.message for f in state.failed] == ["too slow"]


def test_a_table_that_an_aborted_checkpoint_pinned_is_deleted_too(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ann\nbob\n")
    pipeline = Pipeline("auctions")
    names = pipeline.source("names", Files(str(tmp_path / "names.txt")), table=True)
    lines = pipeline.source("lines", Files(str(tmp_path / "names.txt")))
    lines.lookup("known", names, on="line").sink("results", FilesTable())
    job = a_running_job(pipeline)
    table = trigger_one(job).source("names").table
    assert table is not None
    assert table.key in keys_of(job)

    fail_checkpoint(job, ONE, EXPIRED, "too slow")

    assert table.key not in keys_of(job)


def test_aborting_twice_aborts_once() -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=9))
    trigger_one(job)
    first = fail_checkpoint(job, ONE, EXPIRED, "first")

    second = fail_checkpoint(job, ONE, Reason.TASK_FAILURE, "second", is_task_failure=True)

    assert second == first
    assert [(f.reason, f.message) for f in second.failed] == [(EXPIRED, "first")]


def test_a_commit_whose_task_died_is_replayed_before_the_next_trigger() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    finalize(job, ONE)

    second = trigger_one(job)

    assert published_records(job) == list(range(10))
    assert job.state().completed[0].is_committed
    assert second.parent == 1


def test_the_id_of_a_dead_coordinators_plan_is_skipped_and_never_reused() -> None:
    job = a_running_job()
    first = trigger_one(job)
    dead = orphan(job, first, 2)
    acknowledge(job, first)
    finalize(job, ONE)
    commit(job, ONE)

    third = trigger_one(job)

    assert third.checkpoint_id == 3
    assert job.plan(CheckpointId(2)) == dead
    late = job.journal.append(
        lambda state: CheckpointTriggered(generation=state.generation, plan=dead)
    )
    assert late.verdict is Verdict.REFUSED
    acknowledge(job, third)
    finalize(job, third.checkpoint_id)
    commit(job, third.checkpoint_id)
    assert trigger_one(job).checkpoint_id == 4


def test_a_subsumed_checkpoints_own_files_go_and_shared_ones_stay() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    first = take_checkpoint(job)
    shared = {handle.key for handle in job.metadata(first).files}

    second = take_checkpoint(job)

    keys = set(keys_of(job))
    assert ids_of(job.state().completed) == [second]
    assert not [key for key in keys if key.startswith(job.paths.checkpoint(first))]
    assert not [key for key in keys if key.startswith(job.paths.streams("count_bids", first))]
    assert shared <= keys  # The second continues them.
    assert published_records(job) == list(range(20))
    assert state_records(job, job.metadata(second), "count_bids") == list(range(20))


def test_a_subsumed_checkpoints_files_go_when_no_retained_one_names_them() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    first = take_checkpoint(job)
    own = {handle.key for handle in job.metadata(first).files}
    plan = trigger_one(job)
    compacted = [replace(ack, state=ack.state[-1:]) for ack in snapshots(job, plan)]

    for ack in compacted:
        job.answers.write_ack(ack)
    finalize(job, plan.checkpoint_id)

    assert own
    assert not own & set(keys_of(job))


def snapshots(job: Job, plan: CheckpointPlan) -> list[Ack]:
    """What the subtasks would acknowledge, without the acks."""
    acks = acknowledge(job, plan)
    job.store.delete(keys_of(job, job.paths.acks(plan.checkpoint_id)))
    return acks


def test_submitting_a_running_job_is_refused_with_the_fix() -> None:
    job = a_running_job()

    with pytest.raises(ConfigurationError, match=r"'auctions' is RUNNING.*sluice cancel auctions"):
        submit(job, configure(job.pipeline, {}))


def test_a_savepoint_of_a_used_name_does_not_pretend_to_have_been_written() -> None:
    job = a_running_job()
    take_checkpoint(job, type=CheckpointType.SAVEPOINT, savepoint_name="mine")

    with pytest.raises(ConfigurationError, match="savepoint 'mine' exists"):
        take_checkpoint(job, type=CheckpointType.SAVEPOINT, savepoint_name="mine")


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
