"""What a restore or a submission decides of the sinks' tables, and what it then owes them.

It is decided once, from how the tables stood (``core/table_standings.py``), and journaled; no
commit guesses again from ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.core.ids import CheckpointId, CheckpointIdCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDecision:
    """``versions`` is per sink what the job continues; whom it does not name begins anew.
    ``newest`` is the newest id that any sink knows.  The rest is of ``timeline.Recovery``:
    ``replaces`` is per sink the lives that give way.
    """

    versions: dict[str, int] = field(default_factory=dict[str, int])
    newest: int = 0
    continues: CheckpointId | None = None
    roll_back: bool = False
    accepts: bool = False
    replaces: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecovery:
    """A ``timeline.Recovery`` that is owed to every sink; its version stands in the state."""

    through: CheckpointId
    continues: CheckpointId | None = None
    roll_back: bool = False
    accepts: bool = False
    replaces: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def owed_recovery(decision: TableDecision, ids: CheckpointIdCounter) -> TableRecovery | None:
    """None where no id was ever taken: no commit can be late, and no table shows anything."""
    through = CheckpointId(ids.get() - 1)
    if through == 0:
        return None
    return TableRecovery(
        through=through,
        continues=decision.continues,
        roll_back=decision.roll_back,
        accepts=decision.accepts,
        replaces=decision.replaces,
    )
