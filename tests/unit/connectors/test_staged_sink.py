"""Time lines as text: what is read is what was written, within the room that there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.iceberg.sink import MAX_BYTES, is_older_note, property_of
from sluice.connectors.staged_sink import Note, decoded_note, encoded_note
from sluice.core.timeline import Timeline, Writer
from sluice.errors import ConfigurationError, ProtocolViolation

ids = st.integers(0, 10**12)


def written(timeline: Timeline) -> str:
    return encoded_note(Note(timeline=timeline), 3_900)


def read(text: str) -> Timeline:
    return decoded_note(text, "here", "mend it").timeline


def published(*checkpoint_ids: int) -> Timeline:
    timeline, parent = Timeline(), None
    for one in checkpoint_ids:
        after = timeline.publishing(Writer(life="a", generation=1), one, parent)
        assert after is not None
        timeline, parent = after, one
    return timeline


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    return Timeline(
        life=draw(st.text("0123456789abcdef", max_size=20)),
        generation=draw(ids),
        fenced_by=draw(ids),
        through=draw(ids),
        continues=draw(st.none() | ids),
        published=published(*sorted(draw(st.sets(st.integers(1, 60))))).published,
        is_cut=draw(st.booleans()),
        past=draw(st.just(()) | st.just((("b", 3), ("c", 1)))),
        sink=draw(st.sampled_from(["", "s3://jobs/root/shop/tables/sales", "file:///größe/a"])),
    )


notes = st.builds(
    Note, timeline=timelines(), table=st.sampled_from(["", "9c2e"]), at=st.just(()) | st.just((7,))
)


@given(notes)
def test_a_note_is_read_as_it_was_written(note: Note) -> None:
    assert decoded_note(encoded_note(note, 4_000), "here", "mend it") == note


@given(notes, st.integers(400, 500))
def test_what_has_no_room_is_forgotten_oldest_first(note: Note, room: int) -> None:
    text = encoded_note(note, room)
    kept = decoded_note(text, "here", "mend it").timeline

    assert len(text.encode()) <= room
    whole = note.timeline
    assert kept == (whole.shortened(len(kept.published)) if kept.published else whole)


def test_a_place_whose_name_alone_has_no_room_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="give the job a root with a shorter name"):
        encoded_note(Note(timeline=Timeline(life="a", sink="s3://" + "a" * 4_000)), 3_900)


def test_a_place_of_4_kilobytes_keeps_at_least_300_spans_and_a_row_of_ids_takes_no_room() -> None:
    every_other = published(*range(10_000, 14_000, 2))
    kept = read(written(every_other))

    assert len(kept.published) > 600
    assert kept.published == every_other.published[-len(kept.published) :]
    assert kept.is_cut
    assert '"published":"1-4999"' in written(published(*range(1, 5_000)))


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "7",
        "{}",
        '{"v":1,"ids":"5","floor":0}',
        written(published(1, 3)).replace('"v":3', '"v":2'),
        written(published(1, 3)).replace('"1,3"', '"3,1"'),
        written(published(1, 3)).replace('"1,3"', '"1,2"'),
        written(published(1, 3)).replace('"1,3"', '"3-1"'),
        written(published(1, 3)).replace('"1,3"', '"one"'),
        written(published(1, 3)).replace('"is_cut"', '"was_cut"'),
    ],
)
def test_what_is_no_time_line_is_refused_with_its_place_and_the_fix(text: str | None) -> None:
    with pytest.raises(ProtocolViolation, match=r"^here is no note .*; mend it$"):
        decoded_note(text, "here", "mend it")


def test_a_note_stays_small_and_takes_what_it_forgot_as_shown() -> None:
    spans = tuple((one, one) for one in range(1, 20_000, 2))
    text = encoded_note(Note(timeline=Timeline(life="a", published=spans)), MAX_BYTES)
    kept = decoded_note(text, "here", "mend it").timeline

    assert len(text) <= MAX_BYTES
    assert len(kept.published) > 600
    assert kept.shows(1)
    assert kept.shows(kept.newest)
    assert not kept.shows(kept.newest - 1)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("sluice.shop.sales-1f7a2b90", '{"v":2,"life":"a"}', True),
        (property_of("main"), '{"v":2,"life":"a"}', False),  # Read, and refused there.
        ("sluice.owner", "the shop's team", False),
        ("owner", '{"v":2}', False),
    ],
)
def test_a_note_of_an_older_sluice_is_known_by_its_name_and_its_form(
    key: str, value: str, expected: bool
) -> None:
    assert is_older_note(key, value) == expected
