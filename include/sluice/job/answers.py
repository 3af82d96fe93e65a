"""The answers of a pending checkpoint's subtasks: read from the bucket, for the coordinator and for
people.

The journal does not hold acks.  Every part of the product that needs to know what has been
acknowledged asks ``acknowledged``, which has the coordinator's ``step`` fold them, so that one rule
says which acks count.  The figures of a checkpoint come from the same objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from sluice.core.answers import Ack
from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
from sluice.core.coordinator import step
from sluice.core.events import AcksReceived
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.pending import AckResult, PendingCheckpoint
from sluice.core.plan import CheckpointPlan
from sluice.core.state import CoordinatorState
from sluice.errors import FencedError, NotYetAcknowledged, ProtocolViolation, require
from sluice.figures.measuring import Answered, measured_stages
from sluice.figures.record import CheckpointStatus, StageStats, SubtaskException
from sluice.job.job import Job, uncollected
from sluice.protocol.keys import is_answer, subtask_of_answer
from sluice.protocol.records import decode_decline, decode_stage_acks
from sluice.store.object_store import Listed

MAX_EXCEPTIONS = 16  # Subtasks that decline mostly give the same reason; each is a GET.


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


def plan_of(job: Job, checkpoint_id: CheckpointId) -> CheckpointPlan:
    """The plan of a pending checkpoint.

    An abort is journaled before the plan is deleted.  So a plan that is gone while its checkpoint
    is pending was deleted by something other than sluice.

    Raises:
        FencedError: the checkpoint has ended.
        ProtocolViolation: it has not, and the plan is gone.
    """
    plan = job.plan(checkpoint_id)
    if plan is not None:
        return plan
    # The journal is read after the plan: an abort between the two would look like a loss.
    still_pending(job.state(), checkpoint_id)
    raise ProtocolViolation(
        f"checkpoint {checkpoint_id} is lost: it is pending, but its plan, "
        f"{job.store.root}/{job.paths.plan(checkpoint_id)}, is gone; it will be aborted, and the "
        "next one goes on from its parent; find out who else deletes in that bucket"
    )


def still_owed(state: CoordinatorState, checkpoint_id: CheckpointId) -> CompletedCheckpoint:
    """The completed checkpoint whose commit is owed, or was made.

    Raises:
        FencedError: a restore left it behind.
    """
    completed = state.completed_checkpoint(checkpoint_id)
    if completed is None:
        raise FencedError(why_gone(state, checkpoint_id))
    if not completed.is_committed and completed is not state.latest_completed:
        raise FencedError(
            f"checkpoint {checkpoint_id} was left behind by a restore before it was committed; "
            "restore it to publish its rows"
        )
    return completed


def still_pending(state: CoordinatorState, checkpoint_id: CheckpointId) -> PendingCheckpoint:
    """The pending checkpoint; raises FencedError when it has ended."""
    pending = state.pending_checkpoint(checkpoint_id)
    if pending is None:
        raise FencedError(why_gone(state, checkpoint_id))
    return pending


def why_gone(state: CoordinatorState, checkpoint_id: CheckpointId) -> str:
    """Why a checkpoint that is not pending needs no more work, in a sentence."""
    failed = state.failed_checkpoint(checkpoint_id)
    if failed is not None:
        return str(failed)
    return (
        f"checkpoint {checkpoint_id} is neither pending nor retained under generation "
        f"{state.generation}; a newer coordinator owns the job"
    )


def stages_of_acks(
    job: Job, plan: CheckpointPlan, acks: Iterable[Ack], metadata: CheckpointMetadata
) -> tuple[StageStats, ...]:
    """The figures of a checkpoint that has completed with *acks*."""
    by_stage: dict[str, list[Ack]] = {}
    for ack in acks:
        by_stage.setdefault(ack.subtask.stage, []).append(ack)
    answered = {
        stage: Answered(attempt=found[0].attempt, acks=tuple(found))
        for stage, found in by_stage.items()
    }
    return measured_stages(
        plan,
        answered,
        status=CheckpointStatus.COMPLETED,
        overtaken=[stage.uid for stage in metadata.stages if stage.is_overtaken],
        sources=_source_readers(job, plan),
        metadata=metadata,
    )


def stages_in_folder(
    job: Job,
    plan: CheckpointPlan,
    folder: Sequence[Listed],
    *,
    status: CheckpointStatus,
    attempts: Mapping[str, int] | None = None,
    overtaken: Sequence[str] = (),
    metadata: CheckpointMetadata | None = None,
) -> tuple[StageStats, ...]:
    """The figures of a checkpoint from a LIST of its *folder*: a GET for each stage that has ended.

    For a stage that has not, the figures say only which subtasks answered, and when.  A stage that
    *attempts* does not name is measured by its newest attempt.
    """
    acks = _answers(folder, job.paths.acks(plan.checkpoint_id))
    declines = _answers(folder, job.paths.declines(plan.checkpoint_id))
    attempt_of: dict[str, int] = {}
    for subtask, attempt in (*acks, *declines):
        attempt_of[subtask.stage] = max(attempt, attempt_of.get(subtask.stage, attempt))
    attempt_of |= attempts or {}
    keys = {listed.key for listed in folder}
    answered = {
        task.uid: _answered(job, plan.checkpoint_id, task.uid, attempt_of[task.uid], acks, keys)
        for task in plan.tasks
        if task.uid in attempt_of
    }
    return measured_stages(
        plan,
        answered,
        status=status,
        overtaken=overtaken,
        sources=_source_readers(job, plan),
        metadata=metadata,
    )


def exceptions_in_folder(
    job: Job, checkpoint_id: CheckpointId, folder: Sequence[Listed]
) -> tuple[SubtaskException, ...]:
    """The messages of the subtasks that declined last."""
    below = job.paths.declines(checkpoint_id)
    found = [listed for listed in folder if listed.key.startswith(below) and is_answer(listed.key)]
    latest = sorted(found, key=lambda listed: (listed.modified_ms, listed.key))[-MAX_EXCEPTIONS:]
    bodies = ((listed.key, job.store.get(listed.key)) for listed in latest)
    declines = (decode_decline(body, key) for key, body in bodies if body is not None)
    return tuple(
        SubtaskException(
            stage=decline.subtask.stage,
            index=decline.subtask.index,
            attempt=decline.attempt,
            message=decline.message,
        )
        for decline in declines
    )


def _answers(folder: Iterable[Listed], below: str) -> dict[tuple[SubtaskId, int], int]:
    """The moment of each answer below a prefix, on the store's clock."""
    return {
        subtask_of_answer(listed.key): listed.modified_ms
        for listed in folder
        if listed.key.startswith(below) and is_answer(listed.key)
    }


def _answered(
    job: Job,
    checkpoint_id: CheckpointId,
    stage: str,
    attempt: int,
    acks: Mapping[tuple[SubtaskId, int], int],
    keys: set[str],
) -> Answered:
    key = job.paths.stage_acks(checkpoint_id, stage, attempt)
    raw = job.store.get(key) if key in keys else None
    if raw is not None:
        return Answered(attempt=attempt, acks=tuple(decode_stage_acks(raw, key)))
    received = {
        subtask.index: at_ms
        for (subtask, of_attempt), at_ms in acks.items()
        if subtask.stage == stage and of_attempt == attempt
    }
    return Answered(attempt=attempt, received_at_ms=received)


def _source_readers(job: Job, plan: CheckpointPlan) -> dict[str, bool]:
    """The stages that read a source's stream; a pinned table makes no stage wait."""
    return {
        task.uid: any(not source.is_table for source in job.pipeline.sources_of(task.uid))
        for task in plan.tasks
        if task.uid in job.pipeline.stages
    }
