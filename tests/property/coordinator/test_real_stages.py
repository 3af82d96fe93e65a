"""The real stages and subtasks, without Spark: whatever the mode, the same windows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest

from harness.jobs import a_running_job, trigger_one
from harness.no_spark import stages_without_spark
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, overtake
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.configuration import CheckpointingMode, CheckpointType, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.operations import Tumbling
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.places import open_result_table, open_side_table
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.spark.stage import run_stage
from sluice.state.cache import SegmentCache

pytestmark = pytest.mark.usefixtures("without_spark")
EVENTS, EPOCH = 600, 120
READ, PASS, WINDOW, COUNT = "read", "pass_on", "per_second", "count_windows"


def unchanged(rows: Any) -> Any:
    return rows


def a_windowed_job(**checkpointing: Any) -> Job:
    """Two transforms, a window of 10 ms, a running count; every row is in one window."""
    checkpointing = {
        "max_records_per_epoch": EPOCH,
        "tolerable_failed_checkpoints": 99,
    } | checkpointing
    pipeline = Pipeline("bids", Checkpointing(**checkpointing), parallelism=2)
    columns = ("bid_auction", "date_time")
    events = pipeline.source("events", Nexmark(EVENTS, columns=columns), event_time="date_time")
    passed: Any = events.transform(READ, unchanged).transform(PASS, unchanged)
    windows = passed.key_by("bid_auction").window(
        WINDOW, Tumbling(timedelta(milliseconds=10)), bids=agg.count()
    )
    counted = windows.key_by("bid_auction").aggregate(COUNT, n=agg.count(), bids=agg.sum("bids"))
    counted.sink("counts", FilesTable(upsert_key=("bid_auction",)))
    return a_running_job(pipeline)


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    with stages_without_spark():
        return outcome_of(a_windowed_job(), one_by_one)


def run(job: Job, plan: CheckpointPlan, *stages: str) -> None:
    for stage in stages or [task.uid for task in plan.tasks]:
        run_stage(job, None, plan.checkpoint_id, stage, attempt=1)  # type: ignore[arg-type]


def complete(job: Job, checkpoint_id: CheckpointId) -> None:
    finalize(job, checkpoint_id)
    metadata = job.metadata(checkpoint_id)
    parent = job.parent_metadata(metadata)
    for stage in metadata.stages:
        before = None if parent is None else parent.stage(stage.uid)
        assert before is None or before.watermark_ms <= stage.watermark_ms, stage.uid
    commit(job, checkpoint_id)


def one_by_one(job: Job) -> None:
    plan = trigger_one(job)
    run(job, plan)
    complete(job, plan.checkpoint_id)


def last_stage_first(job: Job) -> None:
    """Possible when no stage waits for another."""
    plan = trigger_one(job)
    waits = not all(task.is_unaligned for task in plan.tasks[1:])
    run(job, plan, *[task.uid for task in plan.tasks][:: 1 if waits else -1])
    complete(job, plan.checkpoint_id)


def always_behind(*stages: str) -> Callable[[Job], None]:
    def act(job: Job) -> None:
        plan = trigger_one(job)
        behind = [t.uid for t in plan.tasks if t.may_be_overtaken and t.uid in stages]
        first = min((i for i, t in enumerate(plan.tasks) if t.uid in behind), default=None)
        late = [t.uid for t in plan.tasks[first:] if t.may_be_overtaken] if behind else []
        run(job, plan, *[t.uid for t in plan.tasks if t.uid not in late])
        overtake(job, plan.checkpoint_id, late)
        complete(job, plan.checkpoint_id)

    return act


def now_and_then(act: Callable[[Job], None]) -> Callable[[Job], None]:
    def acts(job: Job) -> None:
        one_by_one(job)
        if job.state().status is JobStatus.RUNNING:
            act(job)

    return acts


def two_at_once(job: Job) -> None:
    """The first two stages of the next epoch run before the last two of this one."""
    plans: deque[CheckpointPlan] = deque()
    while job.state().status is JobStatus.RUNNING:
        outcome = trigger(job)
        if isinstance(outcome, Triggered):
            run(job, outcome.plan, READ, PASS)
            plans.append(outcome.plan)
            if len(plans) == 1:
                continue
        plan = plans.popleft()
        run(job, plan, WINDOW, COUNT)
        complete(job, plan.checkpoint_id)


def with_failures(act: Callable[[Job], None]) -> Callable[[Job], None]:
    def fails_first(job: Job) -> None:
        plan = trigger_one(job)
        run(job, plan, READ)
        lost = Reason.TASK_FAILURE
        fail_checkpoint(job, plan.checkpoint_id, lost, "lost", is_task_failure=True)
        restore(job, Latest())
        act(job)

    return fails_first


def with_savepoints(job: Job) -> None:
    """Every epoch starts from the savepoint that the one before it took."""
    name = f"s{job.state().next_checkpoint_id}"
    plan = trigger_one(job, type=CheckpointType.SAVEPOINT, savepoint_name=name, is_periodic=False)
    run(job, plan)
    complete(job, plan.checkpoint_id)
    if job.state().status is JobStatus.RUNNING:
        restore(job, savepoint_target(job, name))
        one_by_one(job)


def outcome_of(job: Job, act: Callable[[Job], None]) -> list[dict[str, Any]]:
    while job.state().status is JobStatus.RUNNING:
        act(job)
    assert job.state().status is JobStatus.FINISHED
    assert not open_side_table(job, f"{WINDOW}.late").read().num_rows
    return sorted(
        open_result_table(job, {}).read().to_pylist(), key=lambda row: row["bid_auction"] or 0
    )


UNALIGNED: dict[str, Any] = {"unaligned": True}
TIMEOUT: dict[str, Any] = {"unaligned": True, "aligned_checkpoint_timeout": timedelta(seconds=1)}


@pytest.mark.parametrize(
    ("checkpointing", "act"),
    [
        ({}, with_failures(one_by_one)),
        ({}, with_savepoints),
        ({"mode": CheckpointingMode.AT_LEAST_ONCE}, with_failures(one_by_one)),
        ({"max_concurrent_checkpoints": 2}, two_at_once),
        (UNALIGNED, last_stage_first),
        (UNALIGNED, with_failures(last_stage_first)),
        (UNALIGNED, with_savepoints),
        (TIMEOUT, one_by_one),
        (TIMEOUT, always_behind(COUNT)),
        (TIMEOUT, always_behind(WINDOW)),
        (TIMEOUT, always_behind(PASS)),
        (TIMEOUT, now_and_then(always_behind(PASS))),
        (TIMEOUT, with_failures(always_behind(WINDOW))),
    ],
)
def test_every_mode_gives_the_same_result(
    expected: list[dict[str, Any]], checkpointing: dict[str, Any], act: Callable[[Job], None]
) -> None:
    assert sum(row["bids"] for row in expected if row["bid_auction"] is not None) > EVENTS * 0.9
    assert outcome_of(a_windowed_job(**checkpointing), act) == expected


def a_counting_job(**checkpointing: Any) -> Job:
    """The odd ones of running counts, behind them a transform, and its table."""
    checkpointing = {"max_records_per_epoch": EPOCH} | checkpointing
    pipeline = Pipeline("bids", Checkpointing(**checkpointing), parallelism=2)
    events = pipeline.source("events", Nexmark(EVENTS, columns=("bid_auction",)))
    counted = events.key_by("bid_auction").aggregate(COUNT, n=agg.count())
    passed: Any = counted.where("n % 2 = 1").transform(PASS, unchanged)
    passed.sink("counts", FilesTable(upsert_key=("bid_auction",)))
    return a_running_job(pipeline)


@pytest.mark.parametrize(
    ("checkpointing", "act"),
    [
        (UNALIGNED, last_stage_first),
        (TIMEOUT, always_behind(PASS)),
        (TIMEOUT, now_and_then(always_behind(PASS))),
    ],
)
def test_a_stage_that_reads_changes_of_several_epochs_at_once_shows_what_is_left_of_them(
    checkpointing: dict[str, Any], act: Callable[[Job], None]
) -> None:
    def table(job: Job, act: Callable[[Job], None]) -> list[dict[str, Any]]:
        while job.state().status is JobStatus.RUNNING:
            act(job)
        rows = open_result_table(job, {}).read().to_pylist()
        return sorted(rows, key=lambda row: row["bid_auction"] or 0)

    expected = table(a_counting_job(), one_by_one)

    assert {row["n"] % 2 for row in expected} == {1}
    assert table(a_counting_job(**checkpointing), act) == expected


def test_an_epoch_fetches_the_state_it_will_look_at_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefetched: set[str] = set()
    prefetch = SegmentCache.prefetch

    def noting(cache: SegmentCache, handles: Iterable[SegmentHandle]) -> None:
        handles = list(handles)
        prefetched.update(handle.checksum for handle in handles)
        prefetch(cache, handles)

    monkeypatch.setattr(SegmentCache, "prefetch", noting)
    job = a_windowed_job()
    one_by_one(job)
    one_by_one(job)
    before = job.metadata(CheckpointId(2)).stage(COUNT)
    assert before is not None
    kept = {handle.segment.checksum for one in before.subtasks for handle in one.state}
    assert kept
    assert not kept & prefetched

    one_by_one(job)

    assert kept <= prefetched


def test_a_stage_that_was_declared_after_the_trigger_is_refused_by_name() -> None:
    job = a_windowed_job()
    plan = trigger_one(job)

    with pytest.raises(ConfigurationError, match="was triggered before stage 'new' was declared"):
        run(job, plan, "new")
