"""What the oracle knows of a play: which rows each epoch read, and how far event time had come.

Naive on purpose, and nothing of the product's runtime: a watermark is found by looking at every row
that was ever read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from tests.fuzz.plans import Plan, SourcePlan, StagePlan

MIN_WATERMARK = -(2**63)
MAX_WATERMARK = 2**63 - 1
_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Position:
    """Of one partition at a barrier: how many of its rows were read, and whether more may come."""

    records: int
    is_sealed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """``read``: source -> partition -> position; ``tables``: table sources as they were pinned."""

    checkpoint_id: int
    read: Mapping[str, Mapping[str, Position]]
    tables: Mapping[str, pa.Table]
    drains: bool = False


@dataclass(slots=True)
class Past:
    """``rows``: all that was fed, source -> partition -> rows; ``epochs``: those that count."""

    plan: Plan
    rows: dict[str, dict[str, pa.Table]] = field(default_factory=dict)
    epochs: list[Epoch] = field(default_factory=list)

    def rows_of(self, source: str, epoch: int) -> Iterator[tuple[str, pa.Table]]:
        """What was read between the barrier before and that of *epoch*, from 1 on."""
        now = self.epochs[epoch - 1].read.get(source, {})
        before = self.epochs[epoch - 2].read.get(source, {}) if epoch > 1 else {}
        for partition, position in now.items():
            first = before[partition].records if partition in before else 0
            yield partition, self.rows[source][partition].slice(first, position.records - first)

    def watermarks(self) -> dict[str, list[int]]:
        """Of each stage, at each barrier."""
        sources = {
            source.uid: [self._source(source, epoch) for epoch in range(1, len(self.epochs) + 1)]
            for source in self.plan.sources
            if not source.is_table
        }
        found: dict[str, list[int]] = {}
        for stage in self.plan.stages:
            given = [sources.get(one) or found[one] for one in _streams(stage)]
            found[stage.uid] = []
            floor = MIN_WATERMARK
            for at_barrier in zip(*given, strict=True):
                floor = max(floor, min(at_barrier))
                found[stage.uid].append(floor)
        return found

    def _source(self, source: SourcePlan, epoch: int) -> int:
        barrier = self.epochs[epoch - 1]
        if barrier.drains:
            return MAX_WATERMARK
        if source.event_time is None:
            return MIN_WATERMARK
        latest: dict[str, int] = {}
        for earlier in range(1, epoch + 1):
            for partition, rows in self.rows_of(source.uid, earlier):
                for at in rows.column(source.event_time).to_pylist():
                    if at is not None:
                        latest[partition] = max(latest.get(partition, MIN_WATERMARK), _ms(at))
        positions = barrier.read.get(source.uid, {})
        growing = [name for name, position in positions.items() if not position.is_sealed]
        if not growing:
            newest = max(latest.values(), default=None)
            return MIN_WATERMARK if newest is None else newest - source.out_of_orderness_ms - 1
        return min(
            latest[name] - source.out_of_orderness_ms - 1 if name in latest else MIN_WATERMARK
            for name in growing
        )


def _streams(stage: StagePlan) -> list[str]:
    return [given.producer for given in stage.inputs]


def _ms(at: datetime) -> int:
    return (at - _ORIGIN) // timedelta(milliseconds=1)
