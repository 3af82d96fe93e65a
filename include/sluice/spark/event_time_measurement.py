"""The event times of an epoch's source rows, which decide what fires in a stage.

All rows of the source count, before filters: so a partition whose rows are all filtered out still
advances event time (ADR 10).  Where Python reads the source, its readers measure as the rows pass;
elsewhere the driver measures before the stage runs, in a Spark job of its own.  Only the rows that
a transform yields are measured behind it, by the subtasks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sluice.connectors.contracts.source import MALFORMED_COLUMN
from sluice.core.plan import SourceCut
from sluice.core.stage_clock import latest
from sluice.core.watermarks import MIN_WATERMARK
from sluice.declaration.nodes import Input
from sluice.declaration.operations import Lookup, Transform
from sluice.declaration.steps import Filter, Projection, Step, computing
from sluice.epoch.event_time import stage_clock
from sluice.spark.names import columns_named
from sluice.spark.reading import share
from sluice.spark.rows import lookup_table, projected, read_source, transformed
from sluice.spark.stage_run import StageRun
from sluice.subtask.carried_clock import CarriedClock, TimedInput, Times, decisive_times
from sluice.subtask.chain import ChainedClock
from sluice.subtask.feed import Feed, JsonRows, ParquetRows
from sluice.subtask.operators.operator import EpochTime
from sluice.subtask.side_rows import SOURCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_MILLIS = (2**63 - 1) // 1000  # To milliseconds, from an instant's microseconds.

_MILLIS = re.compile(r"timestamp_millis\(\s*([\w.]+)\s*\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTime:
    """The event times of an epoch.

    ``measured_ms`` are those that the driver measured, per ``source/partition``; ``by_subtasks``
    is the source whose event times the subtasks measure as its rows pass.  With a ``clock`` those
    of the inputs ``timed`` come with the rows, and ``time`` lacks the watermark of the epoch's end.
    """

    time: EpochTime
    measured_ms: dict[str, int] = field(default_factory=dict[str, int])
    by_subtasks: str | None = None
    clock: CarriedClock | ChainedClock | None = None
    timed: dict[int, TimedInput] = field(default_factory=dict[int, TimedInput])


def behind(producer: StageRun, run: StageRun) -> EventTime:
    """The event times of *run*, a stage that is chained to *producer*."""
    floor_ms = run.before.watermark_ms if run.before is not None else MIN_WATERMARK
    clock = ChainedClock(
        producer=producer.node.uid,
        before=stage_clock(run.job, run.plan, producer.node.uid, None, producer.before),
        floor_ms=floor_ms,
    )
    return EventTime(time=epoch_time(run, floor_ms), clock=clock)


def event_time_of(run: StageRun, feeds: tuple[Feed, ...] | None) -> EventTime:
    """The event times of *run*, measured now or as the rows pass.

    *feeds* are its inputs where it bypasses the JVM.
    """
    node, before = run.node, run.before
    sides = _measured_sides(run)
    clock = stage_clock(run.job, run.plan, node.uid, run.given.watermark_ms(before), before)
    timed = _timed_inputs(run, feeds, sides) if feeds is not None else None
    if timed:
        return EventTime(
            time=epoch_time(run, clock.floor_ms),
            clock=CarriedClock(
                stage=clock,
                sources={side: node.inputs[side].producer for side in timed},
                heads={side: _head_partitions(sides[side]) for side in timed},
            ),
            timed=timed,
        )
    measured: dict[str, int] = {}
    for side, seen in _seen(run, sides).items():
        source = node.inputs[side].producer
        own = {f"{source}/{partition}": at_ms for partition, at_ms in seen.items()}
        measured = latest(measured, own)
    return EventTime(
        time=epoch_time(run, clock.watermark_ms(measured)),
        measured_ms=measured,
        by_subtasks=node.inputs[0].producer if _is_behind_transform(run) else None,
    )


def epoch_time(run: StageRun, watermark_ms: int) -> EpochTime:
    return EpochTime(
        checkpoint_id=run.plan.checkpoint_id,
        previous_watermark_ms=run.before.watermark_ms if run.before else MIN_WATERMARK,
        watermark_ms=watermark_ms,
        processing_time_ms=run.plan.processing_time_ms,
    )


def _measured_sides(run: StageRun) -> dict[int, SourceCut]:
    """The inputs whose event times are measured, and what the epoch takes of them."""
    return {
        side: run.plan.source(given.producer)
        for side, given in enumerate(run.node.inputs)
        if given.event_time is not None and _has_a_say(run, given)
    }


def _seen(run: StageRun, sides: Mapping[int, SourceCut]) -> dict[int, dict[str, int]]:
    """The event times per partition, of each input that is measured before it is processed."""
    if _is_behind_transform(run):
        waiting = {side: replace(cut, slices=cut.heads) for side, cut in sides.items() if cut.heads}
        return {
            side: decisive_times(
                _behind_transform(run, run.node.inputs[side], heads), _head_partitions(heads)
            )
            for side, heads in waiting.items()
        }
    return {
        side: decisive_times(_by_spark(run, run.node.inputs[side], cut), _head_partitions(cut))
        for side, cut in sides.items()
    }


def _has_a_say(run: StageRun, given: Input) -> bool:
    is_source = given.producer in run.job.pipeline.sources
    return is_source and not (run.plan.drains or run.plan.source(given.producer).exhausted)


def _is_behind_transform(run: StageRun) -> bool:
    """Whether the subtasks measure event times, as rows pass.

    They do where a transform computes the event time, and where no row is filtered out before.
    """
    node = run.node
    given = node.inputs[0]
    if given.producer not in run.job.pipeline.sources or given.event_time is None:
        return False
    match node.operation:
        case Transform():
            return True
        case Lookup(keep=keep):
            return keep == "all" and not any(isinstance(step, Filter) for step in given.steps)
        case _:
            return False


def _head_partitions(cut: SourceCut) -> frozenset[str]:
    return frozenset(piece.partition for piece in cut.heads)


def _timed_inputs(
    run: StageRun, feeds: tuple[Feed, ...], sides: Mapping[int, SourceCut]
) -> dict[int, TimedInput] | None:
    """The inputs that readers measure as they read them; None if Spark has to measure one."""
    timed: dict[int, TimedInput] = {}
    for side, cut in sides.items():
        rows = feeds[side].rows
        assert isinstance(rows, ParquetRows | JsonRows), "no other source goes past the JVM"
        alone = feeds[side].of_event_time()
        if not alone.plain.is_possible:
            return None
        heads = replace(rows, shares=share(cut.heads, run.task.parallelism))
        timed[side] = TimedInput(feed=alone, heads=replace(alone, rows=heads))
    return timed


def _by_spark(run: StageRun, given: Input, cut: SourceCut) -> Times:
    assert given.event_time is not None
    renamed = {new: name for name, new in given.renames.items()}
    at = renamed.get(given.event_time, given.event_time)
    steps = computing(given.steps, at)
    looked_at = replace(cut, slices=(*cut.slices, *cut.heads))
    rows = read_source(run, given.producer, looked_at, steps, [at])
    alone = replace(given, steps=tuple(map(_without_overflow, steps)))
    return _measured(projected(rows, alone), given.event_time)


def _behind_transform(run: StageRun, given: Input, cut: SourceCut) -> Times:
    assert given.event_time is not None
    rows = projected(read_source(run, given.producer, cut, given.steps), given)
    result = transformed(run.node, [rows], lookup_table(run), run.configuration.params)
    return _measured(result, given.event_time)


def _without_overflow(step: Step) -> Step:
    """*step*, in which a number that is no instant is null; reading the row itself will fail."""
    if isinstance(step, Filter):
        return step
    guarded = rf"timestamp_millis(CASE WHEN \1 BETWEEN -{MAX_MILLIS} AND {MAX_MILLIS} THEN \1 END)"
    return Projection(tuple(_MILLIS.sub(guarded, column) for column in step.columns))


def _measured(rows: DataFrame, event_time: str) -> Times:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    if MALFORMED_COLUMN in rows.columns:
        rows = rows.where(f"{MALFORMED_COLUMN} IS NULL")
    (at,) = columns_named([event_time])
    seen = (
        rows.groupBy(F.col(f"{SOURCE}.partition").alias("partition"))
        .agg(
            F.unix_millis(F.min(at)).alias("least_ms"),
            F.unix_millis(F.max(at)).alias("most_ms"),
        )
        .where("most_ms IS NOT NULL")
        .collect()
    )
    return {row["partition"]: (row["least_ms"], row["most_ms"]) for row in seen}
