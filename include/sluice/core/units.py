"""Sizes and durations as people read them: in messages, in the CLI, in Airflow's notes."""

from __future__ import annotations


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
