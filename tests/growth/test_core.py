"""The computation of a checkpoint grows linearly with its subtasks and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.answers import Ack
from sluice.core.compaction import Compaction, MergedRuns, Merges, replaced_segment
from sluice.core.completed import StageState, SubtaskState
from sluice.core.coordinator import step
from sluice.core.event_time import measured_by, source_watermark
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.plan import PartitionOffset, Slice, SourceCut, TaskPlan
from sluice.job.lineage import assigned_state
from tests.builders import a_submitted, after, an_ack, read, triggered
from tests.operations import calls_of

MOST = 32_768


def a_stage(parallelism: int, runs: int = 3) -> StageState:
    def state(index: int) -> tuple[StateHandle, ...]:
        first, last = hash_range(MOST, key_group_range(MOST, parallelism, index))
        return tuple(
            StateHandle(
                segment=SegmentHandle(
                    key=f"{run}-{index}", size_bytes=1, rows=1, checksum=f"{run}x{index}"
                ),
                first_hash=first,
                last_hash=last,
                run=run,
            )
            for run in range(runs)
        )

    return StageState(
        uid="count",
        parallelism=parallelism,
        max_parallelism=MOST,
        subtasks=tuple(
            SubtaskState(subtask=SubtaskId("count", index), state=state(index), output=())
            for index in range(parallelism)
        ),
        watermark_ms=0,
    )


def assign(parallelism: int) -> Callable[[], object]:
    before = a_stage(parallelism)
    task = TaskPlan(uid="count", parallelism=parallelism * 2, max_parallelism=MOST)
    return lambda: assigned_state(before, task)


def take_over(parallelism: int) -> Callable[[], object]:
    subtasks = a_stage(parallelism).subtasks
    merged = tuple(
        MergedRuns(replaced=tuple(map(replaced_segment, one.state)), merged=(one.state[-1],))
        for one in subtasks
    )
    compaction = Compaction(stage="count", checkpoint_id=CheckpointId(1), merged=merged)

    def act() -> None:
        merges = Merges([compaction])
        assert all(merges.applied_to(one.state) == one.state[-1:] for one in subtasks)

    return act


class Name(str):
    """Comparing it is a call that can be counted."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, str(other))


def a_cut(files: int) -> SourceCut:
    names = [Name(f"part-{number:06d}") for number in range(files)]
    return SourceCut(
        uid="events",
        position=tuple(
            PartitionOffset(partition=name, offset=1, records=1, active_at_ms=0) for name in names
        ),
        slices=tuple(Slice(partition=n, start=0, end=1, first_record=0, records=1) for n in names),
        at_ms=1,
        idle_after_ms=1,
    )


def watermark(files: int) -> Callable[[], object]:
    cut = a_cut(files)
    known = {piece.partition: 1 for piece in cut.slices}
    return lambda: source_watermark(
        cut, known, is_silent=False, out_of_orderness_ms=0, drains=False, has_event_time=True
    )


def fold_acks(subtasks: int) -> Callable[[], object]:
    acks = [
        Ack(
            checkpoint_id=CheckpointId(1),
            subtask=SubtaskId("count", index),
            attempt=1,
            event_times_ms={f"events/part-{index}": index},
        )
        for index in range(subtasks)
    ]
    return lambda: measured_by(acks)


def acknowledge(subtasks: int) -> Callable[[], object]:
    task = TaskPlan(uid="count", parallelism=subtasks, max_parallelism=MOST)
    state = after(a_submitted(), triggered(tasks=(task,)))
    event = read(*map(an_ack, task.subtasks))

    def act() -> None:
        (pending,) = step(state, event).state.pending
        assert pending.is_fully_acknowledged

    return act


@pytest.mark.parametrize("work", [acknowledge, assign, take_over, watermark, fold_acks])
def test_four_times_as_many_take_four_times_the_work(
    work: Callable[[int], Callable[[], object]],
) -> None:
    few, many = calls_of(work(250)), calls_of(work(1_000))

    assert many <= 4.2 * few + 100


@given(old=st.integers(1, 9), new=st.integers(1, 9))
def test_each_subtask_gets_what_lies_in_its_range_cut_to_it(old: int, new: int) -> None:
    before = a_stage(old, runs=2)
    handles = sorted((h for one in before.subtasks for h in one.state), key=lambda h: h.run)

    def expected(index: int) -> tuple[StateHandle, ...]:
        first, last = hash_range(MOST, key_group_range(MOST, new, index))
        return tuple(
            replace(h, first_hash=max(first, h.first_hash), last_hash=min(last, h.last_hash))
            for h in handles
            if h.first_hash <= last and first <= h.last_hash
        )

    task = TaskPlan(uid="count", parallelism=new, max_parallelism=MOST)

    assert assigned_state(before, task) == tuple(expected(index) for index in range(new))
