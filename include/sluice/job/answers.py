"""The answers of a pending checkpoint's stages: read from the bucket, for the coordinator and for
people.

The journal does not hold acks: a stage's answer, which its driver wrote, has those of all its
subtasks.  An answer to another plan of that id, of another life of the job, is another object, and
is never asked for.  The figures of a checkpoint come from the same objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sluice.core.answers import Ack, StageAnswer
from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
from sluice.core.coordinator import step
from sluice.core.events import AcksReceived
from sluice.core.ids import CheckpointId
from sluice.core.pending import AckResult, PendingCheckpoint
from sluice.core.plan import CheckpointPlan
from sluice.core.state import CoordinatorState
from sluice.errors import FencedError, NotYetAcknowledged, ProtocolViolation, require
from sluice.figures.measuring import Answered, measured_stages
from sluice.figures.record import CheckpointStatus, StageStats, TaskException
from sluice.job.job import Job, uncollected
from sluice.protocol.keys import (
    snapshot_task,
    stage_of_answer,
    stage_of_task,
    subtask_of_decline,
)
from sluice.protocol.records import decode_answer
from sluice.store.object_store import Listed

MAX_EXCEPTIONS = 16  # Subtasks and tasks that fail mostly give the same reason; each is a GET.


@uncollected
def answers_to(
    job: Job,
    state: CoordinatorState,
    checkpoint_id: CheckpointId,
    stages: Iterable[str] | None = None,
) -> dict[str, StageAnswer]:
    """By stage the answer that counts, of *stages* that have answered, by default of all stages
    that the pending checkpoint waits for.  One GET a stage.

    Raises:
        FencedError: the checkpoint is not pending in *state*.
    """
    pending = still_pending(state, checkpoint_id)
    attempts = pending.current_attempts
    wanted = attempts if stages is None else [stage for stage in stages if stage in attempts]
    read = {
        stage: job.answers.answer(checkpoint_id, stage, attempt=attempts[stage], plan=pending.token)
        for stage in wanted
    }
    return {stage: answer for stage, answer in read.items() if answer is not None}


@uncollected
def with_acks(
    state: CoordinatorState, checkpoint_id: CheckpointId, answers: Iterable[StageAnswer]
) -> PendingCheckpoint:
    """The pending checkpoint with the acks of *answers*, which are to its plan.

    The coordinator's ``step`` folds them, so that one rule says which acks count.
    """
    acks = tuple(ack for answer in answers for ack in answer.acks)
    transition = step(state, AcksReceived(checkpoint_id=checkpoint_id, acks=acks))
    require(AckResult.UNKNOWN not in transition.ack_results, "acks are asked for by their attempt")
    return still_pending(transition.state, checkpoint_id)


def answer_of(
    job: Job, state: CoordinatorState, checkpoint_id: CheckpointId, stage: str
) -> StageAnswer:
    """The answer of one stage of the pending checkpoint, with an ack of each of its subtasks, in
    their order; raises NotYetAcknowledged when it, or an ack in it, is missing.
    """
    task = next(task for task in still_pending(state, checkpoint_id).tasks if task.uid == stage)
    answer = answers_to(job, state, checkpoint_id, [stage]).get(stage)
    acks = () if answer is None else answer.acks
    if answer is None or tuple(ack.subtask for ack in acks) != task.subtasks:
        raise NotYetAcknowledged(
            f"{len(acks)} of {task.parallelism} subtasks of stage {stage!r} have "
            f"acknowledged checkpoint {checkpoint_id}"
        )
    return answer


def acks_of(
    job: Job, state: CoordinatorState, checkpoint_id: CheckpointId
) -> Callable[[str], list[Ack]]:
    """Reads the acks of one stage of the pending checkpoint, as ``answer_of`` does."""
    return lambda stage: [*answer_of(job, state, checkpoint_id, stage).acks]


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
    """The reason why a checkpoint that is not pending needs no more work, in a sentence."""
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

    All subtasks of a stage acknowledge at once: one that has not ended has no figures yet.  A stage
    that *attempts* does not name is measured by its newest attempt.
    """
    keys = [listed.key for listed in folder]
    of_stages = [stage_of_answer(key) for key in keys if job.paths.is_answer(key)]
    of_subtasks = [subtask_of_decline(key) for key in keys if job.paths.is_decline(key)]
    attempt_of: dict[str, int] = {}
    for stage, attempt, token in (
        *of_stages,
        *((subtask.stage, attempt, token) for subtask, attempt, token in of_subtasks),
    ):
        if token == plan.token:
            attempt_of[stage] = max(attempt, attempt_of.get(stage, attempt))
    attempt_of |= attempts or {}
    answered = {
        task.uid: _answered(job, plan, task.uid, attempt_of[task.uid], keys)
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
) -> tuple[TaskException, ...]:
    """The declines of subtasks, and then the failures of tasks: the newest of both."""
    below = (job.paths.declines(checkpoint_id), job.paths.failures(checkpoint_id))
    found = [listed for listed in folder if listed.key.startswith(below)]
    latest = sorted(found, key=lambda listed: (listed.modified_ms, listed.key))[-MAX_EXCEPTIONS:]
    declines, failures = job.answers.problems_in(checkpoint_id, latest)
    return (
        *(
            TaskException(
                task=snapshot_task(decline.subtask.stage),
                attempt=decline.attempt,
                message=decline.message,
                stage=decline.subtask.stage,
                index=decline.subtask.index,
            )
            for decline in declines
        ),
        *(
            TaskException(
                task=failure.task,
                attempt=failure.attempt,
                message=failure.message,
                stage=stage_of_task(failure.task),
                stack=failure.stack,
            )
            for failure in failures
        ),
    )


def _answered(
    job: Job, plan: CheckpointPlan, stage: str, attempt: int, keys: Collection[str]
) -> Answered:
    key = job.paths.answer(plan.checkpoint_id, stage, attempt, plan.token)
    raw = job.store.get(key) if key in keys else None
    acks = () if raw is None else decode_answer(raw, key).acks
    return Answered(attempt=attempt, acks=acks)


def _source_readers(job: Job, plan: CheckpointPlan) -> dict[str, bool]:
    """The stages that read a source's stream; a pinned table makes no stage wait."""
    return {
        task.uid: any(not source.is_table for source in job.pipeline.sources_of(task.uid))
        for task in plan.tasks
        if task.uid in job.pipeline.stages
    }
