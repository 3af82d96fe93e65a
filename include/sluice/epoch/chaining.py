"""Which stages may run chained, in one Spark job: what the plan and the parent say of it.

That Python can hash and cut the rows between them is for the driver to see (``spark.chaining``).
"""

from __future__ import annotations

from sluice.core.configuration import JobConfiguration
from sluice.core.plan import CheckpointPlan
from sluice.declaration.nodes import StageNode
from sluice.declaration.pipeline import Pipeline
from sluice.epoch.lineage import Lineage


def chained_behind(
    pipeline: Pipeline,
    configuration: JobConfiguration,
    plan: CheckpointPlan,
    uid: str,
    lineage: Lineage,
) -> StageNode | None:
    """The one stage that reads the stream of *uid*, and nothing else, if it may be chained.

    Not with concurrent checkpoints, where a stage works on the next one meanwhile; and not where
    the stage may be overtaken, or has something in flight.
    """
    consumers = pipeline.consumers_of(uid)
    if len(consumers) != 1 or configuration.max_concurrent > 1:
        return None
    (node,) = consumers
    if node.producers != (uid,) or not node.is_stateful:
        return None
    is_chained = pipeline.stages[uid].chained and node.chained
    return node if is_chained and _waits(plan, node.uid, lineage) else None


def _waits(plan: CheckpointPlan, uid: str, lineage: Lineage) -> bool:
    """Whether the stage runs in this epoch, behind the one that it reads, on this epoch's rows."""
    task = next((task for task in plan.tasks if task.uid == uid), None)
    if task is None or task.is_unaligned or task.may_be_overtaken:
        return False
    before = lineage.stage(uid)
    return before is None or not before.in_flight_segments
