"""Session windows, naively: every row of a key is put to those within the gap, epoch by epoch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Session:
    """``rows`` are their numbers; times in microseconds, the end is exclusive."""

    start: int
    end: int
    rows: list[int] = field(default_factory=list)
    fired: int = 0  # In which epoch; 0 is not yet.

    @property
    def over_ms(self) -> int:
        return (self.end - 1) // 1_000


def sessions_of(
    rows: Sequence[tuple[int, Any, int, int]],
    watermarks: Sequence[int],
    *,
    gap_us: int,
    lateness_ms: int,
) -> list[Session]:
    """The sessions at the last barrier, fired or not; a row is (number, key, time, epoch), and one
    that is in none is late.

    *watermarks* begins with that before the first epoch.
    """
    by_epoch: dict[int, dict[Any, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for number, key, at, epoch in rows:
        by_epoch[epoch][key].append((at, number))
    known: dict[Any, list[Session]] = defaultdict(list)
    for epoch in range(1, len(watermarks)):
        before, now = watermarks[epoch - 1], watermarks[epoch]
        for key, new in by_epoch[epoch].items():
            known[key] = _with(known[key], new, before - lateness_ms, gap_us)
        for sessions in known.values():
            for session in sessions:
                if not session.fired and session.over_ms <= now:
                    session.fired = epoch
    return [session for sessions in known.values() for session in sessions]


def _with(
    sessions: list[Session], new: list[tuple[int, int]], kept_after_ms: int, gap_us: int
) -> list[Session]:
    gone = [session for session in sessions if session.over_ms <= kept_after_ms]
    parts = [session for session in sessions if session.over_ms > kept_after_ms]
    parts += [Session(at, at + gap_us, [number]) for at, number in new]
    parts.sort(key=lambda session: session.start)
    merged: list[Session] = []
    for part in parts:
        if merged and part.start <= merged[-1].end:
            last = merged[-1]
            rows = [*last.rows, *part.rows]
            merged[-1] = Session(last.start, max(last.end, part.end), rows)
        else:
            merged.append(part)
    # What is over, and was kept no longer, has only rows of this epoch: they are late.
    return [*gone, *(session for session in merged if session.over_ms > kept_after_ms)]
