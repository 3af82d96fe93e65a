"""Operator list state of a keyed function: each subtask has its own, and a rescale deals it out."""

from __future__ import annotations

import pickle
import struct
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

import polars as pl
import pytest

from harness.jobs import a_running_job, trigger_one
from sluice import (
    Checkpointing,
    Context,
    KeyedProcessFunction,
    OperatorListState,
    Pipeline,
    SubtaskContext,
    UnionListState,
    ValueState,
)
from sluice.connectors.files_table.table import ManifestTable as PublicTable
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.submission import reconfigure
from sluice.core.configuration import CheckpointType
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.restoring import Latest, RestoreOptions
from sluice.declaration.keyed_functions import Row
from sluice.errors import ConfigurationError, StageFailed
from sluice.job.job import Job
from sluice.job.places import open_sinks
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.spark.stage import run_stage
from sluice.state_processor import SavepointWriter
from sluice.surface.state import open_state
from tests.subtasks import finish

pytestmark = pytest.mark.usefixtures("without_spark")
STAGE = "batched"
EPOCH_ROWS = 60


class Batched(KeyedProcessFunction):
    """Keeps prices until a subtask has ten, and then yields them all; counts its epochs."""

    waiting = OperatorListState(tuple[int, int])
    epochs = UnionListState(int)
    seen = ValueState(int)
    log: ClassVar[list[tuple[Any, ...]]] = []

    def initialize_state(self, context: SubtaskContext) -> None:
        self.log.append(("begin", context.subtask, self.waiting.get(), self.epochs.get()))
        self.rows = 0

    def process(self, row: Row, context: Context) -> None:
        self.rows += 1
        self.waiting.add((context.key["bid_auction"] or 0, row["price"] or 0))

    def prepare_snapshot_pre_barrier(self, context: SubtaskContext) -> Iterable[Row]:
        found = self.waiting.get()
        if len(found) >= 10:
            batch, kept = found[: len(found) // 10 * 10], found[len(found) // 10 * 10 :]
            yield from ({"price": price} for _, price in batch)
            self.waiting.update(kept)

    def snapshot_state(self, context: SubtaskContext) -> None:
        self.epochs.update([context.subtask, self.rows])
        self.log.append(("end", context.subtask, self.waiting.get(), context.checkpoint_id))


def a_job(function: KeyedProcessFunction | None = None, parallelism: int = 2) -> Job:
    pipeline = Pipeline(
        "bids", Checkpointing(max_records_per_epoch=EPOCH_ROWS), parallelism=parallelism
    )
    bids = pipeline.source("bids", Nexmark(600, columns=("bid_auction", "price")))
    batched = bids.key_by("bid_auction").process_keyed(
        STAGE, function or Batched(), result={"price": int}
    )
    batched.sink("out", FilesTable())
    Batched.log.clear()
    return a_running_job(pipeline)


def play(job: Job, epochs: int = 1) -> None:
    for _ in range(epochs):
        plan = trigger_one(job)
        run(job, plan.checkpoint_id)
        finish(job, plan.checkpoint_id)


def run(job: Job, checkpoint_id: Any) -> None:
    run_stage(job, None, checkpoint_id, STAGE, attempt=1)  # type: ignore[arg-type]


def told(kind: str) -> list[Any]:
    """What the subtasks of the last epoch that was played said, in their order."""
    found = {subtask: rest for one, subtask, *rest in Batched.log if one == kind}
    return [found[subtask] for subtask in sorted(found)]


def rescale(job: Job, parallelism: int) -> None:
    changed = reconfigure(job.pipeline, job.state().configuration, {}, parallelism=parallelism)
    restore(job, Latest(), configuration=changed)
    Batched.log.clear()


def test_each_subtask_goes_on_with_its_own_elements() -> None:
    job = a_job()
    play(job)
    left = [waiting for waiting, _ in told("end")]
    assert all(0 < len(one) < 10 for one in left)
    assert left[0] != left[1]

    play(job)

    assert [waiting for waiting, _ in told("begin")] == left


def test_of_a_union_list_each_subtask_reads_what_all_had_at_the_barrier_before() -> None:
    job = a_job()
    play(job)
    assert [union for _, union in told("begin")] == [[], []]

    play(job)

    first, second = (union for _, union in told("begin"))
    assert first == second
    assert (first[0], first[2], first[1] + first[3]) == (0, 1, EPOCH_ROWS)


def test_no_element_is_lost_or_there_twice_whatever_the_parallelism() -> None:
    job = a_job(parallelism=2)
    play(job, 2)
    for parallelism in (3, 1, 4, 2):
        before = [element for waiting, _ in told("end") for element in waiting]
        rescale(job, parallelism)
        play(job)
        dealt = [waiting for waiting, _ in told("begin")]
        assert sorted(element for waiting in dealt for element in waiting) == sorted(before)
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1

    kept = open_state(job, "latest", STAGE, "operator:waiting").frame().height
    assert kept == sum(len(waiting) for waiting, _ in told("end"))
    assert kept + shown(job) == 6 * EPOCH_ROWS


def test_a_restore_with_the_same_parallelism_leaves_each_its_own() -> None:
    job = a_job(parallelism=3)
    play(job)
    left = [waiting for waiting, _ in told("end")]
    rescale(job, 3)

    play(job)

    assert [waiting for waiting, _ in told("begin")] == left


def test_an_epoch_that_is_repeated_begins_with_the_same_elements_and_another_id() -> None:
    job = a_job()
    play(job)
    failed = trigger_one(job)
    run(job, failed.checkpoint_id)
    begun, ended = told("begin"), told("end")
    fail_checkpoint(job, failed.checkpoint_id, Reason.CHECKPOINT_EXPIRED, "too slow")
    restore(job, Latest())
    Batched.log.clear()

    play(job)

    assert told("begin") == begun
    assert [waiting for waiting, _ in told("end")] == [waiting for waiting, _ in ended]
    assert [said[-1] for said in (*ended, *told("end"))] == [2, 2, 3, 3]


def shown(job: Job) -> int:
    table = open_sinks(job, {})["out"]
    assert isinstance(table, PublicTable)
    return int(table.read().num_rows)


class Misused(Batched):
    def initialize_state(self, context: SubtaskContext) -> Any:
        self.seen.get()


class Yielding(Batched):
    def snapshot_state(self, context: SubtaskContext) -> Any:
        yield {"price": 1}


class Failing(Batched):
    def prepare_snapshot_pre_barrier(self, context: SubtaskContext) -> Iterable[Row]:
        self.seen.get()  # The last key's: it is gone.
        return ()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (Misused(), "stage 'batched': state 'seen' is that of a key"),
        (Failing(), "stage 'batched': state 'seen' is that of a key"),
        (Yielding(), r"snapshot_state\(\) yields rows; yield them in process\(\)"),
    ],
)
def test_what_cannot_be_done_beside_keys_is_refused(
    function: KeyedProcessFunction, said: str
) -> None:
    job = a_job(function)
    plan = trigger_one(job)

    with pytest.raises((ConfigurationError, StageFailed), match=said):
        run(job, plan.checkpoint_id)


class Sketching(KeyedProcessFunction):
    """Owns its bytes: of each key a pickle that sluice cannot read, and of each subtask packed
    numbers that are unpacked once an epoch, and kept as Python objects in between (raw state).
    """

    sketch = ValueState(bytes)
    registers = OperatorListState(bytes)

    def initialize_state(self, context: SubtaskContext) -> None:
        self.counts: Counter[int] = Counter()
        for raw in self.registers.get():
            self.counts += Counter(dict(struct.iter_unpack("<qq", raw)))

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        key = context.key["bid_auction"] or 0
        seen: list[int] = pickle.loads(self.sketch.get(pickle.dumps([])))  # noqa: S301 - our own
        self.sketch.set(pickle.dumps([*seen, row["price"] or 0]))
        self.counts[key] += 1
        yield {"price": len(seen) + 1}

    def snapshot_state(self, context: SubtaskContext) -> None:
        self.registers.update(struct.pack("<qq", *one) for one in self.counts.items())


def test_bytes_that_a_function_owns_survive_savepoints_rescales_and_the_state_processor() -> None:
    """Flink's raw keyed and raw operator state: not a bit differs, whatever they mean."""
    job = a_job(Sketching(), parallelism=2)
    play(job, 2)

    def sketches() -> dict[int, list[int]]:
        rows = open_state(job, "latest", STAGE, "values").frame().iter_rows(named=True)
        return {row["bid_auction"] or 0: pickle.loads(row["sketch"]) for row in rows}  # noqa: S301

    def counted() -> Counter[int]:
        elements = open_state(job, "latest", STAGE, "operator:registers").frame()
        unpacked = (struct.unpack("<qq", raw) for raw in elements["_value"])
        return sum((Counter({key: count}) for key, count in unpacked), Counter())

    assert sum(map(len, sketches().values())) == 2 * EPOCH_ROWS
    for parallelism in (3, 1, 4):
        rescale(job, parallelism)
        play(job)
        assert counted() == {key: len(seen) for key, seen in sketches().items()}

    before = sketches()
    plan = trigger_one(
        job, type=CheckpointType.SAVEPOINT, savepoint_name="whole", is_canonical=True
    )
    run(job, plan.checkpoint_id)
    finish(job, plan.checkpoint_id)
    assert {key: seen[: len(before[key])] for key, seen in sketches().items() if key in before} == (
        before
    )
    with_marks = SavepointWriter.from_existing_savepoint(job, "whole").transform(
        STAGE,
        lambda rows: rows.with_columns(
            sketch=rows["sketch"].map_elements(
                lambda raw: pickle.dumps([*pickle.loads(raw), -1]),  # noqa: S301 - our own
                return_dtype=pl.Binary,
            )
        ),
        "values",
    )
    with_marks.write("marked")
    restore(job, savepoint_target(job, "marked"), RestoreOptions(roll_back_tables=True))
    play(job)
    assert all(-1 in seen for key, seen in sketches().items() if key in before)


def test_operator_lists_are_refused_where_no_subtask_has_any() -> None:
    class Mapped:
        waiting = OperatorListState(int)

        def __call__(self, *rows: Any) -> Any:
            return rows[0]

    pipeline = Pipeline("bids")
    bids = pipeline.source("bids", Nexmark(10))
    said = "Mapped declares operator list state 'waiting', but .*only a function of process_keyed"

    with pytest.raises(ConfigurationError, match="'mapped': " + said):
        bids.transform("mapped", Mapped())
    with pytest.raises(ConfigurationError, match="'counted': " + said):
        bids.key_by("bid_auction").process("counted", Mapped(), state={}, result={"n": int})


def test_an_operator_list_is_not_read_on_the_coordinator() -> None:
    with pytest.raises(ConfigurationError, match="'waiting' is that of a subtask; use it where"):
        Batched().waiting.get()
    with pytest.raises(ConfigurationError, match="'epochs' is that of a subtask; use it where"):
        Batched().epochs.get()
