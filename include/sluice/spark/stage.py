"""One stage of one pending checkpoint as one Spark job: read, transform, shuffle, snapshot.

Spark's JVM scans, joins and shuffles; the subtask merges, writes and acknowledges.  Running a stage
again is harmless at any moment: files are named by their content and acks are created once.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.core.acks import Ack
from sluice.core.completed import CheckpointMetadata, StageState
from sluice.core.handles import StateHandle
from sluice.core.ids import CheckpointId
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.messages import JobConfiguration
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.core.watermarks import MIN_WATERMARK
from sluice.errors import FencedError, SluiceError, StageFailed
from sluice.faults import fault_from_environment
from sluice.nodes import Lookup, Operator, StageNode, Transform
from sluice.params import value_of
from sluice.runner.event_time import output_watermark
from sluice.runner.job import Job
from sluice.runtime.state.cache import SegmentCache
from sluice.runtime.state.segments import HASH
from sluice.runtime.subtask import RESULT_SCHEMA, run_subtask
from sluice.runtime.workspace import SubtaskSpec
from sluice.spark.reading import read_segments, read_slices

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

SUBTASK = "_subtask"  # Which subtask a row belongs to; Spark's partitioner reads it.


def run_stage(
    job: Job, spark: SparkSession, checkpoint_id: CheckpointId, stage: str, *, attempt: int
) -> None:
    """Run the stage and return when every subtask has acknowledged.

    Raises:
        StageFailed: the Spark job failed; the message carries its first cause.
        FencedError: the checkpoint is not pending any more, or another attempt took over.
    """
    plan, pending, configuration = _still_pending(job, checkpoint_id, stage, attempt)
    parent = job.parent_metadata(plan)
    task = plan.task(stage)
    node = job.pipeline.stages[stage]
    upstream = _acks_of_input(job, plan, pending, node)
    try:
        rows = _input(job, spark, plan, node, configuration, upstream)
        rows = _apply(job, spark, plan, node, configuration, rows)
        if node.keys:
            rows = place_by_key(rows, node, task)
        spec = _spec(job, plan, node, task, configuration, parent, upstream, rows, attempt)
        rows.mapInArrow(lambda batches: run_subtask(spec, batches), RESULT_SCHEMA).collect()
    except SluiceError:
        raise
    except Exception as error:
        raise StageFailed(_first_cause(job, plan, stage, error)) from error
    missing = job.answers.observe(checkpoint_id).missing(task.subtasks, attempt)
    if missing:
        names = ", ".join(str(subtask) for subtask in missing)
        raise StageFailed(f"Spark finished stage {stage!r} without an ack of {names}")
    log.info("stage acknowledged checkpoint_id=%d stage=%s", checkpoint_id, stage)


def _still_pending(
    job: Job, checkpoint_id: CheckpointId, stage: str, attempt: int
) -> tuple[CheckpointPlan, PendingCheckpoint, JobConfiguration]:
    state = job.state()
    pending = state.pending_checkpoint(checkpoint_id)
    plan = job.plan(checkpoint_id)
    if pending is None or plan is None:
        raise FencedError(f"checkpoint {checkpoint_id} is not pending any more")
    if attempt != pending.attempt_of(stage):
        raise FencedError(
            f"stage {stage!r} of checkpoint {checkpoint_id} is at attempt "
            f"{pending.attempt_of(stage)}; attempt {attempt} was overtaken"
        )
    return plan, pending, state.configuration


def _acks_of_input(
    job: Job, plan: CheckpointPlan, pending: PendingCheckpoint, node: StageNode
) -> list[Ack]:
    """The acks of the stage that *node* reads, in subtask order; empty when it reads a source."""
    if node.input in job.pipeline.sources:
        return []
    attempt = pending.attempt_of(node.input)
    acks = [
        ack for ack in job.answers.acks(plan.checkpoint_id, node.input) if ack.attempt == attempt
    ]
    expected = plan.task(node.input).parallelism
    if len(acks) != expected:
        raise StageFailed(
            f"stage {node.uid!r} reads {node.input!r}, of which {len(acks)} of {expected} "
            "subtasks have acknowledged"
        )
    return sorted(acks, key=lambda ack: ack.subtask)


def _input(
    job: Job,
    spark: SparkSession,
    plan: CheckpointPlan,
    node: StageNode,
    configuration: JobConfiguration,
    upstream: list[Ack],
) -> DataFrame:
    parallelism = plan.task(node.uid).parallelism
    if node.input in job.pipeline.sources:
        source = job.source(node.input, configuration.params)
        return read_slices(spark, source, plan.source(node.input).slices, parallelism)
    segments = [handle for ack in upstream for handle in ack.output]
    schema = pa.ipc.read_schema(pa.py_buffer(upstream[0].schema))
    return read_segments(spark, job.location, segments, schema, parallelism)


def _apply(
    job: Job,
    spark: SparkSession,
    plan: CheckpointPlan,
    node: StageNode,
    configuration: JobConfiguration,
    rows: DataFrame,
) -> DataFrame:
    """The part of the operator that Spark's JVM does."""
    match node.operator:
        case Transform(function=function, arguments=arguments):
            resolved = {
                name: value_of(spec, configuration.params) for name, spec in arguments.items()
            }
            return function(rows, **resolved)
        case Lookup() as lookup:
            return _look_up(job, spark, plan, lookup, rows)
        case _:
            return rows


def _look_up(
    job: Job, spark: SparkSession, plan: CheckpointPlan, lookup: Lookup, rows: DataFrame
) -> DataFrame:
    from pyspark.sql.functions import broadcast

    handle = plan.source(lookup.table).table
    assert handle is not None, "a plan pins every table source"
    pinned = SegmentCache(job.store).open(handle)
    table = spark.createDataFrame(pinned).selectExpr(
        *(f"{expression} AS {column}" for column, expression in lookup.on.items())
    )
    how = "left_semi" if lookup.keep == "matched" else "left_anti"
    return rows.join(broadcast(table), on=list(lookup.on), how=how)


def place_by_key(rows: DataFrame, node: StageNode, task: TaskPlan) -> DataFrame:
    """Every row on the subtask that owns its key group; mirrors ``core.key_groups`` in SQL."""
    from pyspark.sql.functions import expr, xxhash64

    maximum, parallelism = task.max_parallelism, task.parallelism
    group = f"shiftright((shiftrightunsigned({HASH}, 32) ^ 2147483648L) * {maximum}L, 32)"
    for name, expression in node.key_expressions.items():
        rows = rows.withColumn(name, expr(expression))
    if node.needed_columns is not None:
        rows = rows.select(*dict.fromkeys((*node.keys, *node.needed_columns)))
    hashed = rows.withColumn(HASH, xxhash64(*node.keys))
    placed = hashed.withColumn(
        SUBTASK, expr(f"CAST({group} * {parallelism}L DIV {maximum}L AS INT)")
    )
    return placed.repartitionById(parallelism, SUBTASK).drop(SUBTASK)


def _spec(
    job: Job,
    plan: CheckpointPlan,
    node: StageNode,
    task: TaskPlan,
    configuration: JobConfiguration,
    parent: CheckpointMetadata | None,
    upstream: list[Ack],
    rows: DataFrame,
    attempt: int,
) -> SubtaskSpec:
    from pyspark.sql.pandas.types import to_arrow_schema

    source = job.pipeline.source_of(node.uid)
    before = parent.stage(node.input) if parent is not None else None
    watermark_ms = (
        output_watermark(job, plan, node.input, upstream, parent) if upstream else MIN_WATERMARK
    )
    return SubtaskSpec(
        location=job.location,
        pipeline=job.pipeline.uid,
        stage=replace(node, operator=_without_function(node)),
        task=task,
        sinks=job.pipeline.sinks_of(node.uid),
        has_consumers=any(s.input == node.uid for s in job.pipeline.stages.values()),
        checkpoint_id=plan.checkpoint_id,
        attempt=attempt,
        params=dict(configuration.params),
        input_schema=to_arrow_schema(rows.schema, timezone="UTC").serialize().to_pybytes(),
        state=assigned_state(parent.stage(node.uid) if parent is not None else None, task),
        previous_watermark_ms=before.watermark_ms if before is not None else MIN_WATERMARK,
        watermark_ms=watermark_ms,
        reads_source=source is not None,
        measures_event_time=source is not None and source.event_time is not None and not node.keys,
        fault=fault_from_environment(),
    )


def assigned_state(
    before: StageState | None, task: TaskPlan
) -> tuple[tuple[StateHandle, ...], ...]:
    """Per new subtask the segments it reads, cut to its hash range (StateAssignmentOperation)."""
    shares: list[tuple[StateHandle, ...]] = []
    for index in range(task.parallelism):
        groups = key_group_range(task.max_parallelism, task.parallelism, index)
        first, last = hash_range(task.max_parallelism, groups)
        shares.append(
            tuple(
                replace(
                    handle,
                    first_hash=max(first, handle.first_hash),
                    last_hash=min(last, handle.last_hash),
                )
                for subtask in (before.subtasks if before is not None else ())
                for handle in subtask.state
                if handle.first_hash <= last and first <= handle.last_hash
            )
        )
    return tuple(shares)


def _without_function(node: StageNode) -> Operator:
    """A transform runs in the JVM: the worker need not be able to import the user's module."""
    if isinstance(node.operator, Transform):
        return Transform(function=_unused, arguments={})
    return node.operator


def _unused(_: DataFrame) -> DataFrame:
    raise AssertionError("a transform runs on the driver")


def _first_cause(job: Job, plan: CheckpointPlan, stage: str, error: Exception) -> str:
    """A subtask's own words when it declined, else the first line of what Spark says."""
    for decline in job.answers.declines(plan.checkpoint_id):
        if decline.subtask.stage == stage:
            return f"{decline.subtask} declined: {decline.message}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"Spark job of stage {stage!r} failed: {lines[0] if lines else type(error).__name__}"
