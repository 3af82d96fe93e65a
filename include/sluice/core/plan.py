"""The plan of a checkpoint, fixed before anything runs: Flink's CheckpointPlan and the barrier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sluice.core.configuration import CheckpointType
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId, Generation, SavepointId, SubtaskId
from sluice.core.transitions import Fingerprint
from sluice.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffset:
    """The start of the next record of a source partition: a byte, an event number, ...

    ``records`` lie before it.  A ``sealed`` partition is never read again, even if it grows.
    ``version`` identifies the partition's content to the source, so that a changed one is found.

    ``is_waiting`` and ``active_at_ms`` are the planner's (``with_activity``): whether records were
    behind the barrier, and the barrier of the last epoch that read some.  A partition that
    ``is_waiting`` is active at every barrier.
    """

    partition: str
    offset: int
    records: int
    sealed: bool = False
    version: str = ""
    is_waiting: bool = False
    active_at_ms: int | None = None

    def __post_init__(self) -> None:
        require(self.offset >= 0, "an offset is 0 or more")
        require(self.records >= 0, "0 records or more lie before an offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Records of one partition from offset ``start`` to ``end`` (exclusive).

    ``first_record`` is the number of records of the partition before this slice; ``records`` are in
    it, or at most so many where offsets have gaps.  ``version`` identified the partition's content
    when the source cut the slice: a reader finds the same content, or fails.  Of a slice that
    ``is_taken_back`` the records were read in an earlier epoch, and are not in the input any more.
    """

    partition: str
    start: int
    end: int
    first_record: int
    records: int
    version: str = ""
    is_taken_back: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.start < self.end, "a slice ends behind its start")
        require(self.first_record >= 0, "0 records or more lie before a slice")
        require(self.records > 0, "a slice has a record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """The records behind a source's barrier, as far as the source looked when the barrier was cut.

    None is what the source cannot say.  ``partitions`` have records there; ``records`` are complete
    ones, or at most so many where offsets have gaps; ``size_bytes`` are those of files.  With
    ``is_least`` there may be more.
    """

    partitions: int = 0
    records: int | None = None
    size_bytes: int | None = None
    is_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCut:
    """Barrier n on one source: the slices of epoch n, and where epoch n + 1 starts.

    A table source has no slices but the whole table as of the barrier, in ``table``.
    ``heads`` are the first records of partitions that wait since this barrier and of which nothing
    is read yet; their event times count now, their rows are read in a later epoch.  Where
    ``partitions_end`` a partition at its end is complete until it grows.

    ``position`` has the entries that are not in the ``layers``, or changed since: all where there
    are no layers, and always those that this epoch changed.  ``gone`` are partitions that existed
    at the barrier before.  ``waiting`` and ``idle`` leave out the partitions in layers;
    ``with_whole`` of ``core.position`` adds them.

    Of a source whose input may be replaced, ``copies`` are by partition those of what was read of
    it, and ``taken_back`` those of the slices that this epoch takes back.
    """

    uid: str
    position: tuple[PartitionOffset, ...]
    layers: tuple[SegmentHandle, ...] = ()
    gone: tuple[str, ...] = ()
    slices: tuple[Slice, ...] = ()
    exhausted: bool = False
    is_backlog: bool = False  # More records wait behind the barrier (Flink's isProcessingBacklog).
    table: SegmentHandle | None = None
    copies: dict[str, SegmentHandle] = field(default_factory=dict[str, SegmentHandle])
    taken_back: dict[str, SegmentHandle] = field(default_factory=dict[str, SegmentHandle])
    heads: tuple[Slice, ...] = ()
    partitions_end: bool = False
    at_ms: int | None = None  # The barrier's moment.
    active_at_ms: int | None = None  # When records of it were last read, or left waiting.
    idle_after_ms: int | None = None  # What is silent for so long is idle: a partition, and it.
    has_waiting_below: bool = False  # Some entries in layers wait.
    unread: Unread | None = None  # For people.
    size_bytes: int | None = None  # For people: of what this epoch reads.

    @property
    def waiting(self) -> set[str]:
        """The partitions with records behind the barrier."""
        return {entry.partition for entry in self.position if entry.is_waiting}

    @property
    def idle(self) -> set[str]:
        """The partitions that were silent for so long that they do not hold the watermark back."""
        if self.at_ms is None or self.idle_after_ms is None:
            return set()
        latest_ms = self.at_ms - self.idle_after_ms
        return {
            entry.partition
            for entry in self.position
            if entry.active_at_ms is not None and entry.active_at_ms <= latest_ms
        }

    @property
    def needs_layers(self) -> bool:
        """Whether event time at this barrier depends on entries in layers."""
        return bool(self.layers) and (self.has_waiting_below or self.idle_after_ms is not None)

    @property
    def is_idle(self) -> bool:
        """Whether it was silent for too long, also one that has read all files to their ends, or
        had none yet: it does not move the watermark (Flink's WatermarkStatus.IDLE).
        """
        if self.at_ms is None or self.active_at_ms is None or self.idle_after_ms is None:
            return False
        growing = {part.partition for part in self.position if not part.sealed}
        is_silent = self.at_ms - self.active_at_ms >= self.idle_after_ms
        return is_silent and growing <= self.idle and not self.exhausted

    def growing(self, partitions: Iterable[str]) -> set[str]:
        """The *partitions* that may still grow.

        Each of them grew at the barrier before, or was read in this epoch: an entry that is in
        layers alone is unchanged, and grows unless it is gone.
        """
        is_sealed = {part.partition: part.sealed for part in self.position}
        has_layers = bool(self.layers)
        gone = set(self.gone)
        return {
            name for name in partitions if not is_sealed.get(name, name in gone or not has_layers)
        }

    @property
    def records(self) -> int:
        return sum(part.records for part in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOrigin:
    """The origin of a job that is not its own checkpoint: a savepoint, or another root.

    ``root`` and ``pipeline`` are empty for a savepoint of the job itself.  A name and a number say
    where it is; what it is say the ``token``, of the savepoint's incarnation or of that root's
    journal, and the ``digest`` of the bytes of its ``_metadata``, which are compared whenever it is
    opened.
    """

    checkpoint_id: CheckpointId
    savepoint: str | None = None
    token: str = ""
    digest: str = ""
    root: str = ""
    pipeline: str = ""

    @property
    def incarnation(self) -> SavepointId | None:
        """The savepoint; None of a checkpoint of another root."""
        return None if self.savepoint is None else SavepointId(self.savepoint, self.token)

    @property
    def own_savepoint(self) -> SavepointId | None:
        """The savepoint, if it lies in the job's own root."""
        return None if self.root else self.incarnation

    def __str__(self) -> str:
        what = (
            f"savepoint {self.savepoint}" if self.savepoint else f"checkpoint {self.checkpoint_id}"
        )
        return f"{what} of {self.root}/{self.pipeline}" if self.root else what


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """A stage that must acknowledge, with all its subtasks.

    An ``is_unaligned`` task reads what its parent left in flight, and leaves this epoch's input in
    flight: it waits for no other stage.  A task that ``may_be_overtaken`` starts aligned and
    becomes unaligned when the aligned checkpoint timeout passes.  ``reads`` are the stages before
    it.
    """

    uid: str
    parallelism: int
    max_parallelism: int
    is_unaligned: bool = False
    may_be_overtaken: bool = False
    reads: tuple[str, ...] = ()

    @property
    def subtasks(self) -> tuple[SubtaskId, ...]:
        return tuple(SubtaskId(self.uid, index) for index in range(self.parallelism))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Immutable.  ``parent`` is the checkpoint whose state this epoch continues: a completed one,
    or with several concurrent checkpoints the one triggered before it.

    ``drains`` sets every watermark to MAX at this barrier: all sources ended, or a person drains.
    ``finished`` stages ended at an earlier barrier: they are not run, and their state is carried.
    A plan that ``starts_lineage`` is the first of its generation, and publishes every table anew.
    ``is_full`` asks every subtask for a snapshot that shares no file with the parent's, and
    ``is_canonical`` for one in which each table of state is one sorted run.
    ``master_states`` are the answers of the master hooks; None is an answer, too.
    ``processing_time_ms`` is the job's clock at the trigger, but never behind the parent's.
    ``journal_seq`` was the journal's newest entry when the plan was made: a hint where to read on.
    ``fingerprints`` are by uid those of the declaration that it was made of: what the state that
    it leaves is the state of.  ``begun`` are uids, and ``uid.column``, whose state in the parent it
    does not take; ``recomputed`` stages do not either, and are sent all rows of those before them.
    ``token`` was drawn with the plan, and no other plan has it: an answer says which plan it
    answers, so that none of another life of the job, or of nobody, counts.
    """

    checkpoint_id: CheckpointId
    token: str = ""
    generation: Generation
    parent: CheckpointId | None
    origin: SnapshotOrigin | None = None  # Where the parent is kept, when it is not the job's own.
    ignores_in_flight: bool = False  # The parent's in-flight data is dropped: a person chose so.
    type: CheckpointType
    triggered_at_ms: int
    expires_at_ms: int
    drains: bool
    sources: tuple[SourceCut, ...]
    tasks: tuple[TaskPlan, ...]
    finished: tuple[str, ...] = ()
    starts_lineage: bool = False
    is_full: bool = False
    is_canonical: bool = False
    processing_time_ms: int = 0
    master_states: dict[str, str | None] = field(default_factory=dict[str, str | None])
    cause: str = ""  # Who asked: "periodic", an Airflow run id, a person.
    savepoint_token: str = ""  # Of a savepoint: drawn with the plan, that of its incarnation.
    journal_seq: int = 0
    fingerprints: dict[str, Fingerprint] = field(default_factory=dict[str, Fingerprint])
    begun: tuple[str, ...] = ()
    recomputed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(bool(self.tasks), "a checkpoint needs at least one stage")
        require(self.checkpoint_id > (self.parent or 0), "a checkpoint's id is above its parent's")

    def source(self, uid: str) -> SourceCut:
        return next(cut for cut in self.sources if cut.uid == uid)

    def task(self, uid: str) -> TaskPlan:
        return next(task for task in self.tasks if task.uid == uid)

    @property
    def records(self) -> int:
        """Records of the epoch, over all sources."""
        return sum(cut.records for cut in self.sources)

    @property
    def is_backlog(self) -> bool:
        return any(cut.is_backlog for cut in self.sources)


def journaled(plan: CheckpointPlan) -> CheckpointPlan:
    """The plan as journaled: per partition what the epoch reads, in one slice.

    The slices for each subtask, the position of each source and the fingerprints are in the plan
    itself.
    """
    return replace(
        plan,
        fingerprints={},
        sources=tuple(
            SourceCut(
                uid=cut.uid,
                position=(),
                slices=_by_partition(cut.slices),
                exhausted=cut.exhausted,
                is_backlog=cut.is_backlog,
                table=cut.table,
                partitions_end=cut.partitions_end,
            )
            for cut in plan.sources
        ),
    )


def _by_partition(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    """The slices of each partition joined into one; those that are taken back apart."""
    found: dict[tuple[str, bool], Slice] = {}
    for piece in slices:
        of = piece.partition, piece.is_taken_back
        first = found.get(of)
        found[of] = (
            piece
            if first is None
            else replace(first, end=piece.end, records=first.records + piece.records)
        )
    return tuple(found.values())
