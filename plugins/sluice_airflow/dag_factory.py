"""The DAG factory: all DAGs of a declared pipeline.

    {pipeline}, {pipeline}__savepoint

    trigger --> parse.snapshot   --+-> window.snapshot   --+-> finalize --> commit (--> export)
            |-> parse.await_acks --'                       |     (whichever of the two is first)
            '-> window.await_acks -------------------------'
    any of these failed: abort --> restart (starts {pipeline}__restore if the job must fail over)
                               '-> cancel_stages (on Spark)

    {pipeline}__restore: verify --> restore
    {pipeline}__cancel: cancel

Airflow derives a run's state from its leaves.  ``commit`` is one, or is before the leaf ``export``,
and succeeds only when the checkpoint is completed.  So the colour of a run shows the outcome of its
checkpoint; ``abort`` does not affect it.

The checkpoint DAG is scheduled by assets: a user's own, or ``sluice://{pipeline}/due``.  The latter
has an event when the interval is over, or the cron's moment has come, and there is something to
checkpoint.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from airflow.sdk import (
    DAG,
    Asset,
    AssetWatcher,
    BaseOperator,
    TaskGroup,
    TriggerRule,
)
from airflow.timetables.base import Timetable

from sluice.declaration.nodes import StageNode
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import loaded_package
from sluice.declaration.schedules import LEAST_TASK_TIMEOUT, Continuous, Cron, OnAsset, Watcher
from sluice.errors import ConfigurationError
from sluice.extras import require_installed
from sluice.surface.acts import CANCEL, RESTORE, SAVEPOINT
from sluice_airflow.acts import (
    AbortOperator,
    CancelOperator,
    ExportOperator,
    RestartOperator,
    RestoreOperator,
    VerifyOperator,
    abort_on_failure,
)
from sluice_airflow.answers import AwaitAcksSensor
from sluice_airflow.compat import AssetOrTimeSchedule
from sluice_airflow.due import CheckpointDueTrigger
from sluice_airflow.forms import checkpoint_form, restore_form, savepoint_form
from sluice_airflow.operators import CommitOperator, FinalizeOperator
from sluice_airflow.stage import CancelStagesOperator, SnapshotOperator
from sluice_airflow.timetable import CheckpointTimetable, FirstTickTimetable
from sluice_airflow.trigger_task import TriggerOperator, TriggerSavepointOperator
from sluice_airflow.watchdog import WATCHDOG_DAG_ID

START = datetime(2026, 1, 1, tzinfo=UTC)  # Any past moment, as there is no catch-up.
TASK_IDS = ("trigger", "finalize", "commit", "export", "abort", "restart", "cancel_stages")

RETRY_DELAY = timedelta(seconds=5)
IDEMPOTENT: dict[str, Any] = {"retries": 2, "retry_delay": RETRY_DELAY}
CANCEL_TIMEOUT = timedelta(minutes=1)  # A Spark that does not answer runs no stage to cancel.
_SHORTEST = timedelta(seconds=1)

# A snapshot task ends a second or two after the last ack, before its sensor; but if it still merges
# state, or was lost, its sensor succeeds first.  A task that starts too early reads in the bucket
# that acks are missing, and waits.
SOONER = TriggerRule.ONE_SUCCESS

ABOUT_SAVEPOINTS = """\
A checkpoint that a person asks for and owns: no retention deletes it. *Then stop the job* makes it
the last one, for an upgrade (suspend) or for good (drain); `restore` goes on from it.
"""
AWAIT_ACKS = (
    "Waits in the triggerer, without a worker slot, until every subtask acknowledged in the bucket."
)


def build_dags(pipelines: Mapping[str, Pipeline]) -> dict[str, DAG]:
    """Every DAG of every pipeline, by id.

    Raises:
        ConfigurationError: two have the same id, or a stage has the name of a task.
    """
    dags: dict[str, DAG] = {}
    for pipeline in pipelines.values():
        for dag in dags_of(pipeline):
            if dag.dag_id in dags or dag.dag_id == WATCHDOG_DAG_ID:
                raise ConfigurationError(
                    f"two pipelines make a DAG {dag.dag_id!r}; rename {pipeline.uid!r}"
                )
            dags[dag.dag_id] = dag
    return dags


def dags_of(pipeline: Pipeline) -> tuple[DAG, ...]:
    """The DAGs for checkpoints, savepoints, restore and cancel.

    Raises:
        ConfigurationError: a stage has the name of a task, or the schedule cannot be built.
    """
    return (
        _checkpoint_dag(pipeline),
        _savepoint_dag(pipeline),
        _restore_dag(pipeline),
        _cancel_dag(pipeline),
    )


def _checkpoint_dag(pipeline: Pipeline) -> DAG:
    """Created paused: unpausing it starts the job."""
    with _dag(
        pipeline,
        pipeline.uid,
        schedule=airflow_schedule(pipeline),
        max_active_runs=pipeline.checkpointing.max_concurrent_checkpoints,
        params=checkpoint_form(pipeline),
        doc_md=describe_pipeline(pipeline),
    ) as dag:
        _checkpoint_tasks(pipeline, TriggerOperator, is_savepoint=False)
    return dag


def _savepoint_dag(pipeline: Pipeline) -> DAG:
    with _dag(
        pipeline,
        SAVEPOINT.dag_id(pipeline.uid),
        params=savepoint_form(),
        is_paused_upon_creation=False,
        doc_md=ABOUT_SAVEPOINTS,
    ) as dag:
        _checkpoint_tasks(pipeline, TriggerSavepointOperator, is_savepoint=True)
    return dag


def _restore_dag(pipeline: Pipeline) -> DAG:
    with _dag(
        pipeline,
        RESTORE.dag_id(pipeline.uid),
        params=restore_form(pipeline),
        is_paused_upon_creation=False,
        doc_md=describe_restore(pipeline),
    ) as dag:
        verify = VerifyOperator(task_id="verify", pipeline=pipeline, **_of_a_job(pipeline))
        strategy = pipeline.checkpointing.restart_strategy
        # More than the restart strategy delays the restart of a job, its jitter included.
        pause = timedelta(milliseconds=2 * max(strategy.delay_ms, strategy.max_delay_ms))
        limits = _of_a_job(pipeline, pause=pause)
        verify >> RestoreOperator(task_id="restore", pipeline=pipeline, **limits)
    return dag


def _cancel_dag(pipeline: Pipeline) -> DAG:
    with _dag(
        pipeline,
        CANCEL.dag_id(pipeline.uid),
        is_paused_upon_creation=False,
        doc_md=describe_cancel(pipeline),
    ) as dag:
        CancelOperator(task_id="cancel", pipeline=pipeline, **_of_a_job(pipeline))
    return dag


def _dag(
    pipeline: Pipeline,
    dag_id: str,
    *,
    schedule: Any = None,  # noqa: ANN401 - whatever a DAG takes
    max_active_runs: int = 1,
    **kwargs: Any,  # noqa: ANN401 - Airflow's
) -> DAG:
    default_args: dict[str, Any] = {"priority_weight": pipeline.orchestration.priority_weight}
    if pipeline.orchestration.queue is not None:
        default_args["queue"] = pipeline.orchestration.queue
    return DAG(
        dag_id,
        schedule=schedule,
        start_date=START,
        catchup=False,
        auto_register=False,  # The caller registers it when it is complete.
        max_active_runs=max_active_runs,
        default_args=default_args,
        tags=["sluice", pipeline.uid, *pipeline.orchestration.tags],
        **kwargs,
    )


def _checkpoint_tasks(
    pipeline: Pipeline, trigger_class: type[TriggerOperator], *, is_savepoint: bool
) -> None:
    failing: dict[str, Any] = {"on_failure_callback": abort_on_failure(pipeline)}
    limits = _of_a_checkpoint(pipeline)
    trigger = trigger_class(task_id="trigger", pipeline=pipeline, **failing, **limits)
    tasks: list[BaseOperator] = [trigger]
    acknowledged: dict[str, AwaitAcksSensor] = {}
    snapshots: dict[str, BaseOperator] = {}
    checkpointing = pipeline.checkpointing
    from_the_start = checkpointing.unaligned and not checkpointing.aligned_checkpoint_timeout
    for stage in pipeline.stages.values():  # In declaration order, which is topological.
        if stage.uid in TASK_IDS:
            raise ConfigurationError(
                f"stage {stage.uid!r} of pipeline {pipeline.uid!r} is called like a task of its "
                "DAG; give it another uid"
            )
        sealed = [] if from_the_start else pipeline.upstream_of(stage.uid)
        rule = SOONER if len(sealed) == 1 else TriggerRule.ALL_SUCCESS
        snapshot, await_acks = stage_tasks(pipeline, stage, trigger_rule=rule, **failing)
        # All sensors start at once: starting one takes the triggerer up to two seconds, which
        # otherwise every stage would add to the checkpoint (ADR 4).
        trigger >> await_acks
        # A stage that aligns in an unaligned checkpoint waits for its input in `snapshot` itself.
        ([acknowledged[producer] for producer in sealed] or [trigger]) >> snapshot
        if len(sealed) == 1:
            snapshots[sealed[0]] >> snapshot
        acknowledged[stage.uid], snapshots[stage.uid] = await_acks, snapshot
        tasks += [snapshot, await_acks]
    finalize = _finalize_task(pipeline, acknowledged, snapshots, **failing)
    commit = CommitOperator(task_id="commit", pipeline=pipeline, **_of_a_job(pipeline))
    finalize >> commit
    if is_savepoint:
        commit >> ExportOperator(task_id="export", pipeline=pipeline, **_of_a_job(pipeline))
    abort = AbortOperator(
        task_id="abort",
        pipeline=pipeline,
        trigger_rule=TriggerRule.ONE_FAILED,
        **limits,
    )
    [*tasks, finalize] >> abort
    abort >> RestartOperator(task_id="restart", pipeline=pipeline, **limits)
    abort >> CancelStagesOperator(
        task_id="cancel_stages",
        pipeline=pipeline,
        execution_timeout=CANCEL_TIMEOUT,
    )


def stage_tasks(
    pipeline: Pipeline,
    stage: StageNode,
    *,
    trigger_rule: TriggerRule,
    **kwargs: Any,  # noqa: ANN401 - Airflow's
) -> tuple[BaseOperator, AwaitAcksSensor]:
    """``snapshot``, which has Spark run the stage once *trigger_rule* allows it, and
    ``await_acks``, which waits in the triggerer for its acks, in a group of their own.
    """
    with TaskGroup(stage.uid):
        snapshot = _stage_operator(
            pipeline=pipeline,
            trigger_rule=trigger_rule,
            task_id="snapshot",
            stage=stage.uid,
            # A hung one would block the next.
            execution_timeout=pipeline.checkpointing.timeout,
            pool=pipeline.orchestration.pool,
            doc_md=describe_stage(pipeline, stage),
            **kwargs,
        )
        # No callback: for a task that ends in the triggerer Airflow would run it in the DAG
        # processor, seconds later than the abort task.
        await_acks = AwaitAcksSensor(
            task_id="await_acks",
            pipeline=pipeline,
            stage=stage.uid,
            retries=0,
            doc_md=AWAIT_ACKS,
        )
    return snapshot, await_acks


def _stage_operator(*, pipeline: Pipeline, **kwargs: Any) -> BaseOperator:  # noqa: ANN401
    """A failed stage in the session fails the job over, as whole epochs are repeated.  An
    application outlives the worker that submitted it, so its task is retried, and finds it.
    """
    submit = pipeline.orchestration.submit
    if submit is None:
        return SnapshotOperator(pipeline=pipeline, retries=0, **kwargs)
    require_installed("airflow.providers.apache.spark", who="orchestration with submit=")
    from sluice_airflow.submitting import SubmitOperator

    retry: dict[str, Any] = {"retries": 1, "retry_delay": RETRY_DELAY}
    return SubmitOperator(pipeline=pipeline, submit=submit, **retry, **kwargs)


def _finalize_task(
    pipeline: Pipeline,
    acknowledged: Mapping[str, BaseOperator],
    snapshots: Mapping[str, BaseOperator],
    **kwargs: Any,  # noqa: ANN401 - Airflow's
) -> BaseOperator:
    """The task behind all stages, or behind the last one alone if that waits for all others."""
    last = [uid for uid in pipeline.stages if not pipeline.consumers_of(uid)]
    is_chain = len(last) == 1 and not pipeline.checkpointing.unaligned
    finalize = FinalizeOperator(
        task_id="finalize",
        pipeline=pipeline,
        trigger_rule=SOONER if is_chain else TriggerRule.ALL_SUCCESS,
        **_of_a_checkpoint(pipeline),
        **kwargs,
    )
    if is_chain:
        [acknowledged[last[0]], snapshots[last[0]]] >> finalize
    else:
        [*acknowledged.values()] >> finalize
    return finalize


def _of_a_checkpoint(pipeline: Pipeline) -> dict[str, Any]:
    """The limits of a task that a checkpoint waits for: a try ends at the latest when the
    checkpoint has expired.
    """
    limit = max(pipeline.checkpointing.timeout, LEAST_TASK_TIMEOUT)
    return {**IDEMPOTENT, "execution_timeout": limit}


def _of_a_job(pipeline: Pipeline, *, pause: timedelta = timedelta(0)) -> dict[str, Any]:
    """The limits of a task that no checkpoint waits for; *pause* is the time that it sleeps."""
    return {**IDEMPOTENT, "execution_timeout": pipeline.orchestration.task_timeout + pause}


def airflow_schedule(pipeline: Pipeline) -> Any:  # noqa: ANN401 - whatever a DAG takes
    """The ``schedule`` of the checkpoint DAG; None means by hand only.

    Raises:
        ConfigurationError: a watcher's trigger cannot be built.
    """
    checkpointing = pipeline.checkpointing
    match checkpointing.schedule:
        case None:
            interval = checkpointing.interval
            return None if interval is None else _when_due(pipeline, interval)
        case Continuous():
            return _when_due(pipeline, timedelta(0))
        case Cron() as cron:
            return _when_due(pipeline, timedelta(0), cron)
        case OnAsset(uri=uri, watcher=watcher):
            name = f"{pipeline.uid}_barriers"
            watchers = [] if watcher is None else [AssetWatcher(name, _trigger(watcher))]
            return [Asset(uri, watchers=watchers)]
        case _:
            assert_never(checkpointing.schedule)


def _when_due(
    pipeline: Pipeline, interval: timedelta, cron: Cron | None = None
) -> AssetOrTimeSchedule:
    """The first run by the clock, which submits the job; then one for each checkpoint."""
    first: Timetable = CheckpointTimetable.of(pipeline.uid, max(interval, _SHORTEST))
    if cron is not None:
        first = FirstTickTimetable(cron.expression, timezone=cron.timezone)
    package = loaded_package()
    trigger = CheckpointDueTrigger(
        pipeline=pipeline.uid,
        interval_s=interval.total_seconds(),
        max_concurrent=pipeline.checkpointing.max_concurrent_checkpoints,
        pipelines=None if package is None else package.setting,
        cron=None if cron is None else (cron.expression, cron.timezone),
    )
    due = Asset(
        f"sluice://{pipeline.uid}/due",
        watchers=[AssetWatcher(f"{pipeline.uid}_due", trigger)],
    )
    return AssetOrTimeSchedule(timetable=first, assets=[due])


def _trigger(watcher: Watcher) -> Any:  # noqa: ANN401 - any BaseEventTrigger
    module, _, name = watcher.trigger.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)(**watcher.arguments)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"the watcher {watcher.trigger!r} cannot be built: {error}"
        ) from error


def describe_pipeline(pipeline: Pipeline) -> str:
    """The page of a pipeline, in Markdown: its graph, its checkpoints and its parameters."""
    lines = [
        f"## {pipeline.uid}",
        pipeline.description,
        "```text",
        *draw_pipeline(pipeline),
        "```",
        _promise(pipeline),
    ]
    if pipeline.params:
        lines += ["", "| parameter | default | |", "|---|---|---|"]
        lines += [
            f"| `{param.name}` | {param.default or ('required' if param.required else '')} | "
            f"{param.help} |"
            for param in pipeline.params
        ]
    return "\n".join(lines)


def draw_pipeline(pipeline: Pipeline) -> list[str]:
    """One line per source, stage and sink, indented under what it reads."""
    lines: list[str] = []

    def consumers(producer: str, depth: int) -> None:
        pad = "   " * depth + "└─ "
        for stage in pipeline.stages.values():
            if producer in stage.producers:
                kind = type(stage.operation).__name__
                by = f" by {', '.join(stage.keys)}" if stage.keys else ""
                lines.append(f"{pad}{stage.uid}  {kind}{by} x{pipeline.parallelism_of(stage.uid)}")
                consumers(stage.uid, depth + 1)
        lines.extend(
            f"{pad}{sink.uid}  sink, {type(sink.spec).__name__}"
            for sink in pipeline.sinks_of(producer)
        )

    for source in pipeline.sources.values():
        table = " (table)" if source.is_table else ""
        lines.append(f"{source.uid}  source, {type(source.spec).__name__}{table}")
        consumers(source.uid, 0)
    return lines


def _promise(pipeline: Pipeline) -> str:
    checkpointing = pipeline.checkpointing
    age = checkpointing.retain_for
    recent = f", and those of the last {_words(age)}" if age else ""
    return (
        f"A checkpoint {_when(pipeline)}, given up after "
        f"{_words(checkpointing.timeout)}; the newest {checkpointing.num_retained}{recent} are "
        "retained. "
        f"After {checkpointing.tolerable_failed_checkpoints} tolerated failures, or at once when a "
        f"stage fails, `{RESTORE.dag_id(pipeline.uid)}` continues from the latest completed one."
    )


def _when(pipeline: Pipeline) -> str:
    match pipeline.checkpointing.schedule:
        case Continuous():
            return "**after the other**, as long as there are new records"
        case Cron(expression, timezone):
            return f"by the clock, **{expression}** ({timezone})"
        case OnAsset(uri=uri):
            return f"at each event of **{uri}**"
        case _:
            interval = pipeline.checkpointing.interval
            if interval is None:
                return "**by hand** only"
            return f"every **{_words(interval)}**, if there is anything new"


def _words(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    return f"{seconds / 60:g} min" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g} s"


def describe_restore(pipeline: Pipeline) -> str:
    return (
        "Puts state, source offsets and output tables back to one moment, and resumes. Works on a "
        "job of any status; one that was never submitted is submitted first. A failure starts it "
        f"by itself. `{pipeline.uid}` goes on with its next run: is it unpaused?"
    )


def describe_cancel(pipeline: Pipeline) -> str:
    retention = pipeline.checkpointing.externalized_checkpoint_retention.value
    return (
        "Ends the job: what is pending is aborted. Retained checkpoints stay or go by its "
        f"retention, `{retention}`; savepoints stay. `{RESTORE.dag_id(pipeline.uid)}` brings it "
        "back."
    )


def describe_stage(pipeline: Pipeline, node: StageNode) -> str:
    reads = ", ".join(node.producers)
    sinks = ", ".join(sink.uid for sink in pipeline.sinks_of(node.uid))
    return (
        f"One Spark job: `{node.uid}` reads {reads} and updates its state as "
        f"{pipeline.parallelism_of(node.uid)} subtasks"
        + (f", and stages rows for {sinks}" if sinks else "")
        + ". Each subtask acknowledges in the bucket; the exit of this task does not count."
    )
