"""The barriers of a history: watermarks that rise, at times to the end of time."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.operators.operator import EpochTime

EVERY_MS = 7


def times_of(ends: Sequence[int]) -> list[EpochTime]:
    """Of epochs that end with these watermarks; the checkpoints are triggered 7 ms apart."""
    starts = [MIN_WATERMARK, *ends[:-1]]
    return [
        EpochTime(
            checkpoint_id=number,
            previous_watermark_ms=start,
            watermark_ms=end,
            processing_time_ms=number * EVERY_MS,
        )
        for number, (start, end) in enumerate(zip(starts, ends, strict=True), start=1)
    ]


@st.composite
def rising(draw: st.DrawFn, epochs: int, first_ms: int = -40, last_ms: int = 40) -> list[EpochTime]:
    ends = sorted(draw(st.integers(first_ms, last_ms)) for _ in range(epochs))
    if draw(st.booleans()):
        ends[-1] = MAX_WATERMARK
    return times_of(ends)
