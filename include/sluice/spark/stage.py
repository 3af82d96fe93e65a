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
from sluice.core.completed import StageState
from sluice.core.handles import StateHandle
from sluice.core.ids import CheckpointId
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.messages import JobConfiguration
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.core.properties import CheckpointingMode
from sluice.core.state import CoordinatorState
from sluice.core.watermarks import MIN_WATERMARK
from sluice.errors import FencedError, SluiceError, StageFailed
from sluice.faults import fault_from_environment
from sluice.nodes import Lookup, Operator, StageNode, Transform
from sluice.params import value_of
from sluice.protocol.records import decode_ack
from sluice.runner.completion import publish_early
from sluice.runner.job import Job
from sluice.runner.lineage import lineage_of
from sluice.runner.stage_input import StageInput, stage_input
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
        NotYetAcknowledged: what the stage reads, or continues, is not sealed yet.
        FencedError: the checkpoint is not pending any more, or another attempt took over.
    """
    plan = job.plan(checkpoint_id)
    if plan is None:
        raise FencedError(f"checkpoint {checkpoint_id} is not pending any more")
    state = job.journal.load(after=plan.journal_seq).state
    if state.pending_checkpoint(checkpoint_id) is None:
        state = job.state()  # It ended, or so it seems: that needs certainty.
    pending = _still_pending(state, checkpoint_id, stage, attempt)
    lineage = lineage_of(job, state, plan)
    node = job.pipeline.stages[stage]
    reads_source = node.input in job.pipeline.sources
    given = StageInput() if reads_source else stage_input(job, plan, pending, stage, lineage)
    before, task = lineage.stage(stage), plan.task(stage)
    if reads_source or given.schema:
        acks = _run(job, spark, plan, node, state.configuration, given, before, attempt)
    else:
        acks = _acknowledge_nothing(job, plan, task, given, before, attempt)
    missing = set(task.subtasks) - {ack.subtask for ack in acks}
    if missing:
        names = ", ".join(str(subtask) for subtask in sorted(missing))
        raise StageFailed(f"Spark finished stage {stage!r} without an ack of {names}")
    job.answers.write_stage(acks)
    if state.configuration.mode is CheckpointingMode.AT_LEAST_ONCE:
        publish_early(job, checkpoint_id, stage)
    log.info("stage acknowledged checkpoint_id=%d stage=%s", checkpoint_id, stage)


def _still_pending(
    state: CoordinatorState, checkpoint_id: CheckpointId, stage: str, attempt: int
) -> PendingCheckpoint:
    pending = state.pending_checkpoint(checkpoint_id)
    if pending is None:
        raise FencedError(f"checkpoint {checkpoint_id} is not pending any more")
    if stage in pending.overtaken:
        raise FencedError(f"stage {stage!r} was overtaken in checkpoint {checkpoint_id}")
    if attempt != pending.attempt_of(stage):
        raise FencedError(
            f"stage {stage!r} of checkpoint {checkpoint_id} is at attempt "
            f"{pending.attempt_of(stage)}; attempt {attempt} was overtaken"
        )
    return pending


def _run(
    job: Job,
    spark: SparkSession,
    plan: CheckpointPlan,
    node: StageNode,
    configuration: JobConfiguration,
    given: StageInput,
    before: StageState | None,
    attempt: int,
) -> list[Ack]:
    try:
        rows = _input(job, spark, plan, node, configuration, given)
        rows = _apply(job, spark, plan, node, configuration, rows)
        if node.keys:
            rows = place_by_key(rows, node, plan.task(node.uid))
        spec = _spec(job, plan, node, configuration, given, before, rows, attempt)
        done = rows.mapInArrow(lambda batches: run_subtask(spec, batches), RESULT_SCHEMA).collect()
    except SluiceError:
        raise
    except Exception as error:
        raise StageFailed(_first_cause(job, plan, node.uid, error)) from error
    return [decode_ack(bytes(row["ack"]), f"ack of {node.uid}") for row in done]


def _acknowledge_nothing(
    job: Job,
    plan: CheckpointPlan,
    task: TaskPlan,
    given: StageInput,
    before: StageState | None,
    attempt: int,
) -> list[Ack]:
    """An unaligned stage whose input has not begun to flow: its subtasks have nothing to do."""
    acks = [
        Ack(
            checkpoint_id=plan.checkpoint_id,
            subtask=subtask,
            attempt=attempt,
            state=state,
            watermark_ms=given.watermark_ms,
        )
        for subtask, state in zip(task.subtasks, assigned_state(before, task), strict=True)
    ]
    raw = [job.answers.write_ack(ack) for ack in acks]
    return [decode_ack(body, f"ack of {task.uid}") for body in raw]


def _input(
    job: Job,
    spark: SparkSession,
    plan: CheckpointPlan,
    node: StageNode,
    configuration: JobConfiguration,
    given: StageInput,
) -> DataFrame:
    parallelism = plan.task(node.uid).parallelism
    if node.input in job.pipeline.sources:
        source = job.source(node.input, configuration.params)
        return read_slices(spark, source, plan.source(node.input).slices, parallelism)
    schema = pa.ipc.read_schema(pa.py_buffer(given.schema))
    return read_segments(spark, job.location, given.segments, schema, parallelism)


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
    pinned = SegmentCache(job.location, job.store).open(handle)
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
    configuration: JobConfiguration,
    given: StageInput,
    before: StageState | None,
    rows: DataFrame,
    attempt: int,
) -> SubtaskSpec:
    from pyspark.sql.pandas.types import to_arrow_schema

    source, task = job.pipeline.source_of(node.uid), plan.task(node.uid)
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
        state=assigned_state(before, task),
        previous_watermark_ms=before.watermark_ms if before and not source else MIN_WATERMARK,
        watermark_ms=given.watermark_ms,
        reads_source=source is not None,
        measures_event_time=source is not None and source.event_time is not None and not node.keys,
        is_full=plan.is_full,
        inline_threshold_bytes=configuration.inline_threshold_bytes,
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
