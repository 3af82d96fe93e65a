"""A moment, and what a watermark is where it is none."""

from __future__ import annotations

import pytest

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.surface.moments import watermark


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
