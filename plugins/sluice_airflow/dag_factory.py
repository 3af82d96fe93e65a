"""One declaration, all its DAGs.

    {pipeline}, {pipeline}__savepoint

    trigger --> parse.snapshot     ,-> window.snapshot
            |-> parse.await_acks --'
            '-> window.await_acks --> finalize --> commit
    any of these failed: abort --> restart (starts {pipeline}__restore if the job must fail over)

    {pipeline}__restore: verify --> restore

A run is judged by its leaves.  ``commit`` is one: it succeeds only after the checkpoint became
true, so the colour of a run is the truth about its checkpoint, and ``abort`` has no say in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param, TaskGroup, TriggerRule

from sluice.core.properties import ClaimMode, JobStatus
from sluice.errors import ConfigurationError
from sluice.nodes import StageNode
from sluice.pipeline import Pipeline
from sluice_airflow.abort import AbortOperator, RestartOperator, abort_on_failure
from sluice_airflow.documentation import describe
from sluice_airflow.operators import (
    SAVEPOINT_TYPES,
    AwaitAcksSensor,
    CommitOperator,
    FinalizeOperator,
    SnapshotOperator,
    TriggerOperator,
    TriggerSavepointOperator,
)
from sluice_airflow.restoring import RestoreOperator, VerifyOperator
from sluice_airflow.watchdog import WATCHDOG_DAG_ID

START = datetime(2026, 1, 1, tzinfo=UTC)  # Any past moment: nothing is caught up.
TASK_IDS = ("trigger", "finalize", "commit", "abort", "restart")
IDEMPOTENT: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=5)}

FAULT = Param(
    "",
    type="string",
    title="Fault",
    description=(
        "For demonstrations: `kill-task stage=UID` has the snapshot task kill itself with SIGKILL, "
        "`kill-worker stage=UID` a subtask's Python worker; empty for none"
    ),
)
SAVEPOINT_FORM = {
    "name": Param(
        None, type=["null", "string"], title="Name", description="Empty: made of the run's id"
    ),
    "stop": Param(
        "none",
        enum=[*SAVEPOINT_TYPES],
        title="Then stop the job",
        description="suspend keeps event time where it is; drain fires every window and finishes",
    ),
    "fault": FAULT,
}
RESTORE_FORM = {
    "target": Param("latest", enum=["latest", "checkpoint", "savepoint"], title="Restore from"),
    "checkpoint_id": Param(None, type=["null", "integer"], minimum=1, title="Checkpoint"),
    "savepoint": Param(None, type=["null", "string"], title="Savepoint"),
    "allow_non_restored_state": Param(
        default=False,
        type="boolean",
        title="Allow non-restored state",
        description="Drop the state of stages that the pipeline no longer has",
    ),
    "claim_mode": Param(
        ClaimMode.NO_CLAIM.value,
        enum=[mode.value for mode in ClaimMode],
        title="Claim mode",
        description="CLAIM: the job owns the savepoint, and deletes it once nothing uses it",
    ),
    "ignore_in_flight_of": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="UNSAFE: ignore in-flight data of checkpoint",
        description="Last resort: the rows that this checkpoint left in flight are lost",
    ),
    "only_generation": Param(
        None,
        type=["null", "integer"],
        title="Only generation",
        description="Set by a failure: a late or repeated restore does nothing; leave empty",
    ),
}


def build_dags(pipelines: Mapping[str, Pipeline]) -> dict[str, DAG]:
    """Every DAG of every pipeline, by id.

    Raises:
        ConfigurationError: two would have the same id, or a stage is called like a task.
    """
    dags: dict[str, DAG] = {}
    for pipeline in pipelines.values():
        for dag in (_checkpoint_dag(pipeline), _savepoint_dag(pipeline), _restore_dag(pipeline)):
            if dag.dag_id in dags or dag.dag_id == WATCHDOG_DAG_ID:
                raise ConfigurationError(
                    f"two pipelines make a DAG {dag.dag_id!r}; rename {pipeline.uid!r}"
                )
            dags[dag.dag_id] = dag
    return dags


def _checkpoint_dag(pipeline: Pipeline) -> DAG:
    """Paused until a person starts the job by switching it on."""
    with _dag(
        pipeline,
        pipeline.uid,
        schedule=pipeline.checkpointing.interval,
        max_active_runs=pipeline.checkpointing.max_concurrent_checkpoints,
        params={"fault": FAULT},
        doc_md=describe(pipeline),
    ) as dag:
        _checkpoint_tasks(pipeline, TriggerOperator)
    return dag


def _savepoint_dag(pipeline: Pipeline) -> DAG:
    with _dag(
        pipeline,
        f"{pipeline.uid}__savepoint",
        params=SAVEPOINT_FORM,
        is_paused_upon_creation=False,
        doc_md="A checkpoint that a person asks for and owns; optionally, it stops the job.",
    ) as dag:
        _checkpoint_tasks(pipeline, TriggerSavepointOperator)
    return dag


def _restore_dag(pipeline: Pipeline) -> DAG:
    with _dag(
        pipeline,
        f"{pipeline.uid}__restore",
        params=RESTORE_FORM,
        is_paused_upon_creation=False,
        doc_md=(
            "Puts state, source offsets and output tables back to one moment, and resumes. "
            f"Works on a job of any status but {JobStatus.CREATED.value}, which it submits first."
        ),
    ) as dag:
        verify = VerifyOperator(task_id="verify", pipeline=pipeline, **IDEMPOTENT)
        verify >> RestoreOperator(task_id="restore", pipeline=pipeline, **IDEMPOTENT)
    return dag


def _checkpoint_tasks(pipeline: Pipeline, trigger_class: type[TriggerOperator]) -> None:
    on_failure = abort_on_failure(pipeline)
    common: dict[str, Any] = {"pipeline": pipeline, "on_failure_callback": on_failure}
    trigger = trigger_class(task_id="trigger", **common, **IDEMPOTENT)
    tasks: list[BaseOperator] = [trigger]
    acknowledged: dict[str, AwaitAcksSensor] = {}
    checkpointing = pipeline.checkpointing
    from_the_start = checkpointing.unaligned and not checkpointing.aligned_checkpoint_timeout
    for stage in _topological(pipeline):
        if stage.uid in TASK_IDS:
            raise ConfigurationError(
                f"stage {stage.uid!r} of pipeline {pipeline.uid!r} is called like a task of its "
                "DAG; give it another uid"
            )
        with TaskGroup(stage.uid):
            snapshot = SnapshotOperator(
                task_id="snapshot",
                stage=stage.uid,
                execution_timeout=pipeline.checkpointing.timeout,  # Or a hung one blocks the next.
                retries=0,  # Its failure fails the job over: the epoch is what is repeated.
                **common,
            )
            # No callback: for a task that ends in the triggerer Airflow would run it in the DAG
            # processor, seconds later than the abort task.
            await_acks = AwaitAcksSensor(
                task_id="await_acks", pipeline=pipeline, stage=stage.uid, retries=0
            )
        # All sensors start at once: starting one takes the triggerer up to two seconds, which
        # otherwise every stage would add to the checkpoint.
        trigger >> await_acks
        sealed = [] if from_the_start else pipeline.upstream_of(stage.uid)
        # Of an aligned one among them, `snapshot` itself waits for its input.
        ([acknowledged[producer] for producer in sealed] or [trigger]) >> snapshot
        acknowledged[stage.uid] = await_acks
        tasks += [snapshot, await_acks]
    finalize = FinalizeOperator(task_id="finalize", **common, **IDEMPOTENT)
    [*acknowledged.values()] >> finalize  # The acks in the bucket count, not the snapshot tasks.
    finalize >> CommitOperator(task_id="commit", pipeline=pipeline, **IDEMPOTENT)
    abort = AbortOperator(
        task_id="abort", pipeline=pipeline, trigger_rule=TriggerRule.ONE_FAILED, **IDEMPOTENT
    )
    [*tasks, finalize] >> abort
    abort >> RestartOperator(task_id="restart", pipeline=pipeline, **IDEMPOTENT)


def _topological(pipeline: Pipeline) -> list[StageNode]:
    """Declaration order already is: a stage can only read what was declared before it."""
    return [*pipeline.stages.values()]


def _dag(
    pipeline: Pipeline,
    dag_id: str,
    *,
    schedule: timedelta | None = None,
    max_active_runs: int = 1,
    **kwargs: Any,  # noqa: ANN401 - Airflow's
) -> DAG:
    return DAG(
        dag_id,
        schedule=schedule,
        start_date=START,
        catchup=False,
        max_active_runs=max_active_runs,
        tags=["sluice", pipeline.uid],
        **kwargs,
    )
