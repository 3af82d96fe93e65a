"""The statistics of a job's checkpoints, on memory, on a folder, and on a real S3 server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from harness.jobs import STAGES, ManualClock, a_pipeline, keys_of, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.garbage import collect_garbage, find_orphans
from sluice.coordinator.history import DIGEST_LETTERS
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Queued, trigger
from sluice.core.answers import StoreRequests
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.errors import ConfigurationError
from sluice.figures.measuring import coordinator_state_size
from sluice.figures.overview import Counts, Restored
from sluice.figures.record import (
    TAIL,
    CheckpointAlignment,
    CheckpointDuration,
    CheckpointStats,
    CheckpointStatus,
    SubtaskStats,
    SubtaskStatus,
    TaskException,
    kept_objects,
)
from sluice.job.job import Job, open_job
from sluice.store.checkpoints import StatisticsStore
from sluice.store.open import StoreLocation
from sluice.surface.checkpoints import details, overview, stage_with_subtasks
from tests.subtasks import a_savepoint, acknowledge, carry_out, decline, take_checkpoint

EXPIRED = CheckpointFailureReason.CHECKPOINT_EXPIRED
ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)


@pytest.fixture
def job(location: StoreLocation) -> Job:
    return running(location, num_retained=1, tolerable_failed_checkpoints=9)


def running(location: StoreLocation, **checkpointing: Any) -> Job:
    job = open_job(a_pipeline(**checkpointing), location, clock=ManualClock())
    submit(job, configure(job.pipeline, {}))
    return job


def test_a_checkpoint_has_figures_of_each_subtask_also_after_it_was_subsumed(job: Job) -> None:
    take_checkpoint(job)
    take_checkpoint(job)
    assert not keys_of(job, job.paths.checkpoint(ONE))

    measured = details(job, ONE)

    assert measured.checkpoint == CheckpointStats(
        id=1,
        status=CheckpointStatus.COMPLETED,
        checkpoint_type="CHECKPOINT",
        is_savepoint=False,
        trigger_timestamp=1_000_000,
        cause="periodic",
        completed_timestamp=1_000_000,
        checkpointed_size=40,
        state_size=40,
        persisted_data=0,
        coordinator_state_size=coordinator_state_size(job.metadata(TWO)),  # Of one length.
        num_subtasks=4,
        num_acknowledged_subtasks=4,
        unaligned_checkpoint=False,
        attempts=1,
        records=10,
        rows_out=0,
        late_rows=0,
        malformed_rows=0,
        generation=1,
        declaration=details(job, TWO).checkpoint.declaration,  # Of one declaration.
    )
    assert len(measured.checkpoint.declaration or "") == DIGEST_LETTERS
    assert [(stage.id, stage.num_acknowledged_subtasks) for stage in measured.stages] == [
        (STAGES[0], 2),
        (STAGES[1], 2),
    ]
    assert measured.stages[1].alignment == CheckpointAlignment(duration=0, persisted=0)
    assert measured.stages[0].subtasks[1] == SubtaskStats(
        index=1,
        attempt=1,
        checkpoint=CheckpointDuration(sync=0, async_=0, async_start_delay=0),
        checkpointed_size=10,
        state_size=10,
        rows_in=0,
        rows_out=0,
        groups=0,
        late_rows=0,
        malformed_rows=0,
        requests=StoreRequests(),
    )
    assert (measured.discarded, measured.external_path) == (True, None)
    assert details(job, TWO).external_path == f"{job.store.root}/{job.paths.checkpoint(TWO)}"
    assert details(job, TWO).checkpoint.committed


def test_a_checkpoint_has_the_time_in_the_queue_and_the_bytes_of_the_coordinators_own_state(
    location: StoreLocation,
) -> None:
    job = running(location)
    pipeline = job.pipeline
    pipeline.hook("flags", trigger=lambda *_: "x" * 1_000, restore=lambda *_: None)
    assert isinstance(job.clock, ManualClock)
    plan = trigger_one(job)
    asked: dict[str, Any] = {"request_id": "mine", "is_periodic": False}
    assert isinstance(trigger(job, **asked), Queued)
    job.clock.advance(7_000)
    carry_out(job, plan)

    waited = carry_out(job, trigger_one(job, **asked))

    of_the_first, of_the_second = details(job, ONE).checkpoint, details(job, waited).checkpoint
    assert (of_the_first.queue_duration, of_the_second.queue_duration) == (None, 7_000)
    size = of_the_second.coordinator_state_size
    assert size == coordinator_state_size(job.metadata(waited))
    assert 1_000 < (size or 0) < 1_000 + len(job.store.get(job.paths.metadata(waited)) or b"")
    assert overview(job).history[0].coordinator_state_size == size


def test_a_subtask_has_a_status_the_alignment_of_its_stage_and_whether_it_was_unaligned(
    job: Job,
) -> None:
    """As Flink's REST API has them, also of one that has answered."""
    plan = trigger_one(job)
    acknowledge(job, plan, STAGES[0])

    stages = (stage_with_subtasks(job, ONE, stage) for stage in STAGES)
    shown = [one for stage in stages for one in msgspec.to_builtins(stage)["subtasks"]]

    assert [one["status"] for one in shown] == ["completed"] * 2 + ["pending_or_failed"] * 2
    assert [one["alignment"]["duration"] for one in shown] == [0] * 4
    assert [one["unaligned_checkpoint"] for one in shown] == [False] * 4


def test_an_aborted_checkpoint_keeps_its_reason_and_the_exceptions(job: Job) -> None:
    plan = trigger_one(job)
    acknowledge(job, plan, STAGES[0])
    decline(job, ONE, SubtaskId(STAGES[1], 1))
    fail_checkpoint(job, ONE, EXPIRED, "too slow")
    assert not keys_of(job, job.paths.checkpoint(ONE))

    measured = details(job, ONE)

    line = measured.checkpoint
    assert (line.status, line.failure_reason) == (CheckpointStatus.FAILED, "CHECKPOINT_DECLINED")
    assert line.failure_message == f"{STAGES[1]}/1: the input is odd"
    assert line.failure_timestamp == 1_000_000
    assert (line.num_acknowledged_subtasks, line.num_subtasks) == (2, 4)
    assert [[one.status for one in stage.subtasks] for stage in measured.stages] == [
        [SubtaskStatus.COMPLETED] * 2,
        [SubtaskStatus.PENDING_OR_FAILED] * 2,
    ]
    assert measured.exceptions == (
        TaskException(
            task=f"{STAGES[1]}.snapshot",
            attempt=1,
            message="the input is odd",
            stage=STAGES[1],
            index=1,
        ),
    )
    assert overview(job).failures == {"CHECKPOINT_DECLINED": 1}


def test_a_pending_checkpoint_has_the_figures_so_far(job: Job) -> None:
    plan = trigger_one(job)
    acknowledge(job, plan, STAGES[0])

    measured = details(job, ONE)

    assert measured.checkpoint.status is CheckpointStatus.IN_PROGRESS
    assert [stage.status for stage in measured.stages] == [
        CheckpointStatus.COMPLETED,  # The stage: all its subtasks have acknowledged.
        CheckpointStatus.IN_PROGRESS,
    ]
    assert [[(s.index, s.status.value) for s in stage.subtasks] for stage in measured.stages] == [
        [(0, "completed"), (1, "completed")],
        [(0, "pending_or_failed"), (1, "pending_or_failed")],
    ]
    assert overview(job).history[0].num_acknowledged_subtasks == 2


def test_an_overview_counts_everything_and_names_the_latest_of_each_kind(job: Job) -> None:
    take_checkpoint(job)
    a_savepoint(job)
    fail_checkpoint(job, trigger_one(job).checkpoint_id, EXPIRED, "too slow")
    restore(job, savepoint_target(job, "mine"))
    take_checkpoint(job)
    trigger_one(job)

    shown = overview(job)

    assert shown.counts == Counts(restored=1, total=5, in_progress=1, completed=3, failed=1)
    pending, completed, failed, savepoint, first = shown.history
    assert [checkpoint.id for checkpoint in shown.history] == [5, 4, 3, 2, 1]
    assert pending.status is CheckpointStatus.IN_PROGRESS
    assert failed.status is CheckpointStatus.FAILED
    assert completed.status is savepoint.status is first.status is CheckpointStatus.COMPLETED
    latest = shown.latest
    assert (latest.completed, latest.savepoint, latest.failed) == (completed, savepoint, failed)
    assert latest.savepoint is not None
    assert latest.savepoint.savepoint == "mine"
    assert latest.restored == Restored(
        id=2,
        restore_timestamp=1_000_000,
        is_savepoint=True,
        external_path=f"{job.store.root}/auctions/savepoints/mine/",
    )
    assert shown.summary.records is not None
    assert (shown.summary.records.min, shown.summary.records.max) == (10, 10)
    assert shown.summary.end_to_end_duration is None  # These subtasks have no clock.
    assert completed.committed
    assert savepoint.committed
    assert first.committed


def test_a_page_is_filtered_and_continues_below_an_id(job: Job) -> None:
    for _ in range(3):
        take_checkpoint(job)
    fail_checkpoint(job, trigger_one(job).checkpoint_id, EXPIRED, "too slow")
    a_savepoint(job)

    def ids(**given: Any) -> list[int]:
        return [one.id for one in overview(job, **given).history]

    assert ids(limit=2) == [5, 4]
    assert ids(limit=2, before=4) == [3, 2]
    assert ids(statuses=frozenset({CheckpointStatus.FAILED})) == [4]
    assert ids(types=frozenset({"SAVEPOINT"})) == [5]


def test_two_coordinators_that_finalize_at_once_keep_one_object(job: Job) -> None:
    acknowledge(job, trigger_one(job))
    finalize(job, ONE)
    kept = job.store.get(job.paths.statistics(ONE))

    assert kept is not None
    finalize(job, ONE)
    store = StatisticsStore(job.store, job.paths)
    statistics = store.read(ONE)
    assert statistics is not None
    other = msgspec.structs.replace(statistics.checkpoint, cause="another coordinator's")
    store.write(msgspec.structs.replace(statistics, checkpoint=other))

    assert job.store.get(job.paths.statistics(ONE)) == kept


def test_no_collector_takes_statistics_for_garbage_and_the_newest_stay(
    location: StoreLocation,
) -> None:
    job = running(location, history_size=5, num_retained=1)
    for _ in range(3):
        take_checkpoint(job)
    body = job.store.get(job.paths.statistics(THREE))
    assert body is not None
    later = range(1_000, 1_000 + kept_objects(5) - 1)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: job.store.put(job.paths.statistics(number), body), later))

    assert find_orphans(job, grace_ms=0).files == ()
    collect_garbage(job, grace_ms=0)

    assert kept_objects(5) == 2 * TAIL
    assert StatisticsStore(job.store, job.paths).ids() == [3, *later]


def test_the_journal_fills_in_for_statistics_that_are_gone_or_damaged(job: Job) -> None:
    take_checkpoint(job)
    take_checkpoint(job)
    job.store.delete([job.paths.statistics(TWO)])

    assert [one.id for one in overview(job).history] == [2, 1]
    assert details(job, TWO).stages[0].subtasks[0].state_size == 20  # Of the retained acks.

    job.store.put(job.paths.statistics(ONE), b"{")
    take_checkpoint(job)
    assert [one.id for one in overview(job).history] == [3, 2]


def test_a_checkpoint_of_which_nothing_is_known_is_named(job: Job) -> None:
    with pytest.raises(ConfigurationError, match="no checkpoint 7"):
        details(job, CheckpointId(7))
