"""The incarnation that a savepoint's name means: the newest of a row of create-only pointers.

    none | GONE --reserved--> WRITING --published--> COMPLETE
                                 |                      |
                                 +-------removed--------+--> GONE

A token is drawn before its first pointer, reserved before its first file is written, and never
reserved again once it is GONE.  So an incarnation that the newest pointer does not mean is dead for
good, whatever arrives late.  The last pointer of a name stays, as the newest entry of a journal
does: it is what turns a late one down.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sluice.core.ids import CheckpointId


class PointerPhase(Enum):
    WRITING = "WRITING"
    COMPLETE = "COMPLETE"
    GONE = "GONE"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointPointer:
    """``digest`` is the checksum of the ``_metadata``, once it is COMPLETE.

    ``life`` is that of the job that takes the savepoint, empty of one that another program writes.
    ``copy_of`` is the token of the incarnation, of another root, that it is a copy of.
    """

    token: str
    phase: PointerPhase
    checkpoint_id: CheckpointId
    digest: str = ""
    life: str = ""
    copy_of: str = ""

    @property
    def is_gone(self) -> bool:
        return self.phase is PointerPhase.GONE

    @property
    def is_complete(self) -> bool:
        return self.phase is PointerPhase.COMPLETE
