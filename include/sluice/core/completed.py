"""Completed checkpoints: the content of ``_metadata``, and which checkpoints are retained.

Flink's CompletedCheckpoint, CompletedCheckpointStore and CheckpointSubsumeHelper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from sluice.core.answers import Committable
from sluice.core.configuration import CheckpointType
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, Generation, SavepointId, SubtaskId
from sluice.core.plan import SnapshotOrigin, SourceCut
from sluice.core.transitions import Fingerprint
from sluice.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskState:
    """The state of one subtask: the hash range it owned, and its live segments."""

    subtask: SubtaskId
    state: tuple[StateHandle, ...]
    output: tuple[SegmentHandle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightData:
    """Sealed segments of one producer's stream that a stage has not consumed, and their schema.

    Flink's channel state, by reference: the next epoch reads them first.
    """

    producer: str
    segments: tuple[SegmentHandle, ...]
    schema: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """A stage in a checkpoint (Flink's OperatorState).

    ``watermark_ms`` is that of its output and of the input that it has consumed.  An
    ``is_overtaken`` stage did not answer in time, so the coordinator acknowledged for it; an
    ``is_finished`` one will never run again.  ``event_times_ms`` is by ``source/partition``.
    ``rows_per_group`` is the mean number of rows of a key in its last epoch; it decides how the
    next one is run.  ``schema`` is its output's Arrow schema, kept where the stage that reads it
    has other inputs, too, which may outlive it.  A stage that ``has_no_say`` read nothing with a
    watermark, so it holds no other stage back.
    """

    uid: str
    parallelism: int
    max_parallelism: int
    subtasks: tuple[SubtaskState, ...]
    watermark_ms: int
    in_flight: tuple[InFlightData, ...] = ()
    is_overtaken: bool = False
    is_finished: bool = False
    event_times_ms: dict[str, int] = field(default_factory=dict[str, int])
    rows_per_group: float | None = None
    schema: bytes = b""
    has_no_say: bool = False

    @property
    def in_flight_segments(self) -> tuple[SegmentHandle, ...]:
        return tuple(segment for data in self.in_flight for segment in data.segments)

    def in_flight_of(self, producer: str) -> InFlightData:
        empty = InFlightData(producer=producer, segments=(), schema=b"")
        return next((data for data in self.in_flight if data.producer == producer), empty)

    @property
    def has_state(self) -> bool:
        return any(subtask.state for subtask in self.subtasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMetadata:
    """``_metadata``: what restore needs, and nothing else.  Keys are relative to the root.

    ``tables`` pins, per sink, the checkpoint whose commit made the table's version;
    ``previous_tables`` is what the parent pinned, and what this commit's versions continue.
    ``life`` is that of the job that took it, to which the checkpoint ids in a table belong.
    ``fingerprints`` say by uid what the state of a stage, or the table of a sink, is the state of.
    ``attempts`` and ``drivers`` name, per stage that was not overtaken, the answer that it was made
    of.
    """

    pipeline: str
    life: str
    checkpoint_id: CheckpointId
    parent: CheckpointId | None
    generation: Generation
    type: CheckpointType
    triggered_at_ms: int
    drains: bool
    sources: tuple[SourceCut, ...]
    stages: tuple[StageState, ...]
    committables: tuple[Committable, ...]
    attempts: dict[str, int] = field(default_factory=dict[str, int])
    drivers: dict[str, str] = field(default_factory=dict[str, str])
    processing_time_ms: int = 0  # No row of its state was written later.
    tables: dict[str, int] = field(default_factory=dict[str, int])
    previous_tables: dict[str, int] = field(default_factory=dict[str, int])
    origin: SnapshotOrigin | None = None
    master_states: dict[str, str | None] = field(default_factory=dict[str, str | None])
    fingerprints: dict[str, Fingerprint] = field(default_factory=dict[str, Fingerprint])

    @property
    def held(self) -> frozenset[str]:
        """The uids of stages whose state it has, of sources that were read, and of sinks whose
        tables it pins.
        """
        stages = (stage.uid for stage in self.stages if stage.has_state)
        sources = (cut.uid for cut in self.sources if cut.position or cut.layers)
        return frozenset((*stages, *sources, *self.tables))

    def stage(self, uid: str) -> StageState | None:
        return next((stage for stage in self.stages if stage.uid == uid), None)

    def source(self, uid: str) -> SourceCut | None:
        return next((cut for cut in self.sources if cut.uid == uid), None)

    @property
    def files(self) -> tuple[SegmentHandle, ...]:
        """Every file that a restore reads, with the size that it has to have."""
        handles = [
            handle.segment
            for stage in self.stages
            for subtask in stage.subtasks
            for handle in subtask.state
        ]
        handles += [handle for stage in self.stages for handle in stage.in_flight_segments]
        for cut in self.sources:
            handles += [*cut.layers, *([cut.table] if cut.table is not None else [])]
            handles += cut.copies.values()
        return tuple(handle for handle in handles if handle.key)


def with_files(
    metadata: CheckpointMetadata, move: Callable[[SegmentHandle], SegmentHandle]
) -> CheckpointMetadata:
    """The same checkpoint with *move* applied to each file that it names."""

    def moved(handle: SegmentHandle) -> SegmentHandle:
        return move(handle) if handle.key else handle

    def moved_subtask(subtask: SubtaskState) -> SubtaskState:
        return replace(
            subtask,
            state=tuple(replace(h, segment=moved(h.segment)) for h in subtask.state),
            output=(),
        )

    stages = tuple(
        replace(
            stage,
            subtasks=tuple(moved_subtask(subtask) for subtask in stage.subtasks),
            in_flight=tuple(
                replace(data, segments=tuple(map(moved, data.segments))) for data in stage.in_flight
            ),
        )
        for stage in metadata.stages
    )
    sources = tuple(
        replace(
            cut,
            table=None if cut.table is None else moved(cut.table),
            layers=tuple(map(moved, cut.layers)),
            copies={name: moved(handle) for name, handle in cut.copies.items()},
        )
        for cut in metadata.sources
    )
    return replace(metadata, stages=stages, sources=sources)


def moved_to_root(metadata: CheckpointMetadata, root: str) -> CheckpointMetadata:
    """The checkpoint for a job of another root, which reads its files at *root*."""
    return with_files(metadata, lambda handle: replace(handle, root=handle.root or root))


def without_in_flight(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """The checkpoint with its in-flight data dropped: those rows are lost, as a person chose."""
    return replace(
        metadata,
        stages=tuple(
            replace(stage, in_flight=tuple(replace(data, segments=()) for data in stage.in_flight))
            for stage in metadata.stages
        ),
    )


def without_state(metadata: CheckpointMetadata, begun: Collection[str]) -> CheckpointMetadata:
    """The checkpoint without the state of the stages in *begun*, which begin anew."""
    if not begun:
        return metadata
    return replace(
        metadata,
        stages=tuple(
            replace(stage, subtasks=tuple(replace(subtask, state=()) for subtask in stage.subtasks))
            if stage.uid in begun
            else stage
            for stage in metadata.stages
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCheckpoint:
    """A completed checkpoint in the journal; ``is_committed``: its sinks have published."""

    checkpoint_id: CheckpointId
    generation: Generation
    parent: CheckpointId | None
    type: CheckpointType
    triggered_at_ms: int
    completed_at_ms: int
    drains: bool
    records: int
    checkpointed_bytes: int
    full_bytes: int
    savepoint_name: str | None = None
    savepoint_token: str = ""
    cause: str = ""
    queued_ms: int = 0
    is_committed: bool = False

    @property
    def savepoint(self) -> SavepointId | None:
        """The savepoint that it is, too."""
        name = self.savepoint_name
        return None if name is None else SavepointId(name, self.savepoint_token)


def subsumed(
    newest_last: tuple[CompletedCheckpoint, ...], num_retained: int, *, retain_ms: int = 0
) -> tuple[CompletedCheckpoint, ...]:
    """The checkpoints that leave the store after the newest was added (CheckpointSubsumeHelper).

    Savepoints leave the queue first come first served, their files stay.  The newest real
    checkpoint stays even above the limit (FLINK-21351) unless the job stops with the newest.

    Unlike in Flink, those that completed less than *retain_ms* before the newest stay above the
    limit, too.  Only times of the journal are compared: a checkpoint that claims to be later than
    the newest stays, and a clock that is ahead leaves no fewer than *num_retained*.
    """
    require(num_retained >= 1, "one checkpoint or more is retained")
    queue = list(newest_last)
    last_real = next((c for c in reversed(queue) if not c.type.is_savepoint), None)
    stopping = bool(queue) and queue[-1].type.stops_the_job
    gone: list[CompletedCheckpoint] = []
    for candidate in queue[:-1]:
        if len(queue) - len(gone) <= num_retained:
            break
        if candidate is last_real and not stopping:
            continue
        if retain_ms and newest_last[-1].completed_at_ms - candidate.completed_at_ms < retain_ms:
            continue
        gone.append(candidate)
    return tuple(gone)
