"""``Deployment``: the rows of a stage's execution attempt, and what its subtasks do with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from sluice.declaration.changelog import Append
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import Transform
from sluice.epoch.assignment import assigned_state
from sluice.spark.compaction_job import take_over_compactions
from sluice.spark.event_time_measurement import EventTime, behind, event_time_of
from sluice.spark.exchange import (
    blocks_of,
    exchange_of,
    exchange_spec,
    exchanged_rows,
    keyed_blocks,
)
from sluice.spark.keying import KeyedRows, keyed_rows, polars_schema
from sluice.spark.partitions import Frame, Partitions
from sluice.spark.rows import looked_up, lookup_table, read_inputs, transformed
from sluice.spark.stage_run import StageRun
from sluice.spark.user_code import take_along
from sluice.subtask.chain import ChainLink
from sluice.subtask.faults import fault_from_environment
from sluice.subtask.operators.operator import WEIGHT
from sluice.subtask.output import narrowed
from sluice.subtask.state.schema import StateSchema
from sluice.subtask.state.segments import to_table
from sluice.subtask.subtask import run_subtask
from sluice.subtask.workspace import SubtaskSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The rows by subtask, the specification of the subtasks, and the stage's keyed state.

    ``result`` are the columns that its operation yields.
    """

    run: StageRun
    rows: Partitions
    spec: SubtaskSpec
    tables: Mapping[str, StateSchema]
    result: pl.Schema

    def has_no_rows(self) -> bool:
        """Whether Spark, which reads them, finds that there are none."""
        return isinstance(self.rows, Frame) and self.rows.is_empty()

    @property
    def stream_schema(self) -> bytes:
        """The serialized Arrow schema of the stage's stream."""
        return stream_schema(self.run.node, self.result)


def stream_schema(node: StageNode, result: pl.Schema) -> bytes:
    """The serialized Arrow schema of the stream of a stage whose operation yields *result*."""
    frame = narrowed(node, result.to_frame())
    if node.kind != Append():
        frame = frame.with_columns(pl.lit(1, pl.Int8).alias(WEIGHT))
    body: bytes = to_table(frame).schema.serialize().to_pybytes()
    return body


def deploy(run: StageRun, *, by_spark: bool = False, without_rows: bool = False) -> Deployment:
    """Analyse the stage over the actual columns of its inputs, and plan its Spark job.

    With *by_spark* no row goes past Spark's JVM; *without_rows* its subtasks get none.

    Raises:
        ConfigurationError: the stage cannot compute what it declares of its columns.
    """
    take_along(run.node)
    exchange = None if by_spark or without_rows else exchange_of(run)
    if exchange is not None:
        event_time = event_time_of(run, exchange.feeds)
        given = exchanged_rows(run, exchange, event_time)
    else:
        event_time = event_time_of(run, None)
        given = _rows(run, read_inputs(run))
    if without_rows:
        assert isinstance(given.rows, Frame)
        given = replace(given, rows=given.rows.without_rows(run.task.parallelism))
    return _deployment(run, given, event_time)


def deploy_behind(before: Deployment, run: StageRun) -> Deployment | None:
    """Chain the stage of *run* to the one deployed *before* it; None if Spark has to read its rows.

    Raises:
        ConfigurationError: the stage cannot compute what it declares of its columns.
    """
    exchange = exchange_of(run)
    if exchange is None:
        return None
    take_along(run.node)
    event_time = behind(before.run, run)
    (stream,) = run.given.streams.values()
    link = ChainLink(exchange=exchange_spec(run, exchange, event_time), schema=stream.schema)
    spec = replace(before.spec, chained_to=link)
    senders = before.run.task.parallelism
    blocks = blocks_of(before.rows, lambda batches: run_subtask(spec, batches), senders, run.task)
    return _deployment(run, keyed_blocks(blocks, exchange), event_time)


def _deployment(run: StageRun, given: KeyedRows, event_time: EventTime) -> Deployment:
    return Deployment(
        run=run,
        rows=given.rows,
        spec=_spec(run, given, event_time),
        tables=given.tables,
        result=given.result,
    )


def _rows(run: StageRun, inputs: list[DataFrame]) -> KeyedRows:
    if run.node.is_stateful:
        rows_per_group = run.before.rows_per_group if run.before is not None else None
        sides = looked_up(run.node, inputs, lookup_table(run))
        return keyed_rows(sides, run.node, run.task, rows_per_group)
    rows = transformed(run.node, inputs, lookup_table(run), run.configuration.params)
    if len(inputs) > 1:  # Each input was read over as many partitions as there are subtasks.
        rows = rows.coalesce(run.task.parallelism)
    result = {name: of for name, of in polars_schema(rows).items() if name != WEIGHT}
    return KeyedRows(rows=Frame(rows), schemas=(_schema(rows),), result=pl.Schema(result))


def _spec(run: StageRun, given: KeyedRows, event_time: EventTime) -> SubtaskSpec:
    job, plan, node = run.job, run.plan, run.node
    stream = run.given.streams[node.broadcast.producer] if node.broadcast is not None else None
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
        clock=event_time.clock,
        measured_source=event_time.by_subtasks,
        is_pre_aggregated=given.is_pre_aggregated,
        is_exchanged=given.is_exchanged,
        is_full=plan.is_full,
        inline_threshold_bytes=run.configuration.inline_threshold_bytes,
        memory_bytes=job.pipeline.state_backend.memory_per_subtask,
        max_state_runs=1 if plan.is_canonical else job.pipeline.state_backend.max_runs,
        fault=run.fault or fault_from_environment(),
        broadcast=stream.segments if stream is not None else (),
        broadcast_schema=stream.schema if stream is not None else b"",
    )


def _portable(node: StageNode) -> StageNode:
    """The node without a transform, which stays on the driver, so that a worker can load it."""
    match node.operation:
        case Transform():
            return replace(node, operation=Transform(function=_unused, arguments={}))
        case _:
            return node


def _unused(_: DataFrame) -> DataFrame:
    raise AssertionError("a transform runs on the driver")


def _schema(rows: DataFrame) -> bytes:
    from pyspark.sql.pandas.types import to_arrow_schema

    body: bytes = to_arrow_schema(rows.schema, timezone="UTC").serialize().to_pybytes()
    return body
