"""The note of an Iceberg table: a property that holds a sink's time line, and stays small."""

from __future__ import annotations

import pytest

from sluice.connectors.iceberg.sink import encoded_property, property_of, timeline_in
from sluice.core.timeline import Timeline
from sluice.errors import ProtocolViolation


def test_the_note_is_a_property_of_the_sink() -> None:
    timeline = Timeline(life="a", generation=2, published=((1, 3), (5, 5)))

    assert timeline_in({property_of("a"): encoded_property(timeline)}, "a") == timeline
    assert timeline_in({property_of("a"): encoded_property(timeline)}, "b") == Timeline()


def test_a_note_stays_small_and_takes_what_it_forgot_as_shown() -> None:
    spans = tuple((one, one) for one in range(1, 20_000, 2))
    note = timeline_in(
        {property_of("a"): encoded_property(Timeline(life="a", published=spans))}, "a"
    )

    assert len(note.published) > 600
    assert note.shows(1)
    assert note.shows(note.newest)
    assert not note.shows(note.newest - 1)
    assert len(encoded_property(note)) <= 8_000


@pytest.mark.parametrize("text", ["7", '{"ranges":[[1,2]],"floor":0,"is_cut":false}'])
def test_a_note_that_nobody_wrote_or_an_older_sluice_is_refused(text: str) -> None:
    words = r"property sluice\.a is no note .*; put it back .*, or remove it .*--accept-tables"
    with pytest.raises(ProtocolViolation, match=words):
        timeline_in({property_of("a"): text}, "a")
