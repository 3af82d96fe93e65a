"""Epochs come to last as long as their target, whatever the stages cost, and stay within bounds."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import CheckpointType, JobConfiguration
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.requests import (
    FIRST_RECORDS,
    LEAST_RECORDS,
    MOST_GROWTH,
    MOST_RECORDS,
    MOST_SHRINKING,
    records_of_next_epoch,
)
from sluice.core.state import CoordinatorState, FailedCheckpoint
from tests.property.core.completed_checkpoints import a_completed

SIZED = JobConfiguration(target_epoch_ms=60_000)
durations = st.integers(0, 10**9)
sizes = st.integers(0, 10**15)


def an_epoch(number: int, records: int, duration_ms: int) -> CompletedCheckpoint:
    return a_completed(number, completed_at_ms=duration_ms, records=records)


def a_failure(number: int, reason: Reason = Reason.CHECKPOINT_EXPIRED) -> FailedCheckpoint:
    return FailedCheckpoint(
        checkpoint_id=CheckpointId(number),
        type=CheckpointType.CHECKPOINT,
        triggered_at_ms=0,
        failed_at_ms=1,
        reason=reason,
        message="",
    )


def size(
    *epochs: CompletedCheckpoint,
    failed: tuple[FailedCheckpoint, ...] = (),
    configuration: JobConfiguration = SIZED,
) -> int:
    state = CoordinatorState(completed=epochs, failed=failed, configuration=configuration)
    found = records_of_next_epoch(state)
    assert found is not None
    return found


def test_without_a_target_an_epoch_takes_all_there_is() -> None:
    assert records_of_next_epoch(CoordinatorState()) is None


@given(per_second=st.integers(1_000, 1_000_000), backlog=st.integers(1, 10**10))
def test_without_a_target_what_expired_is_tried_again_smaller_and_no_more_expires(
    per_second: int, backlog: int
) -> None:
    timeout_ms, unsized = 600_000, replace(SIZED, target_epoch_ms=None)
    done: tuple[CompletedCheckpoint, ...] = ()
    expired: tuple[FailedCheckpoint, ...] = ()
    lasted_ms = [0]
    for number in range(1, 60):
        state = CoordinatorState(completed=done, failed=expired, configuration=unsized)
        limit = records_of_next_epoch(state)
        taken = backlog if limit is None else min(backlog, limit)
        lasted_ms.append(taken * 1_000 // per_second)
        if lasted_ms[-1] > timeout_ms:
            expired = (*expired, replace(a_failure(number), failed_at_ms=timeout_ms))
        elif taken:
            done, backlog = (an_epoch(number, taken, lasted_ms[-1]),), backlog - taken

    assert len(expired) <= 1
    assert not backlog or max(lasted_ms[2:]) >= timeout_ms // 3  # It is worked off at full size.


@given(
    fast=st.integers(10_000, 10_000_000),
    slower=st.integers(2, 1_000),
    target_ms=st.sampled_from((None, 60_000)),
    retained=st.integers(1, 10),
    idle=st.sets(st.integers(1, 60)),
)
def test_behind_what_expired_and_its_success_none_expires_again(
    fast: int, slower: int, target_ms: int | None, retained: int, idle: set[int]
) -> None:
    """The stages become *slower* while records of more than any epoch wait, but in *idle* ones."""
    timeout_ms, configuration = 600_000, replace(SIZED, target_epoch_ms=target_ms)
    done: tuple[CompletedCheckpoint, ...] = (an_epoch(1, 300 * fast, 300_000),)
    expired: tuple[FailedCheckpoint, ...] = ()
    worked_off: list[int] = []
    for number in range(2, 61):
        state = CoordinatorState(completed=done, failed=expired, configuration=configuration)
        limit = records_of_next_epoch(state)
        taken = 7 if number in idle else 10**12 if limit is None else limit
        lasted_ms = taken * 1_000 * slower // fast
        if lasted_ms > timeout_ms and taken > LEAST_RECORDS:
            assert not worked_off
            expired = (*expired, replace(a_failure(number), failed_at_ms=timeout_ms))
        elif taken:
            done = (*done, an_epoch(number, taken, lasted_ms))[-retained:]
            worked_off += [taken] if expired and taken > 7 else []


def test_the_first_epoch_is_small_and_so_is_that_behind_epochs_without_records() -> None:
    assert size() == size(an_epoch(1, 0, 10)) == FIRST_RECORDS


@given(
    overhead_ms=st.integers(0, 30_000),
    per_second=st.integers(1_000, 10_000_000),
    start=st.integers(1, 10**9),
)
def test_it_settles_where_an_epoch_lasts_as_long_as_the_target(
    overhead_ms: int, per_second: int, start: int
) -> None:
    """Half of the target at most is overhead; what is left is worked through at a steady rate."""

    def lasts(records: int) -> int:
        return overhead_ms + records * 1_000 // per_second

    records = start
    for number in range(1, 31):
        records = size(an_epoch(number, records, lasts(records)))

    assert abs(lasts(records) - 60_000) <= 1_500 or records == LEAST_RECORDS


@given(epochs=st.lists(st.tuples(sizes, durations), max_size=4), expired=st.integers(0, 20))
def test_it_is_bounded_whatever_was_measured(epochs: list[tuple[int, int]], expired: int) -> None:
    measured = [an_epoch(n, *epoch) for n, epoch in enumerate(epochs, start=1)]
    failed = tuple(a_failure(10 + n) for n in range(expired))

    found = size(*measured, failed=failed)

    assert LEAST_RECORDS <= found <= MOST_RECORDS
    most = max((records for records, _ in epochs), default=0)
    assert found <= max(LEAST_RECORDS, FIRST_RECORDS if not most else most * MOST_GROWTH)


@given(records=sizes, duration_ms=durations, longer_ms=durations)
def test_a_slower_epoch_is_not_followed_by_a_larger_one(
    records: int, duration_ms: int, longer_ms: int
) -> None:
    slower = an_epoch(1, records, duration_ms + longer_ms)

    assert size(slower) <= size(an_epoch(1, records, duration_ms))


@given(records=st.integers(8_000, 10**9), duration_ms=durations)
def test_one_pause_does_not_make_many_small_epochs_of_a_large_one(
    records: int, duration_ms: int
) -> None:
    assert size(an_epoch(1, records, duration_ms)) >= records // MOST_SHRINKING


def test_each_checkpoint_that_expired_since_the_last_success_halves_it() -> None:
    done = an_epoch(5, 64_000, 60_000)
    others = (a_failure(4), a_failure(9, Reason.TASK_FAILURE))

    assert size(done) == size(done, failed=others) == 64_000
    assert size(done, failed=(a_failure(6),)) == 32_000
    assert size(done, failed=(*others, a_failure(6), a_failure(7))) == 16_000
    assert size(done, failed=tuple(a_failure(6 + n) for n in range(9))) == LEAST_RECORDS


def test_an_epoch_that_found_few_records_and_a_savepoint_tell_of_no_rate() -> None:
    busy, idle = an_epoch(1, 100_000, 30_000), an_epoch(2, 7, 2_000)
    savepoint = replace(an_epoch(3, 500_000, 1_000), type=CheckpointType.SAVEPOINT)

    assert size(busy) == size(busy, idle) == size(busy, idle, savepoint) == 200_000


def test_the_newest_epoch_that_was_busy_counts_not_the_fastest() -> None:
    assert size(an_epoch(1, 100_000, 30_000), an_epoch(2, 90_000, 90_000)) == 60_000
