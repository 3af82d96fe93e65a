"""``CheckpointedFunction``: what is called of a keyed function beside its keys; Flink's, in Python.

Around the keys of an epoch each subtask calls ``initialize_state``, then
``prepare_snapshot_pre_barrier`` and ``snapshot_state``, and again where it runs again.  How the
checkpoint ended is told on the coordinator; nothing correct may depend on it (CheckpointListener).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.declaration.keyed_process import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskContext:
    """The context of a subtask in one epoch, beside all keys (FunctionSnapshotContext).

    ``checkpoint_id`` is another one when the epoch is repeated: no result may depend on it.
    """

    checkpoint_id: int
    subtask: int  # From 0.
    parallelism: int
    current_watermark: datetime
    processing_time: datetime


class CheckpointedFunction:
    """A function with operator state, or with anything to do around a barrier."""

    def initialize_state(self, context: SubtaskContext) -> None:
        """Called before the first key, with the operator state of the barrier before."""

    def prepare_snapshot_pre_barrier(self, context: SubtaskContext) -> Iterable[Row] | None:  # noqa: ARG002 - for those who override it
        """The result's rows behind the last key and timer, before the barrier; None is none."""
        return None

    def snapshot_state(self, context: SubtaskContext) -> None:
        """Called last: the operator state as it is then is part of the checkpoint."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Called on the coordinator when every sink has published the checkpoint, perhaps again.

        There is no state.  As for a source or sink that listens, ids are left out, and what it
        raises is logged.
        """

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Called on the coordinator when everything that the checkpoint wrote is deleted."""
