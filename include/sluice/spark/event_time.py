"""How far event time comes in an epoch, where a stage reads sources: before its rows are processed.

It is that of the sources' own rows, whatever is filtered out of them: a partition without a row
that anybody keeps goes on in time all the same (ADR 21).  Only what a transform yields is measured
behind it, by the subtasks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from sluice.connectors.source import MALFORMED_COLUMN
from sluice.core.plan import SourceCut
from sluice.core.watermarks import MIN_WATERMARK
from sluice.nodes import Input
from sluice.operations import Lookup, Transform
from sluice.runner.event_time import latest, stage_watermark
from sluice.runtime.feed import Feed, ParquetRows
from sluice.runtime.operators.operator import EpochTime
from sluice.runtime.output import SOURCE
from sluice.spark.reading import share
from sluice.spark.rows import lookup_table, projected, read_source, transformed
from sluice.spark.stage_run import StageRun
from sluice.steps import Filter, Projection, Step, computing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_MILLIS = (2**63 - 1) // 1000  # Of an instant, which is microseconds.

_Measured: TypeAlias = Mapping[str, tuple[int, int]]  # The least and the largest time by partition.
_MILLIS = re.compile(r"timestamp_millis\(\s*([\w.]+)\s*\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EventTime:
    """``measured_ms`` are the times of the epoch per ``source/partition``, where the driver looked;
    ``by_subtasks`` is the source whose times the subtasks measure as its rows pass.
    """

    time: EpochTime
    measured_ms: dict[str, int]
    by_subtasks: str | None


def event_time_of(run: StageRun, feeds: tuple[Feed, ...] | None) -> EventTime:
    """*feeds* are the stage's inputs where it reads them past the JVM."""
    node, before = run.node, run.before
    measured: dict[str, int] = {}
    for side, given in enumerate(node.inputs):
        if given.event_time is None or not _has_a_say(run, given):
            continue
        cut = run.plan.source(given.producer)
        seen = dict[str, int]()
        if not _is_behind_transform(run):
            feed = None if feeds is None else feeds[side]
            of_rows = _by_feed(run, feed, cut) if feed is not None else None
            seen = _times(_by_spark(run, given, cut) if of_rows is None else of_rows, cut)
        elif cut.heads:
            heads = replace(cut, slices=cut.heads)
            seen = _times(_behind_transform(run, given, heads), cut)
        own = {f"{given.producer}/{partition}": at_ms for partition, at_ms in seen.items()}
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


def _has_a_say(run: StageRun, given: Input) -> bool:
    is_source = given.producer in run.job.pipeline.sources
    return is_source and not (run.plan.drains or run.plan.source(given.producer).exhausted)


def _is_behind_transform(run: StageRun) -> bool:
    """Whether the subtasks measure what passes: only a transform knows its event time, and who
    lets every row pass needs no look at them before.
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
    """Of what is read the largest; of what only waits, the least."""
    heads = {piece.partition for piece in cut.heads}
    return {
        partition: least if partition in heads else most
        for partition, (least, most) in of_rows.items()
    }


def _by_feed(run: StageRun, feed: Feed, cut: SourceCut) -> _Measured | None:
    """None where the event time is not plain SQL."""
    rows = feed.rows
    assert isinstance(rows, ParquetRows), "no other source goes past the JVM"
    looked_at = replace(rows, shares=share((*cut.slices, *cut.heads), run.task.parallelism))
    alone = replace(feed, rows=looked_at).of_event_time()
    if not alone.is_possible():
        return None

    def measure(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for index in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
            times = json.dumps(alone.times_ms(index))
            yield pa.RecordBatch.from_pydict({"times": pa.array([times])})

    readers = run.task.parallelism
    shares = run.spark.range(0, readers, 1, readers)
    seen: dict[str, tuple[int, int]] = {}
    for row in shares.mapInArrow(measure, "times string").collect():
        for partition, (least, most) in json.loads(row["times"]).items():
            first, last = seen.get(partition, (least, most))
            seen[partition] = min(first, least), max(last, most)
    return seen


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
    """A number that is no instant has no time; where it is read for itself, it is an error."""
    if isinstance(step, Filter):
        return step
    guarded = rf"timestamp_millis(CASE WHEN \1 BETWEEN -{MAX_MILLIS} AND {MAX_MILLIS} THEN \1 END)"
    return Projection(tuple(_MILLIS.sub(guarded, column) for column in step.columns))


def _measured(rows: DataFrame, event_time: str) -> _Measured:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    if MALFORMED_COLUMN in rows.columns:
        rows = rows.where(f"{MALFORMED_COLUMN} IS NULL")
    seen = (
        rows.groupBy(F.col(f"{SOURCE}.partition").alias("partition"))
        .agg(
            F.unix_millis(F.min(event_time)).alias("least_ms"),
            F.unix_millis(F.max(event_time)).alias("most_ms"),
        )
        .where("most_ms IS NOT NULL")
        .collect()
    )
    return {row["partition"]: (row["least_ms"], row["most_ms"]) for row in seen}
