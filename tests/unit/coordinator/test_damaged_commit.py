"""A commit that is owed and can never be made, as what it needs is damaged: a restart, no loop."""

from __future__ import annotations

import pytest

from harness.jobs import ManualClock, a_pipeline, a_running_job, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import watch
from sluice.coordinator.restore_plan import give_up
from sluice.coordinator.trigger import NotTriggered, trigger
from sluice.core.configuration import DamagedCheckpoint, JobStatus
from sluice.core.ids import CheckpointId
from sluice.declaration.places import RollBack
from sluice.errors import ProtocolViolation, SluiceError, StoreUnavailable
from sluice.job.job import Job
from tests.noted_target import NotedTable
from tests.subtasks import acknowledge, take_checkpoint

LATER_MS = 100_000


def a_job_that_owes(policy: DamagedCheckpoint, table: NotedTable | None = None) -> Job:
    """Checkpoint 1 is published; 2 is completed, and its staged rows are not."""
    pipeline = a_pipeline(sink=table or NotedTable(), on_damaged_checkpoint=policy)
    job = a_running_job(pipeline, clock=ManualClock())
    take_checkpoint(job)
    plan = trigger_one(job)
    acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)
    return job


def staged_key(job: Job) -> str:
    name = job.metadata(CheckpointId(2)).committables[0].file
    return next(one.key for one in job.store.list("") if one.key.endswith(name))


def flip(job: Job, key: str) -> None:
    raw = bytearray(job.store.get(key) or b"")
    raw[len(raw) // 2] ^= 1
    job.store.put(key, bytes(raw))


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
    assert isinstance(trigger(job), NotTriggered)


def test_a_job_that_failed_for_another_reason_publishes_what_it_owes() -> None:
    table = NotedTable()
    job = a_job_that_owes(DamagedCheckpoint.STOP, table)
    give_up(job, job.state(), "too many restarts")

    assert isinstance(trigger(job), NotTriggered)

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
    monkeypatch.setattr("tests.noted_target.NotedTable.publish", _is_away)

    later(job)
    for act in (trigger, watch):
        with pytest.raises(SluiceError, match="it is away"):
            act(job)

    assert job.state().status is JobStatus.RUNNING


def _is_away(*_: object) -> None:
    raise StoreUnavailable("it is away")
