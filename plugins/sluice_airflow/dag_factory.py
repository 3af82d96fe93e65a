"""One declaration, all its DAGs.

    {pipeline}, {pipeline}__savepoint

    trigger --> parse.snapshot   --+-> window.snapshot   --+-> finalize --> commit (--> export)
            |-> parse.await_acks --'                       |     (whichever of the two is first)
            '-> window.await_acks -------------------------'
    any of these failed: abort --> restart (starts {pipeline}__restore if the job must fail over)
                               '-> cancel_stages (on Spark)

    {pipeline}__restore: verify --> restore
    {pipeline}__cancel: cancel

A run is judged by its leaves.  ``commit`` is one, or before the leaf ``export``: it succeeds only
after the checkpoint became true, so the colour of a run is the truth about its checkpoint, and
``abort`` has no say in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, BaseOperator, TaskGroup, TriggerRule

from sluice.errors import ConfigurationError
from sluice.nodes import StageNode
from sluice.pipeline import Pipeline
from sluice_airflow import documentation as docs
from sluice_airflow.abort import AbortOperator, RestartOperator, abort_on_failure
from sluice_airflow.awaiting import AwaitAcksSensor
from sluice_airflow.cancelling import CancelOperator
from sluice_airflow.exporting import ExportOperator
from sluice_airflow.forms import CHECKPOINT_FORM, SAVEPOINT_FORM, restore_form
from sluice_airflow.operators import CommitOperator, FinalizeOperator
from sluice_airflow.restoring import RestoreOperator, VerifyOperator
from sluice_airflow.schedules import airflow_schedule
from sluice_airflow.snapshot import CancelStagesOperator, SnapshotOperator
from sluice_airflow.triggering import TriggerOperator, TriggerSavepointOperator
from sluice_airflow.watchdog import WATCHDOG_DAG_ID

START = datetime(2026, 1, 1, tzinfo=UTC)  # Any past moment: nothing is caught up.
TASK_IDS = ("trigger", "finalize", "commit", "export", "abort", "restart", "cancel_stages")
IDEMPOTENT: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=5)}
# A snapshot task that succeeds knows of the acks a second or two before its sensor does; one that
# merges state behind them, or that was lost, is overtaken by the sensor.  The bucket says which
# acks there are: whoever starts too early finds that, and waits.
SOONER = TriggerRule.ONE_SUCCESS
CANCEL_TIMEOUT = timedelta(minutes=1)  # A Spark that does not answer has nothing to cancel.


def build_dags(pipelines: Mapping[str, Pipeline]) -> dict[str, DAG]:
    """Every DAG of every pipeline, by id.

    Raises:
        ConfigurationError: two would have the same id, or a stage is called like a task.
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
    """Checkpoint, savepoint, restore, cancel.

    Raises:
        ConfigurationError: a stage is called like a task, or the schedule cannot be built.
    """
    return (
        _checkpoint_dag(pipeline),
        _savepoint_dag(pipeline),
        _restore_dag(pipeline),
        _cancel_dag(pipeline),
    )


def _checkpoint_dag(pipeline: Pipeline) -> DAG:
    """Paused until a person starts the job by switching it on."""
    with _dag(
        pipeline,
        pipeline.uid,
        schedule=airflow_schedule(pipeline),
        max_active_runs=pipeline.checkpointing.max_concurrent_checkpoints,
        params=CHECKPOINT_FORM,
        doc_md=docs.describe(pipeline),
    ) as dag:
        _checkpoint_tasks(pipeline, TriggerOperator, is_savepoint=False)
    return dag


def _savepoint_dag(pipeline: Pipeline) -> DAG:
    with _dag(
        pipeline,
        f"{pipeline.uid}__savepoint",
        params=SAVEPOINT_FORM,
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
        verify = VerifyOperator(task_id="verify", pipeline=pipeline, **IDEMPOTENT)
        verify >> RestoreOperator(task_id="restore", pipeline=pipeline, **IDEMPOTENT)
    return dag


def _cancel_dag(pipeline: Pipeline) -> DAG:
    with _dag(
        pipeline,
        f"{pipeline.uid}__cancel",
        is_paused_upon_creation=False,
        doc_md=docs.cancel(pipeline),
    ) as dag:
        CancelOperator(task_id="cancel", pipeline=pipeline, **IDEMPOTENT)
    return dag


def _checkpoint_tasks(
    pipeline: Pipeline, trigger_class: type[TriggerOperator], *, is_savepoint: bool
) -> None:
    on_failure = abort_on_failure(pipeline)
    common: dict[str, Any] = {"pipeline": pipeline, "on_failure_callback": on_failure}
    trigger = trigger_class(task_id="trigger", **common, **IDEMPOTENT)
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
        with TaskGroup(stage.uid):
            snapshot = _stage_operator(
                trigger_rule=SOONER if len(sealed) == 1 else TriggerRule.ALL_SUCCESS,
                task_id="snapshot",
                stage=stage.uid,
                execution_timeout=pipeline.checkpointing.timeout,  # Or a hung one blocks the next.
                pool=pipeline.orchestration.pool,
                doc_md=docs.stage(pipeline, stage),
                **common,
            )
            # No callback: for a task that ends in the triggerer Airflow would run it in the DAG
            # processor, seconds later than the abort task.
            await_acks = AwaitAcksSensor(
                task_id="await_acks",
                pipeline=pipeline,
                stage=stage.uid,
                retries=0,
                doc_md=docs.AWAIT_ACKS,
            )
        # All sensors start at once: starting one takes the triggerer up to two seconds, which
        # otherwise every stage would add to the checkpoint.
        trigger >> await_acks
        # Of an aligned one among them, `snapshot` itself waits for its input.
        ([acknowledged[producer] for producer in sealed] or [trigger]) >> snapshot
        if len(sealed) == 1:
            snapshots[sealed[0]] >> snapshot
        acknowledged[stage.uid], snapshots[stage.uid] = await_acks, snapshot
        tasks += [snapshot, await_acks]
    finalize = _finalize_task(pipeline, acknowledged, snapshots, on_failure_callback=on_failure)
    commit = CommitOperator(task_id="commit", pipeline=pipeline, **IDEMPOTENT)
    finalize >> commit
    if is_savepoint:
        commit >> ExportOperator(task_id="export", pipeline=pipeline, **IDEMPOTENT)
    abort = AbortOperator(
        task_id="abort",
        pipeline=pipeline,
        trigger_rule=TriggerRule.ONE_FAILED,
        **IDEMPOTENT,
    )
    [*tasks, finalize] >> abort
    abort >> RestartOperator(task_id="restart", pipeline=pipeline, **IDEMPOTENT)
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
    """Behind the last stage, if there is one that began when all others had ended."""
    last = [uid for uid in pipeline.stages if not pipeline.consumers_of(uid)]
    is_chain = len(last) == 1 and not pipeline.checkpointing.unaligned
    finalize = FinalizeOperator(
        task_id="finalize",
        pipeline=pipeline,
        trigger_rule=SOONER if is_chain else TriggerRule.ALL_SUCCESS,
        **IDEMPOTENT,
        **kwargs,
    )
    if is_chain:
        [acknowledged[last[0]], snapshots[last[0]]] >> finalize
    else:
        [*acknowledged.values()] >> finalize
    return finalize


def _stage_operator(*, pipeline: Pipeline, **kwargs: Any) -> BaseOperator:  # noqa: ANN401
    """The failure of a job in the session fails the whole job over: the epoch is what is repeated.
    An application outlives the worker that submitted it, so its task is retried, to find it.
    """
    if pipeline.orchestration.submit is None:
        return SnapshotOperator(pipeline=pipeline, retries=0, **kwargs)
    from sluice_airflow.submitting import SubmitOperator

    retry: dict[str, Any] = {"retries": 1, "retry_delay": IDEMPOTENT["retry_delay"]}
    submit = pipeline.orchestration.submit
    return SubmitOperator(pipeline=pipeline, submit=submit, **retry, **kwargs)


def _topological(pipeline: Pipeline) -> list[StageNode]:
    """Declaration order already is: a stage can only read what was declared before it."""
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
        auto_register=False,  # Who builds it decides: half a DAG must not be shown after an error.
        max_active_runs=max_active_runs,
        default_args=default_args,
        tags=["sluice", pipeline.uid, *pipeline.orchestration.tags],
        **kwargs,
    )
