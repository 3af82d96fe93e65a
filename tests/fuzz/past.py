"""The past of a play for the oracle: the rows that each epoch read, and its watermarks.

Naive on purpose, and nothing of the product's runtime; the rules are those of
docs/reference/pipelines.md and of ADR 3 and 10, in other words.  Which stages were unaligned or
overtaken is of the checkpoint; which rows they had read by then, and how far event time had come
for them, follows here.
"""

# ruff: noqa: S608 - queries are made of what a drawing named
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tests.fuzz.plans import InputPlan, Plan, SourcePlan, StagePlan
from tests.fuzz.session import duck

MIN_WATERMARK = -(2**63)
MAX_WATERMARK = 2**63 - 1
HEAD_ROWS = 100  # Of a file that waits, this many are read for their times.


@dataclass(frozen=True, slots=True)
class Position:
    """Of one partition at a barrier: how many of its rows were read, and how many there were;
    whether it may grow.
    """

    records: int
    available: int
    is_sealed: bool
    is_file: bool

    @property
    def waits(self) -> bool:
        """Whether the partition has unread rows; an unopened file counts, even if it is empty."""
        return not self.is_sealed if self.is_file else self.available > self.records


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """``read``: source -> partition -> position; ``tables``: table sources as they were pinned;
    ``unaligned`` and ``overtaken``: the stages that were; ``planned_ms``: by which moment a
    source's partitions are idle.  ``out_of_orderness_ms`` of sources and ``ttl_ms`` of stages are
    as they were declared then.
    """

    checkpoint_id: int
    processing_time_ms: int
    read: Mapping[str, Mapping[str, Position]]
    tables: Mapping[str, pa.Table]
    drains: bool = False
    unaligned: frozenset[str] = frozenset()
    overtaken: frozenset[str] = frozenset()
    planned_ms: Mapping[str, int] = field(default_factory=dict)
    out_of_orderness_ms: Mapping[str, int] = field(default_factory=dict)
    ttl_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Past:
    """``rows``: all that was fed, source -> partition -> rows; ``epochs``: those that count."""

    plan: Plan
    rows: dict[str, dict[str, pa.Table]] = field(default_factory=dict)
    epochs: list[Epoch] = field(default_factory=list)
    # Of sources with malformed lines: the text of those, by partition and record.
    malformed: dict[str, dict[str, list[str | None]]] = field(default_factory=dict)
    ttls: dict[str, int | None] = field(default_factory=dict)  # As declared in the last of them.
    _seen: dict[tuple[str, str, str, int, int], tuple[int, int] | None] = field(
        default_factory=dict
    )

    def barriers_ms(self) -> list[int]:
        """The processing time of each: TTL goes by it."""
        return [epoch.processing_time_ms for epoch in self.epochs]

    def rows_of(self, source: str, epoch: int) -> Iterator[tuple[str, pa.Table]]:
        """The rows that *epoch*, counted from 1, has read, by partition."""
        of = self.plan.source(source)
        headers = int(of is not None and of.has_header)  # A record, and no row.
        for partition, (start, end) in self._read(source, epoch).items():
            first = max(start, headers)
            rows = self.rows[source][partition].slice(first, max(end - first, 0))
            yield partition, rows.filter(pc.is_valid(rows["id"])) if self.malformed else rows

    def malformed_of(self, source: str) -> Iterator[tuple[int, str]]:
        """The lines read so far that are no rows, each with the epoch that has read it."""
        for epoch in range(1, len(self.epochs) + 1):
            for partition, (start, end) in self._read(source, epoch).items():
                texts = self.malformed.get(source, {}).get(partition, [])
                yield from ((epoch, text) for text in texts[start:end] if text)

    def watermarks(self) -> dict[str, list[int]]:
        """Of each stage, at each barrier."""
        says: dict[str, list[int | None]] = {}
        found: dict[str, list[int]] = {}
        read = self.read_up_to()
        for stage in self.plan.stages:
            inputs = [
                self._of_source(stage, given, source)
                if (source := self.plan.source(given.producer)) is not None
                else self._of_stream(stage, says[given.producer])
                for given in stage.inputs
            ]
            found[stage.uid], says[stage.uid] = [], []
            floor = MIN_WATERMARK
            for at_barrier, up_to in zip(zip(*inputs, strict=True), read[stage.uid], strict=True):
                known = [floor] if up_to is None else [one for one in at_barrier if one is not None]
                floor = max([floor, min(known)]) if known else floor
                found[stage.uid].append(floor)
                says[stage.uid].append(floor if known else None)
        return found

    def read_up_to(self) -> dict[str, list[int | None]]:
        """Per stage and barrier: the epoch up to which it has read its streams.

        None where it read nothing in that epoch, because it was overtaken, or had a stream that no
        row had reached.
        """
        first: dict[str, int] = {}
        found: dict[str, list[int | None]] = {}
        for stage in self.plan.stages:
            streams = [given.producer for given in stage.inputs if self.is_stream(given.producer)]
            found[stage.uid] = []
            for number, epoch in enumerate(self.epochs, start=1):
                last = number - 1 if stage.uid in epoch.unaligned else number
                has_read = stage.uid not in epoch.overtaken and all(
                    first.get(producer, last + 1) <= last for producer in streams
                )
                if has_read:
                    first.setdefault(stage.uid, number)
                found[stage.uid].append(last if has_read else None)
        return found

    def is_stream(self, producer: str) -> bool:
        return self.plan.source(producer) is None

    def _of_stream(self, stage: StagePlan, says: list[int | None]) -> list[int | None]:
        """At each barrier, of a producer that *says* so; an unaligned stage is a barrier behind."""
        before = [MIN_WATERMARK, *says]
        return [
            before[place] if stage.uid in epoch.unaligned else now
            for place, (epoch, now) in enumerate(zip(self.epochs, says, strict=True))
        ]

    def _of_source(
        self, stage: StagePlan, given: InputPlan, source: SourcePlan
    ) -> list[int | None]:
        """At each barrier, None where the source has no say.

        ``times``: of each partition that holds event time back, how far it has come; ``passed``:
        the latest of all the others.
        """
        times: dict[str, int] = {}
        passed = MIN_WATERMARK
        found: list[int | None] = []
        for epoch in range(1, len(self.epochs) + 1):
            positions = self.epochs[epoch - 1].read.get(source.uid, {})
            read = {name: at for name, at in self._read(source.uid, epoch).items() if at[1] > at[0]}
            measured = self._measured(stage, given, source, epoch, read)
            holding = {
                name
                for name, position in positions.items()
                if not position.is_sealed
                and (source.grows or source.idle_after_ms or position.waits or name in read)
                and not (name in read and name not in measured)
            }
            for name, at in [*times.items(), *measured.items()]:
                if name in holding:
                    times[name] = max(at, times.get(name, at))
                else:
                    passed = max(passed, at)
            times = {name: at for name, at in times.items() if name in holding}
            is_silent = bool(read) and not measured
            idle, is_idle = self._idle(source, epoch)
            if is_idle and idle >= {name for name, at in positions.items() if not at.is_sealed}:
                found.append(MAX_WATERMARK if self.epochs[epoch - 1].drains else None)
                continue
            others = {name: at for name, at in times.items() if name not in idle}
            most = max([passed, *(times[name] for name in idle & times.keys())])
            found.append(self._watermark(source, epoch, others, most, is_silent=is_silent))
        return found

    def _idle(self, source: SourcePlan, epoch: int) -> tuple[set[str], bool]:
        """The partitions that have been silent for too long, and whether all of the source was:
        since they were first there, or last had rows, read or waiting.
        """
        if source.idle_after_ms is None:
            return set(), False
        active_ms: dict[str, int] = {}
        spoke_ms = self.epochs[0].planned_ms[source.uid]
        for number in range(1, epoch + 1):
            at_ms = self.epochs[number - 1].planned_ms[source.uid]
            read = self._read(source.uid, number)
            for name, position in self.epochs[number - 1].read[source.uid].items():
                start, end = read[name]
                if end > start or position.waits:
                    spoke_ms = at_ms
                if end > start or position.waits or name not in active_ms:
                    active_ms[name] = at_ms
        now_ms, silence_ms = self.epochs[epoch - 1].planned_ms[source.uid], source.idle_after_ms
        idle = {name for name, at in active_ms.items() if now_ms - at >= silence_ms}
        return idle, now_ms - spoke_ms >= silence_ms

    def _watermark(
        self,
        source: SourcePlan,
        epoch: int,
        times: Mapping[str, int],
        passed: int,
        *,
        is_silent: bool,
    ) -> int | None:
        if self.epochs[epoch - 1].drains:
            return MAX_WATERMARK
        if source.event_time is None:
            return MIN_WATERMARK
        positions = self.epochs[epoch - 1].read.get(source.uid, {})
        if any(p.waits and not p.is_sealed and n not in times for n, p in positions.items()):
            return MIN_WATERMARK
        if is_silent and not times:
            return None
        at = min(times.values(), default=passed)
        bound_ms = self.epochs[epoch - 1].out_of_orderness_ms[source.uid]
        return MIN_WATERMARK if at == MIN_WATERMARK else at - bound_ms - 1

    def _measured(
        self,
        stage: StagePlan,
        given: InputPlan,
        source: SourcePlan,
        epoch: int,
        read: Mapping[str, tuple[int, int]],
    ) -> dict[str, int]:
        """The largest event time of what was read of each partition; the least of the first rows
        of a file that is new and waits.
        """
        if source.event_time is None:
            return {}
        yielded = _yielded(stage, given, source.event_time)
        found = {
            name: times[1]
            for name, (start, end) in read.items()
            if (times := self._times(source.uid, name, start, end, yielded)) is not None
        }
        before = self.epochs[epoch - 2].read.get(source.uid, {}) if epoch > 1 else {}
        for name, position in self.epochs[epoch - 1].read.get(source.uid, {}).items():
            is_new = name not in before and position.waits and not position.records
            if is_new and not source.grows:
                end = min(position.available, HEAD_ROWS)
                times = self._times(source.uid, name, 0, end, yielded)
                if times is not None:
                    found[name] = times[0]
        return found

    def _read(self, source: str, epoch: int) -> dict[str, tuple[int, int]]:
        now = self.epochs[epoch - 1].read.get(source, {})
        before = self.epochs[epoch - 2].read.get(source, {}) if epoch > 1 else {}
        return {
            name: (before[name].records if name in before else 0, position.records)
            for name, position in now.items()
        }

    def _times(
        self, source: str, partition: str, start: int, end: int, yielded: str
    ) -> tuple[int, int] | None:
        """Least and largest, in milliseconds, of the rows that a query *yielded*."""
        key = (source, partition, yielded, start, end)
        if key not in self._seen:
            rows = self.rows[source][partition].slice(start, end - start)
            sql = duck("past")
            sql.register("rows_read", rows)
            ((least, most),) = sql.execute(yielded).fetchall()
            self._seen[key] = None if least is None else (least // 1_000, most // 1_000)
        return self._seen[key]


def _yielded(stage: StagePlan, given: InputPlan, event_time: str) -> str:
    """The query of the times that count: of all rows, or of those that a transform yields."""
    text = "rows_read"
    if stage.op == "transform":
        for condition in given.where:
            text = f"(SELECT * FROM {text} WHERE {condition})"
        if given.select:
            text = f"(SELECT {', '.join(given.select)} FROM {text})"
        if stage.args.get("condition"):
            text = f"(SELECT * FROM {text} WHERE {stage.args['condition']})"
    return f'SELECT epoch_us(min("{event_time}")), epoch_us(max("{event_time}")) FROM {text}'
