"""The dry run of a restore: what it would do and every file it needs; it writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.counting_store import CountingStore
from harness.jobs import STAGES, a_job, a_pipeline, a_running_job, keys_of, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.restore import foreign_target, savepoint_target
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.submission import configure
from sluice.core.completed import CheckpointMetadata
from sluice.core.ids import CheckpointId
from sluice.core.restoring import (
    FromCheckpoint,
    Latest,
    RestoreApproval,
    RestoreOptions,
    RestoreTarget,
    Stop,
)
from sluice.job.job import Job
from sluice.store.checkpoints import AnswerStore
from sluice.store.journal import Journal
from tests.in_flight import a_patient_job, an_overtaken_checkpoint
from tests.subtasks import a_savepoint, acknowledge, take_checkpoint

ONE, TWO = CheckpointId(1), CheckpointId(2)


def counting(job: Job) -> tuple[Job, CountingStore]:
    store = CountingStore(job.store)
    journal, answers = Journal(store, job.paths), AnswerStore(store, job.paths)
    return replace(job, store=store, journal=journal, answers=answers), store


def latest(_: Job) -> RestoreTarget:
    return Latest()


def older(_: Job) -> RestoreTarget:
    return FromCheckpoint(ONE)


def a_savepoint_of_it(job: Job) -> RestoreTarget:
    return savepoint_target(job, "mine")


def of_job(checkpoint_id: int) -> Callable[[Job], CheckpointMetadata]:
    return lambda job: job.metadata(CheckpointId(checkpoint_id))


def of_savepoint(job: Job) -> CheckpointMetadata:
    return job.savepoint_metadata("mine")


@pytest.mark.parametrize(
    ("target", "metadata"),
    [(latest, of_job(3)), (older, of_job(1)), (a_savepoint_of_it, of_savepoint)],
    ids=["latest", "older", "savepoint"],
)
def test_it_names_every_file_and_writes_nothing(
    target: Callable[[Job], RestoreTarget], metadata: Callable[[Job], CheckpointMetadata]
) -> None:
    job, store = counting(a_running_job())
    take_checkpoint(job)
    a_savepoint(job)
    take_checkpoint(job)
    trigger_one(job)
    before, wanted = keys_of(job), target(job)

    with store.counted() as asked:
        decision = plan_restore(job, wanted)

    assert isinstance(decision, RestoreApproval)
    assert decision.files == metadata(job).files != ()
    assert {handle.key for handle in decision.files} <= set(before)
    assert set(asked) == {"get", "list"}
    assert keys_of(job) == before


def test_of_another_root_it_names_the_files_there() -> None:
    there = a_running_job()
    take_checkpoint(there)
    here, store = counting(a_job())
    target = foreign_target(here, there.location.root)

    decision = plan_restore(here, target, configuration=configure(here.pipeline, {}))

    assert isinstance(decision, RestoreApproval)
    assert [handle.key for handle in decision.files] == [
        handle.key for handle in there.metadata(ONE).files
    ]
    assert {handle.root for handle in decision.files} == {there.location.root}
    assert not store.requests["put"] + store.requests["create"] + store.requests["delete"]
    assert keys_of(here) == []


def test_of_a_job_that_has_nothing_it_starts_from_empty() -> None:
    decision = plan_restore(a_running_job(), Latest())

    assert isinstance(decision, RestoreApproval)
    assert (decision.choice.checkpoint_id, decision.files) == (None, ())


def test_it_tells_what_is_published_dropped_and_lost() -> None:
    job = a_patient_job()
    take_checkpoint(job)
    an_overtaken_checkpoint(job)
    acknowledge(job, trigger_one(job))
    finalize(job, CheckpointId(3))
    smaller = replace(job, pipeline=a_pipeline(stages=STAGES[:1]))

    plain = plan_restore(job, Latest())
    lossy = plan_restore(job, FromCheckpoint(TWO), RestoreOptions(ignore_in_flight_of=TWO))
    dropping = plan_restore(smaller, Latest(), RestoreOptions(allow_non_restored_state=True))

    assert isinstance(plain, RestoreApproval)
    assert isinstance(lossy, RestoreApproval)
    assert isinstance(dropping, RestoreApproval)
    assert (plain.replays_commit, plain.ignores_in_flight) == (True, False)
    assert (lossy.replays_commit, lossy.ignores_in_flight) == (False, True)
    assert dropping.dropped_stages == ("rank_bids",)


def test_every_problem_is_told_at_once() -> None:
    job = a_running_job()
    take_checkpoint(job)
    missing, short, *_ = (handle.key for handle in job.metadata(ONE).files)
    job.store.delete([missing])
    job.store.put(short, b"short")
    other = a_pipeline(stages=STAGES[:1])
    other.max_parallelism = 64
    before = keys_of(job)

    decision = plan_restore(replace(job, pipeline=other), Latest())

    assert isinstance(decision, Stop)
    for number, problem in enumerate(
        [
            "stage 'rank_bids' has state but is not in the pipeline any more",
            "stage 'count_bids' declares max parallelism 64, but its state has 128",
            f"{missing} is missing",
            f"{short} has 5 bytes",
        ]
    ):
        assert decision.problems[number].startswith(problem)
    assert keys_of(job) == before
