"""Hooks, sources and sinks are notified of each checkpoint's end; what they raise changes nothing.

Sources hold the records after a retained checkpoint, and release them with it.  Master hooks are
restored with every restore.  A hook that hangs does not hold up its caller.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from harness.hooked import Crash, crashing, hooked
from harness.jobs import (
    ONE,
    STAGES,
    ManualClock,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    trigger_one,
)
from sluice.connectors.nexmark.source import NexmarkSource
from sluice.connectors.staged_files import StagedFiles
from sluice.connectors.staged_sink import StagedSink
from sluice.coordinator import notifications, planning
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, watch
from sluice.coordinator.garbage import collect_garbage
from sluice.coordinator.notifications import call_hook, hold_of
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.savepoints import dispose, savepoint_names
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Queued, Refused, Triggered, trigger
from sluice.core.configuration import CheckpointType, ClaimMode, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.restoring import Choice, Latest, RestoreOptions
from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, Row
from sluice.declaration.keyed_states import ValueState
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.declaration.places import CheckpointListener, SourcePosition
from sluice.errors import ConfigurationError, RestoreError, StoreUnavailable
from sluice.job.job import Job
from sluice.state_processor import SavepointWriter
from sluice.store.memory import InMemoryStore
from tests.begun import copied
from tests.planted import Caught, assert_is_caught
from tests.subtasks import (
    a_savepoint,
    acknowledge,
    carry_out,
    complete_one,
    finish,
    take_checkpoint,
    take_checkpoints,
)


@dataclass
class Told:
    """What was told, in its order; ``breaks`` has each call fail behind that."""

    calls: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    breaks: bool = False
    job: Job | None = None

    def hear(self, who: str, what: str, checkpoint_id: int) -> None:
        self.calls.append((who, what, checkpoint_id))
        if self.breaks:
            raise LookupError("nothing listens")

    def of(self, who: str, what: str) -> Callable[[int], None]:
        return partial(self.hear, who, what)


@dataclass(frozen=True, slots=True)
class ListeningSource(NexmarkSource, CheckpointListener):
    told: Told = field(default_factory=Told)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.told.hear("events", "complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.told.hear("events", "aborted", checkpoint_id)

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        self.told.hear("events", "subsumed", checkpoint_id)


@dataclass(frozen=True, slots=True)
class Opening:
    """Opens *source*, and notes each time that it does."""

    source: NexmarkSource
    params: tuple[Any, ...] = ()
    opened: list[str] = field(default_factory=list[str])

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> NexmarkSource:
        self.opened.append("events")
        return self.source


def replace_source(pipeline: Pipeline, make: Callable[[int | None], NexmarkSource]) -> None:
    """Let the source of *pipeline* be what *make* makes of its number of events."""
    node = pipeline.sources["events"]
    opened = node.spec.open({}, None)
    assert isinstance(opened, NexmarkSource)
    pipeline.sources["events"] = replace(node, spec=Opening(make(opened.events)))


class ListeningFunction(KeyedProcessFunction):
    seen = ValueState(int)

    def __init__(self, told: Told) -> None:
        self.told = told

    def process(self, row: Row, context: Context) -> None: ...

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.told.hear("counted", "complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.told.hear("counted", "aborted", checkpoint_id)
        self.seen.get()

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        self.told.hear("counted", "subsumed", checkpoint_id)


class Quiet(KeyedProcessFunction):
    def process(self, row: Row, context: Context) -> None: ...


def a_listening_job(told: Told, **checkpointing: Any) -> Job:
    pipeline: Pipeline = a_pipeline(**checkpointing)
    replace_source(pipeline, partial(ListeningSource, told=told))
    pipeline.hook(
        "flags",
        trigger=lambda checkpoint_id, timestamp_ms: None,
        restore=lambda checkpoint_id, state: None,
        prepare_snapshot_pre_barrier=told.of("flags", "prepare"),
        notify_checkpoint_complete=told.of("flags", "complete"),
        notify_checkpoint_aborted=told.of("flags", "aborted"),
        notify_checkpoint_subsumed=told.of("flags", "subsumed"),
    )
    return a_running_job(pipeline)


def test_all_hear_of_a_checkpoint_before_its_barrier_and_once_it_is_published() -> None:
    told = Told()
    job = a_listening_job(told)
    plan = trigger_one(job)
    before = list(told.calls)

    acknowledge(job, plan)
    finalize(job, ONE)
    unpublished = list(told.calls)
    commit(job, ONE)

    assert before == unpublished == [("flags", "prepare", 1)]
    assert told.calls[1:] == [("flags", "complete", 1), ("events", "complete", 1)]
    commit(job, ONE)
    assert len(told.calls) == 3


def test_all_hear_of_an_abort_and_of_the_aborts_that_it_brings_along() -> None:
    told = Told()
    job = a_listening_job(told, max_concurrent_checkpoints=2, tolerable_failed_checkpoints=1)
    trigger_one(job)
    trigger_one(job)
    told.calls.clear()

    fail_checkpoint(job, ONE, Reason.CHECKPOINT_EXPIRED, "too slow")

    assert told.calls == [
        (who, "aborted", checkpoint_id) for checkpoint_id in (1, 2) for who in ("flags", "events")
    ]


def test_all_hear_of_a_checkpoint_whose_place_a_newer_one_took() -> None:
    """Behind its end: nobody goes back to it.  A savepoint is its owner's, and never subsumed."""
    told = Told()
    job = a_listening_job(told, num_retained=1)
    take_checkpoint(job)
    a_savepoint(job)
    told.calls.clear()

    take_checkpoint(job)

    assert told.calls == [
        ("flags", "prepare", 3),
        ("flags", "complete", 3),
        ("events", "complete", 3),
        ("flags", "subsumed", 1),
        ("events", "subsumed", 1),
    ]
    plan = trigger_one(job)
    told.breaks = True
    assert carry_out(job, plan) == 4
    assert told.calls[-1] == ("events", "subsumed", 3)


def test_what_a_listener_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    job = a_listening_job(told, tolerable_failed_checkpoints=1)
    plan = trigger_one(job)
    told.breaks = True

    acknowledge(job, plan)
    finalize(job, ONE)
    state = commit(job, ONE)

    assert (state.status, state.completed[0].is_committed) == (JobStatus.RUNNING, True)
    assert published_records(job) == [*range(10)]
    assert "checkpoint_id=1 uid=flags: nothing listens" in caplog.text
    told.breaks = False
    trigger_one(job)
    told.breaks = True
    assert fail_checkpoint(job, CheckpointId(2), Reason.CHECKPOINT_EXPIRED, "").pending == ()
    assert told.calls[-2:] == [("flags", "aborted", 2), ("events", "aborted", 2)]


def test_a_completion_is_told_again_if_the_coordinator_dies_before_it_is_journaled() -> None:
    told = Told()
    job = a_listening_job(told)
    complete_one(job)
    told.calls.clear()
    writes = 0
    while not told.calls:  # The last write of a commit is the journal's.
        with pytest.raises(Crash):
            commit(crashing(job, writes), ONE)
        writes += 1

    commit(job, ONE)

    assert told.calls.count(("flags", "complete", 1)) == 2


def test_what_fails_before_the_barrier_takes_no_checkpoint() -> None:
    told = Told(breaks=True)
    job = a_listening_job(told)

    outcome = trigger(job)

    assert outcome == Refused(
        reason=Reason.TRIGGER_CHECKPOINT_FAILURE,
        message="master hook 'flags' failed: nothing listens",
    )
    told.breaks = False
    assert take_checkpoint(job) == 1


def test_a_keyed_function_hears_on_the_coordinator_where_it_has_no_state(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told()
    pipeline = a_pipeline(tolerable_failed_checkpoints=1)
    keyed = Stream(pipeline, "events", None).key_by("bid_auction")
    for uid, function in (("counted", ListeningFunction(told)), ("quiet", Quiet())):
        keyed.process_keyed(uid, function, result={"n": int})
    job = a_running_job(pipeline)

    take_checkpoint(job)
    plan = trigger_one(job)
    fail_checkpoint(job, plan.checkpoint_id, Reason.CHECKPOINT_EXPIRED, "too slow")

    assert told.calls == [("counted", "complete", 1), ("counted", "aborted", 2)]
    assert "uid=counted: state 'seen' is that of a key" in caplog.text
    assert "quiet" not in caplog.text
    assert job.state().status is JobStatus.RUNNING


@pytest.mark.parametrize("is_aborted", [False, True])
def test_sources_are_opened_once_for_the_end_of_a_checkpoint(*, is_aborted: bool) -> None:
    job = a_listening_job(Told(), tolerable_failed_checkpoints=1, num_retained=1)
    take_checkpoint(job)
    plan = trigger_one(job)
    acknowledge(job, plan)
    spec = job.pipeline.sources["events"].spec
    assert isinstance(spec, Opening)
    if not is_aborted:
        finalize(job, plan.checkpoint_id)
    spec.opened.clear()

    if is_aborted:
        fail_checkpoint(job, plan.checkpoint_id, Reason.CHECKPOINT_EXPIRED, "too slow")
    else:
        commit(job, plan.checkpoint_id)  # It subsumes the one before it.

    assert spec.opened == ["events"]


def test_the_target_of_a_staged_sink_hears_if_it_listens() -> None:
    told = Told()

    class Target(CheckpointListener):
        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            told.hear("copy", "complete", checkpoint_id)

        def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
            told.hear("copy", "aborted", checkpoint_id)

        def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
            told.hear("copy", "subsumed", checkpoint_id)

    files = StagedFiles("copy", InMemoryStore())
    for target in (Target(), object()):
        sink = StagedSink(files, target)  # type: ignore[arg-type]
        sink.notify_checkpoint_complete(1)
        sink.notify_checkpoint_aborted(2)
        sink.notify_checkpoint_subsumed(1)

    assert told.calls == [
        *(("copy", "complete", 1), ("copy", "aborted", 2), ("copy", "subsumed", 1)),
    ]


class Place:
    """The place of the source's records, which all processes share."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.told: dict[str, int] = {}
        self.down: Exception | None = None

    def answer(self) -> None:
        if self.down is not None:
            raise self.down


@dataclass(frozen=True, slots=True)
class HoldingSource(NexmarkSource):
    place: Place = field(default_factory=Place)

    def hold(self, name: str, position: SourcePosition) -> None:
        self.place.answer()
        self.place.held.setdefault(name, position[0].offset)

    def release(self, name: str) -> None:
        self.place.answer()
        self.place.held.pop(name, None)

    def held(self, prefix: str) -> tuple[str, ...]:
        self.place.answer()
        return tuple(name for name in self.place.held if name.startswith(prefix))

    def notify_complete(self, group: str, position: SourcePosition) -> None:
        self.place.answer()
        self.place.told[group] = position[0].offset


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def job(place: Place) -> Job:
    pipeline: Pipeline = a_pipeline()
    replace_source(pipeline, partial(HoldingSource, place=place))
    return a_running_job(pipeline)


def held(place: Place) -> dict[str, int]:
    """What is held for the one job that there is."""
    return {re.sub(r"sluice-auctions-events-\w+-", "", name): at for name, at in place.held.items()}


def held_by(job: Job, place: Place) -> dict[str, int]:
    mine = prefix(job)
    return {n.removeprefix(mine): at for n, at in place.held.items() if n.startswith(mine)}


def prefix(job: Job) -> str:
    return f"sluice-auctions-events-{job.paths.owner}-"


def test_a_retained_checkpoint_holds_its_position_and_a_subsumed_one_does_not(
    job: Job, place: Place
) -> None:
    take_checkpoints(job, 4)

    assert held(place) == {"2": 20, "3": 30, "4": 40}


def test_a_checkpoint_holds_before_it_is_pending_and_lets_go_when_it_is_aborted(
    job: Job, place: Place
) -> None:
    plan = trigger_one(job)
    assert held(place) == {"1": 10}

    fail_checkpoint(job, plan.checkpoint_id, Reason.CHECKPOINT_EXPIRED, "late")

    assert held(place) == {}


def hold_named(job: Job, name: str) -> str:
    """What the savepoint that the name means is held as."""
    meant = job.savepoint_origin(name).incarnation
    assert meant is not None
    return hold_of(meant)


def test_a_savepoint_holds_until_it_is_deleted(job: Job, place: Place) -> None:
    a_savepoint(job, "mine")
    take_checkpoints(job, 4)
    assert held(place) == {hold_named(job, "mine"): 10, "3": 30, "4": 40, "5": 50}

    job.store.delete([one.key for one in job.store.list(job.paths.savepoint("mine"))])
    collect_garbage(job, grace_ms=0)

    assert held(place) == {"3": 30, "4": 40, "5": 50}


def test_a_savepoint_that_is_being_written_is_no_orphan(job: Job, place: Place) -> None:
    complete_one(job, type=CheckpointType.SAVEPOINT, savepoint_name="mine", is_periodic=False)
    savepoint = job.state().completed[-1].savepoint
    assert savepoint is not None
    name = hold_of(savepoint)
    place.held[f"{prefix(job)}{name}"] = 10  # As its commit does, which then dies.

    collect_garbage(job, grace_ms=0)

    assert held(place) == {"1": 10, name: 10}


def test_a_claimed_savepoint_lets_go_when_the_job_deletes_it(job: Job, place: Place) -> None:
    a_savepoint(job, "mine")

    restore(job, savepoint_target(job, "mine"), RestoreOptions(claim_mode=ClaimMode.CLAIM))
    for _ in range(4):  # Each leaves one segment of all its state: none of the savepoint's.
        plan = trigger_one(job)
        acknowledge(job, plan, compacts=True)
        finish(job, plan.checkpoint_id)

    assert job.state().claimed_savepoints == ()
    assert held(place) == {"3": 30, "4": 40, "5": 50}


def test_what_a_crash_left_held_the_garbage_collector_lets_go(job: Job, place: Place) -> None:
    take_checkpoints(job, 2)
    place.held |= {f"{prefix(job)}0": 0, f"{prefix(job)}9": 90, "else": 1}
    place.held[f"{prefix(job)}savepoint-gone"] = 5

    collect_garbage(job, grace_ms=0)

    assert held(place) == {"1": 10, "2": 20, "9": 90, "else": 1}  # 9 may be about to be pending.


def test_jobs_of_one_name_in_two_roots_hold_apart(job: Job, place: Place) -> None:
    a_savepoint(job, "mine")
    theirs = a_running_job(job.pipeline)
    take_checkpoints(job, 2)
    before = held_by(job, place)

    take_checkpoints(theirs, 9)
    fail_checkpoint(theirs, trigger_one(theirs).checkpoint_id, Reason.CHECKPOINT_EXPIRED, "late")
    collect_garbage(theirs, grace_ms=0)

    assert before == held_by(job, place) == {hold_named(job, "mine"): 10, "1": 10, "2": 20, "3": 30}
    assert held_by(theirs, place) == {"7": 70, "8": 80, "9": 90}


def test_who_overslept_an_emptied_root_releases_nothing_of_the_next_life(
    job: Job, place: Place
) -> None:
    trigger_one(job)
    begun: list[Job] = []

    def before(verb: str, key: str) -> None:
        if verb == "list" and key == job.paths.streams(STAGES[0], ONE) and not begun:
            job.store.delete(keys_of(job))
            begun.append(job.anew())
            submit(begun[0], configure(job.pipeline, {}))
            trigger_one(begun[0])

    fail_checkpoint(hooked(job, before), ONE, Reason.CHECKPOINT_EXPIRED, "late")

    assert held_by(begun[0], place) == {"1": 10}
    assert held_by(job, place) == {}


def test_what_an_earlier_life_held_stays_and_is_told(
    job: Job, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a job of another root, which is called the same."""
    take_checkpoint(job)
    job.store.delete(keys_of(job))
    anew = job.anew()
    submit(anew, configure(job.pipeline, {}))
    take_checkpoints(anew, 4)
    caplog.set_level("INFO")

    collect_garbage(anew, grace_ms=0)

    assert held_by(job, place) == {"1": 10}
    assert held_by(anew, place) == {"2": 20, "3": 30, "4": 40}
    assert f"hold of another job, or of an earlier one, stays name={prefix(job)}1" in caplog.text


def test_a_copy_of_the_root_releases_nothing_that_the_original_holds(
    job: Job, place: Place
) -> None:
    take_checkpoint(job)
    copy = copied(job)
    a_savepoint(job, "mine")
    before = dict(place.held)

    collect_garbage(copy, grace_ms=0)

    assert place.held == before


def test_a_savepoint_that_outlived_its_journal_lets_go_when_it_is_disposed_of(
    job: Job, place: Place
) -> None:
    a_savepoint(job, "mine")
    kept = job.names.savepoints()
    job.store.delete([key for key in keys_of(job) if not key.startswith(kept)])
    anew = job.anew()
    submit(anew, configure(job.pipeline, {}))
    take_checkpoint(anew)
    assert hold_named(anew, "mine") in held_by(job, place)

    dispose(anew, "mine")

    assert held(place) == {"1": 10}
    assert held_by(anew, place) == {"1": 10}


def test_a_place_that_is_down_holds_nothing_up_but_the_trigger(job: Job, place: Place) -> None:
    take_checkpoint(job)
    plan = trigger_one(job)
    place.down = StoreUnavailable("nobody answers")

    fail_checkpoint(job, plan.checkpoint_id, Reason.CHECKPOINT_EXPIRED, "late")
    collect_garbage(job, grace_ms=0)
    restore(job, Latest())
    with pytest.raises(StoreUnavailable):
        trigger_one(job)

    place.down = None
    collect_garbage(job, grace_ms=0)
    assert held(place) == {"1": 10}


ANY_ERROR = (
    StoreUnavailable("nobody answers"),
    LookupError("no such group"),
    TimeoutError("too slow"),
    AssertionError("a source of the user's"),
)


@pytest.mark.parametrize("error", ANY_ERROR, ids=lambda error: type(error).__name__)
def test_the_source_is_told_of_what_is_published_and_may_raise_anything(
    job: Job, place: Place, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    take_checkpoint(job)
    assert place.told == {"sluice-auctions-events": 10}

    plan = complete_one(job)
    place.down = error
    commit(job, plan.checkpoint_id)

    assert place.told == {"sluice-auctions-events": 10}
    assert job.state().completed[-1].is_committed
    assert f"source was not notified of the checkpoint source=events: {error}" in caplog.text
    place.down = None
    assert take_checkpoint(job) == 3


@pytest.mark.parametrize("error", ANY_ERROR, ids=lambda error: type(error).__name__)
def test_a_place_that_lets_nothing_go_stops_neither_a_commit_nor_an_abort(
    place: Place, error: Exception
) -> None:
    pipeline = a_pipeline(num_retained=1, tolerable_failed_checkpoints=1)
    replace_source(pipeline, partial(HoldingSource, place=place))
    job = a_running_job(pipeline)
    take_checkpoint(job)
    second = complete_one(job)
    place.down = error

    commit(job, second.checkpoint_id)
    collect_garbage(job, grace_ms=0)
    place.down = None
    third = trigger_one(job)
    place.down = error
    state = fail_checkpoint(job, third.checkpoint_id, Reason.CHECKPOINT_EXPIRED, "late")

    assert (state.status, state.pending, state.discarding) == (JobStatus.RUNNING, (), ())
    place.down = None
    collect_garbage(job, grace_ms=0)
    assert held(place) == {"2": 20}


def test_a_source_that_hangs_when_it_is_told_holds_nothing_up(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    never = threading.Event()
    monkeypatch.setattr(notifications, "LISTENER_TIMEOUT", timedelta(milliseconds=20))
    monkeypatch.setattr(HoldingSource, "notify_complete", lambda *_: never.wait())

    take_checkpoint(job)
    never.set()

    assert job.state().completed[-1].is_committed
    assert "source=events: it did not return within 0.02 s" in caplog.text


def test_a_source_that_cannot_be_opened_when_it_is_published_stops_nothing(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = complete_one(job)

    def breaks(*_: object) -> NexmarkSource:
        raise LookupError("its module is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Opening, "open", breaks)
        commit(job, plan.checkpoint_id)

    assert job.state().completed[-1].is_committed
    assert take_checkpoint(job) == 2


def test_a_savepoint_that_is_made_of_another_one_holds_the_same_position(
    job: Job, place: Place
) -> None:
    a_savepoint(job)
    SavepointWriter.from_existing_savepoint(job, "mine").write("copy")

    collect_garbage(job)

    assert held(place)[hold_named(job, "copy")] == held(place)[hold_named(job, "mine")] == 10


def test_a_place_that_does_not_answer_keeps_it_from_becoming_one(job: Job, place: Place) -> None:
    a_savepoint(job)
    place.down = StoreUnavailable("nobody answers")

    with pytest.raises(StoreUnavailable, match="nobody answers"):
        SavepointWriter.from_existing_savepoint(job, "mine").write("copy")

    assert savepoint_names(job) == ["mine"]


class World:
    """The calls of a job's hooks; ``broken`` names those that fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.broken: set[str] = set()

    def declare(self, pipeline: Pipeline, *uids: str) -> Pipeline:
        for uid in uids:
            pipeline.hook(uid, trigger=self.trigger_of(uid), restore=self.restore_of(uid))
        return pipeline

    def trigger_of(self, uid: str) -> Any:
        def on_trigger(checkpoint_id: int, timestamp_ms: int) -> str | None:
            self._call(uid, "trigger", checkpoint_id, timestamp_ms)
            return None if uid == "silent" else f"{uid} as of {checkpoint_id}"

        return on_trigger

    def restore_of(self, uid: str) -> Any:
        return lambda checkpoint_id, state: self._call(uid, "restore", checkpoint_id, state)

    def _call(self, uid: str, act: str, *given: object) -> None:
        self.calls.append((uid, act, *given))
        if uid in self.broken:
            raise OSError("the outside does not answer")

    def taken(self) -> list[tuple[Any, ...]]:
        calls, self.calls = self.calls, []
        return calls


def a_hooked_job(**checkpointing: Any) -> tuple[Job, World]:
    delay = RestartStrategy(type=RestartType.FIXED_DELAY, delay_ms=0)
    world = World()
    pipeline = a_pipeline(**{"restart_strategy": delay} | checkpointing)
    return a_running_job(world.declare(pipeline, "flags", "silent")), world


def test_hooks_are_called_in_order_before_the_checkpoint_is_true_and_their_states_are_kept() -> (
    None
):
    job, world = a_hooked_job()
    assert isinstance(job.clock, ManualClock)

    plan = trigger_one(job)

    now_ms = job.clock.now_ms
    assert world.taken() == [("flags", "trigger", 1, now_ms), ("silent", "trigger", 1, now_ms)]
    assert plan.master_states == {"flags": "flags as of 1", "silent": None}
    carry_out(job, plan)
    assert job.metadata(ONE).master_states == plan.master_states
    assert world.taken() == []


def test_hooks_are_restored_in_order_with_what_they_answered() -> None:
    job, world = a_hooked_job()
    take_checkpoints(job, 2)
    world.taken()

    restore(job, Choice(ONE))

    assert world.taken() == [
        ("flags", "restore", 1, "flags as of 1"),
        ("silent", "restore", 1, None),
    ]
    assert not job.state().must_restore_hooks


def test_hooks_get_back_what_a_savepoint_kept() -> None:
    job, world = a_hooked_job()
    a_savepoint(job)
    take_checkpoint(job)
    world.taken()

    restore(job, savepoint_target(job, "mine"))

    assert world.taken()[0] == ("flags", "restore", 1, "flags as of 1")


def test_a_job_that_starts_from_empty_tells_its_hooks_so() -> None:
    job, world = a_hooked_job()

    restore(job, Latest())

    assert world.taken() == [("flags", "restore", None, None), ("silent", "restore", None, None)]


def test_a_hook_that_is_new_has_nothing_to_get_back() -> None:
    job, world = a_hooked_job()
    take_checkpoint(job)
    world.declare(job.pipeline, "new")

    restore(job, Latest())

    assert world.taken()[-1] == ("new", "restore", 1, None)


def test_a_restore_of_a_job_without_hooks_owes_nothing() -> None:
    job = a_running_job()
    take_checkpoint(job)

    assert not restore(job, Latest()).state.must_restore_hooks


def test_a_failing_restore_hook_fails_the_job_over() -> None:
    job, world = a_hooked_job()
    take_checkpoint(job)
    world.taken()
    world.broken = {"flags"}

    with pytest.raises(RestoreError, match="hook 'flags' could not be restored: the outside does"):
        restore(job, Latest())

    state = job.state()
    assert (state.status, state.must_restore_hooks) == (JobStatus.RESTARTING, True)
    assert world.taken() == [("flags", "restore", 1, "flags as of 1")]
    world.broken = set()
    assert watch(job).actions == ("restored the job from checkpoint 1",)
    assert job.state().status is JobStatus.RUNNING
    assert not job.state().must_restore_hooks


def test_a_failing_restore_hook_uses_up_the_restarts() -> None:
    once = RestartStrategy(type=RestartType.FIXED_DELAY, attempts=1, delay_ms=0)
    job, world = a_hooked_job(restart_strategy=once)
    world.broken = {"flags"}

    for status in (JobStatus.RESTARTING, JobStatus.FAILED):
        with pytest.raises(RestoreError):
            restore(job, Latest())
        assert job.state().status is status


def a_job_whose_restorer_died(monkeypatch: pytest.MonkeyPatch) -> tuple[Job, World]:
    """The fence is journaled; nothing behind it happened."""
    job, world = a_hooked_job()
    take_checkpoint(job)
    world.taken()

    class Killed(BaseException):
        pass

    def dies(*_: object) -> None:
        raise Killed

    monkeypatch.setattr("sluice.coordinator.restore.resume_duties", dies)
    with pytest.raises(Killed):
        restore(job, Latest())
    monkeypatch.undo()
    assert (job.state().generation, world.taken()) == (2, [])
    return job, world


def test_a_crash_between_the_fence_and_the_hooks_is_made_up_for_by_the_next_trigger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, world = a_job_whose_restorer_died(monkeypatch)

    trigger_one(job)

    acts = [call[:3] for call in world.taken()]
    assert acts == [
        ("flags", "restore", 1),
        ("silent", "restore", 1),
        ("flags", "trigger", 2),
        ("silent", "trigger", 2),
    ]
    assert not job.state().must_restore_hooks


def test_nothing_is_triggered_while_a_hook_cannot_be_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, world = a_job_whose_restorer_died(monkeypatch)
    world.broken = {"silent"}

    with pytest.raises(RestoreError, match="hook 'silent' could not be restored"):
        trigger(job)

    assert (job.state().status, job.state().pending) == (JobStatus.RESTARTING, ())


def test_a_failing_trigger_hook_drops_the_request_and_the_job_goes_on() -> None:
    job, world = a_hooked_job()
    world.broken = {"silent"}

    assert trigger(job) == Refused(
        reason=Reason.TRIGGER_CHECKPOINT_FAILURE,
        message="master hook 'silent' failed: the outside does not answer",
    )
    state = job.state()
    assert keys_of(job, job.paths.checkpoints()) == []
    assert (state.status, state.num_unsuccessful_triggers) == (JobStatus.RUNNING, 1)
    assert str(state.unsuccessful_triggers[0]) == (
        "no checkpoint was triggered, TRIGGER_CHECKPOINT_FAILURE: master hook 'silent' failed: "
        "the outside does not answer"
    )
    world.broken = set()
    assert take_checkpoint(job) == 1
    assert job.state().num_unsuccessful_triggers == 0


def test_a_queued_request_whose_hook_fails_leaves_the_queue() -> None:
    job, world = a_hooked_job(tolerable_failed_checkpoints=1)
    trigger_one(job)
    assert isinstance(trigger(job, request_id="mine"), Queued)
    fail_checkpoint(job, ONE, Reason.CHECKPOINT_EXPIRED, "too slow")
    world.broken = {"flags"}

    outcome = trigger(job, request_id="mine")

    assert isinstance(outcome, Refused)
    assert (outcome.reason, job.state().queue) == (Reason.TRIGGER_CHECKPOINT_FAILURE, ())
    world.broken = set()
    assert isinstance(trigger(job, request_id="another"), Triggered)


SOON, LATE = timedelta(milliseconds=20), timedelta(minutes=1)
WHO = ContextVar("WHO", default="")


@pytest.fixture(name="never")
def _never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()  # Who waits for it goes.


def test_what_a_hook_returns_or_raises_is_passed_on() -> None:
    def breaks() -> None:
        raise LookupError("no such flag")

    WHO.set("ada")
    assert call_hook(WHO.get, LATE) == "ada"
    with pytest.raises(LookupError, match="no such flag"):
        call_hook(breaks, LATE)


def test_one_that_hangs_has_failed(never: threading.Event) -> None:
    with pytest.raises(TimeoutError, match=r"it did not return within 0\.02 s"):
        call_hook(never.wait, SOON)


def test_a_hook_that_hangs_fails_the_request_and_a_listener_that_does_changes_nothing(
    never: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hears(checkpoint_id: int) -> None:
        never.wait()

    hangs = {1: True}
    pipeline = a_pipeline()
    pipeline.hook(
        "flags",
        trigger=lambda checkpoint_id, timestamp_ms: str(hangs.pop(1, None) and never.wait()),
        restore=lambda checkpoint_id, state: None,
        notify_checkpoint_complete=hears,
        timeout=SOON,
    )
    job = a_running_job(pipeline)

    outcome = trigger(job)
    # A hook that answers may take its time on a busy machine; the listener has none.
    monkeypatch.setattr(planning, "call_hook", lambda act, _: call_hook(act, LATE))
    taken = take_checkpoint(job)

    assert outcome == Refused(
        reason=Reason.TRIGGER_CHECKPOINT_FAILURE,
        message="master hook 'flags' failed: it did not return within 0.02 s",
    )
    latest = job.state().latest_completed
    assert latest is not None
    assert (latest.checkpoint_id, latest.is_committed) == (taken, True)
    assert "uid=flags: it did not return within 0.02 s" in caplog.text


def test_a_hook_without_any_time_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"hook\('flags'\): timeout is 0; use 1 ms"):
        a_pipeline().hook(
            "flags",
            trigger=lambda checkpoint_id, timestamp_ms: None,
            restore=lambda checkpoint_id, state: None,
            timeout=timedelta(0),
        )


TOLD = "coordinator.notifications"
FAULTS = [
    Caught(
        "a hook that refuses leaves no trace", "coordinator.trigger:_ask",
        "return _refuse(job, head, request, Reason.TRIGGER_CHECKPOINT_FAILURE, message)",
        "return Refused(reason=Reason.TRIGGER_CHECKPOINT_FAILURE, message=message)",
        test_a_failing_trigger_hook_drops_the_request_and_the_job_goes_on,
    ),
    Caught(
        "a source that cannot be told of a checkpoint stops it", f"{TOLD}:notify_complete",
        "except Exception as error:", "except ConnectionError as error:",
        test_the_source_is_told_of_what_is_published_and_may_raise_anything,
        {"error": LookupError("too slow")}, (LookupError,),
    ),
    Caught(
        "a source that lets nothing go stops a commit", f"{TOLD}:_release",
        "except Exception as error:", "except ConnectionError as error:",
        test_a_place_that_lets_nothing_go_stops_neither_a_commit_nor_an_abort,
        {"error": LookupError("too slow")}, (LookupError,),
    ),
    Caught(
        "a hold is known by the job's name and a number", f"{TOLD}:_prefix",
        "{_of_any_journal(job, uid)}{job.paths.owner}-", "{_of_any_journal(job, uid)}",
        test_who_overslept_an_emptied_root_releases_nothing_of_the_next_life,
    ),
    Caught(
        "a copy of the root lets go what the original holds", f"{TOLD}:release_orphans",
        "if not is_at_home(job, state):", "if False:",
        test_a_copy_of_the_root_releases_nothing_that_the_original_holds,
    ),
    Caught(
        "a collector lets go what others hold", f"{TOLD}:release_orphans",
        "if what == name:", "if False:",
        test_jobs_of_one_name_in_two_roots_hold_apart,
    ),
    Caught(
        "a savepoint is held by the journal that made it alone", f"{TOLD}:_held",
        "source.held(_of_any_journal(job, uid))", "source.held(_prefix(job, uid))",
        test_a_savepoint_that_outlived_its_journal_lets_go_when_it_is_disposed_of,
    ),
    Caught(
        "a source that cannot be opened stops a commit", f"{TOLD}:_opened",
        "except Exception as error:", "except ConnectionError as error:",
        test_a_source_that_cannot_be_opened_when_it_is_published_stops_nothing,
        raises=(LookupError,),
    ),
    Caught(
        "a listener that raises stops a checkpoint", f"{TOLD}:_call_listener",
        "except Exception as error:", "except ConnectionError as error:",
        test_what_a_listener_raises_changes_nothing, raises=(RuntimeError, LookupError),
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
