"""Which completed checkpoints are retained: the cases of Flink's CompletedCheckpointStoreTest;
and what the metadata of one names.  ``tests/property.core.test_completed.py`` has any store.

The retained checkpoints when the job ends: the matrix of CheckpointPropertiesTest.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.completed import (
    CheckpointMetadata,
    CompletedCheckpoint,
    InFlightData,
    StageState,
    SubtaskState,
    moved_to_root,
    subsumed,
    with_files,
    without_in_flight,
)
from sluice.core.configuration import CheckpointType, JobStatus, Retention, is_discarded
from sluice.core.coordinator import step
from sluice.core.events import DiscardCompleted
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, Generation, SubtaskId
from sluice.core.plan import SourceCut
from sluice.core.state import CoordinatorState
from tests.builders import a_checkpoint, a_submitted, after, ids_of, restored, stopped

CHECKPOINT, SAVEPOINT = CheckpointType.CHECKPOINT, CheckpointType.SAVEPOINT
SUSPEND = CheckpointType.SAVEPOINT_SUSPEND


def a_completed(checkpoint_id: int, type_: CheckpointType = CHECKPOINT) -> CompletedCheckpoint:
    made = after(a_submitted(), *a_checkpoint(checkpoint_id)).completed[0]
    return replace(made, type=type_)


def a_store(*types: CheckpointType) -> tuple[CompletedCheckpoint, ...]:
    return tuple(a_completed(number, type_) for number, type_ in enumerate(types, start=1))


@pytest.mark.parametrize(
    ("types", "num_retained", "gone"),
    [
        ([CHECKPOINT, CHECKPOINT], 1, [1]),
        ([SAVEPOINT, CHECKPOINT, CHECKPOINT], 2, [1]),
        ([CHECKPOINT, SAVEPOINT], 1, []),
        ([CHECKPOINT, SUSPEND], 1, [1]),
        ([CHECKPOINT, CHECKPOINT, CHECKPOINT, SAVEPOINT], 1, [1, 2]),
        ([CHECKPOINT], 1, []),
        ([], 1, []),
        ([SAVEPOINT, SAVEPOINT], 1, [1]),
    ],
    ids=["R01", "R03", "R04 FLINK-21351", "R06 stop with savepoint", "R07", "one", "none", "two"],
)
def test_the_oldest_leave_and_the_newest_real_checkpoint_stays(
    types: list[CheckpointType], num_retained: int, gone: list[int]
) -> None:
    assert ids_of(subsumed(a_store(*types), num_retained)) == gone


AGES = (0, 10, 20, 30, 40)  # When each of five completed.


@pytest.mark.parametrize(
    ("at_ms", "num_retained", "retain_ms", "gone"),
    [
        (AGES, 1, 0, [1, 2, 3, 4]),
        (AGES, 1, 20, [1, 2, 3]),
        (AGES, 1, 21, [1, 2]),
        (AGES, 4, 20, [1]),
        (AGES, 1, 41, []),
        ((0, 99, 20, 30, 40), 1, 15, [1, 3]),
        ((0, 10, 20, 30, 9_999), 2, 20, [1, 2, 3]),
        ((90, 80, 70, 60, 5), 1, 0, [1, 2, 3, 4]),
    ],
    ids=[
        "by number alone", "old enough to the millisecond", "too young by one",
        "the number is more", "all are young", "one of a clock that was ahead stays",
        "a newest of a clock that is ahead leaves the number", "times mean nothing to the number",
    ],
)  # fmt: skip
def test_who_completed_lately_stays_above_the_number(
    at_ms: tuple[int, ...], num_retained: int, retain_ms: int, gone: list[int]
) -> None:
    store = tuple(
        replace(checkpoint, completed_at_ms=at)
        for checkpoint, at in zip(a_store(*[CHECKPOINT] * 5), at_ms, strict=True)
    )

    assert ids_of(subsumed(store, num_retained, retain_ms=retain_ms)) == gone


def test_a_completion_subsumes_by_the_age_that_is_configured() -> None:
    state = a_submitted(num_retained=1, retain_ms=1_000)
    usual = after(state, *a_checkpoint(1), *a_checkpoint(2, parent=1))
    (_, second) = usual.completed
    aged = replace(usual, completed=(replace(usual.completed[0], completed_at_ms=-9_000), second))

    assert ids_of(usual.completed) == [1, 2]
    assert ids_of(after(aged, *a_checkpoint(3, parent=2)).completed) == [2, 3]


@pytest.mark.parametrize(
    ("retention", "kept_on"),
    [
        (Retention.NEVER_RETAIN_AFTER_TERMINATION, set()),
        (Retention.RETAIN_ON_FAILURE, {JobStatus.FAILED}),
        (
            Retention.RETAIN_ON_CANCELLATION,
            {JobStatus.FAILED, JobStatus.CANCELED, JobStatus.SUSPENDED},
        ),
    ],
    ids=["R10", "R11", "default"],
)
def test_the_discard_matrix_is_that_of_checkpoint_properties_test(
    retention: Retention, kept_on: set[JobStatus]
) -> None:
    ends = {JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED}

    assert {
        status for status in ends if not is_discarded(CheckpointType.CHECKPOINT, retention, status)
    } == kept_on


def a_segment(key: str, *, root: str = "") -> SegmentHandle:
    return SegmentHandle(key=key, size_bytes=1, rows=1, checksum="c", root=root)


INLINE = SegmentHandle(key="", size_bytes=1, rows=1, checksum="c", inline=b"x")


def in_flight(*segments: SegmentHandle) -> InFlightData:
    return InFlightData(producer="events", segments=segments, schema=b"columns")


def a_metadata() -> CheckpointMetadata:
    """Of a keyed stage with files of two roots, one without state, a table and a stream."""
    stage = StageState(
        uid="count_bids",
        parallelism=1,
        max_parallelism=128,
        subtasks=(
            SubtaskState(
                subtask=SubtaskId("count_bids", 0),
                state=(
                    StateHandle(segment=a_segment("state"), first_hash=3),
                    StateHandle(segment=INLINE),
                ),
                output=(a_segment("stream"),),
            ),
        ),
        watermark_ms=0,
        in_flight=(in_flight(a_segment("in-flight", root="s3://elder")),),
    )
    return CheckpointMetadata(
        pipeline="auctions",
        life="life-1",
        checkpoint_id=CheckpointId(1),
        parent=None,
        generation=Generation(1),
        type=CHECKPOINT,
        triggered_at_ms=0,
        drains=False,
        sources=(
            SourceCut(uid="names", position=(), table=a_segment("table")),
            SourceCut(uid="events", position=()),
        ),
        stages=(
            stage,
            replace(stage, uid="stateless", subtasks=(), in_flight=(in_flight(INLINE),)),
        ),
        committables=(),
    )


def test_files_are_those_a_restore_reads_and_no_others() -> None:
    metadata = a_metadata()

    assert [handle.key for handle in metadata.files] == ["state", "in-flight", "table"]
    assert metadata.stage("count_bids") == metadata.stages[0]
    assert metadata.stage("unknown") is None
    assert metadata.source("names") == metadata.sources[0]
    assert metadata.source("unknown") is None
    assert [s.has_state for s in metadata.stages] == [True, False]


def test_a_copy_names_other_files_and_forgets_what_restore_does_not_read() -> None:
    metadata = a_metadata()

    copy = with_files(metadata, lambda handle: replace(handle, key=f"copy/{handle.key}"))

    keyed, stateless = copy.stages
    assert [handle.key for handle in copy.files] == ["copy/state", "copy/in-flight", "copy/table"]
    assert keyed.subtasks[0].state == (
        StateHandle(segment=a_segment("copy/state"), first_hash=3),
        StateHandle(segment=INLINE),
    )
    assert keyed.subtasks[0].output == ()
    assert stateless.in_flight == (in_flight(INLINE),)
    assert copy.sources[1] == metadata.sources[1]


def test_a_snapshot_of_another_root_names_it_with_every_file_that_has_none() -> None:
    moved = moved_to_root(a_metadata(), "s3://other")

    assert {handle.key: handle.root for handle in moved.files} == {
        "state": "s3://other",
        "in-flight": "s3://elder",
        "table": "s3://other",
    }


def test_in_flight_data_is_dropped_and_nothing_else() -> None:
    metadata = a_metadata()

    dropped = without_in_flight(metadata)

    assert [handle.key for handle in dropped.files] == ["state", "table"]
    assert [stage.in_flight for stage in dropped.stages] == [(in_flight(),), (in_flight(),)]
    assert metadata.stages[0].in_flight_of("events") == in_flight(
        *metadata.stages[0].in_flight_segments
    )
    assert metadata.stages[0].in_flight_of("other").segments == ()
    assert dropped.stages[0].subtasks == metadata.stages[0].subtasks


ENDS = (JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED)
DISCARDS = {
    Retention.NEVER_RETAIN_AFTER_TERMINATION: (True, True, True),
    Retention.RETAIN_ON_FAILURE: (True, False, True),
    Retention.RETAIN_ON_CANCELLATION: (False, False, False),
}
NEVER = Retention.NEVER_RETAIN_AFTER_TERMINATION


def a_store_of(retention: Retention) -> CoordinatorState:
    """Savepoint 1, and checkpoint 2."""
    savepoint = a_checkpoint(1, type=CheckpointType.SAVEPOINT, savepoint="mine")
    return after(a_submitted(retention=retention), *savepoint, *a_checkpoint(2, parent=1))


@pytest.mark.parametrize(
    ("retention", "status", "discards"),
    [(r, s, d) for r, row in DISCARDS.items() for s, d in zip(ENDS, row, strict=True)],
)
def test_the_end_of_the_job_discards_as_its_retention_says_but_never_a_savepoint(
    retention: Retention, status: JobStatus, discards: bool
) -> None:
    state = a_store_of(retention)
    checkpoint = state.completed[1]

    transition = step(state, stopped(status))

    after_ = transition.state
    assert transition.commands == ((DiscardCompleted(checkpoint=checkpoint),) if discards else ())
    assert ids_of(after_.completed) == ([1] if discards else [1, 2])
    assert after_.discarding == ((checkpoint,) if discards else ())
    assert after_.base == (None if discards else 2)


def test_a_suspended_job_that_is_canceled_is_judged_anew() -> None:
    state = a_store_of(Retention.RETAIN_ON_CANCELLATION)

    suspended = after(state, stopped(JobStatus.SUSPENDED))
    canceled = after(suspended, stopped(JobStatus.CANCELED))

    assert suspended.completed == canceled.completed == state.completed


def test_the_origin_of_a_job_is_not_lost_with_its_checkpoints() -> None:
    state = after(a_store_of(NEVER), restored(2, savepoint="of the same id"))

    state = after(state, stopped(JobStatus.CANCELED, generation=2))

    assert ids_of(state.completed) == [1]
    assert state.base == 2
    assert str(state.origin) == "savepoint of the same id"
