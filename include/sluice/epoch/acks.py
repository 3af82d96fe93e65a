"""The acks of a pending checkpoint: read from the bucket, and folded by the coordinator's ``step``.

The journal does not hold them.  Every part of the product that needs to know what has been
acknowledged asks here, so that one rule says which acks count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from sluice.core.acks import Ack
from sluice.core.coordinator import step
from sluice.core.ids import CheckpointId
from sluice.core.invariants import require
from sluice.core.messages import AcksReceived
from sluice.core.pending import AckResult, PendingCheckpoint
from sluice.core.state import CoordinatorState
from sluice.errors import NotYetAcknowledged
from sluice.job.collector import uncollected
from sluice.job.job import Job
from sluice.job.owed_work import still_pending


@uncollected
def acknowledged(
    job: Job,
    state: CoordinatorState,
    checkpoint_id: CheckpointId,
    stages: Iterable[str] | None = None,
) -> PendingCheckpoint:
    """The pending checkpoint with the acks in the bucket of *stages*, by default of every stage
    that it waits for.  One GET a stage at best.

    Raises:
        FencedError: the checkpoint is not pending in *state*.
    """
    pending = still_pending(state, checkpoint_id)
    wanted = {task.uid for task in pending.tasks} if stages is None else {*stages}
    read = (
        job.answers.acks(
            checkpoint_id,
            task.uid,
            attempt=pending.attempt_of(task.uid),
            parallelism=task.parallelism,
        )
        for task in pending.tasks
        if task.uid in wanted - {*pending.overtaken}
    )
    event = AcksReceived(checkpoint_id=checkpoint_id, acks=tuple(chain.from_iterable(read)))
    transition = step(state, event)
    require(AckResult.UNKNOWN not in transition.ack_results, "acks are asked for by their attempt")
    return still_pending(transition.state, checkpoint_id)


def acks_of(
    job: Job, state: CoordinatorState, checkpoint_id: CheckpointId
) -> Callable[[str], list[Ack]]:
    """Reads the acks of one stage of the pending checkpoint, in the order of its subtasks; raises
    NotYetAcknowledged when one is missing.
    """
    tasks = {task.uid: task for task in still_pending(state, checkpoint_id).tasks}

    def read(stage: str) -> list[Ack]:
        known = acknowledged(job, state, checkpoint_id, [stage]).acks
        subtasks = tasks[stage].subtasks
        acks = [known[str(subtask)] for subtask in subtasks if str(subtask) in known]
        if len(acks) != len(subtasks):
            raise NotYetAcknowledged(
                f"{len(acks)} of {len(subtasks)} subtasks of stage {stage!r} have "
                f"acknowledged checkpoint {checkpoint_id}"
            )
        return acks

    return read
