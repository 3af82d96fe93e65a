"""Which completed checkpoints are retained, by age and when the job ends, and their metadata.

Flink's cases of retention by number are in ``tests/conformance``, any store in
``tests/property/core/test_completed.py``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.completed import (
    CheckpointMetadata,
    InFlightData,
    StageState,
    SubtaskState,
    moved_to_root,
    subsumed,
    with_files,
    without_in_flight,
    without_state,
)
from sluice.core.configuration import CheckpointType, JobStatus, Retention
from sluice.core.coordinator import step
from sluice.core.events import DiscardCompleted
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import SubtaskId
from sluice.core.plan import PartitionOffset, SourceCut
from sluice.core.state import CoordinatorState
from tests.builders import a_checkpoint, a_submitted, after, ids_of, restored, stopped
from tests.property.core.completed_checkpoints import a_completed, a_metadata

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
    store = tuple(a_completed(n, completed_at_ms=at) for n, at in enumerate(at_ms, start=1))

    assert ids_of(subsumed(store, num_retained, retain_ms=retain_ms)) == gone


def test_a_completion_subsumes_by_the_age_that_is_configured() -> None:
    state = a_submitted(num_retained=1, retain_ms=1_000)
    usual = after(state, *a_checkpoint(1), *a_checkpoint(2, parent=1))
    (_, second) = usual.completed
    aged = replace(usual, completed=(replace(usual.completed[0], completed_at_ms=-9_000), second))

    assert ids_of(usual.completed) == [1, 2]
    assert ids_of(after(aged, *a_checkpoint(3, parent=2)).completed) == [2, 3]


def a_segment(key: str, *, root: str = "") -> SegmentHandle:
    return SegmentHandle(key=key, size_bytes=1, rows=1, checksum="c", root=root)


INLINE = SegmentHandle(key="", size_bytes=1, rows=1, checksum="c", inline=b"x")


def in_flight(*segments: SegmentHandle) -> InFlightData:
    return InFlightData(producer="events", segments=segments, schema=b"columns")


def a_rich_metadata() -> CheckpointMetadata:
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
    return a_metadata(
        1,
        stage,
        replace(stage, uid="stateless", subtasks=(), in_flight=(in_flight(INLINE),)),
        sources=(
            SourceCut(uid="names", position=(), table=a_segment("table")),
            SourceCut(uid="events", position=()),
        ),
    )


def test_files_are_those_a_restore_reads_and_no_others() -> None:
    metadata = a_rich_metadata()

    assert [handle.key for handle in metadata.files] == ["state", "in-flight", "table"]
    assert metadata.stage("count_bids") == metadata.stages[0]
    assert metadata.stage("unknown") is None
    assert metadata.source("names") == metadata.sources[0]
    assert metadata.source("unknown") is None
    assert [s.has_state for s in metadata.stages] == [True, False]


def test_a_copy_names_other_files_and_forgets_what_restore_does_not_read() -> None:
    metadata = a_rich_metadata()

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
    moved = moved_to_root(a_rich_metadata(), "s3://other")

    assert {handle.key: handle.root for handle in moved.files} == {
        "state": "s3://other",
        "in-flight": "s3://elder",
        "table": "s3://other",
    }


def test_in_flight_data_is_dropped_and_nothing_else() -> None:
    metadata = a_rich_metadata()

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
    Retention.NEVER_RETAIN_AFTER_TERMINATION: (True, True, False),
    Retention.RETAIN_ON_FAILURE: (True, False, False),
    Retention.RETAIN_ON_CANCELLATION: (False, False, False),
}


def a_store_of(retention: Retention) -> CoordinatorState:
    """Savepoint 1, and checkpoint 2."""
    savepoint = a_checkpoint(1, type=CheckpointType.SAVEPOINT, savepoint="mine")
    return after(a_submitted(retention=retention), *savepoint, *a_checkpoint(2, parent=1))


@pytest.mark.parametrize(
    ("retention", "status", "discards"),
    [(r, s, d) for r, row in DISCARDS.items() for s, d in zip(ENDS, row, strict=True)],
)
def test_a_final_end_of_the_job_discards_as_its_retention_says_but_never_a_savepoint(
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


@pytest.mark.parametrize("retention", Retention)
def test_a_job_that_waits_for_a_person_keeps_what_he_can_go_on_from(retention: Retention) -> None:
    """Sluice gave it up, and told him where it can go on."""
    state = a_store_of(retention)
    because = "checkpoint 2 is damaged; checkpoint 1 is whole"

    transition = step(state, replace(stopped(JobStatus.FAILED), message=because))

    assert transition.commands == ()
    assert transition.state.completed == state.completed
    assert transition.state.base == 2
    assert transition.state.stopped_because == because


@pytest.mark.parametrize("retention", Retention)
def test_a_stop_with_a_savepoint_leaves_the_checkpoints_before_it(retention: Retention) -> None:
    suspends = CheckpointType.SAVEPOINT_SUSPEND

    state = after(a_store_of(retention), *a_checkpoint(3, parent=2, type=suspends, savepoint="s"))

    assert (state.status, ids_of(state.completed)) == (JobStatus.SUSPENDED, [1, 2, 3])


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention.RETAIN_ON_CANCELLATION, [1, 2]),
        (Retention.NEVER_RETAIN_AFTER_TERMINATION, [1]),
    ],
)
def test_a_suspended_job_that_is_canceled_is_judged_anew(
    retention: Retention, kept: list[int]
) -> None:
    state = a_store_of(retention)

    suspended = after(state, stopped(JobStatus.SUSPENDED))
    canceled = after(suspended, stopped(JobStatus.CANCELED))

    assert suspended.completed == state.completed
    assert ids_of(canceled.completed) == kept


def test_the_origin_of_a_job_is_not_lost_with_its_checkpoints() -> None:
    state = after(
        a_store_of(Retention.NEVER_RETAIN_AFTER_TERMINATION),
        restored(2, savepoint="of the same id"),
    )

    state = after(state, stopped(JobStatus.CANCELED, generation=2))

    assert ids_of(state.completed) == [1]
    assert state.base == 2
    assert str(state.origin) == "savepoint of the same id"


def test_a_stage_that_begins_anew_has_no_state_and_the_others_keep_theirs() -> None:
    state = (StateHandle(segment=SegmentHandle(key="s", size_bytes=1, rows=1, checksum="c")),)
    stages = tuple(
        StageState(
            uid=uid,
            parallelism=1,
            max_parallelism=128,
            subtasks=(SubtaskState(subtask=SubtaskId(uid, 0), state=state, output=()),),
            watermark_ms=7,
        )
        for uid in ("a", "b")
    )
    read = PartitionOffset(partition="p", offset=1, records=1)
    sources = (SourceCut(uid="rows", position=(read,)), SourceCut(uid="new", position=()))
    metadata = replace(a_metadata(1, *stages), tables={"out": 1}, sources=sources)

    begun = without_state(metadata, ["a", "b.n"])

    assert metadata.held == {"a", "b", "out", "rows"}
    assert begun.held == {"b", "out", "rows"}
    assert [stage.watermark_ms for stage in begun.stages] == [7, 7]
    assert without_state(metadata, []) is metadata
