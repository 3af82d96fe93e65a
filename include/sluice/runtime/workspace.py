"""What a subtask is told, and what it works with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.core.handles import StateHandle
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.plan import TaskPlan
from sluice.faults import Fault
from sluice.nodes import SinkNode, StageNode
from sluice.protocol.paths import PipelinePaths
from sluice.runtime.state.cache import SegmentCache
from sluice.storage.object_store import ObjectStore
from sluice.storage.open import StoreLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskSpec:
    """Everything a subtask needs, as plain data: it is pickled into the Spark task.

    ``state`` holds, per subtask, the parent checkpoint's segments cut to the subtask's hash range;
    with ``is_full`` the snapshot shares no file with it.  ``input_schema`` is the serialized Arrow
    schema of the rows, known even when there are none.
    """

    location: StoreLocation
    pipeline: str
    stage: StageNode
    task: TaskPlan
    sinks: tuple[SinkNode, ...]
    has_consumers: bool
    checkpoint_id: CheckpointId
    attempt: int
    params: Mapping[str, str]
    input_schema: bytes
    state: tuple[tuple[StateHandle, ...], ...]
    previous_watermark_ms: int
    watermark_ms: int
    reads_source: bool
    measures_event_time: bool
    is_full: bool = False
    inline_threshold_bytes: int = 0
    fault: Fault | None = None


@dataclass(slots=True)
class Workspace:
    """What one pass works with; lives as long as the Spark task."""

    spec: SubtaskSpec
    subtask: SubtaskId
    store: ObjectStore
    paths: PipelinePaths
    cache: SegmentCache
    token: str  # Distinguishes two Spark tasks that run the same subtask and attempt.
    uploaded_bytes: int = 0
    upload_ms: int = 0

    def state_key(self, digest: str) -> str:
        """Where a state segment of this checkpoint and subtask goes; named by its content."""
        return self.paths.shared_segment(
            self.spec.stage.uid, self.spec.checkpoint_id, f"{self.subtask.index:05d}-{digest}"
        )

    def upload(self, key: str, body: bytes) -> None:
        started = time.monotonic()
        self.store.put(key, body)
        self.upload_ms += round((time.monotonic() - started) * 1000)
        self.uploaded_bytes += len(body)
