"""Every record survives encoding and decoding, and other bytes are refused by name."""

from __future__ import annotations

import json
import typing
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.answers import Ack, Decline, StageAnswer, TaskFailure
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import CheckpointType, ClaimMode, JobStatus
from sluice.core.events import AcksReceived, Event, JournalRepaired, RootAdopted
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, Generation, SubtaskId
from sluice.core.plan import Slice, SnapshotOrigin, SourceCut
from sluice.core.state import CoordinatorState
from sluice.core.tables import TableDecision
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.figures.record import CheckpointStatistics, History
from sluice.protocol import records
from sluice.protocol.records import (
    FORMAT_VERSION,
    JournalEntry,
    SliceColumns,
    decode_ack,
    decode_answer,
    decode_decline,
    decode_entry,
    decode_failure,
    decode_metadata,
    decode_plan,
    decode_statistics,
    encode_ack,
    encode_answer,
    encode_decline,
    encode_entry,
    encode_failure,
    encode_metadata,
    encode_plan,
    encode_statistics,
)
from tests.builders import (
    a_checkpoint,
    a_plan,
    a_request,
    a_submitted,
    acked,
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
from tests.core_events import (
    discarded,
    hooks_restored,
    job_failed,
    released,
    requested,
    retimed,
    tables_recovered,
    timed_out,
    trigger_failed,
    withdrawn,
)
from tests.examples import examples
from tests.property.core.completed_checkpoints import a_metadata
from tests.resealed import resealed
from tests.unit.figures.lines import a_line
from tests.unit.protocol.any_record import acks, declines, metadata_records

KEY = "auctions/checkpoints/0000000001/thing"

EVENTS: list[Event] = [
    submitted(parallelism=3, params={"input": "über"}),
    requested(a_request("mine", expires_at_ms=9_000, awaits_a_host=True)),
    retimed(is_paused=True, interval_ms=7, tolerable_failed_checkpoints=2, changed_by="ada"),
    triggered(3, savepoint="mine", parent=2, type=CheckpointType.SAVEPOINT),
    trigger_failed(a_request()),
    withdrawn(a_request()),
    an_attempt(2),
    declined(),
    timed_out("count_bids", "rank_bids"),
    completed(),
    replace(committed(), discarded=(CheckpointId(1), CheckpointId(2)), sinks=("alerts",)),
    released("s"),
    discarded(1, savepoints=("s",)),
    failed(is_task_failure=True),
    job_failed(),
    restored(
        7,
        savepoint="s",
        has_hooks=True,
        dropped_stages=("rank",),
        cause="me",
        is_latest=True,
        tables=TableDecision(
            versions={"alerts": 6},
            newest=9,
            continues=CheckpointId(6),
            roll_back=True,
            accepts=True,
            replaces={"alerts": ("theirs",)},
        ),
    ),
    hooks_restored(),
    RootAdopted(at_ms=1, generation=Generation(2), place="s3://bucket/copy"),
    tables_recovered(),
    stopped(JobStatus.SUSPENDED),
    JournalRepaired(
        at_ms=1,
        generation=Generation(4),
        first=8,
        last=9,
        next_checkpoint_id=CheckpointId(12),
        completed=completed(),
        message="by ada",
    ),
]
S = SnapshotOrigin(checkpoint_id=CheckpointId(7), savepoint="s")
ONE = CheckpointId(1)
AN_ANSWER = StageAnswer(
    checkpoint_id=ONE,
    stage="parse",
    attempt=1,
    plan="a1b2",
    driver="c3d4",
    acks=(an_ack(SubtaskId("parse", 0)),),
    read={"ingest": "e5f6"},
)
A_DECLINE = Decline(
    checkpoint_id=CheckpointId(1),
    subtask=SubtaskId("parse", 0),
    attempt=1,
    message="zu früh",
    reason=CheckpointFailureReason.CHECKPOINT_DECLINED,
)

A_FAILURE = TaskFailure(
    checkpoint_id=CheckpointId(1), task="parse.snapshot", attempt=2, message="zu früh"
)


def an_entry(event: Event = EVENTS[0]) -> JournalEntry:
    """Its state has something in every field that is a list."""
    state = after(
        replace(
            a_submitted(tolerable_failed_checkpoints=3, max_concurrent=2, num_retained=1),
            earlier_lives=("before",),
        ),
        restored(7, savepoint="s", claim_mode=ClaimMode.CLAIM),
        *a_checkpoint(8, parent=7, generation=2, origin=S),
        *a_checkpoint(9, parent=8, generation=2),
        released("s", generation=2),
        triggered(10, parent=9, generation=2),
        failed(10, generation=2),
        restored(9, generation=3, dropped_stages=("rank",), cause="me"),
        triggered(11, parent=9, generation=3, master_states={"hook": None}),
        an_attempt(2, checkpoint_id=11, generation=3),
        triggered(12, parent=11, generation=3),
        requested(a_request("mortal", expires_at_ms=0), generation=3),
        requested(a_request("waits"), generation=3),
    )
    assert [name for name in CoordinatorState.__slots__ if getattr(state, name) == ()] == []
    return JournalEntry(author="a1b2", previous="c3d4", event=event, state=state)


RECORDS: dict[str, tuple[bytes, Callable[[bytes, str], Any]]] = {
    "journal entry": (encode_entry(an_entry()), decode_entry),
    "plan": (encode_plan(a_plan()), decode_plan),
    "ack": (encode_ack(an_ack(SubtaskId("parse", 0))), decode_ack),
    "stage answer": (encode_answer(AN_ANSWER), decode_answer),
    "decline": (encode_decline(A_DECLINE), decode_decline),
    "task failure": (encode_failure(A_FAILURE), decode_failure),
    "checkpoint metadata": (encode_metadata(a_metadata()), decode_metadata),
    "checkpoint statistics": (
        encode_statistics(CheckpointStatistics(checkpoint=a_line(1), history=History())),
        decode_statistics,
    ),
}


@given(acks)
def test_an_ack_survives_the_trip(ack: Ack) -> None:
    assert decode_ack(encode_ack(ack), KEY) == ack


@examples(40)
@given(st.lists(acks, max_size=3))
def test_the_acks_of_a_stage_survive_the_trip_together(together: list[Ack]) -> None:
    of_one = (
        replace(ack, checkpoint_id=ONE, attempt=1, subtask=SubtaskId("parse", ack.subtask.index))
        for ack in together
    )
    answer = replace(AN_ANSWER, acks=tuple(of_one))

    assert decode_answer(encode_answer(answer), KEY) == answer


@examples(40)
@given(metadata_records)
def test_metadata_survives_the_trip(metadata: CheckpointMetadata) -> None:
    assert decode_metadata(encode_metadata(metadata), KEY) == metadata


@given(declines)
def test_a_decline_survives_the_trip(decline: Decline) -> None:
    assert decode_decline(encode_decline(decline), KEY) == decline


@pytest.mark.parametrize("parent", [None, 4])
def test_a_plan_survives_the_trip(parent: int | None) -> None:
    plan = a_plan(
        5, parent=parent, origin=S, cause="a person", drains=True, master_states={"hook": None}
    )

    assert decode_plan(encode_plan(plan), KEY) == plan


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_journaled_event_survives_the_trip_with_its_state(event: Event) -> None:
    entry = an_entry(event)

    assert decode_entry(encode_entry(entry), KEY) == entry


def test_every_event_but_acks_is_journaled() -> None:
    kinds = set(typing.get_args(Event)) - {AcksReceived}

    assert {type(event) for event in EVENTS} == kinds


def test_equal_records_have_equal_bytes() -> None:
    assert encode_plan(a_plan()) == encode_plan(a_plan())
    ack = an_ack(SubtaskId("parse", 0))
    one, other = (
        replace(ack, event_times_ms=times) for times in ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    )

    assert encode_ack(one) == encode_ack(other)


def test_acks_are_not_journaled() -> None:
    with pytest.raises(ValueError, match="acks are not journaled"):
        encode_entry(an_entry(acked(SubtaskId("parse", 0))))


@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
@pytest.mark.parametrize("kind", RECORDS)
def test_another_format_version_is_refused_with_what_to_run(kind: str, version: int) -> None:
    raw, decode = RECORDS[kind]
    other = json.dumps(json.loads(raw) | {"version": version}).encode()

    with pytest.raises(ProtocolViolation, match=f"^{KEY} has format version {version}; .* newer"):
        decode(other, KEY)


def test_a_record_that_unpacks_beyond_the_limit_is_refused_before_it_is_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A megabyte that is a gigabyte of JSON costs whoever reads the journal no more than that."""
    packer = zlib.compressobj(9)
    bomb = packer.compress(b'{"kind":"')
    bomb += b"".join(packer.compress(b"x" * 1_000_000) for _ in range(300))
    bomb += packer.compress(b'"}') + packer.flush()
    assert len(bomb) < 1_000_000

    with pytest.raises(ProtocolViolation, match=f"^{KEY} cannot be read: .* more than 256 MiB"):
        decode_entry(bomb, KEY)

    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 100)
    with pytest.raises(ConfigurationError, match=r"a record \(journal entry\) has [\d,]+ bytes"):
        encode_entry(an_entry(triggered(12, parent=11, generation=3)))


def test_deep_json_is_refused_by_key() -> None:
    deep = b'{"kind":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

    with pytest.raises(ProtocolViolation, match=f"^{KEY} cannot be read"):
        decode_entry(deep, KEY)


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


@pytest.mark.parametrize("kind", RECORDS)
def test_any_byte_that_is_not_what_was_written_is_found(kind: str) -> None:
    """One that still decodes, too: a digit of a number, a letter of a key."""
    raw, decode = RECORDS[kind]

    for position in range(len(raw)):
        for flipped in (raw[position] ^ 1, raw[position] ^ 0x10):
            damaged = raw[:position] + bytes([flipped]) + raw[position + 1 :]
            with pytest.raises(ProtocolViolation, match=f"^{KEY} (is|has|cannot|holds) "):
                decode(damaged, KEY)


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_without_its_checksum_is_refused(kind: str) -> None:
    raw, decode = RECORDS[kind]
    envelope = json.loads(raw)
    del envelope["checksum"]

    with pytest.raises(ProtocolViolation, match=f"^{KEY} cannot be read .* `checksum`"):
        decode(json.dumps(envelope).encode(), KEY)


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"null", b"[]", b'{"kind": 1}', b"\x00" * 20])
@pytest.mark.parametrize("kind", RECORDS)
def test_other_bytes_are_refused_by_key(kind: str, raw: bytes) -> None:
    with pytest.raises(ProtocolViolation, match=f"^{KEY} cannot be read"):
        RECORDS[kind][1](raw, KEY)


def test_an_event_of_a_newer_version_is_refused_with_what_to_run() -> None:
    envelope = json.loads(encode_entry(an_entry()))
    envelope["body"]["event_name"] = "JobRescaled"

    with pytest.raises(ProtocolViolation, match=f"^{KEY} holds an event 'JobRescaled'.*newer one"):
        decode_entry(resealed(envelope), KEY)


def test_what_contradicts_itself_is_refused_by_key() -> None:
    envelope = json.loads(encode_plan(a_plan(5, parent=4)))
    envelope["body"]["plan"]["parent"] = 5

    with pytest.raises(ProtocolViolation, match=f"^{KEY} cannot be read as Plan"):
        decode_plan(resealed(envelope), KEY)


def test_a_field_that_came_later_is_ignored() -> None:
    envelope = json.loads(encode_decline(A_DECLINE))
    envelope["body"]["mood"] = "sad"

    assert decode_decline(resealed(envelope), KEY) == A_DECLINE


def a_slice(
    partition: str,
    start: int,
    length: int,
    first_record: int,
    records: int,
    version: str = "",
    is_taken_back: bool = False,
) -> Slice:
    return Slice(
        partition=partition,
        start=start,
        end=start + length,
        first_record=first_record,
        records=records,
        version=version,
        is_taken_back=is_taken_back,
    )


numbers = st.integers(0, 2**60)
slices = st.builds(
    a_slice,
    st.sampled_from("abc"),
    numbers,
    st.integers(1, 2**60),
    numbers,
    st.integers(1, 2**60),
    st.sampled_from(["", "mark-1", "mark-2"]),
    st.booleans(),
)


@given(st.lists(slices, max_size=8))
def test_any_slices_come_back_in_their_order(given_slices: list[Slice]) -> None:
    assert [*SliceColumns.of_slices(given_slices).slices()] == given_slices


def test_every_field_of_a_slice_travels() -> None:
    """A new field of ``Slice`` needs a column, and a value in ``slices`` above."""
    assert [field.name for field in fields(Slice)] == [
        *("partition", "start", "end", "first_record", "records", "version", "is_taken_back"),
    ]


def test_a_plan_of_10000_slices_of_no_regular_length_is_below_50_kb() -> None:
    random, start, record, pieces = Random(1), 0, 0, []
    for _ in range(10_000):
        records = random.randint(300, 320)
        length = 100 * records + random.randint(0, 3_000)
        name = "day=2026-01-01/hour=07/part-000000001.log"
        pieces.append(a_slice(name, start, length, record, records))
        start, record = start + length, record + records
    cut = SourceCut(uid="events", position=(), slices=tuple(pieces))
    plan = replace(a_plan(), sources=(cut,))

    raw = encode_plan(plan)

    assert len(raw) < 50_000
    assert decode_plan(raw, "plan") == plan


def test_columns_that_contradict_each_other_are_refused_by_name() -> None:
    raw = encode_plan(a_plan())
    assert raw.count(b'"lengths":[') == 1

    with pytest.raises(ProtocolViolation, match="checkpoints/1/plan cannot be read as a plan"):
        decode_plan(resealed(raw.replace(b'"lengths":[', b'"lengths":[1,')), "checkpoints/1/plan")


@given(st.from_type(CheckpointStatistics))
def test_statistics_survive_their_bytes(statistics: CheckpointStatistics) -> None:
    assert decode_statistics(encode_statistics(statistics), "key") == statistics
