"""Bytes that are not those that were written: found by verify, by savepoints, and by a restart.

A commit that is owed, and can never be made as its rows are damaged, ends in a restart, not a loop.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.jobs import (
    ManualClock,
    a_job,
    a_pipeline,
    a_running_job,
    published_records,
    trigger_one,
)
from harness.noted_target import NotedTable
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, watch
from sluice.coordinator.publication import commit
from sluice.coordinator.record import record
from sluice.coordinator.restore import RestoredJob, restore, savepoint_target
from sluice.coordinator.restore_plan import give_up, plan_restore
from sluice.coordinator.savepoints import copy_savepoint, savepoint_names
from sluice.coordinator.tables import writer_of
from sluice.coordinator.trigger import NotRunning, trigger
from sluice.core.configuration import CheckpointType, DamagedCheckpoint, JobConfiguration, JobStatus
from sluice.core.events import JobFailed, JobRestored
from sluice.core.failures import CheckpointFailureReason
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Choice, Latest, RestoreApproval, RestoreOptions, Stop
from sluice.declaration.checkpointing import no_restart
from sluice.declaration.places import RollBack
from sluice.errors import (
    CorruptSegment,
    ProtocolViolation,
    RestoreError,
    SluiceError,
    StoreUnavailable,
)
from sluice.job.job import Job
from sluice.job.places import open_sinks
from sluice.protocol.records import checksum
from sluice.sinks import FilesTable
from sluice.state.cache import SegmentCache
from tests.subtasks import (
    a_savepoint,
    acknowledge,
    complete_one,
    state_records,
    take_checkpoint,
    take_checkpoints,
)

UNCOMPARED = RestoreOptions(compare_checksums=False)
LATER_MS = 100_000


def flip(job: Job, key: str) -> None:
    """One bit, in the middle: the size stays."""
    raw = bytearray(job.store.get(key) or b"")
    raw[len(raw) // 2] ^= 1
    job.store.put(key, bytes(raw))


def damage(job: Job, checkpoint_id: CheckpointId) -> SegmentHandle:
    """A file that this checkpoint added, so that those before it are whole."""
    mine = [
        handle
        for handle in job.metadata(checkpoint_id).files
        if job.paths.checkpoint_of(handle.key) == checkpoint_id
    ]
    flip(job, mine[0].key)
    return mine[0]


def fail_over(job: Job) -> None:
    """An epoch fails, as it does that meets the damage."""
    plan = trigger_one(job)
    failure = CheckpointFailureReason.TASK_FAILURE
    fail_checkpoint(job, plan.checkpoint_id, failure, "corrupt", is_task_failure=True)


def restart(job: Job) -> RestoredJob:
    return restore(job, Latest(), only_generation=job.state().generation)


def a_job_of(policy: DamagedCheckpoint, checkpoints: int = 3, **given: Any) -> Job:
    job = a_running_job(a_pipeline(on_damaged_checkpoint=policy, **given), clock=ManualClock())
    take_checkpoints(job, checkpoints)
    return job


def test_a_dry_run_reads_what_it_promises() -> None:
    job = a_job_of(DamagedCheckpoint.STOP)
    whole = plan_restore(job, Latest())
    damaged = damage(job, CheckpointId(3))

    found = plan_restore(job, Latest())
    by_size = plan_restore(job, Latest(), UNCOMPARED)

    assert isinstance(whole, RestoreApproval)
    assert whole.is_compared
    now = checksum(job.store.get(damaged.key) or b"")
    problem = (
        f"{damaged.key} is damaged: checksum {damaged.checksum} was recorded, its "
        f"{damaged.size_bytes} bytes have {now}"
    )
    assert found == Stop(problems=(problem,), is_damaged=True)
    assert isinstance(by_size, RestoreApproval)
    assert not by_size.is_compared
    with pytest.raises(RestoreError, match="is damaged: checksum"):
        restore(job, Latest())
    assert restore(job, Latest(), UNCOMPARED).checkpoint_id == 3


def test_whichever_byte_of_a_checkpoint_is_another_its_file_is_named() -> None:
    """``_metadata``, a segment, and rows that are staged while their commit is owed."""
    job = a_job_of(DamagedCheckpoint.STOP, 1, sink=NotedTable())
    complete_one(job)
    metadata = job.metadata(CheckpointId(2))
    staged = metadata.committables[0].file
    keys = [
        job.paths.metadata(2),
        metadata.files[0].key,
        *(listed.key for listed in job.store.list("") if listed.key.endswith(staged)),
    ]
    assert len(keys) == 3

    for key in keys:
        body = job.store.get(key)
        assert body is not None
        for position in range(0, len(body), max(1, len(body) // 40)):
            job.store.put(key, body[:position] + bytes([body[position] ^ 1]) + body[position + 1 :])

            found = plan_restore(job, Latest())

            assert isinstance(found, Stop), (key, position)
            assert found.is_damaged
            assert len(found.problems) == 1
            assert key in found.problems[0]
        job.store.put(key, body)
    assert isinstance(plan_restore(job, Latest()), RestoreApproval)


def test_an_unreadable_metadata_stops_a_restore_with_its_name() -> None:
    job = a_job_of(DamagedCheckpoint.STOP)
    key = job.paths.metadata(3)
    job.store.put(key, (job.store.get(key) or b"")[:-9])

    found = plan_restore(job, Latest())

    assert isinstance(found, Stop)
    assert found.is_damaged
    assert found.problems[0].startswith(f"{key} cannot be read as ")


def test_a_savepoint_of_damaged_state_fails_before_it_is_true() -> None:
    job = a_job_of(DamagedCheckpoint.STOP)
    plan = trigger_one(job, type=CheckpointType.SAVEPOINT, savepoint_name="mine", is_periodic=False)
    acks = acknowledge(job, plan)
    flip(job, next(h.segment.key for ack in acks for h in ack.state if h.segment.key))

    with pytest.raises(CorruptSegment, match=r"is damaged: .* savepoint 'mine' cannot be comp"):
        finalize(job, plan.checkpoint_id)

    assert job.state().pending_checkpoint(plan.checkpoint_id) is not None
    assert savepoint_names(job) == []


def test_a_savepoint_is_whole_whatever_becomes_of_the_job_before_its_commit() -> None:
    job = a_job_of(DamagedCheckpoint.STOP)
    plan = complete_one(
        job, type=CheckpointType.SAVEPOINT, savepoint_name="mine", is_periodic=False
    )
    damage(job, plan.checkpoint_id)

    commit(job, plan.checkpoint_id)

    target = savepoint_target(job, "mine")
    assert isinstance(
        plan_restore(job, target, RestoreOptions(accept_tables=True)), RestoreApproval
    )


def test_a_damaged_savepoint_is_not_copied(tmp_path: Path) -> None:
    job = a_job_of(DamagedCheckpoint.STOP)
    a_savepoint(job, "mine")
    flip(job, job.savepoint_metadata("mine").files[0].key)

    backups = a_job(root=f"file://{tmp_path}/backups")
    with pytest.raises(CorruptSegment, match="savepoint 'mine' cannot be completed"):
        copy_savepoint(job, "mine", backups.location.root)

    with pytest.raises(RestoreError, match="there is no savepoint 'mine'"):
        savepoint_target(backups, "mine")


def test_a_local_copy_does_not_hide_that_a_file_is_damaged(tmp_path: Path) -> None:
    """A copy of a savepoint's file is made from the savepoint, and not from the cache."""
    job = a_job_of(DamagedCheckpoint.STOP)
    handle = job.metadata(CheckpointId(3)).files[0]
    cache = SegmentCache(job.location, job.store, folder=tmp_path / "cache")
    cache.open(handle)
    flip(job, handle.key)

    assert cache.open(handle).num_rows == handle.rows
    with pytest.raises(CorruptSegment, match=f"segment {handle.key} is corrupt"):
        cache.read(handle)


def test_the_first_restart_looks_at_names_and_sizes_alone() -> None:
    """Most failures are not the state's: reading all of it would make each of them longer."""
    job = a_job_of(DamagedCheckpoint.STOP)
    damage(job, CheckpointId(3))
    fail_over(job)

    assert restart(job).checkpoint_id == 3
    assert job.state().restores_of_base == 1


def test_a_job_that_keeps_failing_is_stopped_and_told_where_it_can_go_on() -> None:
    job = a_job_of(DamagedCheckpoint.STOP)
    damaged = damage(job, CheckpointId(3))
    fail_over(job)
    restart(job)
    fail_over(job)

    with pytest.raises(RestoreError, match="the job is FAILED: checkpoint 3 cannot be restored"):
        restart(job)

    state = job.state()
    assert state.status is JobStatus.FAILED
    assert f"{damaged.key} is damaged" in state.stopped_because
    assert state.stopped_because.endswith(
        "checkpoint 2 is whole: 'sluice restore auctions --checkpoint 2 --roll-back-tables' goes "
        "back to it"
    )
    outcome = trigger(job)
    assert isinstance(outcome, NotRunning)
    assert outcome.message == f"the job is FAILED: {state.stopped_because}"
    back = restore(job, Choice(CheckpointId(2)), RestoreOptions(roll_back_tables=True))
    assert back.state.stopped_because == ""
    take_checkpoint(job)
    assert published_records(job) == list(range(30))


def test_configured_so_it_goes_on_from_the_next_older_one_that_is_whole() -> None:
    job = a_job_of(DamagedCheckpoint.OLDER)
    damage(job, CheckpointId(3))
    damaged = damage(job, CheckpointId(2))
    fail_over(job)
    restart(job)
    fail_over(job)

    restored = restart(job)

    assert (restored.checkpoint_id, restored.passed_over) == (1, (3, 2))
    assert restored.named == "checkpoint 1, past damaged checkpoint 3, past damaged checkpoint 2"
    event = [*job.journal.entries(100)][-1].event
    journaled = next(e.event for e in job.journal.entries(100)
                     if isinstance(e.event, JobRestored) and e.event.passed_over)  # fmt: skip
    assert event is not None
    assert journaled.passed_over == (3, 2)
    assert "checkpoint 3 cannot be restored: " in journaled.message
    assert f"checkpoint 2 cannot be restored: {damaged.key} is damaged" in journaled.message
    assert published_records(job) == list(range(10)), "the table went back with the job"
    assert state_records(job, job.metadata(take_checkpoint(job)), "count_bids") == [*range(20)]
    assert published_records(job) == list(range(20))


def test_it_goes_back_along_what_the_job_continued_and_not_to_what_it_left_behind() -> None:
    job = a_job_of(DamagedCheckpoint.OLDER, num_retained=9)
    restore(job, Choice(CheckpointId(1)), RestoreOptions(roll_back_tables=True))
    newest = take_checkpoint(job)
    damage(job, newest)
    fail_over(job)
    restart(job)
    fail_over(job)

    assert restart(job).checkpoint_id == 1


def test_a_missing_file_is_met_by_the_first_restart() -> None:
    job = a_job_of(DamagedCheckpoint.OLDER)
    handle = damage(job, CheckpointId(3))
    job.store.delete([handle.key])
    fail_over(job)

    assert restart(job).passed_over == (3,)


def test_a_table_that_cannot_go_back_stops_the_job() -> None:
    """Its rows would come twice."""
    table = NotedTable(rolls_back=RollBack.NEVER)
    job = a_job_of(DamagedCheckpoint.OLDER, sink=table)
    job.store.delete([damage(job, CheckpointId(3)).key])
    fail_over(job)

    with pytest.raises(RestoreError, match="the job is FAILED: checkpoint 3 cannot be restored"):
        restart(job)

    because = job.state().stopped_because
    assert "checkpoint 2 cannot be restored: " in because
    assert because.endswith("no older checkpoint can be restored: restore a savepoint")


def test_an_epoch_that_cannot_begin_fails_the_job_over_and_the_watchdog_stops_it() -> None:
    job = a_job_of(DamagedCheckpoint.STOP)
    key = job.paths.metadata(3)
    job.store.put(key, (job.store.get(key) or b"")[:-9])

    with pytest.raises(ProtocolViolation, match="cannot be read as"):
        trigger(job)

    assert job.state().status is JobStatus.RESTARTING
    clock = job.clock
    assert isinstance(clock, ManualClock)
    clock.advance(LATER_MS)
    actions = watch(job).actions
    assert len(actions) == 1
    assert actions[0].startswith("stopped the job for good: the job is FAILED: checkpoint 3 ")
    assert job.state().status is JobStatus.FAILED
    assert watch(job).actions == ()


def test_another_mistake_does_not_fail_the_job_over() -> None:
    """A file that a source has read is gone, a table does not agree: not the state's damage."""
    job = a_job_of(DamagedCheckpoint.OLDER)
    fail_over(job)
    undeclared = replace(job, pipeline=a_pipeline(stages=("count_bids",)))

    with pytest.raises(RestoreError, match="is not in the pipeline any more"):
        restart(undeclared)

    assert job.state().status is JobStatus.RESTARTING
    assert restart(job).checkpoint_id == 3


def test_the_policy_is_the_submissions() -> None:
    job = a_job_of(DamagedCheckpoint.OLDER, checkpoints=0)

    assert job.state().configuration.on_damaged_checkpoint is DamagedCheckpoint.OLDER
    assert JobConfiguration().on_damaged_checkpoint is DamagedCheckpoint.STOP


def an_uncommitted_job(table: FilesTable | NotedTable) -> Job:
    """Checkpoint 2 is completed; its staged files are not published."""
    job = a_running_job(a_pipeline(sink=table), clock=ManualClock())
    take_checkpoint(job)
    complete_one(job)
    return job


def spoil(job: Job, *, leaf: str = "") -> str:
    """One bit of a file that checkpoint 2 staged for the table."""
    folder = f"{job.paths.table('results')}/data/{2:020d}-"
    key = next(one.key for one in job.store.list(folder) if one.key.endswith(leaf))
    raw = bytearray(job.store.get(key) or b"")
    raw[len(raw) // 2] ^= 1
    job.store.put(key, bytes(raw))
    return key


TABLES: list[tuple[FilesTable | NotedTable, str]] = [
    (FilesTable(changelog=True), ".parquet"),
    (FilesTable(changelog=True, partition_by=("record",)), "part.parquet"),
    (FilesTable(changelog=True, partition_by=("record",)), ".parts.json"),
    (NotedTable(), ".parquet"),
]


@pytest.mark.parametrize(("table", "leaf"), TABLES, ids=["plain", "part", "list", "noted"])
def test_rows_that_are_still_to_be_published_are_compared_too(
    table: FilesTable | NotedTable, leaf: str
) -> None:
    job = an_uncommitted_job(table)
    whole = plan_restore(job, Latest())
    key = spoil(job, leaf=leaf)

    found = plan_restore(job, Latest())
    by_size = plan_restore(job, Latest(), UNCOMPARED)

    assert isinstance(whole, RestoreApproval)
    assert whole.replays_commit
    assert isinstance(found, Stop)
    assert found.is_damaged
    assert any(key in problem for problem in found.problems), found.problems
    assert isinstance(by_size, RestoreApproval)


def test_damaged_rows_are_not_handed_to_a_place_outside() -> None:
    job = an_uncommitted_job(NotedTable())
    key = spoil(job)

    with pytest.raises(ProtocolViolation, match=r"is damaged: checksum .* was recorded") as caught:
        commit(job, CheckpointId(2))

    assert key in str(caught.value)


def test_rows_that_a_place_outside_shows_already_are_not_missed() -> None:
    """What was staged is gone, and the journal was not told that it is committed."""
    table = NotedTable()
    job = an_uncommitted_job(table)
    sink = open_sinks(job, {})["results"]
    metadata = job.metadata(CheckpointId(2))
    mine = [one for one in metadata.committables if one.sink == "results"]
    sink.commit(writer_of(job.state()), 2, 1, mine)
    sink.discard_copied(mine)

    assert sink.damage_of(mine) != []
    assert isinstance(plan_restore(job, Latest()), RestoreApproval)


def a_job_that_owes(
    policy: DamagedCheckpoint, table: NotedTable | None = None, **given: Any
) -> Job:
    """Checkpoint 1 is published; 2 is completed, and its staged rows are not."""
    pipeline = a_pipeline(sink=table or NotedTable(), on_damaged_checkpoint=policy, **given)
    job = a_running_job(pipeline, clock=ManualClock())
    take_checkpoint(job)
    complete_one(job)
    return job


def staged_key(job: Job) -> str:
    name = job.metadata(CheckpointId(2)).committables[0].file
    return next(one.key for one in job.store.list("") if one.key.endswith(name))


def later(job: Job) -> None:
    clock = job.clock
    assert isinstance(clock, ManualClock)
    clock.advance(LATER_MS)


def watched(job: Job, looks: int) -> list[str]:
    said: list[str] = []
    for _ in range(looks):
        later(job)
        said += watch(job).actions
    return said


@pytest.mark.parametrize("is_gone", [False, True], ids=["other bytes", "gone"])
@pytest.mark.parametrize("what", ["staged", "metadata"])
def test_the_watchdog_goes_on_from_the_next_older_one(what: str, is_gone: bool) -> None:
    table = NotedTable()
    job = a_job_that_owes(DamagedCheckpoint.OLDER, table)
    key = staged_key(job) if what == "staged" else job.paths.metadata(2)
    if is_gone:
        job.store.delete([key])
    else:
        flip(job, key)

    said = watched(job, looks=5)

    state = job.state()
    assert (state.status, state.base) == (JobStatus.RUNNING, 1), said
    assert "restored the job from checkpoint 1, past damaged checkpoint 2" in said
    assert any(one.startswith("failed the job over: checkpoint 2 is damaged: ") for one in said)
    take_checkpoint(job)
    assert table.place.records == list(range(20))


def test_the_trigger_fails_it_over_too_and_it_stops_with_the_file_s_name() -> None:
    job = a_job_that_owes(DamagedCheckpoint.STOP)
    key = staged_key(job)
    flip(job, key)

    with pytest.raises(ProtocolViolation, match="is damaged: checksum"):
        trigger(job)
    assert job.state().status is JobStatus.RESTARTING
    watched(job, looks=4)

    state = job.state()
    assert state.status is JobStatus.FAILED
    assert key in state.stopped_because
    assert "checkpoint 1 is whole: 'sluice restore auctions --checkpoint 1" in state.stopped_because
    assert isinstance(trigger(job), NotRunning)


def test_a_job_without_a_restart_left_fails_with_the_commit_that_cannot_be_made() -> None:
    """It waited for this commit alone, and for ever (seed 2438 of the simulation)."""
    job = a_job_that_owes(DamagedCheckpoint.STOP, restart_strategy=no_restart())
    table = job.pipeline.sinks["results"].spec
    assert isinstance(table, NotedTable)
    key = staged_key(job)
    whole = job.store.get(key) or b""
    state = job.state()
    failed = JobFailed(generation=state.generation, at_ms=job.now_ms(), message="out of memory")
    record(job, lambda _: failed)
    assert job.state().status is JobStatus.FAILING
    flip(job, key)

    said = watched(job, looks=2)

    state = job.state()
    assert state.status is JobStatus.FAILED
    assert said[0].startswith("stopped the job for good: checkpoint 2 is damaged: ")
    assert key.rpartition("/")[2] in state.stopped_because
    assert state.stopped_because.endswith("; put it back, or restore an older checkpoint")
    job.store.put(key, whole)
    restore(job, Latest())
    assert table.place.records == list(range(20))


def test_a_job_that_failed_for_another_reason_publishes_what_it_owes() -> None:
    table = NotedTable()
    job = a_job_that_owes(DamagedCheckpoint.STOP, table)
    give_up(job, job.state(), "too many restarts")

    assert isinstance(trigger(job), NotRunning)

    assert table.place.records == list(range(20))
    assert job.state().status is JobStatus.FAILED


def test_a_place_that_takes_nothing_back_was_shown_nothing_of_it() -> None:
    job = a_job_that_owes(DamagedCheckpoint.OLDER, NotedTable(rolls_back=RollBack.NEVER))
    flip(job, staged_key(job))

    watched(job, looks=5)

    assert (job.state().status, job.state().base) == (JobStatus.RUNNING, 1)


def test_a_place_that_does_not_answer_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    table = NotedTable()
    job = a_job_that_owes(DamagedCheckpoint.OLDER, table)
    monkeypatch.setattr("harness.noted_target.NotedTable.publish", _is_away)

    later(job)
    for act in (trigger, watch):
        with pytest.raises(SluiceError, match="it is away"):
            act(job)

    assert job.state().status is JobStatus.RUNNING


def _is_away(*_: object) -> None:
    raise StoreUnavailable("it is away")
