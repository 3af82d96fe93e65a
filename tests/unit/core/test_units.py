"""What people read in the place of bytes and milliseconds."""

from __future__ import annotations

import pytest

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.core.units import period, size, watermark


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (59_999, "60.0 s"),
        (60_000, "1 min"),
        (688_115, "11 min 28 s"),
        (3_600_000, "1 h"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_a_length_of_time_is_told_in_its_two_largest_units(milliseconds: int, words: str) -> None:
    assert period(milliseconds) == words


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (3_240_000, "3.2 MB"), (10**10, "10.0 GB")],
)
def test_a_size_is_told_in_decimal_units(size_bytes: int, words: str) -> None:
    assert size(size_bytes) == words


@pytest.mark.parametrize(
    ("at_ms", "words"),
    [
        (MIN_WATERMARK, "none"),
        (MAX_WATERMARK, "end of input"),
        (1_500, "1970-01-01 00:00:01.500"),
    ],
)
def test_a_watermark_is_a_moment_unless_nothing_or_everything_was_seen(
    at_ms: int, words: str
) -> None:
    assert watermark(at_ms) == words
