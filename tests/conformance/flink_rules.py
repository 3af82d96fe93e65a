"""Two of Flink's functions that the cases call, said with the product's own."""

from __future__ import annotations

from sluice.core.ids import CheckpointId, CheckpointIdCounter
from sluice.core.key_groups import key_group_range


def previous_subtasks(max_parallelism: int, old: int, new: int) -> tuple[tuple[int, ...], ...]:
    """For each of *new* subtasks, the *old* ones whose keyed state it must read.

    In the product a stage is given the segments that overlap its range of hashes.
    """
    before = [key_group_range(max_parallelism, old, index) for index in range(old)]
    after = (key_group_range(max_parallelism, new, index) for index in range(new))
    return tuple(
        tuple(
            index
            for index, groups in enumerate(before)
            if groups.first <= wanted.last and wanted.first <= groups.last
        )
        for wanted in after
    )


def get_and_increment(counter: CheckpointIdCounter) -> tuple[CheckpointId, CheckpointIdCounter]:
    """In the product a trigger takes the id with ``at_least``, in the step that journals it."""
    return counter.get(), counter.at_least(counter.get() + 1)
