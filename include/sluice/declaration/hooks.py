"""Master hooks: what has to be told of a checkpoint outside of Sluice (MasterTriggerRestoreHook).

    pipeline.hook("feature_flags", trigger=freeze_flags, restore=put_flags_back)

``prepare_snapshot_pre_barrier`` is called before the barrier is cut: what it writes to a source is
part of this epoch.  The id is the one that the checkpoint gets unless the request comes to nothing,
or another coordinator is faster; what it raises fails the request.

``trigger`` runs on the coordinator before the checkpoint's plan is durable, in the order of
declaration; what it returns, text or None, is kept in the checkpoint.  ``restore`` gets it back
before anything new is triggered.  Both may be called again for the same checkpoint: a coordinator
may die between the call and the moment it becomes true.

``notify_checkpoint_complete`` is called when every sink has published, and perhaps again;
``notify_checkpoint_aborted`` when everything that an aborted checkpoint wrote is deleted.  They are
hints (CheckpointListener): ids are left out, and what they raise is logged.

A call that takes longer than ``timeout`` has failed.  It is made in a thread of its own, which
nothing can end: a hook that hangs is to give up by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

HOOK_TIMEOUT = timedelta(minutes=10)  # That of a checkpoint, by default.


class TriggerHook(Protocol):
    def __call__(self, checkpoint_id: int, timestamp_ms: int) -> str | None: ...


class RestoreHook(Protocol):
    def __call__(self, checkpoint_id: int | None, state: str | None) -> None:
        """*checkpoint_id* is None when the job starts from empty state."""
        ...


class NotificationHook(Protocol):
    def __call__(self, checkpoint_id: int, /) -> None: ...


@dataclass(frozen=True, slots=True)
class MasterHook:
    uid: str
    trigger: TriggerHook
    restore: RestoreHook
    prepare_snapshot_pre_barrier: NotificationHook | None = None
    notify_checkpoint_complete: NotificationHook | None = None
    notify_checkpoint_aborted: NotificationHook | None = None
    timeout: timedelta = HOOK_TIMEOUT
