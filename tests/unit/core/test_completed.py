"""Which completed checkpoints are retained: the cases of Flink's CompletedCheckpointStoreTest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.completed import (
    CheckpointMetadata,
    CompletedCheckpoint,
    StageState,
    SubtaskState,
    subsumed,
)
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, Generation, SubtaskId
from sluice.core.plan import SourceCut
from sluice.core.properties import CheckpointType, JobStatus, Retention, is_discarded
from tests.builders import a_checkpoint, a_submitted, after, ids_of

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


@given(st.lists(st.sampled_from(CheckpointType), min_size=1, max_size=8), st.integers(1, 4))
def test_the_newest_never_leaves_nor_does_what_a_failure_would_restore(
    types: list[CheckpointType], num_retained: int
) -> None:
    store = a_store(*types)

    kept = [checkpoint for checkpoint in store if checkpoint not in subsumed(store, num_retained)]

    real = [c for c in store if not c.type.is_savepoint]
    assert kept[-1] == store[-1]
    assert len(kept) >= min(num_retained, len(store))
    assert len(kept) <= num_retained + 1
    assert not real or store[-1].type.stops_the_job or real[-1] in kept


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


def test_files_are_those_a_restore_reads_and_no_others() -> None:
    def segment(key: str) -> SegmentHandle:
        return SegmentHandle(key=key, size_bytes=1, rows=1, checksum="c")

    inline = SegmentHandle(key="", size_bytes=1, rows=1, checksum="c", inline=b"x")
    stage = StageState(
        uid="count_bids",
        parallelism=1,
        max_parallelism=128,
        subtasks=(
            SubtaskState(
                subtask=SubtaskId("count_bids", 0),
                state=(StateHandle(segment=segment("state")), StateHandle(segment=inline)),
                output=(segment("stream"),),
            ),
        ),
        watermark_ms=0,
    )
    metadata = CheckpointMetadata(
        pipeline="auctions",
        checkpoint_id=CheckpointId(1),
        parent=None,
        generation=Generation(1),
        type=CHECKPOINT,
        triggered_at_ms=0,
        drains=False,
        sources=(SourceCut(uid="names", position=(), table=segment("table")),),
        stages=(stage, replace(stage, uid="stateless", subtasks=())),
        committables=(),
    )

    assert metadata.files == (segment("state"), segment("table"))
    assert metadata.stage("count_bids") == stage
    assert metadata.stage("unknown") is None
    assert metadata.source("names") == metadata.sources[0]
    assert metadata.source("unknown") is None
    assert [s.has_state for s in metadata.stages] == [True, False]
