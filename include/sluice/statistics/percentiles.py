"""The distribution of a figure over many checkpoints or subtasks (Flink's StatsSummary)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec


class StatsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Named as in Flink's REST API."""

    min: int
    max: int
    avg: int
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float


def summary_of(values: Iterable[int | None]) -> StatsSummary | None:
    """The distribution of the *values* that were measured; None without any."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return StatsSummary(
        min=known[0],
        max=known[-1],
        avg=sum(known) // len(known),
        p50=percentile(known, 0.5),
        p90=percentile(known, 0.9),
        p95=percentile(known, 0.95),
        p99=percentile(known, 0.99),
        p999=percentile(known, 0.999),
    )


def percentile(ordered: Sequence[int], share: float) -> float:
    """The value below which *share* of the *ordered* values lie, by the rule that Flink uses: at
    ``share * (n + 1)``, between two values in proportion, and never outside of them.
    """
    position = share * (len(ordered) + 1)
    before = math.floor(position)
    if before < 1:
        return float(ordered[0])
    if before >= len(ordered):
        return float(ordered[-1])
    low, high = ordered[before - 1], ordered[before]
    return low + (position - before) * (high - low)
