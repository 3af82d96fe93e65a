"""The aligned checkpoint timeout: a late stage is overtaken, catches up, and loses no row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from harness.jobs import ManualClock, a_running_job, keys_of, published_records, trigger_one
from sluice.coordinator.failure import fail_checkpoint, overtake, watch
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.restoring import FromCheckpoint, Latest, RestoreOptions
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.errors import RestoreError
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from tests.in_flight import (
    COUNT,
    ONE,
    RANK,
    THREE_STAGES,
    TIMEOUT_MS,
    TOP,
    TWO,
    a_patient_job,
    absorbed,
    an_overtaken_checkpoint,
    an_unaligned_job,
    complete,
    in_flight,
    is_one_cut,
    last_stage_first,
)
from tests.subtasks import (
    a_savepoint,
    acknowledge,
    decline,
    take_checkpoint,
)


def test_a_stage_that_is_behind_is_overtaken_and_what_it_has_not_read_stays_in_flight() -> None:
    clock = ManualClock()
    job = a_patient_job(clock)
    take_checkpoint(job)
    plan = trigger_one(job)
    assert [(t.is_unaligned, t.may_be_overtaken) for t in plan.tasks] == [
        (False, False),
        (False, True),
    ]
    acknowledge(job, plan, COUNT)
    clock.advance(TIMEOUT_MS - 1)
    assert watch(job).actions == ()

    clock.advance(1)

    assert watch(job).actions == ("made checkpoint 2 unaligned: rank_bids is behind",)
    assert watch(job).actions == ()
    complete(job, plan)
    assert (absorbed(job, TWO), in_flight(job, TWO)) == ([*range(10)], [*range(10, 20)])
    assert published_records(job) == list(range(10))


def test_what_an_overtaken_stage_answers_late_changes_nothing() -> None:
    job = a_patient_job()
    plan = trigger_one(job)
    acknowledge(job, plan, COUNT)
    acknowledge(job, plan, RANK, only=[0])
    overtake(job, ONE, [RANK])

    acknowledge(job, plan, RANK)
    decline(job, 1, plan.task(RANK).subtasks[0])
    complete(job, plan)

    assert (absorbed(job, ONE), in_flight(job, ONE)) == ([], list(range(10)))
    assert published_records(job) == []


def test_a_decline_of_an_overtaken_stage_does_not_keep_the_checkpoint_alive() -> None:
    job = a_patient_job()
    plan = trigger_one(job)
    overtake(job, ONE, [RANK])
    decline(job, 1, plan.task(RANK).subtasks[0])

    state = fail_checkpoint(job, ONE, Reason.CHECKPOINT_EXPIRED, "too slow")

    assert [(f.reason, f.message) for f in state.failed] == [
        (Reason.CHECKPOINT_EXPIRED, "too slow")
    ]


def test_who_reads_a_source_and_who_has_answered_is_not_overtaken() -> None:
    job = a_patient_job()
    plan = trigger_one(job)
    acknowledge(job, plan)

    assert overtake(job, ONE, [COUNT]).pending[0].overtaken == ()
    assert watch(job).actions == ()
    assert overtake(job, CheckpointId(9), [RANK]) == job.state()


def test_who_has_a_reader_of_a_source_behind_it_is_not_overtaken() -> None:
    """That one would be overtaken with it, and its source's records of the epoch are read once."""
    timeout = timedelta(milliseconds=TIMEOUT_MS)
    checkpointing = Checkpointing(
        unaligned=True, aligned_checkpoint_timeout=timeout, max_records_per_epoch=10
    )
    pipeline = Pipeline("auctions", checkpointing=checkpointing)
    bids = pipeline.source("bids", Nexmark())
    counted = bids.key_by("bid_auction").aggregate("counted", n=agg.count())
    per_count = counted.key_by("n").aggregate("per_count", auctions=agg.count())
    others = pipeline.source("others", Nexmark()).key_by(n="bid_auction")
    joined = per_count.key_by("n").join("joined", others, how="anti")
    joined.key_by("auctions").aggregate("behind", n=agg.count()).sink(
        "out", FilesTable(changelog=True)
    )
    job = a_running_job(pipeline)
    take_checkpoint(job)  # Behind it the columns of every stream are known.
    plan = trigger_one(job)

    state = overtake(job, plan.checkpoint_id, ["per_count"])

    assert state.pending[0].overtaken == ()
    assert [task.uid for task in plan.tasks if task.may_be_overtaken] == ["behind"]


def test_who_was_overtaken_catches_up_first_and_then_takes_part_again() -> None:
    """A stage that is late in every epoch it may be late in, still advances."""
    job = a_patient_job()
    may_be_overtaken: list[bool] = []
    for _ in range(6):
        plan = trigger_one(job)
        task = plan.task(RANK)
        may_be_overtaken.append(task.may_be_overtaken)
        acknowledge(job, plan, COUNT)
        if task.may_be_overtaken:
            overtake(job, plan.checkpoint_id, [RANK])
        else:
            acknowledge(job, plan, RANK)
        taken = complete(job, plan)
        assert is_one_cut(job, taken)

    assert may_be_overtaken == [True, False] * 3
    assert absorbed(job, taken) == list(range(50))
    assert published_records(job) == list(range(50))


@pytest.mark.parametrize("first", [an_overtaken_checkpoint, take_checkpoint])
@pytest.mark.parametrize("second", [an_overtaken_checkpoint, take_checkpoint, a_savepoint])
def test_whatever_was_overtaken_every_row_arrives_once(
    first: Callable[[Job], CheckpointId], second: Callable[[Job], CheckpointId]
) -> None:
    job = a_patient_job()
    first(job)
    if first is an_overtaken_checkpoint and second is an_overtaken_checkpoint:
        take_checkpoint(job)  # A stage that was overtaken is not overtaken again.
    second(job)
    restore(job, Latest())
    take_checkpoint(job)

    last = a_savepoint(job, "last")

    read = job.metadata(last).sources[0].position[0].offset
    assert absorbed(job, last) == list(range(read))
    assert published_records(job) == list(range(read))


def test_two_stages_in_a_row_may_be_overtaken() -> None:
    job = a_patient_job(stages=THREE_STAGES)
    take_checkpoint(job)
    plan = trigger_one(job)
    acknowledge(job, plan, COUNT)
    overtake(job, TWO, [RANK, TOP])
    complete(job, plan)
    assert is_one_cut(job, TWO)
    watermark_ms = job.metadata(TWO).stages[2].watermark_ms

    third = last_stage_first(job)

    assert is_one_cut(job, third)
    assert [len(absorbed(job, third, uid)) for uid in THREE_STAGES] == [30, 20, 10]
    assert job.metadata(third).stages[2].watermark_ms >= watermark_ms
    last = a_savepoint(job)
    assert published_records(job) == absorbed(job, last, TOP) == list(range(40))


def test_ignoring_in_flight_data_drops_exactly_those_rows() -> None:
    job = a_patient_job()
    take_checkpoint(job)
    lost = in_flight(job, an_overtaken_checkpoint(job))
    assert lost == list(range(10, 20))

    restore(job, Latest(), RestoreOptions(ignore_in_flight_of=TWO))
    plan = trigger_one(job)
    fail_checkpoint(job, plan.checkpoint_id, Reason.CHECKPOINT_EXPIRED, "too slow")
    take_checkpoint(job)
    last = a_savepoint(job)

    kept = [record for record in range(40) if record not in lost]
    assert absorbed(job, last) == kept
    assert published_records(job) == kept
    assert absorbed(job, last, COUNT) == list(range(40))


def test_a_failure_before_the_first_checkpoint_does_not_bring_the_dropped_rows_back() -> None:
    job = a_patient_job()
    take_checkpoint(job)
    an_overtaken_checkpoint(job)
    restore(job, Latest(), RestoreOptions(ignore_in_flight_of=TWO))
    fail_checkpoint(
        job, trigger_one(job).checkpoint_id, Reason.TASK_FAILURE, "lost", is_task_failure=True
    )

    restore(job, Latest())
    last = take_checkpoint(job)

    assert (absorbed(job, last), in_flight(job, last)) == ([*range(10)], [*range(20, 30)])
    restore(job, FromCheckpoint(TWO))
    assert absorbed(job, a_savepoint(job)) == list(range(30))  # A person chose anew.


def test_the_in_flight_data_of_another_checkpoint_cannot_be_ignored() -> None:
    job = a_patient_job()
    take_checkpoint(job)
    an_overtaken_checkpoint(job)

    with pytest.raises(RestoreError, match="of checkpoint 1 cannot be ignored: checkpoint 2 is re"):
        restore(job, FromCheckpoint(TWO), RestoreOptions(ignore_in_flight_of=ONE))

    restore(job, FromCheckpoint(TWO))
    assert absorbed(job, a_savepoint(job)) == list(range(30))


def test_rows_in_flight_survive_the_checkpoint_of_their_producer_and_go_when_they_arrived() -> None:
    job = a_patient_job(num_retained=1)
    take_checkpoint(job)
    an_overtaken_checkpoint(job)
    files = {handle.key for handle in job.metadata(TWO).stages[1].in_flight_segments}
    assert files

    plan = trigger_one(job)
    acknowledge(job, plan, COUNT)
    assert files <= set(keys_of(job))  # TWO is retained: RANK is about to read them.
    acknowledge(job, plan, RANK)
    third = complete(job, plan)
    assert not keys_of(job, job.paths.checkpoint(TWO))
    assert not files & set(keys_of(job))

    of_third = {handle.key for handle in job.metadata(third).stages[1].in_flight_segments}
    assert of_third <= set(keys_of(job))
    take_checkpoint(job)
    assert not of_third & set(keys_of(job))


def test_rows_in_flight_outlive_the_checkpoint_that_first_named_them() -> None:
    """Unaligned from the start, then aligned: the stage is overtaken with rows of two epochs."""
    job = an_unaligned_job(COUNT, RANK, num_retained=1)
    last_stage_first(job)
    of_first = {handle.key for handle in job.metadata(ONE).stages[1].in_flight_segments}
    patient = replace(job, pipeline=a_patient_job(num_retained=1).pipeline)
    restore(patient, Latest(), configuration=configure(patient.pipeline, {}))

    second = an_overtaken_checkpoint(patient)

    assert in_flight(job, second) == list(range(20))
    assert not keys_of(job, job.paths.checkpoint(ONE))
    assert of_first <= set(keys_of(job))
    third = take_checkpoint(patient)
    assert absorbed(job, third) == list(range(20))
    assert not of_first & set(keys_of(job))
    assert published_records(job) == list(range(20))
