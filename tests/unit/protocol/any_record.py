"""Any record at all, for the trip through its bytes."""

from __future__ import annotations

from hypothesis import strategies as st

from sluice.core.answers import Ack, Committable, Decline, LateRows, SubtaskMetrics
from sluice.core.completed import CheckpointMetadata, InFlightData, StageState, SubtaskState
from sluice.core.configuration import CheckpointType
from sluice.core.failures import CheckpointFailureReason
from sluice.core.handles import MAX_HASH, MIN_HASH, SegmentHandle, StateHandle
from sluice.core.ids import SubtaskId
from sluice.core.plan import SnapshotOrigin
from tests.builders import a_plan

checksums = st.text("0123456789abcdef", min_size=1, max_size=32)
names = st.text(min_size=1, max_size=8)
counts = st.integers(0, 2**53)
segments = st.one_of(
    st.builds(
        SegmentHandle, key=names, size_bytes=counts, rows=counts, checksum=checksums, root=st.text()
    ),
    st.builds(
        SegmentHandle,
        key=st.just(""),
        size_bytes=counts,
        rows=counts,
        checksum=checksums,
        inline=st.binary(max_size=40),
    ),
)
states = st.builds(
    StateHandle,
    segment=segments,
    first_hash=st.integers(MIN_HASH, 0),
    last_hash=st.integers(0, MAX_HASH),
    min_time_ms=st.none() | st.integers(-(2**63), 2**63 - 1),
)
committables = st.builds(Committable, sink=names, file=names, rows=counts, size_bytes=counts)
subtasks = st.builds(SubtaskId, names, st.integers(0, 999))
acks = st.builds(
    Ack,
    checkpoint_id=counts,
    subtask=subtasks,
    attempt=counts,
    state=st.lists(states, max_size=3).map(tuple),
    output=st.lists(segments, max_size=2).map(tuple),
    schema=st.binary(max_size=40),
    event_times_ms=st.dictionaries(names, st.integers(-(2**63), 2**63 - 1), max_size=3),
    watermark_ms=st.none() | st.integers(-(2**63), 2**63 - 1),
    committables=st.lists(committables, max_size=2).map(tuple),
    metrics=st.builds(
        SubtaskMetrics,
        rows_in=counts,
        sync_ms=counts,
        late=st.dictionaries(names, st.builds(LateRows, rows=counts, most_ms=counts), max_size=2),
    ),
)
origins = st.builds(
    SnapshotOrigin,
    checkpoint_id=counts,
    savepoint=st.none() | names,
    token=names,
    digest=st.text(),
    root=st.text(),
    pipeline=st.text(),
)
declines = st.builds(
    Decline,
    checkpoint_id=counts,
    subtask=subtasks,
    attempt=counts,
    message=names,
    reason=st.sampled_from([one for one in CheckpointFailureReason if one.is_of_a_task]),
)
metadata_records = st.builds(
    CheckpointMetadata,
    pipeline=names,
    life=names,
    checkpoint_id=counts,
    parent=st.none() | counts,
    generation=counts,
    type=st.sampled_from(CheckpointType),
    triggered_at_ms=counts,
    drains=st.booleans(),
    sources=st.just(a_plan().sources),
    stages=st.lists(
        st.builds(
            StageState,
            uid=names,
            parallelism=counts,
            max_parallelism=counts,
            subtasks=st.lists(
                st.builds(
                    SubtaskState,
                    subtask=subtasks,
                    state=st.lists(states, max_size=2).map(tuple),
                    output=st.lists(segments, max_size=1).map(tuple),
                ),
                max_size=2,
            ).map(tuple),
            watermark_ms=st.integers(-(2**63), 2**63 - 1),
            in_flight=st.lists(
                st.builds(
                    InFlightData,
                    producer=names,
                    segments=st.lists(segments, max_size=2).map(tuple),
                    schema=st.binary(max_size=8),
                ),
                max_size=2,
            ).map(tuple),
            is_overtaken=st.booleans(),
            is_finished=st.booleans(),
            event_times_ms=st.dictionaries(names, counts, max_size=2),
        ),
        max_size=2,
    ).map(tuple),
    committables=st.lists(committables, max_size=2).map(tuple),
    tables=st.dictionaries(names, counts, max_size=2),
    previous_tables=st.dictionaries(names, counts, max_size=2),
    origin=st.none() | origins,
    master_states=st.dictionaries(names, st.none() | names, max_size=2),
)
