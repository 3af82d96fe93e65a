"""The event times of an epoch's source rows, measured before a stage processes them.

All rows of the source count, before filters: so a partition whose rows are all filtered out still
advances event time (ADR 21).  Only the rows that a transform yields are measured behind it, by the
subtasks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from sluice.connectors.contracts.source import MALFORMED_COLUMN
from sluice.core.plan import SourceCut
from sluice.core.watermarks import MIN_WATERMARK
from sluice.declaration.nodes import Input
from sluice.declaration.operations import Lookup, Transform
from sluice.declaration.steps import Filter, Projection, Step, computing
from sluice.epoch.event_time import latest, stage_watermark
from sluice.spark.names import columns_named
from sluice.spark.reading import share
from sluice.spark.rows import lookup_table, projected, read_source, transformed
from sluice.spark.stage_run import StageRun
from sluice.subtask.feed import Feed, ParquetRows
from sluice.subtask.operators.operator import EpochTime
from sluice.subtask.side_rows import SOURCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_MILLIS = (2**63 - 1) // 1000  # To milliseconds, from an instant's microseconds.

_Measured: TypeAlias = Mapping[str, tuple[int, int]]  # Least and largest, by partition.
_MILLIS = re.compile(r"timestamp_millis\(\s*([\w.]+)\s*\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EventTime:
    """The event times of an epoch.

    ``measured_ms`` are those that the driver measured, per ``source/partition``; ``by_subtasks``
    is the source whose event times the subtasks measure as its rows pass.
    """

    time: EpochTime
    measured_ms: dict[str, int]
    by_subtasks: str | None


def event_time_of(run: StageRun, feeds: tuple[Feed, ...] | None) -> EventTime:
    """Measure the event times of *run*; *feeds* are its inputs where it bypasses the JVM."""
    node, before = run.node, run.before
    measured: dict[str, int] = {}
    for side, seen in _seen(run, feeds).items():
        source = node.inputs[side].producer
        own = {f"{source}/{partition}": at_ms for partition, at_ms in seen.items()}
        measured = latest(measured, own)
    streams_ms = run.given.watermark_ms(before)
    time = EpochTime(
        checkpoint_id=run.plan.checkpoint_id,
        previous_watermark_ms=before.watermark_ms if before is not None else MIN_WATERMARK,
        watermark_ms=stage_watermark(run.job, run.plan, node.uid, measured, streams_ms, before),
        processing_time_ms=run.plan.processing_time_ms,
    )
    by_subtasks = node.inputs[0].producer if _is_behind_transform(run) else None
    return EventTime(time, measured, by_subtasks)


def _seen(run: StageRun, feeds: tuple[Feed, ...] | None) -> dict[int, dict[str, int]]:
    """The event times per partition, of each input that is measured before it is processed."""
    sides = {
        side: run.plan.source(given.producer)
        for side, given in enumerate(run.node.inputs)
        if given.event_time is not None and _has_a_say(run, given)
    }
    if _is_behind_transform(run):
        waiting = {side: replace(cut, slices=cut.heads) for side, cut in sides.items() if cut.heads}
        return {
            side: _times(_behind_transform(run, run.node.inputs[side], heads), heads)
            for side, heads in waiting.items()
        }
    of_rows = _by_feeds(run, feeds, sides) if feeds is not None else {}
    for side, cut in sides.items():
        if side not in of_rows:
            of_rows[side] = _by_spark(run, run.node.inputs[side], cut)
    return {side: _times(of_rows[side], cut) for side, cut in sides.items()}


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


def _times(of_rows: _Measured, cut: SourceCut) -> dict[str, int]:
    """The largest event time of each partition that is read; the least of one that is held back."""
    heads = {piece.partition for piece in cut.heads}
    return {
        partition: least if partition in heads else most
        for partition, (least, most) in of_rows.items()
    }


def _by_feeds(
    run: StageRun, feeds: tuple[Feed, ...], cuts: Mapping[int, SourceCut]
) -> dict[int, _Measured]:
    """The inputs whose event time is plain SQL, measured in one Spark job.

    A Spark job of its own for each would take a tenth of a CPU second.
    """
    alone = {
        side: possible
        for side, cut in cuts.items()
        if (possible := _event_time_alone(run, feeds[side], cut)) is not None
    }
    if not alone:
        return {}

    def measure(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for index in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
            times = json.dumps([feed.times_ms(index) for feed in alone.values()])
            yield pa.RecordBatch.from_pydict({"times": pa.array([times])})

    readers = run.task.parallelism
    shares = run.spark.range(0, readers, 1, readers)
    measured: dict[int, dict[str, tuple[int, int]]] = {side: {} for side in alone}
    for row in shares.mapInArrow(measure, "times string").collect():
        for seen, times in zip(measured.values(), json.loads(row["times"]), strict=True):
            for partition, (least, most) in times.items():
                first, last = seen.get(partition, (least, most))
                seen[partition] = min(first, least), max(last, most)
    return dict(measured)


def _event_time_alone(run: StageRun, feed: Feed, cut: SourceCut) -> Feed | None:
    rows = feed.rows
    assert isinstance(rows, ParquetRows), "no other source goes past the JVM"
    looked_at = replace(rows, shares=share((*cut.slices, *cut.heads), run.task.parallelism))
    alone = replace(feed, rows=looked_at).of_event_time()
    return alone if alone.is_possible() else None


def _by_spark(run: StageRun, given: Input, cut: SourceCut) -> _Measured:
    assert given.event_time is not None
    renamed = {new: name for name, new in given.renames.items()}
    at = renamed.get(given.event_time, given.event_time)
    steps = computing(given.steps, at)
    looked_at = replace(cut, slices=(*cut.slices, *cut.heads))
    rows = read_source(run, given.producer, looked_at, steps, [at])
    alone = replace(given, steps=tuple(map(_without_overflow, steps)))
    return _measured(projected(rows, alone), given.event_time)


def _behind_transform(run: StageRun, given: Input, cut: SourceCut) -> _Measured:
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


def _measured(rows: DataFrame, event_time: str) -> _Measured:
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
