"""A time line as text: what is read is what was written, within the room that there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.staged_sink import decoded_timeline, encoded_timeline
from sluice.core.timeline import Timeline, Writer
from sluice.errors import ProtocolViolation

ids = st.integers(0, 10**12)


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
    )


@given(timelines())
def test_a_time_line_is_read_as_it_was_written(timeline: Timeline) -> None:
    assert decoded_timeline(encoded_timeline(timeline, 4_000), "here", "mend it") == timeline


@given(timelines(), st.integers(300, 400))
def test_what_has_no_room_is_forgotten_oldest_first(timeline: Timeline, room: int) -> None:
    text = encoded_timeline(timeline, room)
    kept = decoded_timeline(text, "here", "mend it")

    assert len(text.encode()) <= room
    assert kept == (timeline.shortened(len(kept.published)) if kept.published else timeline)


def test_a_place_of_4_kilobytes_keeps_at_least_300_spans_and_a_row_of_ids_takes_no_room() -> None:
    every_other = published(*range(10_000, 14_000, 2))
    kept = decoded_timeline(encoded_timeline(every_other, 3_900), "here", "mend it")

    assert len(kept.published) > 600
    assert kept.published == every_other.published[-len(kept.published) :]
    assert kept.is_cut
    assert '"published":"1-4999"' in encoded_timeline(published(*range(1, 5_000)), 3_900)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "7",
        "{}",
        '{"v":1,"ids":"5","floor":0}',
        encoded_timeline(published(1, 3), 4_000).replace('"v":2', '"v":3'),
        encoded_timeline(published(1, 3), 4_000).replace('"1,3"', '"3,1"'),
        encoded_timeline(published(1, 3), 4_000).replace('"1,3"', '"1,2"'),
        encoded_timeline(published(1, 3), 4_000).replace('"1,3"', '"3-1"'),
        encoded_timeline(published(1, 3), 4_000).replace('"1,3"', '"one"'),
        encoded_timeline(published(1, 3), 4_000).replace('"is_cut"', '"was_cut"'),
    ],
)
def test_what_is_no_time_line_is_refused_with_its_place_and_the_fix(text: str | None) -> None:
    with pytest.raises(ProtocolViolation, match=r"^here is no note .*; mend it$"):
        decoded_timeline(text, "here", "mend it")
