"""Moments as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK


def moment(at_ms: int) -> str:
    """An instant in UTC, to the millisecond."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}"


def watermark(at_ms: int) -> str:
    match at_ms:
        case _ if at_ms == MIN_WATERMARK:
            return "none"
        case _ if at_ms == MAX_WATERMARK:
            return "end of input"
        case _:
            return moment(at_ms)
