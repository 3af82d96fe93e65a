"""The records after a retained checkpoint are held at the source, and released with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from harness.jobs import a_pipeline, a_running_job, trigger_one
from sluice.connectors.nexmark.source import NexmarkSource
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.garbage import collect_garbage
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target
from sluice.core.configuration import CheckpointType, ClaimMode
from sluice.core.failures import CheckpointFailureReason
from sluice.core.restoring import Latest, RestoreOptions
from sluice.declaration.params import Param
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import SourcePosition
from sluice.errors import StoreUnavailable
from sluice.job.job import Job
from sluice.state_processor import SavepointWriter
from tests.subtasks import a_savepoint, acknowledge, take_checkpoint


class Place:
    """The place of the source's records, which all processes share."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.told: dict[str, int] = {}
        self.is_down = False

    def answer(self) -> None:
        if self.is_down:
            raise StoreUnavailable("nobody answers")


@dataclass(frozen=True, slots=True)
class HoldingSource(NexmarkSource):
    place: Place | None = None

    def hold(self, name: str, position: SourcePosition) -> None:
        assert self.place is not None
        self.place.answer()
        self.place.held.setdefault(name, position[0].offset)

    def release(self, name: str) -> None:
        assert self.place is not None
        self.place.answer()
        self.place.held.pop(name, None)

    def held(self, prefix: str) -> tuple[str, ...]:
        assert self.place is not None
        self.place.answer()
        return tuple(name for name in self.place.held if name.startswith(prefix))

    def notify_complete(self, group: str, position: SourcePosition) -> None:
        assert self.place is not None
        self.place.answer()
        self.place.told[group] = position[0].offset


@dataclass(frozen=True, slots=True)
class Holding:
    spec: HoldingSource

    @property
    def params(self) -> tuple[Param, ...]:
        return ()

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> HoldingSource:
        return self.spec


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def job(place: Place) -> Job:
    pipeline: Pipeline = a_pipeline()
    node = pipeline.sources["events"]
    opened = node.spec.open({}, None)
    assert isinstance(opened, NexmarkSource)
    spec = Holding(HoldingSource(opened.events, place=place))
    pipeline.sources["events"] = replace(node, spec=spec, out_of_orderness_ms=0, is_table=False)
    return a_running_job(pipeline)


def held(place: Place) -> dict[str, int]:
    return {name.removeprefix("sluice-auctions-events-"): at for name, at in place.held.items()}


def test_a_retained_checkpoint_holds_its_position_and_a_subsumed_one_does_not(
    job: Job, place: Place
) -> None:
    for _ in range(4):
        take_checkpoint(job)

    assert held(place) == {"2": 20, "3": 30, "4": 40}


def test_a_checkpoint_holds_before_it_is_pending_and_lets_go_when_it_is_aborted(
    job: Job, place: Place
) -> None:
    plan = trigger_one(job)
    assert held(place) == {"1": 10}

    fail_checkpoint(job, plan.checkpoint_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, "late")

    assert held(place) == {}


def test_a_savepoint_holds_until_it_is_deleted(job: Job, place: Place) -> None:
    a_savepoint(job, "mine")
    for _ in range(4):
        take_checkpoint(job)
    assert held(place) == {"savepoint-mine": 10, "3": 30, "4": 40, "5": 50}

    job.store.delete([one.key for one in job.store.list(job.paths.savepoint("mine"))])
    collect_garbage(job, grace_ms=0)

    assert held(place) == {"3": 30, "4": 40, "5": 50}


def test_a_savepoint_that_is_being_written_is_no_orphan(job: Job, place: Place) -> None:
    plan = trigger_one(job, type=CheckpointType.SAVEPOINT, savepoint_name="mine", is_periodic=False)
    acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)
    place.held["sluice-auctions-events-savepoint-mine"] = 10  # As its commit does, which then dies.

    collect_garbage(job, grace_ms=0)

    assert held(place) == {"1": 10, "savepoint-mine": 10}


def test_a_claimed_savepoint_lets_go_when_the_job_deletes_it(job: Job, place: Place) -> None:
    a_savepoint(job, "mine")

    restore(job, savepoint_target(job, "mine"), RestoreOptions(claim_mode=ClaimMode.CLAIM))
    for _ in range(4):  # Each leaves one segment of all its state: none of the savepoint's.
        plan = trigger_one(job)
        acknowledge(job, plan, compacts=True)
        finalize(job, plan.checkpoint_id)
        commit(job, plan.checkpoint_id)

    assert job.state().claimed_savepoints == ()
    assert held(place) == {"3": 30, "4": 40, "5": 50}


def test_what_a_crash_left_held_the_garbage_collector_lets_go(job: Job, place: Place) -> None:
    take_checkpoint(job)
    take_checkpoint(job)
    place.held |= {"sluice-auctions-events-0": 0, "sluice-auctions-events-9": 90, "else": 1}
    place.held["sluice-auctions-events-savepoint-gone"] = 5

    collect_garbage(job, grace_ms=0)

    assert held(place) == {"1": 10, "2": 20, "9": 90, "else": 1}  # 9 may be about to be pending.


def test_a_place_that_is_down_holds_nothing_up_but_the_trigger(job: Job, place: Place) -> None:
    take_checkpoint(job)
    plan = trigger_one(job)
    place.is_down = True

    fail_checkpoint(job, plan.checkpoint_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, "late")
    collect_garbage(job, grace_ms=0)
    restore(job, Latest())
    with pytest.raises(StoreUnavailable):
        trigger_one(job)

    place.is_down = False
    collect_garbage(job, grace_ms=0)
    assert held(place) == {"1": 10}


def test_the_source_is_told_of_what_is_published(job: Job, place: Place) -> None:
    take_checkpoint(job)
    assert place.told == {"sluice-auctions-events": 10}

    plan = trigger_one(job)
    acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)
    place.is_down = True
    commit(job, plan.checkpoint_id)

    assert place.told == {"sluice-auctions-events": 10}
    assert job.state().completed[-1].is_committed


def test_a_savepoint_that_is_made_of_another_one_holds_the_same_position(
    job: Job, place: Place
) -> None:
    a_savepoint(job)
    SavepointWriter.from_existing_savepoint(job, "mine").write("copy")

    collect_garbage(job)

    assert held(place)["savepoint-copy"] == held(place)["savepoint-mine"] == 10


def test_a_place_that_does_not_answer_keeps_it_from_becoming_one(job: Job, place: Place) -> None:
    a_savepoint(job)
    place.is_down = True

    with pytest.raises(StoreUnavailable, match="nobody answers"):
        SavepointWriter.from_existing_savepoint(job, "mine").write("copy")

    assert job.store.get(job.paths.savepoint_metadata("copy")) is None
