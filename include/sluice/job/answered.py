"""How far a checkpoint's subtasks have got, out of the objects in its folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sluice.core.acks import Ack
from sluice.core.completed import CheckpointMetadata
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.job.job import Job
from sluice.protocol.paths import is_answer, subtask_of_answer
from sluice.protocol.records import decode_decline, decode_stage_acks
from sluice.statistics.checkpoints import CheckpointStatus, StageStats, SubtaskException
from sluice.statistics.measuring import Answered, measured_stages
from sluice.storage.object_store import Listed

MAX_EXCEPTIONS = 16  # Subtasks that decline mostly say the same; each one is a GET.


def stages_of_acks(
    job: Job,
    plan: CheckpointPlan,
    acks: Iterable[Ack],
    metadata: CheckpointMetadata,
) -> tuple[StageStats, ...]:
    """The figures of a checkpoint that has completed with *acks*."""
    by_stage: dict[str, list[Ack]] = {}
    for ack in acks:
        by_stage.setdefault(ack.subtask.stage, []).append(ack)
    answered = {
        stage: Answered(attempt=found[0].attempt, acks=tuple(found))
        for stage, found in by_stage.items()
    }
    overtaken = [stage.uid for stage in metadata.stages if stage.is_overtaken]
    return measured_stages(
        plan,
        answered,
        status=CheckpointStatus.COMPLETED,
        overtaken=overtaken,
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
    """The figures of a checkpoint by its *folder*, a LIST: one GET for each stage that has ended.

    Of a stage that has not, only who answered and when.  Without *attempts* the newest one counts.
    """
    acks = _answers(folder, job.paths.acks(plan.checkpoint_id))
    declines = _answers(folder, job.paths.declines(plan.checkpoint_id))
    newest = _newest_attempts((*acks, *declines)) | dict(attempts or {})
    keys = {one.key for one in folder}
    answered = {
        task.uid: _answered(job, plan.checkpoint_id, task, newest[task.uid], acks, keys)
        for task in plan.tasks
        if task.uid in newest
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
    """The words of the subtasks that declined, the latest ones."""
    below = job.paths.declines(checkpoint_id)
    found = [one for one in folder if one.key.startswith(below) and is_answer(one.key)]
    latest = sorted(found, key=lambda one: (one.modified_ms, one.key))[-MAX_EXCEPTIONS:]
    bodies = ((one.key, job.store.get(one.key)) for one in latest)
    declines = [decode_decline(body, key) for key, body in bodies if body is not None]
    return tuple(
        SubtaskException(
            stage=one.subtask.stage,
            index=one.subtask.index,
            attempt=one.attempt,
            message=one.message,
        )
        for one in declines
    )


def _answered(
    job: Job,
    checkpoint_id: CheckpointId,
    task: TaskPlan,
    attempt: int,
    acks: Mapping[tuple[SubtaskId, int], int],
    keys: set[str],
) -> Answered:
    key = job.paths.stage_acks(checkpoint_id, task.uid, attempt)
    raw = job.store.get(key) if key in keys else None
    if raw is not None:
        return Answered(attempt=attempt, acks=tuple(decode_stage_acks(raw, key)))
    received = {
        subtask.index: at_ms
        for (subtask, of_attempt), at_ms in acks.items()
        if subtask.stage == task.uid and of_attempt == attempt
    }
    return Answered(attempt=attempt, received_at_ms=received)


def _answers(folder: Iterable[Listed], below: str) -> dict[tuple[SubtaskId, int], int]:
    """The moment of each answer below a prefix, on the store's clock."""
    return {
        subtask_of_answer(one.key): one.modified_ms
        for one in folder
        if one.key.startswith(below) and is_answer(one.key)
    }


def _newest_attempts(answers: Iterable[tuple[SubtaskId, int]]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for subtask, attempt in answers:
        newest[subtask.stage] = max(attempt, newest.get(subtask.stage, attempt))
    return newest


def _source_readers(job: Job, plan: CheckpointPlan) -> dict[str, bool]:
    """The stages that read a source's stream; a pinned table makes no stage wait."""
    return {
        task.uid: any(not source.is_table for source in job.pipeline.sources_of(task.uid))
        for task in plan.tasks
        if task.uid in job.pipeline.stages
    }
