"""The checkpoints that use each shared file, and when it may go (Flink's SharedStateRegistry).

A model to judge by, no part of the product, which keeps what a retained snapshot names and deletes
the rest.  An entry knows every checkpoint that uses its file, not only the newest, so one between
two retained ones can be released; ``unregister_unused`` is Flink's view of the same entries.

A key stands for one file for ever: the store is create-only, so when a second attempt registers
another file under a key, the first stays and the second is garbage.  (Flink keeps the newer one
until a checkpoint with the older has completed, FLINK-25862.)  Placeholders do not exist.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum


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
