"""The checkpoints that use each shared file, and when it may go (Flink's SharedStateRegistry).

An entry knows every checkpoint that uses its file, not only the newest, so a checkpoint between two
retained ones can be released exactly; ``unregister_unused`` is Flink's view of the same entries.

Deleting what a checkpoint leaves behind takes ``register_all`` and ``release``; whether a claimed
savepoint may be deleted is what ``register_all_after_restored`` and ``unregister_unused`` say.  The
conformance area shared-registry also asks for ``register``, of a file that is not named like its
key: every file here is.

A key stands for one file for ever.  When a second attempt registers another file under a key, the
first stays and the second is garbage, whichever checkpoint they are of: the store is create-only
and names a file by its content, so nothing is ever built on a second file of the same name.  (Flink
keeps the newer one until a checkpoint with the older has completed, FLINK-25862: its backends may
use a name again after a failure.)  Placeholders do not exist: an ack names every file it uses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from sluice.core.ids import CheckpointId
from sluice.core.invariants import require
from sluice.core.properties import ClaimMode


class SharingFilesStrategy(Enum):
    """The files that a snapshot may share with others (Flink's SnapshotType)."""

    FORWARD_BACKWARD = "FORWARD_BACKWARD"  # With older and with newer ones.
    FORWARD = "FORWARD"  # With newer ones.
    NO_SHARING = "NO_SHARING"  # Its files lie within it, and go only with it.


class SnapshotKind(Enum):
    """What a job may be restored from."""

    CHECKPOINT = "checkpoint"
    FULL_CHECKPOINT = "full checkpoint"
    CANONICAL_SAVEPOINT = "canonical savepoint"
    NATIVE_SAVEPOINT = "native savepoint"

    @property
    def sharing(self) -> SharingFilesStrategy:
        return _SHARING[self]


_SHARING = {
    SnapshotKind.CHECKPOINT: SharingFilesStrategy.FORWARD_BACKWARD,
    SnapshotKind.FULL_CHECKPOINT: SharingFilesStrategy.FORWARD,
    SnapshotKind.CANONICAL_SAVEPOINT: SharingFilesStrategy.NO_SHARING,
    SnapshotKind.NATIVE_SAVEPOINT: SharingFilesStrategy.NO_SHARING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStateEntry:
    """``is_ours``: no snapshot that the job does not own has the file.  ``keeps_creator``: the
    restored checkpoint that brought it stays as long as the file is used.
    """

    file: str
    created_by: CheckpointId
    users: frozenset[CheckpointId]
    is_ours: bool = True
    keeps_creator: bool = False

    def __post_init__(self) -> None:
        require(bool(self.users), "an entry without users is gone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unregistered:
    """``still_in_use`` are restored checkpoints that may not be discarded yet; ``to_delete`` files
    that are no longer in use, in order of registration.
    """

    registry: SharedStateRegistry
    still_in_use: frozenset[CheckpointId]
    to_delete: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStateRegistry:
    """Entries by key, in order of registration."""

    entries: Mapping[str, SharedStateEntry] = field(default_factory=dict[str, SharedStateEntry])
    restored: Mapping[CheckpointId, SnapshotKind] = field(
        default_factory=dict[CheckpointId, SnapshotKind]
    )

    def register(
        self,
        key: str,
        checkpoint_id: CheckpointId,
        *,
        file: str | None = None,
        keeps_creator: bool = False,
    ) -> tuple[SharedStateRegistry, str]:
        """Let the checkpoint use *key*; return the file it stands for, which may not be *file*.

        *file* is named like the key if not given; the caller's is garbage when another one is
        returned.
        """
        entry = _used(
            self.entries.get(key),
            checkpoint_id,
            key if file is None else file,
            keeps_creator=keeps_creator,
        )
        return replace(self, entries={**self.entries, key: entry}), entry.file

    def register_all(
        self, keys: Collection[str], checkpoint_id: CheckpointId
    ) -> SharedStateRegistry:
        """As ``register``, for files that are named like their keys."""
        used = {key: _used(self.entries.get(key), checkpoint_id, key) for key in keys}
        return replace(self, entries={**self.entries, **used})

    def register_all_after_restored(
        self,
        keys: Collection[str],
        checkpoint_id: CheckpointId,
        kind: SnapshotKind,
        claim_mode: ClaimMode,
    ) -> SharedStateRegistry:
        """The job was restored from this checkpoint; its files are ours only if it is claimed."""
        registry = self.register_all(keys, checkpoint_id)
        entries = dict(registry.entries)
        if claim_mode is not ClaimMode.CLAIM:
            entries |= {key: replace(entries[key], is_ours=False) for key in keys}
        return replace(registry, entries=entries, restored={**self.restored, checkpoint_id: kind})

    def unregister_unused(self, lowest_retained: CheckpointId) -> Unregistered:
        """No checkpoint below *lowest_retained* is needed any more (unregisterUnusedState)."""
        known = {user for entry in self.entries.values() for user in entry.users}
        return self.release({user for user in known if user < lowest_retained})

    def release(self, checkpoint_ids: Collection[CheckpointId]) -> Unregistered:
        """These checkpoints, subsumed or aborted, are not needed any more."""
        entries: dict[str, SharedStateEntry] = {}
        to_delete: list[str] = []
        for key, entry in self.entries.items():
            users = entry.users.difference(checkpoint_ids)
            if users:
                entries[key] = _with_users(entry, users)
            elif entry.is_ours:
                to_delete.append(entry.file)
        return Unregistered(
            registry=replace(self, entries=entries),
            still_in_use=frozenset(
                entry.created_by for entry in entries.values() if self._holds_creator(entry)
            ),
            to_delete=tuple(to_delete),
        )

    def _holds_creator(self, entry: SharedStateEntry) -> bool:
        kind = self.restored.get(entry.created_by)
        if kind is None:
            return False
        return entry.keeps_creator or kind.sharing is SharingFilesStrategy.NO_SHARING


def _with_users(entry: SharedStateEntry, users: frozenset[CheckpointId]) -> SharedStateEntry:
    if users == entry.users:
        return entry
    return SharedStateEntry(  # Not by ``replace``, which takes three times as long.
        file=entry.file,
        created_by=entry.created_by,
        users=users,
        is_ours=entry.is_ours,
        keeps_creator=entry.keeps_creator,
    )


def _used(
    entry: SharedStateEntry | None,
    checkpoint_id: CheckpointId,
    file: str,
    *,
    keeps_creator: bool = False,
) -> SharedStateEntry:
    if entry is None:
        return SharedStateEntry(
            file=file, created_by=checkpoint_id, users=frozenset({checkpoint_id})
        )
    used = _with_users(entry, entry.users | {checkpoint_id})
    return used if used.keeps_creator or not keeps_creator else replace(used, keeps_creator=True)
