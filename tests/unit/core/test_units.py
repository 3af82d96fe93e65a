"""What people read in the place of bytes and milliseconds."""

from __future__ import annotations

import pytest

from sluice.core.units import period, size


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
