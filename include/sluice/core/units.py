"""Sizes, durations and moments as people read them: in messages, in the CLI, in Airflow's notes."""

from __future__ import annotations

from datetime import UTC, datetime

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK


def duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def period(milliseconds: int) -> str:
    """A length of time in its two largest units: 3 h 20 min."""
    if milliseconds < 60_000:
        return duration(milliseconds / 1000)
    seconds, units = milliseconds // 1000, (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    first = next(place for place, (_, length) in enumerate(units) if seconds >= length)
    parts = []
    for name, length in units[first : first + 2]:
        many, seconds = divmod(seconds, length)
        parts += [f"{many:,} {name}"] if many else []
    return " ".join(parts)


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
