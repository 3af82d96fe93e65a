"""Master hooks: what has to be told of a checkpoint outside of Sluice (MasterTriggerRestoreHook).

    pipeline.hook("feature_flags", trigger=freeze_flags, restore=put_flags_back)

``trigger`` runs on the coordinator before the checkpoint's plan is durable, in the order of
declaration; what it returns, text or None, is kept in the checkpoint.  ``restore`` gets it back
before anything new is triggered.  Both may be called again for the same checkpoint: a coordinator
may die between the call and the moment it becomes true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class TriggerHook(Protocol):
    def __call__(self, checkpoint_id: int, timestamp_ms: int) -> str | None: ...


class RestoreHook(Protocol):
    def __call__(self, checkpoint_id: int | None, state: str | None) -> None:
        """*checkpoint_id* is None when the job starts from empty state."""
        ...


@dataclass(frozen=True, slots=True)
class MasterHook:
    uid: str
    trigger: TriggerHook
    restore: RestoreHook
