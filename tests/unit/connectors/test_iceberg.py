"""The note of an Iceberg table: a property of its branch that stays small."""

from __future__ import annotations

import pytest

from sluice.connectors.iceberg.sink import MAX_BYTES, is_older_note, property_of
from sluice.connectors.staged_sink import Note, decoded_note, encoded_note
from sluice.core.timeline import Timeline


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
