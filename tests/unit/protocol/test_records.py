"""Bytes and back: every record survives the trip, and what nobody wrote is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.acks import Ack, Committable, Decline, SubtaskMetrics
from sluice.core.completed import CheckpointMetadata, StageState, SubtaskState
from sluice.core.handles import MAX_HASH, MIN_HASH, SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, Generation, SubtaskId
from sluice.core.messages import Event
from sluice.core.properties import CheckpointType, JobStatus
from sluice.errors import ProtocolViolation
from sluice.protocol.records import (
    FORMAT_VERSION,
    JournalEntry,
    decode_ack,
    decode_decline,
    decode_entry,
    decode_metadata,
    decode_plan,
    encode_ack,
    encode_decline,
    encode_entry,
    encode_metadata,
    encode_plan,
)
from tests.builders import (
    a_plan,
    a_submitted,
    after,
    an_ack,
    an_attempt,
    committed,
    completed,
    declined,
    failed,
    restored,
    stopped,
    submitted,
    triggered,
)

KEY = "auctions/checkpoints/0000000001/thing"

names = st.text(min_size=1, max_size=8)
counts = st.integers(0, 2**53)
segments = st.one_of(
    st.builds(SegmentHandle, key=names, size_bytes=counts, rows=counts, checksum=names),
    st.builds(
        SegmentHandle,
        key=st.just(""),
        size_bytes=counts,
        rows=counts,
        checksum=names,
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
    metrics=st.builds(SubtaskMetrics, rows_in=counts, sync_ms=counts),
)
metadata_records = st.builds(
    CheckpointMetadata,
    pipeline=names,
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
            event_times_ms=st.dictionaries(names, counts, max_size=2),
        ),
        max_size=2,
    ).map(tuple),
    committables=st.lists(committables, max_size=2).map(tuple),
    tables=st.dictionaries(names, counts, max_size=2),
    previous_tables=st.dictionaries(names, counts, max_size=2),
    parent_savepoint=st.none() | names,
)
EVENTS: list[Event] = [
    submitted(parallelism=3, params={"input": "über"}),
    triggered(3, savepoint="mine", parent=2, type=CheckpointType.SAVEPOINT),
    an_attempt(2),
    declined(),
    completed(),
    committed(),
    failed(),
    restored(7, savepoint="s"),
    stopped(JobStatus.SUSPENDED),
]
A_DECLINE = Decline(
    checkpoint_id=CheckpointId(1), subtask=SubtaskId("parse", 0), attempt=1, message="zu früh"
)


def an_entry(event: Event = EVENTS[0]) -> JournalEntry:
    state = after(
        a_submitted(tolerable_failed_checkpoints=3, max_concurrent=2),
        triggered(1),
        completed(1),
        triggered(2, parent=1),
        failed(2),
        triggered(3, parent=1),
        an_attempt(2, checkpoint_id=3),
    )
    return JournalEntry(author="a1b2", event=event, state=state)


RECORDS: dict[str, tuple[bytes, Callable[[bytes, str], Any]]] = {
    "journal entry": (encode_entry(an_entry()), decode_entry),
    "plan": (encode_plan(a_plan()), decode_plan),
    "ack": (encode_ack(an_ack(SubtaskId("parse", 0)).ack), decode_ack),
    "decline": (encode_decline(A_DECLINE), decode_decline),
    "checkpoint metadata": (
        encode_metadata(
            CheckpointMetadata(
                pipeline="auctions",
                checkpoint_id=CheckpointId(1),
                parent=None,
                generation=Generation(1),
                type=CheckpointType.CHECKPOINT,
                triggered_at_ms=0,
                drains=False,
                sources=(),
                stages=(),
                committables=(),
            )
        ),
        decode_metadata,
    ),
}


@settings(deadline=None)
@given(acks)
def test_an_ack_survives_the_trip(ack: Ack) -> None:
    assert decode_ack(encode_ack(ack), KEY) == ack


@settings(deadline=None, max_examples=40)
@given(metadata_records)
def test_metadata_survives_the_trip(metadata: CheckpointMetadata) -> None:
    assert decode_metadata(encode_metadata(metadata), KEY) == metadata


@settings(deadline=None)
@given(st.builds(Decline, checkpoint_id=counts, subtask=subtasks, attempt=counts, message=names))
def test_a_decline_survives_the_trip(decline: Decline) -> None:
    assert decode_decline(encode_decline(decline), KEY) == decline


@pytest.mark.parametrize("parent", [None, 4])
def test_a_plan_survives_the_trip(parent: int | None) -> None:
    plan = a_plan(5, parent=parent, parent_savepoint="mine", cause="a person", drains=True)

    assert decode_plan(encode_plan(plan), KEY) == plan


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_journaled_event_survives_the_trip_with_its_state(event: Event) -> None:
    entry = an_entry(event)

    assert decode_entry(encode_entry(entry), KEY) == entry


def test_equal_records_have_equal_bytes() -> None:
    assert encode_plan(a_plan()) == encode_plan(a_plan())
    ack = an_ack(SubtaskId("parse", 0)).ack
    one, other = (
        replace(ack, event_times_ms=times) for times in ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    )

    assert encode_ack(one) == encode_ack(other)


def test_acks_are_not_journaled() -> None:
    with pytest.raises(AssertionError, match="acks are not journaled"):
        encode_entry(an_entry(an_ack(SubtaskId("parse", 0))))


@pytest.mark.parametrize("kind", RECORDS)
def test_another_format_version_is_refused_with_what_to_run(kind: str) -> None:
    raw, decode = RECORDS[kind]
    newer = json.dumps(json.loads(raw) | {"version": FORMAT_VERSION + 1}).encode()

    with pytest.raises(ProtocolViolation, match=f"^{KEY} has format version 2; .* newer one"):
        decode(newer, KEY)


@pytest.mark.parametrize("kind", RECORDS)
def test_another_kind_of_record_is_refused_by_name(kind: str) -> None:
    raw, _ = RECORDS[kind]

    for other, (_, decode) in RECORDS.items():
        if other != kind:
            with pytest.raises(ProtocolViolation, match=f"^{KEY} is a {kind}, not a {other}$"):
                decode(raw, KEY)


@pytest.mark.parametrize("kind", RECORDS)
def test_truncated_bytes_are_refused_by_key_wherever_they_end(kind: str) -> None:
    raw, decode = RECORDS[kind]

    for end in range(len(raw)):
        with pytest.raises(ProtocolViolation, match=f"^{KEY} cannot be read"):
            decode(raw[:end], KEY)


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"null", b"[]", b'{"kind": 1}', b"\x00" * 20])
@pytest.mark.parametrize("kind", RECORDS)
def test_other_bytes_are_refused_by_key(kind: str, raw: bytes) -> None:
    with pytest.raises(ProtocolViolation, match=f"^{KEY} cannot be read"):
        RECORDS[kind][1](raw, KEY)


def test_an_event_of_a_newer_version_is_refused_with_what_to_run() -> None:
    envelope = json.loads(encode_entry(an_entry()))
    envelope["body"]["event_name"] = "JobRescaled"

    with pytest.raises(ProtocolViolation, match=f"^{KEY} holds an event 'JobRescaled'.*newer one"):
        decode_entry(json.dumps(envelope).encode(), KEY)


def test_what_contradicts_itself_is_refused_by_key() -> None:
    envelope = json.loads(encode_plan(a_plan(5, parent=4)))
    envelope["body"]["parent"] = 5

    with pytest.raises(ProtocolViolation, match=f"^{KEY} cannot be read as CheckpointPlan"):
        decode_plan(json.dumps(envelope).encode(), KEY)


def test_a_field_that_came_later_is_overread() -> None:
    envelope = json.loads(encode_decline(A_DECLINE))
    envelope["body"]["mood"] = "sad"

    assert decode_decline(json.dumps(envelope).encode(), KEY) == A_DECLINE
