"""The note of what is published: ranges of checkpoints, and the floor of restores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.iceberg.note import RANGES_KEPT, Note, noted, property_of
from sluice.errors import ProtocolViolation


def a_note(*checkpoints: int) -> Note:
    note = Note()
    for checkpoint_id in checkpoints:
        note = note.and_published(checkpoint_id)
    return note


@given(st.sets(st.integers(1, 60)), st.integers(0, 61))
def test_a_note_knows_what_was_published(published: set[int], asked: int) -> None:
    note = a_note(*sorted(published))

    assert (asked in note) == (asked in published)
    assert list(note.after(asked)) == sorted(one for one in published if one > asked)
    assert note.newest == max(published, default=0)
    assert noted({property_of("a"): note.encoded()}, "a") == note


@given(st.sets(st.integers(1, 60)), st.integers(0, 61))
def test_going_back_forgets_what_came_after(published: set[int], version: int) -> None:
    note = a_note(*sorted(published)).back_to(version).fenced(60)

    assert list(note.after(None)) == sorted(one for one in published if one <= version)
    assert note.floor == 60


def test_a_note_stays_small_and_takes_what_it_forgot_as_published() -> None:
    note = a_note(*range(1, 4 * RANGES_KEPT, 2))

    assert len(note.ranges) == RANGES_KEPT
    assert 1 in note
    assert note.newest in note
    assert note.newest - 1 not in note
    assert len(note.encoded()) < 8_000


def test_a_note_that_nobody_wrote_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match=r"sluice\.a is '7'"):
        noted({property_of("a"): "7"}, "a")
