"""A checkpoint's cost follows the changes, and not the number of known files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from harness.jobs import answer_with, trigger_one
from harness.many_files import Folder, a_files_job, size_of
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.core.answers import Ack
from sluice.job.job import Job
from sluice.store.memory import InMemoryStore
from tests.operations import calls_of
from tests.subtasks import acknowledge, take_checkpoint


@dataclass(frozen=True)
class Cost:
    """Bytes of the plan, of the journal's new entries and of ``_metadata``, and the calls of
    functions behind the acks.
    """

    plan: int
    journal: int
    metadata: int
    calls: int


def journal_bytes(job: Job) -> int:
    return sum(listed.size_bytes for listed in job.store.list(job.paths.journal()))


def cost_of_one_record(job: Job, folder: Folder) -> Cost:
    before = journal_bytes(job)
    folder.add()
    plan = trigger_one(job)
    acknowledge(job, plan)
    calls = calls_of(lambda: (finalize(job, plan.checkpoint_id), commit(job, plan.checkpoint_id)))
    return Cost(
        plan=size_of(job, job.paths.plan(plan.checkpoint_id)),
        journal=journal_bytes(job) - before,
        metadata=size_of(job, job.paths.metadata(plan.checkpoint_id)),
        calls=calls,
    )


def cost_among(files: int, **declared: Any) -> Cost:
    folder = Folder(files)
    job = a_files_job(folder, parallelism=2, **declared)
    take_checkpoint(job)
    for _ in range(2):  # The first makes a layer of what the one before it read.
        cost = cost_of_one_record(job, folder)
    return cost


def assert_same(few: Cost, many: Cost) -> None:
    assert many.plan <= few.plan + 100
    assert many.journal <= few.journal + 100
    assert many.metadata <= few.metadata + 100
    assert many.calls <= few.calls * 1.05


@pytest.mark.parametrize("idle_after", [None, timedelta(minutes=1)], ids=["all wait", "idleness"])
def test_one_more_file_costs_the_same_among_1000_and_among_4000(
    idle_after: timedelta | None,
) -> None:
    few, many = (cost_among(files, idle_after=idle_after) for files in (1_000, 4_000))

    assert max(many.plan, many.journal, many.metadata) < 16_000
    if idle_after is None:
        assert_same(few, many)
    else:  # Who is idle can only be told with the layers: calls, but not bytes, follow the files.
        assert_same(few, Cost(many.plan, many.journal, many.metadata, few.calls))


def test_a_backlog_of_4000_files_that_wait_is_not_written_again_and_again() -> None:
    few, many = (cost_among(files, max_records_per_epoch=1) for files in (1_000, 4_000))

    assert_same(few, Cost(many.plan, many.journal, many.metadata, few.calls))


def test_an_epoch_opens_only_the_files_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 that wait, each open would be a request."""
    folder = Folder(2_000)
    job = a_files_job(folder, max_records_per_epoch=10)
    opened = set[str]()
    for name in ("get", "get_range"):
        monkeypatch.setattr(InMemoryStore, name, _noting(getattr(InMemoryStore, name), opened))

    plan = trigger_one(job)

    taken = {piece.partition for piece in plan.source("events").slices}
    assert len(taken) == 10
    assert {key for key in opened if key.endswith(".log")} == taken


def _noting(asked: Callable[..., Any], keys: set[str]) -> Callable[..., Any]:
    def ask(store: InMemoryStore, key: str, *rest: Any) -> Any:
        keys.add(key)
        return asked(store, key, *rest)

    return ask


def test_the_plan_and_the_journal_of_one_record_do_not_grow_with_the_subtasks() -> None:
    def cost(subtasks: int) -> Cost:
        folder = Folder(1)
        job = a_files_job(folder, parallelism=subtasks)
        take_checkpoint(job)
        return cost_of_one_record(job, folder)

    few, many = cost(50), cost(200)

    assert many.plan <= few.plan + 10
    assert many.journal <= few.journal + 40
    assert many.calls <= 4.2 * few.calls


def test_event_times_are_not_kept_of_files_that_are_complete() -> None:
    folder = Folder(50)
    job = a_files_job(folder, event_time="at")
    for turn in range(3):
        folder.add()
        plan = trigger_one(job)
        read = sorted({piece.partition for piece in plan.source("events").slices})
        (task,) = plan.tasks
        times = {f"events/{name}": turn for name in read}
        acks = [
            Ack(
                checkpoint_id=plan.checkpoint_id,
                subtask=subtask,
                attempt=1,
                event_times_ms=times if subtask.index == 0 else {},
            )
            for subtask in task.subtasks
        ]
        answer_with(job, plan, acks)
        finalize(job, plan.checkpoint_id)
        commit(job, plan.checkpoint_id)

    (stage,) = job.metadata(plan.checkpoint_id).stages
    assert stage.event_times_ms == {"events/": 1, f"events/{read[0]}": 2}
