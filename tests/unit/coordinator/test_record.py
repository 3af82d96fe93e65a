"""The files that are deleted when a checkpoint is aborted or subsumed, or the job ends.

Merged state is kept as long as it can be taken over or is named, and swept after that.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.hooked import hooked
from harness.jobs import (
    ONE,
    STAGES,
    TWO,
    ManualClock,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    results,
    trigger_one,
)
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, start_attempt, watch
from sluice.coordinator.garbage import Orphans, Reason, collect_garbage, find_orphans
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target, stop
from sluice.coordinator.savepoints import savepoint_names
from sluice.coordinator.submission import configure, submit
from sluice.core.answers import TaskFailure
from sluice.core.compaction import Compaction, MergedRuns, replaced_segment
from sluice.core.configuration import CheckpointType, JobStatus, Retention
from sluice.core.failures import CheckpointFailureReason
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.restoring import Choice, Latest
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ProtocolViolation, RestoreError
from sluice.job.answers import acks_of
from sluice.job.job import Job
from sluice.job.lineage import compactions_of, record_compaction
from sluice.protocol.records import checksum
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.state.segments import encode_segment
from sluice.store.object_store import CreateResult, ObjectStore
from tests.builders import ids_of
from tests.subtasks import (
    a_savepoint,
    acknowledge,
    complete_one,
    finish,
    handle_records,
    state_records,
    table_of,
    take_checkpoint,
    take_checkpoints,
)

EXPIRED = CheckpointFailureReason.CHECKPOINT_EXPIRED
ON_CANCELLATION, ON_FAILURE, NEVER = (
    Retention.RETAIN_ON_CANCELLATION,
    Retention.RETAIN_ON_FAILURE,
    Retention.NEVER_RETAIN_AFTER_TERMINATION,
)


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

    def note_and_delete(keys: Iterable[str]) -> None:
        deleted.append([*keys])
        delete(deleted[-1])

    monkeypatch.setattr(job.store, "delete", note_and_delete)

    state = fail_checkpoint(job, plan.checkpoint_id, EXPIRED, "too slow")

    left = [key for key in keys_of(job) if "/journal/" not in key]
    kept = [job.paths.statistics(2)]
    assert left == sorted([*kept, *(key for key in before if "/journal/" not in key)])
    assert len(keys_of(job, job.paths.journal())) == len(journal) + 1
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

    second = fail_checkpoint(
        job, ONE, CheckpointFailureReason.TASK_FAILURE, "second", is_task_failure=True
    )

    assert second == first
    assert [(f.reason, f.message) for f in second.failed] == [(EXPIRED, "first")]


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_subsumed_checkpoint_leaves_at_most_what_its_failed_tasks_said(attempts: int) -> None:
    """It is found by a LIST where a stage was repeated, and by the garbage collector elsewhere."""
    job = a_running_job(a_pipeline(num_retained=1))
    plan = trigger_one(job)
    said = TaskFailure(checkpoint_id=ONE, task="finalize", attempt=1, message="no answer")
    job.answers.keep_failure(said)
    if attempts > 1:
        start_attempt(job, ONE, "count_bids")
    acknowledge(job, plan, "count_bids", attempt=attempts)
    acknowledge(job, plan, "rank_bids", attempt=attempts)
    finish(job, ONE)

    take_checkpoint(job)

    left = keys_of(job, job.paths.checkpoint(ONE))
    assert left == ([job.paths.failure(ONE, "finalize", 1)] if attempts == 1 else [])
    collect_garbage(job, grace_ms=0)
    assert keys_of(job, job.paths.checkpoint(ONE)) == []


def test_a_subsumed_checkpoints_own_files_go_and_shared_ones_stay() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    first = take_checkpoint(job)
    shared = {handle.key for handle in job.metadata(first).files}

    second = take_checkpoint(job)

    keys = set(keys_of(job))
    assert ids_of(job.state().completed) == [second]
    assert job.state().discarding == ()
    assert not [key for key in keys if key.startswith(job.paths.checkpoint(first))]
    assert not [key for key in keys if key.startswith(job.paths.streams("count_bids", first))]
    assert shared <= keys  # The second continues them.
    assert published_records(job) == list(range(20))
    assert state_records(job, job.metadata(second), "count_bids") == list(range(20))


def test_a_subsumed_checkpoints_files_go_when_no_retained_one_names_them() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    first = take_checkpoint(job)
    own = {handle.key for handle in job.metadata(first).files}
    acknowledge(job, trigger_one(job), compacts=True)
    finalize(job, TWO)
    assert own <= set(keys_of(job))  # Its successor may still have to be taken from it.

    commit(job, TWO)

    assert own
    assert not own & set(keys_of(job))
    assert state_records(job, job.metadata(TWO), "rank_bids") == list(range(20))


def damage(job: Job, checkpoint_id: CheckpointId) -> None:
    job.store.put(job.paths.metadata(checkpoint_id), b"not what it was")


def lose(job: Job, checkpoint_id: CheckpointId) -> None:
    job.store.delete([job.paths.metadata(checkpoint_id)])


@pytest.mark.parametrize("harm", [damage, lose])
def test_an_unreadable_retained_checkpoint_keeps_every_file_and_does_not_stop_the_job(
    harm: Callable[[Job, CheckpointId], None], caplog: pytest.LogCaptureFixture
) -> None:
    job = a_running_job(a_pipeline(num_retained=2))
    take_checkpoints(job, 2)
    before = {key for key in keys_of(job) if "/journal/" not in key}
    harm(job, ONE)
    plan = trigger_one(job)
    acknowledge(job, plan, compacts=True)
    finalize(job, plan.checkpoint_id)
    harm(job, TWO)  # Retained, and read before anything is deleted.

    commit(job, plan.checkpoint_id)

    lost = {job.paths.metadata(ONE), job.paths.metadata(TWO)}
    assert before - lost <= set(keys_of(job))
    assert "nothing was discarded" in caplog.text
    assert job.state().discarding == ()
    assert take_checkpoint(job) == 4
    assert published_records(job) == list(range(40))


def test_what_a_commit_that_died_did_not_delete_is_deleted_by_the_next() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    take_checkpoint(job)
    complete_one(job)
    assert ids_of(job.state().discarding) == [1]

    third = trigger_one(job)

    assert job.state().discarding == ()
    assert not keys_of(job, job.paths.checkpoint(ONE))
    assert third.parent == 2


def test_cancelling_aborts_what_is_pending_and_keeps_what_retention_keeps() -> None:
    job = a_running_job()
    take_checkpoint(job)
    trigger_one(job)

    state = stop(job, JobStatus.CANCELED)

    assert (state.status, state.pending, ids_of(state.completed)) == (JobStatus.CANCELED, (), [1])
    assert not keys_of(job, job.paths.checkpoint(TWO))
    assert restore(job, Latest()).checkpoint_id == 1


def cancel(job: Job) -> None:
    stop(job, JobStatus.CANCELED)


def suspend(job: Job) -> None:
    stop(job, JobStatus.SUSPENDED)


def fail(job: Job) -> None:
    plan = trigger_one(job)
    fail_checkpoint(
        job, plan.checkpoint_id, CheckpointFailureReason.TASK_FAILURE, "lost", is_task_failure=True
    )


def drain(job: Job) -> None:
    take_checkpoint(job, type=CheckpointType.SAVEPOINT_TERMINATE, is_periodic=False)


@pytest.mark.parametrize(
    ("retention", "end", "kept"),
    [
        (ON_CANCELLATION, cancel, [1, 2, 3]),
        (ON_CANCELLATION, suspend, [1, 2, 3]),
        (ON_CANCELLATION, fail, [1, 2, 3]),
        (ON_CANCELLATION, drain, [2, 4]),
        (ON_FAILURE, cancel, [2]),
        (ON_FAILURE, suspend, [1, 2, 3]),
        (ON_FAILURE, fail, [1, 2, 3]),
        (ON_FAILURE, drain, [2, 4]),
        (NEVER, cancel, [2]),
        (NEVER, suspend, [1, 2, 3]),
        (NEVER, fail, [2]),
        (NEVER, drain, [2, 4]),
    ],
)
def test_the_end_of_the_job_applies_the_discard_matrix(
    retention: Retention, end: Callable[[Job], None], kept: list[int]
) -> None:
    """Checkpoints 1 and 3, and savepoint 2, which is its owner's."""
    job = a_running_job(
        a_pipeline(
            externalized_checkpoint_retention=retention,
            restart_strategy=RestartStrategy(type=RestartType.NONE),
        )
    )
    take_checkpoint(job)
    a_savepoint(job)
    take_checkpoint(job)

    end(job)

    state = job.state()
    assert state.discarding == ()
    assert ids_of(state.completed) == kept
    for checkpoint_id in (1, 3):
        left = keys_of(job, job.paths.checkpoint(checkpoint_id))
        assert bool(left) == (checkpoint_id in kept)
    assert savepoint_names(job) == ["mine"]
    assert restore(job, savepoint_target(job, "mine")).checkpoint_id == 2


def test_a_job_that_retains_none_leaves_nothing_and_says_so_when_it_is_restored() -> None:
    job = a_running_job(a_pipeline(externalized_checkpoint_retention=NEVER))
    take_checkpoints(job, 2)

    stop(job, JobStatus.CANCELED)

    for kind in ("checkpoints", "shared", "streams"):
        assert keys_of(job, f"{job.paths.folder}{kind}/") == []
    assert published_records(job) == list(range(20))
    with pytest.raises(RestoreError, match=r"is CANCELED, and its checkpoints were deleted when"):
        restore(job, Latest())
    with pytest.raises(RestoreError, match="checkpoint 1 is not retained; retained are: none"):
        restore(job, Choice(ONE))


def test_an_end_whose_coordinator_died_is_cleaned_up_by_the_watchdog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(externalized_checkpoint_retention=NEVER))
    take_checkpoint(job)
    with monkeypatch.context() as patch:
        patch.setattr("sluice.coordinator.record.clean_up", lambda *_: None)
        stop(job, JobStatus.CANCELED)
    assert keys_of(job, job.paths.checkpoint(ONE))

    watched = watch(job)

    assert watched.actions == ("deleted what 1 subsumed checkpoints left",)
    assert not keys_of(job, job.paths.checkpoint(ONE))


def test_checkpoints_stay_for_a_time_and_their_files_with_them() -> None:
    clock = ManualClock()
    hour = timedelta(hours=1)
    job = a_running_job(a_pipeline(num_retained=1, retain_for=hour), clock=clock)
    for _ in range(4):
        take_checkpoint(job)
        clock.advance(hour // timedelta(milliseconds=1) // 2)

    retained = [int(one.checkpoint_id) for one in job.state().completed]

    assert retained == [3, 4]
    assert not keys_of(job, job.paths.checkpoint(2))
    restore(job, Choice(CheckpointId(3)))
    assert take_checkpoint(job) == 5
    assert published_records(job) == list(range(40))


STAGE = STAGES[0]
SAVEPOINT = CheckpointType.SAVEPOINT
NOTHING = Orphans()


def state_of(job: Job, checkpoint_id: CheckpointId) -> tuple[StateHandle, ...]:
    stage = job.metadata(checkpoint_id).stage(STAGE)
    assert stage is not None
    return stage.subtasks[0].state


def a_compaction_behind(job: Job, checkpoint_id: CheckpointId, name: str = "merged") -> Compaction:
    """Of all that subtask 0 has there; its file and its record are in the bucket."""
    handles = state_of(job, checkpoint_id)
    key = job.paths.compacted_segment(STAGE, checkpoint_id, name)
    job.store.put(key, b"rows")
    merged = StateHandle(segment=SegmentHandle(key=key, size_bytes=4, rows=1, checksum="c"))
    compaction = Compaction(
        stage=STAGE,
        checkpoint_id=checkpoint_id,
        merged=(MergedRuns(replaced=tuple(map(replaced_segment, handles)), merged=(merged,)),),
    )
    record_compaction(job, compaction)
    return compaction


def merge_for_real(job: Job, checkpoint_id: CheckpointId) -> None:
    """All runs of every subtask as one, as the Spark job behind the acks would."""
    stage = job.metadata(checkpoint_id).stage(STAGE)
    assert stage is not None
    merged = []
    for subtask in stage.subtasks:
        rows = [row for handle in subtask.state for row in handle_records(job, handle)]
        body = encode_segment(table_of(rows))
        key = job.paths.compacted_segment(STAGE, checkpoint_id, checksum(body))
        job.store.put(key, body)
        segment = SegmentHandle(
            key=key, size_bytes=len(body), rows=len(rows), checksum=checksum(body)
        )
        whole = replace(subtask.state[-1], segment=segment)
        replaced = tuple(map(replaced_segment, subtask.state))
        merged.append(MergedRuns(replaced=replaced, merged=(whole,)))
    compaction = Compaction(stage=STAGE, checkpoint_id=checkpoint_id, merged=tuple(merged))
    assert record_compaction(job, compaction)


def savepoint(job: Job, name: str, **behaviour: Any) -> CheckpointId:
    plan = trigger_one(job, type=SAVEPOINT, savepoint_name=name, is_periodic=False)
    acknowledge(job, plan, **behaviour)
    finish(job, plan.checkpoint_id)
    return plan.checkpoint_id


def test_records_are_found_oldest_first_and_only_the_first_of_a_checkpoint_counts() -> None:
    job = a_running_job()
    one = a_compaction_behind(job, take_checkpoint(job))
    two = a_compaction_behind(job, take_checkpoint(job))

    is_ours = record_compaction(
        job, Compaction(stage=STAGE, checkpoint_id=CheckpointId(1), merged=())
    )

    assert not is_ours
    assert compactions_of(job, STAGE) == [one, two]
    assert compactions_of(job, STAGES[1]) == []


def test_what_can_still_be_taken_over_is_no_garbage() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    a_compaction_behind(job, take_checkpoint(job))
    take_checkpoint(job)  # It inherits what the compaction replaces; its own parent is gone.

    assert find_orphans(job, grace_ms=0) == NOTHING


def test_what_nobody_can_take_over_any_more_is_swept_with_its_record() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    a_compaction_behind(job, take_checkpoint(job))
    plan = trigger_one(job)
    for stage in STAGES:
        acknowledge(job, plan, stage, compacts=True)  # In the epoch itself, so it was faster.
    finish(job, plan.checkpoint_id)

    swept = collect_garbage(job, grace_ms=0)

    assert {orphan.reason for orphan in swept.files} == {Reason.COMPACTION}
    assert len(swept.files) == 2
    assert keys_of(job, job.paths.all_compactions()) == []


def test_what_a_pending_checkpoint_may_bring_back_is_no_garbage() -> None:
    """Its stage runs again, and writes the same under the same name: that was merged behind 3."""
    job = a_running_job(a_pipeline(max_concurrent_checkpoints=2, tolerable_failed_checkpoints=9))
    take_checkpoint(job)
    pending, later = trigger_one(job), trigger_one(job)
    acknowledge(job, pending, STAGE)
    acknowledge(job, later, STAGE)
    acks = acks_of(job, job.state(), later.checkpoint_id)(STAGE)
    runs = tuple(replaced_segment(handle) for handle in next(iter(acks)).state)
    key = job.paths.compacted_segment(STAGE, later.checkpoint_id, "merged")
    job.store.put(key, b"rows")
    merged = StateHandle(segment=SegmentHandle(key=key, size_bytes=4, rows=1, checksum="c"))
    merges = (MergedRuns(replaced=runs, merged=(merged,)),)
    record_compaction(
        job, Compaction(stage=STAGE, checkpoint_id=later.checkpoint_id, merged=merges)
    )
    fail_checkpoint(job, later.checkpoint_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, "slow")

    assert collect_garbage(job, grace_ms=0) == NOTHING
    assert job.store.get(key) == b"rows"

    fail_checkpoint(job, pending.checkpoint_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, "slow")
    assert key in [orphan.key for orphan in collect_garbage(job, grace_ms=0).files]


def test_merged_state_that_was_swept_before_its_record_came_is_never_handed_out() -> None:
    """The compaction slept between the upload and the record."""
    job = a_running_job()
    checkpoint_id = take_checkpoint(job)
    late = a_compaction_behind(job, checkpoint_id)
    job.store.delete([job.paths.compaction(STAGE, checkpoint_id)])

    swept = collect_garbage(job, grace_ms=0)

    assert [orphan.key for orphan in swept.files] == [late.files[0].key]
    assert not record_compaction(job, late)
    assert compactions_of(job, STAGE) == [
        Compaction(stage=STAGE, checkpoint_id=checkpoint_id, merged=())
    ]
    assert collect_garbage(job, grace_ms=0) == NOTHING
    take_checkpoint(job)


def test_merged_state_whose_record_comes_between_look_and_sweep_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job()
    checkpoint_id = take_checkpoint(job)
    twin = job.paths.compacted_segment(STAGE, checkpoint_id, "of-a-slower-attempt")
    job.store.put(twin, b"rows")
    create = type(job.store).create

    def late(self: ObjectStore, key: str, body: bytes) -> CreateResult:
        monkeypatch.undo()
        a_compaction_behind(job, checkpoint_id)
        return create(self, key, body)

    monkeypatch.setattr(type(job.store), "create", late)
    key = job.paths.compacted_segment(STAGE, checkpoint_id, "merged")
    job.store.put(key, b"rows")
    swept = collect_garbage(job, grace_ms=0)

    assert [orphan.key for orphan in swept.files] == [twin]
    assert job.store.get(key) == b"rows"
    assert collect_garbage(job, grace_ms=0) == NOTHING


def test_the_abort_of_the_checkpoint_behind_which_it_ran_takes_nothing_away() -> None:
    job = a_running_job()
    compacted = take_checkpoint(job)
    compaction = a_compaction_behind(job, compacted)
    plan = trigger_one(job)

    fail_checkpoint(job, plan.checkpoint_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, "late")

    assert compactions_of(job, STAGE) == [compaction]
    assert all(job.store.get(segment.key) for segment in compaction.files)


@pytest.mark.parametrize("merged_again", [False, True])
def test_subsuming_leaves_what_a_retained_checkpoint_can_still_take_over(
    merged_again: bool,
) -> None:
    """Savepoints leave the store before the checkpoint that they continue, with what they took
    over; who is restored to that checkpoint takes it over again.
    """
    job = a_running_job(a_pipeline(max_records_per_epoch=10, num_retained=1, stages=(STAGE,)))
    take_checkpoint(job)
    real = take_checkpoint(job)
    merge_for_real(job, real)
    subsumed = savepoint(job, "merged", takes_over=True, writes_state=not merged_again)
    if merged_again:  # The merged run itself: that is taken over in two steps.
        merge_for_real(job, subsumed)
        savepoint(job, "twice", takes_over=True, writes_state=False)
    savepoint(job, "canonical", compacts=True)
    restore(job, Choice(real))

    collect_garbage(job, grace_ms=0)
    plan = trigger_one(job)
    acknowledge(job, plan, takes_over=True)
    after = finalize(job, plan.checkpoint_id).checkpoint_id

    assert state_records(job, job.metadata(after), STAGE) == list(range(30))


def test_a_record_that_cannot_be_read_stops_the_collector() -> None:
    job = a_running_job()
    compacted = take_checkpoint(job)
    job.store.put(job.paths.compaction(STAGE, compacted), b"not a record")

    with pytest.raises(ProtocolViolation, match="no garbage was collected"):
        collect_garbage(job, grace_ms=0)


def test_an_abort_that_overslept_an_emptied_root_leaves_what_the_next_life_staged() -> None:
    """Both stage in a table that no root has, and the numbers of checkpoints begin anew."""
    job = a_running_job(a_pipeline(location=f"memory://{secrets.token_hex(6)}"))
    acknowledge(job, trigger_one(job))
    begun: list[Job] = []

    def before(verb: str, key: str) -> None:
        if verb == "list" and key == job.paths.streams(STAGES[0], ONE) and not begun:
            job.store.delete(keys_of(job))
            begun.append(job.anew())
            submit(begun[0], configure(job.pipeline, {}))
            acknowledge(begun[0], trigger_one(begun[0]))

    fail_checkpoint(hooked(job, before), ONE, EXPIRED, "late")

    (anew,) = begun
    finalize(anew, ONE)
    commit(anew, ONE)
    assert published_records(anew) == list(range(10))
    assert results(anew).unpublished().staged == ()
