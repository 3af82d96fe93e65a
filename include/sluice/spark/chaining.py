"""Chains: stages that run one behind the other in one Spark job (Flink's operator chaining).

The driver of the first stage decides, for one attempt.  The stages keep their uids, state, acks and
metrics; only the stream between them is not in the bucket.  So a chained stage acknowledges when
those behind it have: there is nothing that they could read again.
"""

from __future__ import annotations

from dataclasses import replace

from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import Process, ProcessKeyed, Transform
from sluice.epoch.lineage import Lineage
from sluice.epoch.stage_input import StageInput, StreamInput
from sluice.spark.deployment import Deployment, deploy, deploy_behind
from sluice.spark.stage_run import StageRun


def deploy_chain(
    run: StageRun, pending: PendingCheckpoint, lineage: Lineage, *, by_spark: bool = False
) -> tuple[Deployment, ...]:
    """Deploy the stage of *run* and those that can be chained to it, in their order.

    With *by_spark* Spark reads the rows of the first.

    Raises:
        ConfigurationError: a stage cannot compute what it declares of its columns.
    """
    chain = [deploy(run, by_spark=by_spark)]
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
    """The one stage that reads the stream of *run*, and nothing else, if it may be chained.

    Not behind a function of the user's: Spark may compute rows again that it has lost, and subtasks
    of one epoch must not see what two calls of a function say.  Not with concurrent checkpoints,
    where a stage works on the next one meanwhile; and not where the stage may be overtaken, or has
    something in flight.
    """
    if isinstance(run.node.operation, Transform | Process | ProcessKeyed):
        return None
    consumers = run.job.pipeline.consumers_of(run.node.uid)
    if len(consumers) != 1 or run.configuration.max_concurrent > 1:
        return None
    (node,) = consumers
    if node.producers != (run.node.uid,) or not node.is_stateful:
        return None
    return node if run.node.chained and node.chained and _waits(run.plan, node, lineage) else None


def _waits(plan: CheckpointPlan, node: StageNode, lineage: Lineage) -> bool:
    """Whether the stage runs in this epoch, behind the one that it reads, on this epoch's rows."""
    task = next((task for task in plan.tasks if task.uid == node.uid), None)
    if task is None or task.is_unaligned or task.may_be_overtaken:
        return False
    before = lineage.stage(node.uid)
    return before is None or not before.in_flight_segments
