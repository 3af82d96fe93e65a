"""The two tasks of a stage: one has Spark run it, one waits in the triggerer for its acks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator, TaskGroup, TriggerRule

from sluice.declaration.nodes import StageNode
from sluice.declaration.pipeline import Pipeline
from sluice.extras import require
from sluice_airflow import documentation as docs
from sluice_airflow.ack_sensor import AwaitAcksSensor
from sluice_airflow.snapshot import SnapshotOperator

RETRY_DELAY = timedelta(seconds=5)


def stage_tasks(
    pipeline: Pipeline,
    stage: StageNode,
    *,
    trigger_rule: TriggerRule,
    **kwargs: Any,  # noqa: ANN401 - Airflow's
) -> tuple[BaseOperator, AwaitAcksSensor]:
    """``snapshot``, which begins by *trigger_rule*, and ``await_acks``, in a group of their own."""
    with TaskGroup(stage.uid):
        snapshot = _stage_operator(
            pipeline=pipeline,
            trigger_rule=trigger_rule,
            task_id="snapshot",
            stage=stage.uid,
            # A hung one would block the next.
            execution_timeout=pipeline.checkpointing.timeout,
            pool=pipeline.orchestration.pool,
            doc_md=docs.stage(pipeline, stage),
            **kwargs,
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
    return snapshot, await_acks


def _stage_operator(*, pipeline: Pipeline, **kwargs: Any) -> BaseOperator:  # noqa: ANN401
    """The operator class of stages, and its retries.

    A failed stage in the session fails the job over, as whole epochs are repeated.  An application
    outlives the worker that submitted it, so its task is retried, and finds it.
    """
    if pipeline.orchestration.submit is None:
        return SnapshotOperator(pipeline=pipeline, retries=0, **kwargs)
    require("airflow.providers.apache.spark", who="orchestration with submit=")
    from sluice_airflow.spark_application import SubmitOperator

    retry: dict[str, Any] = {"retries": 1, "retry_delay": RETRY_DELAY}
    submit = pipeline.orchestration.submit
    return SubmitOperator(pipeline=pipeline, submit=submit, **retry, **kwargs)
