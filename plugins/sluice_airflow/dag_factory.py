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
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, BaseOperator, TriggerRule

from sluice.declaration.nodes import StageNode
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.schedules import LEAST_TASK_TIMEOUT
from sluice.errors import ConfigurationError
from sluice_airflow import documentation as docs
from sluice_airflow.abort import AbortOperator, RestartOperator, abort_on_failure
from sluice_airflow.ack_sensor import AwaitAcksSensor
from sluice_airflow.cancel_task import CancelOperator
from sluice_airflow.export_task import ExportOperator
from sluice_airflow.forms import checkpoint_form, restore_form, savepoint_form
from sluice_airflow.operators import CommitOperator, FinalizeOperator
from sluice_airflow.restore_tasks import RestoreOperator, VerifyOperator
from sluice_airflow.schedules import airflow_schedule
from sluice_airflow.snapshot import CancelStagesOperator
from sluice_airflow.stage_tasks import RETRY_DELAY, stage_tasks
from sluice_airflow.trigger_task import TriggerOperator, TriggerSavepointOperator
from sluice_airflow.watchdog import WATCHDOG_DAG_ID

START = datetime(2026, 1, 1, tzinfo=UTC)  # Any past moment, as there is no catch-up.
TASK_IDS = ("trigger", "finalize", "commit", "export", "abort", "restart", "cancel_stages")
IDEMPOTENT: dict[str, Any] = {"retries": 2, "retry_delay": RETRY_DELAY}
# A snapshot task ends a second or two after the last ack, before its sensor; but if it still merges
# state, or was lost, its sensor succeeds first.  A task that starts too early reads in the bucket
# that acks are missing, and waits.
SOONER = TriggerRule.ONE_SUCCESS
CANCEL_TIMEOUT = timedelta(minutes=1)  # Spark that does not answer has nothing to cancel.


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
    """The checkpoint DAG, created paused: unpausing it starts the job."""
    with _dag(
        pipeline,
        pipeline.uid,
        schedule=airflow_schedule(pipeline),
        max_active_runs=pipeline.checkpointing.max_concurrent_checkpoints,
        params=checkpoint_form(pipeline),
        doc_md=docs.describe(pipeline),
    ) as dag:
        _checkpoint_tasks(pipeline, TriggerOperator, is_savepoint=False)
    return dag


def _savepoint_dag(pipeline: Pipeline) -> DAG:
    with _dag(
        pipeline,
        f"{pipeline.uid}__savepoint",
        params=savepoint_form(),
        is_paused_upon_creation=False,
        doc_md=docs.SAVEPOINT,
    ) as dag:
        _checkpoint_tasks(pipeline, TriggerSavepointOperator, is_savepoint=True)
    return dag


def _restore_dag(pipeline: Pipeline) -> DAG:
    with _dag(
        pipeline,
        f"{pipeline.uid}__restore",
        params=restore_form(pipeline),
        is_paused_upon_creation=False,
        doc_md=docs.restore(pipeline),
    ) as dag:
        verify = VerifyOperator(task_id="verify", pipeline=pipeline, **_of_a_job(pipeline))
        limits = _of_a_job(pipeline, pause=_longest_pause(pipeline))
        verify >> RestoreOperator(task_id="restore", pipeline=pipeline, **limits)
    return dag


def _cancel_dag(pipeline: Pipeline) -> DAG:
    with _dag(
        pipeline,
        f"{pipeline.uid}__cancel",
        is_paused_upon_creation=False,
        doc_md=docs.cancel(pipeline),
    ) as dag:
        CancelOperator(task_id="cancel", pipeline=pipeline, **_of_a_job(pipeline))
    return dag


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
    for stage in _topological(pipeline):
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
        # Of an aligned one among them, `snapshot` itself waits for its input.
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


def _finalize_task(
    pipeline: Pipeline,
    acknowledged: Mapping[str, BaseOperator],
    snapshots: Mapping[str, BaseOperator],
    **kwargs: Any,  # noqa: ANN401 - Airflow's
) -> BaseOperator:
    """The finalize task, after all stages, or after the last one if it waits for all others."""
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
    """Retries, and the longest that a try may take, of a task that a checkpoint waits for: it has
    expired by then.
    """
    limit = max(pipeline.checkpointing.timeout, LEAST_TASK_TIMEOUT)
    return {**IDEMPOTENT, "execution_timeout": limit}


def _of_a_job(pipeline: Pipeline, *, pause: timedelta = timedelta(0)) -> dict[str, Any]:
    """The same of a task that no checkpoint waits for; *pause* is what it waits by itself."""
    return {**IDEMPOTENT, "execution_timeout": pipeline.orchestration.task_timeout + pause}


def _longest_pause(pipeline: Pipeline) -> timedelta:
    """More than the restart strategy lets a failed job rest, its jitter included."""
    strategy = pipeline.checkpointing.restart_strategy
    return timedelta(milliseconds=2 * max(strategy.delay_ms, strategy.max_delay_ms))


def _topological(pipeline: Pipeline) -> list[StageNode]:
    """The stages in declaration order, which is topological: a stage reads earlier ones only."""
    return [*pipeline.stages.values()]


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
