"""Hooks, sources and sinks are told how each checkpoint ended; what they raise changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from harness.jobs import a_pipeline, a_running_job, published_records, trigger_one
from sluice.connectors.nexmark.source import NexmarkSource
from sluice.connectors.staged_files import StagedFiles
from sluice.connectors.staged_sink import StagedSink
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.coordinator.trigger import NotTriggered, trigger
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, Row
from sluice.declaration.keyed_states import ValueState
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.declaration.places import CheckpointListener
from sluice.job.job import Job
from sluice.store.memory import InMemoryStore
from tests.hooked import Crash, crashing
from tests.subtasks import acknowledge, take_checkpoint

ONE = CheckpointId(1)


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
    told: Told | None = None

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        assert self.told is not None
        self.told.hear("events", "complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        assert self.told is not None
        self.told.hear("events", "aborted", checkpoint_id)


@dataclass(frozen=True, slots=True)
class Listening:
    source: ListeningSource
    params: tuple[Any, ...] = ()
    opened: list[str] = field(default_factory=list[str])

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> ListeningSource:
        self.opened.append("events")
        return self.source


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


class Quiet(KeyedProcessFunction):
    def process(self, row: Row, context: Context) -> None: ...


def a_listening_job(told: Told, **checkpointing: Any) -> Job:
    pipeline: Pipeline = a_pipeline(**checkpointing)
    node = pipeline.sources["events"]
    opened = node.spec.open({}, None)
    assert isinstance(opened, NexmarkSource)
    spec = Listening(ListeningSource(opened.events, told=told))
    pipeline.sources["events"] = replace(node, spec=spec)
    pipeline.hook(
        "flags",
        trigger=lambda checkpoint_id, timestamp_ms: None,
        restore=lambda checkpoint_id, state: None,
        prepare_snapshot_pre_barrier=told.of("flags", "prepare"),
        notify_checkpoint_complete=told.of("flags", "complete"),
        notify_checkpoint_aborted=told.of("flags", "aborted"),
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
    plan = trigger_one(job)
    acknowledge(job, plan)
    finalize(job, ONE)
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

    assert outcome == NotTriggered(
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
    assert isinstance(spec, Listening)
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

    files = StagedFiles("copy", InMemoryStore())
    for target in (Target(), object()):
        sink = StagedSink(files, target)  # type: ignore[arg-type]
        sink.notify_checkpoint_complete(1)
        sink.notify_checkpoint_aborted(2)

    assert told.calls == [("copy", "complete", 1), ("copy", "aborted", 2)]
