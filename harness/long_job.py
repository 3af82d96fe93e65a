"""A job with a thousand checkpoints, of which the last two have a thousand subtasks in each stage.

Those that fill its history are acknowledged with seeded figures, an interval after another up to
the present; three before the end are what the stages' own subtasks make, with lists of rows in the
place of Spark.  Their state is then cut for a thousand subtasks, as a compaction would.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

import pyarrow as pa
import pyarrow.compute as pc

from harness.jobs import ManualClock, a_pipeline, answer_with, trigger_one
from harness.no_spark import stages_without_spark
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure, submit
from sluice.core.answers import Ack, SubtaskMetrics
from sluice.core.configuration import CheckpointType
from sluice.core.failures import CheckpointFailureReason
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.core.restoring import Latest
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job, open_job
from sluice.job.lineage import assigned_state, lineage_of
from sluice.protocol.records import checksum
from sluice.spark.stage import run_stage
from sluice.state.segments import HASH, decode_segment, encode_segment
from sluice.store.journal import KEPT_ENTRIES
from sluice.store.open import StoreLocation, open_store

CHECKPOINTS, SUBTASKS = 1_000, 1_000
COMPLETED, PENDING = CheckpointId(CHECKPOINTS - 1), CheckpointId(CHECKPOINTS)
FIRST_REAL = CHECKPOINTS - 4
SAVEPOINT = "before-scaling"
FIRST_STAGE = "count_bids"
INTERVAL_MS = 10_000
RECORDS = 20_000
USUAL_PARALLELISM = 2
FAILED_EACH, SAVED_EACH, TRUNCATED_EACH = 73, 240, 20
WHOLE_JOURNAL_FROM = FIRST_REAL - KEPT_ENTRIES // 3
COPIES_AT_ONCE = 8


def a_long_pipeline() -> Pipeline:
    pipeline = a_pipeline(
        events=RECORDS * (CHECKPOINTS + 3),
        max_records_per_epoch=RECORDS,
        tolerable_failed_checkpoints=CHECKPOINTS,
        num_retained=10,
    )
    pipeline.max_parallelism = SUBTASKS
    return pipeline


def a_long_job() -> Job:
    """In memory; its last checkpoint is pending, and waits for all stages but the first."""
    clock = ManualClock(_now_ms() - CHECKPOINTS * INTERVAL_MS)
    pipeline = a_long_pipeline()
    location = StoreLocation(root=f"memory://{secrets.token_hex(6)}")
    job = open_job(pipeline, location, clock=clock)
    job.time._drawn = 0  # noqa: SLF001 - its past is played, and its clock is the store's
    filler = _Filler(job, clock)
    submit(job, configure(pipeline, {}, parallelism=USUAL_PARALLELISM))
    for number in range(1, FIRST_REAL):
        filler.next(number)
    for name in (None, SAVEPOINT, None):
        clock.now_ms = _now_ms()
        _take(job, _savepoint(job, name) if name else trigger_one(job))
    restore(job, Latest(), configuration=configure(pipeline, {}, parallelism=SUBTASKS))
    clock.now_ms = _now_ms()
    filler.complete(trigger_one(job), cuts=True)
    plan = trigger_one(job)
    filler.acknowledge(plan, plan.tasks[0])
    return job


def copy_to(location: StoreLocation, job: Job) -> None:
    target = open_store(location)

    def copy(key: str) -> None:
        body = job.store.get(key)
        assert body is not None
        target.create(key, body)

    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        list(pool.map(copy, [listed.key for listed in job.store.list("")]))


class _Filler:
    """Answers as subtasks do that find no rows: they hand on the state that they were given."""

    def __init__(self, job: Job, clock: ManualClock) -> None:
        self._job = job
        self._clock = clock
        self._random = Random(7)

    def next(self, number: int) -> None:
        self._clock.now_ms += INTERVAL_MS - self._clock.now_ms % INTERVAL_MS
        if number % FAILED_EACH == 0:
            plan = trigger_one(self._job)
            self._clock.now_ms += self._random.randrange(900, 3_000)
            declined = CheckpointFailureReason.CHECKPOINT_DECLINED
            said = "rank_bids declined: value out of range in column bids"
            fail_checkpoint(self._job, plan.checkpoint_id, declined, said)
        elif number % SAVED_EACH == 0:
            self.complete(_savepoint(self._job, f"before-{number}"))
        else:
            self.complete(trigger_one(self._job))
        if number % TRUNCATED_EACH == 0 and number < WHOLE_JOURNAL_FROM:
            self._job.journal.truncate(keep=TRUNCATED_EACH)  # To be made sooner.

    def complete(self, plan: CheckpointPlan, *, cuts: bool = False) -> None:
        for task in plan.tasks:
            acks = self.acknowledge(plan, task, cuts=cuts)
            self._clock.now_ms = max(ack.metrics.acknowledged_at_ms for ack in acks)
        self._clock.now_ms += self._random.randrange(20, 90)
        finalize(self._job, plan.checkpoint_id)
        commit(self._job, plan.checkpoint_id)

    def acknowledge(self, plan: CheckpointPlan, task: TaskPlan, *, cuts: bool = False) -> list[Ack]:
        lineage = lineage_of(self._job, self._job.state(), plan)
        state = assigned_state(lineage.stage(task.uid), task)
        if cuts:
            state = _cut(self._job, plan, task, state)
        acks = [
            Ack(
                checkpoint_id=plan.checkpoint_id,
                subtask=SubtaskId(task.uid, index),
                attempt=1,
                state=state[index],
                metrics=self._figures(state[index]),
            )
            for index in range(task.parallelism)
        ]
        answer_with(self._job, plan, acks)
        return acks

    def _figures(self, state: Sequence[StateHandle]) -> SubtaskMetrics:
        began_ms = self._clock.now_ms + self._random.randrange(40, 260)
        sync_ms = round(self._random.lognormvariate(6.4, 0.35))
        async_ms = round(self._random.lognormvariate(4.2, 0.5))
        rows = round(self._random.lognormvariate(5.5, 0.1))
        known_bytes = sum(handle.segment.size_bytes for handle in state)
        return SubtaskMetrics(
            started_at_ms=began_ms,
            acknowledged_at_ms=began_ms + sync_ms + async_ms + self._random.randrange(2, 30),
            sync_ms=sync_ms,
            async_ms=async_ms,
            rows_in=rows * 4,
            rows_out=rows,
            groups=rows,
            checkpointed_bytes=known_bytes or rows * 60,
            full_bytes=known_bytes or rows * 200,
        )


def _take(job: Job, plan: CheckpointPlan) -> None:
    with stages_without_spark():
        for stage in job.pipeline.stages:
            run_stage(job, None, plan.checkpoint_id, stage, attempt=1)  # type: ignore[arg-type]
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)


def _savepoint(job: Job, name: str) -> CheckpointPlan:
    kind = CheckpointType.SAVEPOINT
    return trigger_one(
        job, type=kind, savepoint_name=name, is_periodic=False, cause="airflow:admin"
    )


def _cut(
    job: Job, plan: CheckpointPlan, task: TaskPlan, state: Sequence[tuple[StateHandle, ...]]
) -> tuple[tuple[StateHandle, ...], ...]:
    """Segments of each subtask's own, in the place of those that all of them share."""
    rows: dict[str, pa.Table] = {}

    def own(handle: StateHandle, index: int, number: int) -> StateHandle:
        segment = handle.segment
        if segment.key not in rows:
            body = job.store.get(segment.key)
            assert body is not None
            rows[segment.key] = decode_segment(body, checksum=segment.checksum, name=segment.key)
        hashes = pc.field(HASH)
        within = (hashes >= handle.first_hash) & (hashes <= handle.last_hash)
        mine = rows[segment.key].filter(within)
        body = encode_segment(mine)
        name = f"{index:05d}-{number}-{checksum(body)}"
        key = job.paths.shared_segment(task.uid, plan.checkpoint_id, name)
        job.store.put(key, body)
        written = SegmentHandle(
            key=key, size_bytes=len(body), rows=mine.num_rows, checksum=checksum(body)
        )
        return replace(handle, segment=written)

    return tuple(
        tuple(own(handle, index, number) for number, handle in enumerate(handles))
        for index, handles in enumerate(state)
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
