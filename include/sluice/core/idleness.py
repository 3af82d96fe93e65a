"""Partitions of a source that have been silent for so long that they do not hold event time back.

Flink's WatermarksWithIdleness, told by barriers instead of a processing-time timer: the moments
compared are those at which checkpoints were triggered, and they are part of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sluice.core.plan import SourceCut


def with_idleness(
    cut: SourceCut, previous: SourceCut | None, *, now_ms: int, idle_after_ms: int
) -> SourceCut:
    """*cut*, planned at *now_ms*, with what is idle there; *previous* is the parent's cut.

    A partition is active in an epoch that reads records of it, or leaves some behind the barrier,
    and in the first that sees it.  A sealed one is not waited for, idle or not.
    """
    before = previous.active_at_ms if previous is not None else {}
    active = {piece.partition for piece in cut.slices} | set(cut.waiting)
    active_at_ms = {
        part.partition: now_ms if part.partition in active else before.get(part.partition, now_ms)
        for part in cut.position
        if not part.sealed
    }
    return replace(
        cut,
        active_at_ms=active_at_ms,
        idle=idle_at(now_ms, active_at_ms, idle_after_ms),
        at_ms=now_ms,
        idle_after_ms=idle_after_ms,
    )


def idle_at(now_ms: int, active_at_ms: Mapping[str, int], idle_after_ms: int) -> tuple[str, ...]:
    return tuple(
        partition for partition, at_ms in active_at_ms.items() if now_ms - at_ms >= idle_after_ms
    )
