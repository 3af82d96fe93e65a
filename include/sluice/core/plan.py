"""What checkpoint n will do, fixed before anything runs: Flink's CheckpointPlan and the barrier."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId, Generation, SubtaskId
from sluice.core.properties import CheckpointType


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffset:
    """Where the next record of a source partition starts: a byte, an event number, ...

    ``records`` lie before it.  A ``sealed`` partition is never read again, even if it grows.
    """

    partition: str
    offset: int
    records: int
    sealed: bool = False

    def __post_init__(self) -> None:
        assert self.offset >= 0
        assert self.records >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Records of one partition from offset ``start`` to ``end`` (exclusive).

    ``first_record`` is the number of records of the partition before this slice.
    """

    partition: str
    start: int
    end: int
    first_record: int
    records: int

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.end
        assert self.first_record >= 0
        assert self.records > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCut:
    """Barrier n on one source: the slices of epoch n, and where epoch n + 1 starts.

    A table source has no slices but the whole table as of the barrier, in ``table``.
    """

    uid: str
    position: tuple[PartitionOffset, ...]
    slices: tuple[Slice, ...] = ()
    exhausted: bool = False
    table: SegmentHandle | None = None

    @property
    def records(self) -> int:
        return sum(part.records for part in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """A stage that must acknowledge, with all its subtasks."""

    uid: str
    parallelism: int
    max_parallelism: int

    @property
    def subtasks(self) -> tuple[SubtaskId, ...]:
        return tuple(SubtaskId(self.uid, index) for index in range(self.parallelism))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Immutable.  ``parent`` is the completed checkpoint whose state this epoch continues.

    ``drains`` sets every watermark to MAX at this barrier: all sources ended, or a person drains.
    """

    checkpoint_id: CheckpointId
    generation: Generation
    parent: CheckpointId | None
    parent_savepoint: str | None = None  # Where the parent is kept, when it is a savepoint.
    type: CheckpointType
    triggered_at_ms: int
    expires_at_ms: int
    drains: bool
    sources: tuple[SourceCut, ...]
    tasks: tuple[TaskPlan, ...]
    cause: str = ""  # Who asked: "periodic", an Airflow run id, a person.

    def __post_init__(self) -> None:
        assert self.tasks, "a checkpoint needs at least one stage"
        assert self.checkpoint_id > (self.parent or 0)

    def source(self, uid: str) -> SourceCut:
        return next(cut for cut in self.sources if cut.uid == uid)

    def task(self, uid: str) -> TaskPlan:
        return next(task for task in self.tasks if task.uid == uid)

    @property
    def records(self) -> int:
        """Records of the epoch, over all sources."""
        return sum(cut.records for cut in self.sources)
