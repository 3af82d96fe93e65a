"""``SubtaskSpec``, the task of a subtask as data, and ``Workspace``, its clients and folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.key_groups import KeyGroupRange, hash_range, key_group_range
from sluice.core.plan import TaskPlan
from sluice.core.transitions import Adoption
from sluice.declaration.nodes import SinkNode, StageNode
from sluice.exchange.blocks import ChainedClock, ChainLink
from sluice.exchange.faults import Fault
from sluice.exchange.reading import CarriedClock
from sluice.operators.operator import EpochTime
from sluice.protocol.keys import JournalPaths
from sluice.state.cache import SegmentCache
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation
from sluice.store.uploads import Uploads


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskSpec:
    """Everything that a subtask needs, as plain data: it is pickled into the Spark task.

    ``input_schemas`` are the serialized Arrow schemas of each input's rows, known even when there
    are none; with ``is_exchanged`` they come as blocks, see ``sluice.exchange.blocks``.
    ``state`` holds, per subtask, the parent checkpoint's segments cut to the subtask's hash range;
    with ``is_full`` the snapshot shares no file with it.  ``streams_watermark_ms`` and
    ``event_times_ms`` are what the stage's driver measured of the input, for the ack.  With a
    ``clock`` the watermark of the epoch's end comes with the rows, and ``epoch_time`` lacks it.
    With ``chained_to`` the output goes to the next stage's subtasks, and not to the bucket.
    A subtask that ``resends`` sends all rows that its state holds before those that changed.  One
    that is recomputed has no ``state``; ``former``, likewise, is what it had.
    """

    location: StoreLocation
    paths: JournalPaths
    stage: StageNode
    task: TaskPlan
    sinks: tuple[SinkNode, ...]
    has_consumers: bool
    checkpoint_id: CheckpointId
    plan: str  # Its token.
    attempt: int
    params: Mapping[str, str]
    input_schemas: tuple[bytes, ...]
    state: tuple[tuple[StateHandle, ...], ...]
    epoch_time: EpochTime
    streams_watermark_ms: int | None
    event_times_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    clock: CarriedClock | ChainedClock | None = None
    chained_to: ChainLink | None = None
    measured_source: str | None = None  # The source whose event times are measured.
    is_exchanged: bool = False
    is_full: bool = False
    inline_threshold_bytes: int = 0
    memory_bytes: int = 512 * 1024**2
    max_state_runs: int = 16
    fault: Fault | None = None
    begun: tuple[str, ...] = ()  # Columns of the result whose state begins anew with this epoch.
    adopts: Adoption | None = None  # What the state is taken over from.
    republished: tuple[str, ...] = ()  # Sinks that are sent all rows of the result.
    resends: bool = False
    former: tuple[tuple[StateHandle, ...], ...] = ()
    drops_expired: bool = False  # State that has expired is not to be found by a longer TTL.
    broadcast: tuple[SegmentHandle, ...] = ()  # The rows that every subtask reads,
    broadcast_schema: bytes = b""  # and their serialized Arrow schema; empty without such an input.


@dataclass(slots=True)
class Workspace:
    """The clients of one pass; they live as long as the Spark task.

    What is put through ``store``, or any store that is opened at ``location``, is uploaded in the
    background; it is durable once ``uploads`` have settled.
    """

    spec: SubtaskSpec
    subtask: SubtaskId
    location: StoreLocation
    uploads: Uploads
    store: ObjectStore
    cache: SegmentCache
    token: str  # Of this execution: Spark may run the same subtask and attempt several times.
    uploaded_bytes: int = 0
    uploaded_state: list[SegmentHandle] = field(default_factory=list[SegmentHandle])

    @property
    def paths(self) -> JournalPaths:
        """The keys of this checkpoint's files, and of those of its job's journal."""
        return self.spec.paths

    @property
    def key_groups(self) -> KeyGroupRange:
        task = self.spec.task
        return key_group_range(task.max_parallelism, task.parallelism, self.subtask.index)

    @property
    def hash_range(self) -> tuple[int, int]:
        """The first and last hash of the keys that this subtask owns."""
        return hash_range(self.spec.task.max_parallelism, self.key_groups)

    def state_key(self, digest: str) -> str:
        """The key of a state segment of this checkpoint and subtask, named by its content."""
        return self.paths.shared_segment(
            self.spec.stage.uid, self.spec.checkpoint_id, f"{self.subtask.index:05d}-{digest}"
        )

    def upload(self, key: str, body: bytes) -> None:
        self.store.put(key, body)
        self.uploaded_bytes += len(body)

    def upload_state(self, segment: SegmentHandle, body: bytes) -> None:
        """Upload a segment of this subtask's state, and keep it for the next epoch."""
        self.upload(segment.key, body)
        self.cache.add(segment, body)
        self.uploaded_state.append(segment)

    def settle(self) -> None:
        """Wait until all that was uploaded is durable; raises the error of an upload that failed.

        Only now a root that is a folder has the segments, so only now the cache can mark them.
        """
        self.uploads.settle()
        for segment in self.uploaded_state:
            self.cache.mark(segment)
