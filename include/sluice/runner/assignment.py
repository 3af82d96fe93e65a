"""Which state a subtask starts from (StateAssignmentOperation): the parent's, cut to its hashes."""

from __future__ import annotations

from dataclasses import replace

from sluice.core.completed import StageState
from sluice.core.handles import StateHandle
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.plan import TaskPlan


def assigned_state(
    before: StageState | None, task: TaskPlan
) -> tuple[tuple[StateHandle, ...], ...]:
    """Per new subtask the segments it reads, cut to its hash range, in the order of their runs.

    A segment that several old subtasks name, since it was cut before, is the same file.
    """
    handles = [
        handle
        for subtask in (before.subtasks if before is not None else ())
        for handle in subtask.state
    ]
    handles.sort(key=lambda handle: (handle.table, handle.run))
    return tuple(_share(handles, task, index) for index in range(task.parallelism))


def _share(handles: list[StateHandle], task: TaskPlan, index: int) -> tuple[StateHandle, ...]:
    groups = key_group_range(task.max_parallelism, task.parallelism, index)
    first, last = hash_range(task.max_parallelism, groups)
    return tuple(
        replace(
            handle,
            first_hash=max(first, handle.first_hash),
            last_hash=min(last, handle.last_hash),
        )
        for handle in handles
        if handle.first_hash <= last and first <= handle.last_hash
    )
