"""The state a subtask starts from: the parent's, cut to its hashes (StateAssignmentOperation)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from sluice.core.completed import StageState
from sluice.core.handles import StateHandle
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.plan import TaskPlan


def assigned_state(
    before: StageState | None, task: TaskPlan
) -> tuple[tuple[StateHandle, ...], ...]:
    """Per new subtask the segments it reads, cut to its hash range, in the order of their runs.

    The subtasks' ranges follow each other, so each handle finds its new owners by a search.
    A segment that several old subtasks name, since it was cut before, is the same file.
    """
    handles = [
        handle
        for subtask in (before.subtasks if before is not None else ())
        for handle in subtask.state
    ]
    handles.sort(key=lambda handle: (handle.table, handle.run))
    most, count = task.max_parallelism, task.parallelism
    ranges = [hash_range(most, key_group_range(most, count, index)) for index in range(count)]
    shares: list[list[StateHandle]] = [[] for _ in ranges]
    firsts = [first for first, _ in ranges]
    for handle in handles:
        owner = bisect_right(firsts, handle.first_hash) - 1
        end = bisect_right(firsts, handle.last_hash)
        for index in range(owner, end):
            shares[index].append(_cut_to(handle, *ranges[index]))
    return tuple(map(tuple, shares))


def _cut_to(handle: StateHandle, first: int, last: int) -> StateHandle:
    if first <= handle.first_hash and handle.last_hash <= last:
        return handle
    return replace(
        handle,
        first_hash=max(first, handle.first_hash),
        last_hash=min(last, handle.last_hash),
    )
