"""Which subtasks Flink triggers, and which it waits for (DefaultCheckpointPlanCalculator).

A model to judge by, no part of the product: there a stage finishes as a whole, at a barrier, and
every stage hears of the barrier through the plan.  Here any subtask may have finished.

Then the checkpoints that use each shared file, and when it may go (SharedStateRegistry), and two of
Flink's functions that the cases call, said with the product's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, CheckpointIdCounter
from sluice.core.key_groups import key_group_range

Subtasks: TypeAlias = Mapping[str, tuple[int, ...]]
"""Subtask indices by vertex, in ascending order; a vertex without any is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """Flink's ExecutionJobVertex: ``not_running`` are deploying, canceled or failed subtasks."""

    uid: str
    parallelism: int
    finished: frozenset[int] = frozenset()
    not_running: frozenset[int] = frozenset()

    @property
    def unfinished(self) -> tuple[int, ...]:
        return tuple(index for index in range(self.parallelism) if index not in self.finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    source: str
    target: str
    is_pointwise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``fully_finished`` vertices have no running subtask left.  A checkpoint is committed to those
    that it waits for.
    """

    to_trigger: Subtasks
    to_wait_for: Subtasks
    finished: Subtasks
    fully_finished: tuple[str, ...]


def plan(vertices: Sequence[Vertex], edges: Collection[Edge]) -> Plan | CheckpointFailureReason:
    """The plan of *vertices*, which are in topological order, or why there is none."""
    if any(vertex.not_running for vertex in vertices):
        return CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
    by_uid = {vertex.uid: vertex for vertex in vertices}
    assert len(by_uid) == len(vertices), "the uid of a vertex is unique"
    inputs = {
        uid: [(by_uid[edge.source], edge.is_pointwise) for edge in edges if edge.target == uid]
        for uid in by_uid
    }
    return Plan(
        to_trigger=_subtasks((v.uid, _without_running_input(v, inputs[v.uid])) for v in vertices),
        to_wait_for=_subtasks((v.uid, v.unfinished) for v in vertices),
        finished=_subtasks((v.uid, sorted(v.finished)) for v in vertices),
        fully_finished=tuple(v.uid for v in vertices if not v.unfinished),
    )


def pointwise_inputs(sources: int, targets: int, index: int) -> range:
    """The subtasks of the source that subtask *index* of the target reads (EdgeManagerBuildUtil).

    Several consecutive ones each where the source has more subtasks, else the one whose output a
    run of consecutive targets shares.
    """
    first = index * sources // targets
    return range(first, max(first + 1, (index + 1) * sources // targets))


def _without_running_input(
    vertex: Vertex, inputs: Iterable[tuple[Vertex, bool]]
) -> tuple[int, ...]:
    waiting = vertex.unfinished
    for source, is_pointwise in inputs:
        everybody = range(source.parallelism)
        waiting = tuple(
            index
            for index in waiting
            if source.finished.issuperset(
                pointwise_inputs(source.parallelism, vertex.parallelism, index)
                if is_pointwise
                else everybody
            )
        )
    return waiting


def _subtasks(by_vertex: Iterable[tuple[str, Iterable[int]]]) -> Subtasks:
    return {uid: indices for uid, given in by_vertex if (indices := tuple(given))}


class SnapshotKind(Enum):
    """What a job may be restored from."""

    CHECKPOINT = "checkpoint"
    FULL_CHECKPOINT = "full checkpoint"
    CANONICAL_SAVEPOINT = "canonical savepoint"
    NATIVE_SAVEPOINT = "native savepoint"

    @property
    def is_savepoint(self) -> bool:
        """Its files lie within it, and go only with it (SharingFilesStrategy.NO_SHARING)."""
        return self in (self.CANONICAL_SAVEPOINT, self.NATIVE_SAVEPOINT)


@dataclass(slots=True, kw_only=True)
class Entry:
    """``is_ours``: no snapshot that the job does not own has the file.  ``keeps_creator``: the
    restored checkpoint that brought it stays as long as the file is used.
    """

    file: str
    created_by: int
    users: set[int]
    is_ours: bool = True
    keeps_creator: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unregistered:
    """``still_in_use`` are restored checkpoints that may not be discarded yet; ``to_delete`` files
    that are no longer in use, in order of registration.
    """

    still_in_use: frozenset[int]
    to_delete: tuple[str, ...]


class Registry:
    """Entries by key, in order of registration."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.restored: dict[int, SnapshotKind] = {}

    def register(
        self, key: str, user: int, *, file: str | None = None, keeps_creator: bool = False
    ) -> str:
        """Let the checkpoint use *key*; return the file it stands for, which may not be *file*.

        *file* is named like the key if not given; the caller's is garbage when another one is
        returned.
        """
        if key not in self.entries:
            self.entries[key] = Entry(file=file or key, created_by=user, users={user})
            return self.entries[key].file
        entry = self.entries[key]
        entry.users.add(user)
        entry.keeps_creator |= keeps_creator
        return entry.file

    def restore(
        self, keys: Collection[str], restored: int, kind: SnapshotKind, *, claimed: bool
    ) -> None:
        """The job was restored from this checkpoint; its files are ours only if it is claimed."""
        for key in keys:
            self.register(key, restored)
            self.entries[key].is_ours &= claimed
        self.restored[restored] = kind

    def unregister_unused(self, lowest_retained: int) -> Unregistered:
        """No checkpoint below *lowest_retained* is needed any more (unregisterUnusedState)."""
        known = {user for entry in self.entries.values() for user in entry.users}
        return self.release({user for user in known if user < lowest_retained})

    def release(self, checkpoints: Collection[int]) -> Unregistered:
        """These checkpoints, subsumed or aborted, are not needed any more."""
        for entry in self.entries.values():
            entry.users.difference_update(checkpoints)
        unused = [entry for entry in self.entries.values() if not entry.users]
        self.entries = {key: entry for key, entry in self.entries.items() if entry.users}
        return Unregistered(
            still_in_use=frozenset(
                entry.created_by for entry in self.entries.values() if self._holds_creator(entry)
            ),
            to_delete=tuple(entry.file for entry in unused if entry.is_ours),
        )

    def _holds_creator(self, entry: Entry) -> bool:
        kind = self.restored.get(entry.created_by)
        return kind is not None and (entry.keeps_creator or kind.is_savepoint)


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
