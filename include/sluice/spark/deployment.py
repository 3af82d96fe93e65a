"""From a stage's execution attempt to its Spark job: the rows, and what each subtask is told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.changelog import Append
from sluice.connectors.source import MALFORMED_COLUMN
from sluice.core.watermarks import MIN_WATERMARK
from sluice.errors import ConfigurationError
from sluice.faults import fault_from_environment
from sluice.nodes import StageNode
from sluice.operations import Process, ProcessKeyed, Transform
from sluice.runner.assignment import assigned_state
from sluice.runner.event_time import latest, stage_watermark
from sluice.runtime.operators.operator import WEIGHT, EpochTime
from sluice.runtime.output import SOURCE
from sluice.runtime.state.schema import StateSchema
from sluice.runtime.workspace import SubtaskSpec
from sluice.spark.compaction import take_over_compactions
from sluice.spark.exchange import exchange_of, exchanged_rows, measured_by_feeds
from sluice.spark.keying import KeyedRows, keyed_rows
from sluice.spark.rows import lookup_table, read_inputs, transformed
from sluice.spark.stage_run import StageRun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class _EventTime:
    """``measured_ms`` are the largest event times of the epoch, where the driver looked."""

    time: EpochTime
    measured_ms: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The rows on their subtasks, what each does with them, and the stage's keyed state."""

    rows: DataFrame
    spec: SubtaskSpec
    tables: Mapping[str, StateSchema]


def deploy(run: StageRun) -> Deployment:
    """Analyse the stage over the columns that it really reads.

    Raises:
        ConfigurationError: the stage cannot compute what it declares of its columns.
    """
    _check_weights(run)
    exchange = exchange_of(run)
    if exchange is not None:
        event_time = _event_time(
            run, lambda sides: measured_by_feeds(run, [exchange.feeds[side] for side in sides])
        )
        given, measured_source = exchanged_rows(run, exchange, event_time.time), None
    else:
        inputs = read_inputs(run)
        measured_source = _measured_by_subtasks(run)
        event_time = _event_time(
            run,
            lambda sides: [
                _measure(inputs[side], run.node.inputs[side].event_time or "") for side in sides
            ],
        )
        given = _rows(run, inputs)
    spec = _spec(run, given, event_time, measured_source)
    return Deployment(rows=given.rows, spec=spec, tables=given.tables)


def _check_weights(run: StageRun) -> None:
    """Refuse what is in flight from before streams told which rows they take back."""
    for given in run.node.inputs:
        stream = run.given.streams.get(given.producer)
        if stream is None or given.kind == Append():
            continue
        if WEIGHT not in pa.ipc.read_schema(pa.py_buffer(stream.schema)).names:
            raise ConfigurationError(
                f"stage {run.node.uid!r} reads rows of {given.producer!r} that do not say which of "
                "them are taken back; an older version wrote them: restore from a checkpoint that "
                "has nothing in flight"
            )


def _rows(run: StageRun, inputs: list[DataFrame]) -> KeyedRows:
    if run.node.is_stateful:
        rows_per_group = run.before.rows_per_group if run.before is not None else None
        return keyed_rows(inputs, run.node, run.task, rows_per_group)
    rows = transformed(run.node, inputs, lookup_table(run), run.configuration.params)
    return KeyedRows(rows=rows, schemas=(_schema(rows),))


def _spec(
    run: StageRun, given: KeyedRows, event_time: _EventTime, measured_source: str | None
) -> SubtaskSpec:
    job, plan, node = run.job, run.plan, run.node
    return SubtaskSpec(
        location=job.location,
        pipeline=job.pipeline.uid,
        stage=_portable(node),
        task=run.task,
        sinks=job.pipeline.sinks_of(node.uid),
        has_consumers=bool(job.pipeline.consumers_of(node.uid)),
        checkpoint_id=plan.checkpoint_id,
        attempt=run.attempt,
        params=dict(run.configuration.params),
        input_schemas=given.schemas,
        state=take_over_compactions(job, node.uid, assigned_state(run.before, run.task)),
        epoch_time=event_time.time,
        streams_watermark_ms=run.given.watermark_ms(run.before),
        event_times_ms=event_time.measured_ms,
        measured_source=measured_source,
        is_pre_aggregated=given.is_pre_aggregated,
        is_exchanged=given.is_exchanged,
        is_full=plan.is_full,
        inline_threshold_bytes=run.configuration.inline_threshold_bytes,
        memory_bytes=job.pipeline.state_backend.memory_per_subtask,
        max_state_runs=1 if plan.is_canonical else job.pipeline.state_backend.max_runs,
        fault=fault_from_environment(),
    )


def _measured_by_subtasks(run: StageRun) -> str | None:
    """The source whose event times the subtasks measure as its rows pass; nobody waits for them.

    A stage with keyed state does wait: a window fires by the watermark of the epoch's end.
    """
    sources = run.job.pipeline.sources_of(run.node.uid)
    is_alone = len(run.node.inputs) == 1 and len(sources) == 1
    if run.node.is_stateful or not is_alone or run.node.inputs[0].event_time is None:
        return None
    return sources[0].uid


def _event_time(
    run: StageRun, measure: Callable[[Sequence[int]], list[dict[str, int]]]
) -> _EventTime:
    """How far event time comes in this epoch; where the stage reads sources itself, *measure* gives
    the largest of some inputs per partition.
    """
    before = run.before
    sides = _measured_sides(run)
    measured: dict[str, int] = {}
    for side, seen in zip(sides, measure(sides) if sides else [], strict=True):
        source = run.node.inputs[side].producer
        measured = latest(measured, {f"{source}/{part}": at for part, at in seen.items()})
    previous_ms = before.watermark_ms if before is not None else MIN_WATERMARK
    event_times = latest(before.event_times_ms if before is not None else {}, measured)
    watermark_ms = stage_watermark(
        run.job, run.plan, run.node.uid, event_times, run.given.watermark_ms(before), before
    )
    time = EpochTime(
        checkpoint_id=run.plan.checkpoint_id,
        previous_watermark_ms=previous_ms,
        watermark_ms=watermark_ms,
        processing_time_ms=run.plan.processing_time_ms,
    )
    return _EventTime(time, measured)


def _measured_sides(run: StageRun) -> list[int]:
    """The inputs whose event times decide the epoch's watermark before a row of it is processed."""
    if _measured_by_subtasks(run) is not None:
        return []
    return [
        side
        for side, given in enumerate(run.node.inputs)
        if given.producer in run.job.pipeline.sources
        and given.event_time is not None
        and not _will_be_max(run, given.producer)
    ]


def _will_be_max(run: StageRun, source: str) -> bool:
    return run.plan.drains or run.plan.source(source).exhausted


def _measure(rows: DataFrame, event_time: str) -> dict[str, int]:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    if MALFORMED_COLUMN in rows.columns:
        rows = rows.where(f"{MALFORMED_COLUMN} IS NULL")
    seen = (
        rows.groupBy(F.col(f"{SOURCE}.partition").alias("partition"))
        .agg(F.unix_millis(F.max(event_time)).alias("latest_ms"))
        .where("latest_ms IS NOT NULL")
        .collect()
    )
    return {row["partition"]: row["latest_ms"] for row in seen}


def _portable(node: StageNode) -> StageNode:
    """The node as a worker can load it: a transform stays on the driver, other functions of the
    user travel with their code, for their module may not be installed where Spark runs.
    """
    match node.operation:
        case Transform():
            return replace(node, operation=Transform(function=_unused, arguments={}))
        case Process(function=function) | ProcessKeyed(function=function):
            _travel_by_value(getattr(function, "__module__", type(function).__module__))
            return node
        case _:
            return node


def _travel_by_value(module_name: str) -> None:
    from pyspark import cloudpickle

    module = sys.modules.get(module_name)
    if module is not None and not module_name.startswith(("sluice.", "__main__")):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _unused(_: DataFrame) -> DataFrame:
    raise AssertionError("a transform runs on the driver")


def _schema(rows: DataFrame) -> bytes:
    from pyspark.sql.pandas.types import to_arrow_schema

    body: bytes = to_arrow_schema(rows.schema, timezone="UTC").serialize().to_pybytes()
    return body
