"""Chains: stages that run one behind the other in one Spark job (Flink's operator chaining).

The driver of the first stage decides, for one attempt.  The stages keep their uids, state, acks and
metrics; only the stream between them is not in the bucket.  So a chained stage acknowledges when
those behind it have: there is nothing that they could read again.  The driver writes the acks once
it knows that every subtask has read the same executions of those before it.
"""

from __future__ import annotations

from dataclasses import replace

from sluice.core.pending import PendingCheckpoint
from sluice.declaration.nodes import StageNode
from sluice.epoch.chaining import chained_behind
from sluice.epoch.lineage import Lineage
from sluice.epoch.stage_input import StageInput, StreamInput
from sluice.spark.deployment import Deployment, deploy, deploy_behind
from sluice.spark.stage_run import StageRun


def deploy_chain(
    run: StageRun,
    pending: PendingCheckpoint,
    lineage: Lineage,
    *,
    by_spark: bool = False,
    without_rows: bool = False,
) -> tuple[Deployment, ...]:
    """Deploy the stage of *run* and those that can be chained to it, in their order.

    With *by_spark* Spark reads the rows of the first, *without_rows* it has none.

    Raises:
        ConfigurationError: a stage cannot compute what it declares of its columns.
    """
    chain = [deploy(run, by_spark=by_spark, without_rows=without_rows)]
    while (node := _next(chain[-1].run, lineage)) is not None:
        before = chain[-1]
        stream = StreamInput(segments=(), schema=before.stream_schema, watermark_ms=None)
        behind = replace(
            run,
            node=node,
            given=StageInput(streams={before.run.node.uid: stream}),
            before=lineage.stage(node.uid),
            attempt=pending.attempt_of(node.uid),
        )
        deployed = deploy_behind(before, behind)
        if deployed is None:
            break
        chain.append(deployed)
    return tuple(chain)


def _next(run: StageRun, lineage: Lineage) -> StageNode | None:
    return chained_behind(run.job.pipeline, run.configuration, run.plan, run.node.uid, lineage)
