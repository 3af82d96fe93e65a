"""Orphans: the objects that the garbage collector finds, each with the reason why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Why an object is garbage; the value is for people."""

    STATE = "state segments that no retained checkpoint names"
    COMPACTION = "merged state that no checkpoint names, and none can take over"
    STREAM = "stream segments that no retained checkpoint names"
    CHECKPOINT = "files of checkpoints that are neither pending nor retained"
    STAGED = "staged output that will never be committed"
    PROBE = "probes that a start left behind"
    JOURNAL = "journal entries that the newest one does not continue"
    TEMPORARY = "files that processes which were killed had begun to write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """``key`` is relative to the job's root, or to the place of *sink*."""

    key: str
    size_bytes: int
    reason: Reason
    sink: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncompleteSavepoint:
    """Files of a savepoint without ``_metadata``: its export crashed, and will not be continued."""

    name: str
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """What one look found.  ``too_young`` are orphans, too, but within the grace period.

    ``unknown`` are names that sluice does not write; nothing is known of them, so they stay.
    """

    files: tuple[Orphan, ...] = ()
    too_young: tuple[Orphan, ...] = ()
    incomplete_savepoints: tuple[IncompleteSavepoint, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(orphan.size_bytes for orphan in self.files)
