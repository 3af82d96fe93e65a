"""Sizes, durations and moments as people read them: in the CLI, in Airflow's notes and pages."""

from __future__ import annotations

from datetime import UTC, datetime

from sluice.core.watermarks import MAX_WATERMARK, MIN_WATERMARK


def duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def size(size_bytes: int) -> str:
    """A size in decimal units, as in Flink's UI: 3.2 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} B"


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
