"""Shared parts of the operators' property tests: stages, histories, and rows to compare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil, floor
from random import Random
from typing import Any

import polars as pl
from hypothesis import strategies as st

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.declaration import aggregates as agg
from sluice.declaration.changelog import Append, Retract
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import KeyedAggregate, Stateful
from sluice.operators.aggregate import KeyedAggregateOperator
from sluice.operators.operator import FILTER, EpochTime, Operator, Outcome, Partial
from tests.property.operators.subtask import INPUT, Epoch, Row, Subtask, in_chunks

KEYS = ("id", "name")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS = timedelta(milliseconds=1)

# Every kind, some of them with a filter; ``WHERES`` is what Spark computes of it.
AGGREGATES = {
    "rows": agg.count(),
    "values": agg.count("value"),
    "total": agg.sum("value"),
    "mean": agg.avg("value"),
    "least": agg.min("value"),
    "last_seen": agg.max("at"),
    "opening": agg.first("value"),
    "closing": agg.last("value"),
    "different": agg.count_distinct("value"),
    "everything": agg.collect("value"),
    "middle": agg.percentile("value", 0.5),
    "named": agg.string_agg("name", "|"),
    "positive_rows": agg.count(where="value > 0"),
    "positive_total": agg.sum("value", where="value > 0"),
    "positive_first": agg.first("value", where="value > 0"),
    "positive_different": agg.count_distinct("value", where="value > 0"),
}
WHERES = {
    FILTER + name: pl.col("value") > 0
    for name, aggregate in AGGREGATES.items()
    if aggregate.where is not None
}

ids = st.sampled_from([None, 0, 1])
names = st.sampled_from([None, "a", "b"])
values = st.none() | st.integers(-3, 3)
instants = st.integers(-35_000, 35_000).map(lambda us: EPOCH + timedelta(microseconds=us))
rows = st.tuples(ids, names, values, st.none() | instants)
histories = st.lists(st.lists(rows, max_size=8), min_size=1, max_size=4)
latenesses = st.sampled_from([0, 0, 3, 15])
seeds = st.integers(0, 2**32).map(Random)


@st.composite
def timed_histories(
    draw: st.DrawFn, epochs: st.SearchStrategy[list[Epoch]] = histories
) -> tuple[list[Epoch], list[EpochTime]]:
    history = draw(epochs)
    return history, draw(rising(len(history)))


def a_stage(
    operation: Stateful,
    *,
    keys: Sequence[str] = KEYS,
    event_time: str | None = "at",
    ttl_ms: int | None = None,
    reads_updates: bool = False,
) -> StageNode:
    return StageNode(
        uid="stage",
        operation=operation,
        inputs=(
            Input(
                producer="rows",
                kind=Retract() if reads_updates else Append(),
                event_time=event_time,
                keys=tuple(keys),
            ),
        ),
        ttl_ms=ttl_ms,
    )


def one_aggregate(aggregate: agg.Aggregate, schema: pl.Schema = INPUT) -> Subtask:
    """A subtask of a stage, keyed by ``id``, that has this aggregate as its ``result``."""
    stage = a_stage(KeyedAggregate(aggregates={"result": aggregate}), keys=["id"])
    return Subtask(KeyedAggregateOperator(stage, schema), [schema], key_count=1)


@dataclass
class WithColumns:
    """An operator whose rows first get the columns that Spark adds to them."""

    operator: Operator
    added: Mapping[str, pl.Expr]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operator, name)

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:
        return self.operator.partial(rows.with_columns(**self.added), time, side)


def play(subtask: Subtask, epoch: Epoch, random: Random, time: EpochTime | None = None) -> Outcome:
    """The epoch of one input, however it is cut, read and merged."""
    return subtask.play(
        in_chunks(epoch, random),
        time=time or EpochTime(),
        merge=random.random() < 0.3,
        by_hash=random.random() < 0.5,
    )


def in_order(found: pl.DataFrame | Iterable[Row] | None) -> list[Row]:
    """Rows to compare, whatever their order."""
    assert found is not None
    return sorted(found.rows() if isinstance(found, pl.DataFrame) else found, key=repr)


def ascending(values: Iterable[Any]) -> tuple[Any, ...]:
    """To sort by: null first."""
    return tuple((value is not None, value) for value in values)


def nulls_last(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple((value is None, value) for value in values)


def falling(value: int | None) -> tuple[bool, int]:
    """To sort by: the largest first, null last."""
    return (value is None, -(value or 0))


def by_key(rows: Iterable[Row]) -> Mapping[Row, list[Row]]:
    groups: dict[Row, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[:2]].append(row)
    return groups


def a_result(group: Sequence[Row]) -> Row:
    """The results of ``AGGREGATES`` over these rows, by definition."""
    numbers = [row[2] for row in group if row[2] is not None]
    positive = [number for number in numbers if number > 0]
    timed = [(row[3], row[2]) for row in group if row[2] is not None and row[3] is not None]
    return (
        len(group),
        len(numbers),
        sum(numbers) if numbers else None,
        sum(numbers) / len(numbers) if numbers else None,
        min(numbers, default=None),
        max((row[3] for row in group if row[3] is not None), default=None),
        min(timed)[1] if timed else None,
        max(timed)[1] if timed else None,
        len(set(numbers)),
        sorted(numbers),
        percentile(numbers, 0.5),
        "|".join(row[1] for row in group) if group[0][1] is not None else None,
        len(positive),
        sum(positive) if positive else None,
        min((pair for pair in timed if pair[1] > 0), default=(None, None))[1],
        len(set(positive)),
    )


def percentile(numbers: Sequence[float], fraction: float) -> float | None:
    """SQL's PERCENTILE_CONT, by definition."""
    if not numbers:
        return None
    place = (len(numbers) - 1) * fraction
    low, high = (sorted(numbers)[index] for index in (floor(place), ceil(place)))
    share = place - floor(place)
    return low if low == high else low * (1 - share) + high * share


def at(ms: float) -> datetime:
    return EPOCH + ms * MS


def rows_at(*ms: float) -> Epoch:
    return [(1, "a", 7, at(instant)) for instant in ms]


def between(start_ms: int, end_ms: int, *chunks: Epoch, of: Subtask) -> Outcome:
    """An epoch of *chunks* between these watermarks."""
    time = EpochTime(previous_watermark_ms=start_ms, watermark_ms=end_ms)
    return of.play(list(chunks) or [[]], time=time)


def max_timestamp_ms(end: datetime) -> int:
    """The millisecond at which a window with that end is over."""
    return (end - EPOCH - timedelta(microseconds=1)) // MS


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
