"""``Lineage``: the snapshots of a branch that a sink has made, and how to undo them.

Each has in its summary:

    sluice.sink            the sink's identity
    sluice.checkpoint-id   the published checkpoint; absent in the snapshot of a restore
    sluice.through         the id up to which a restore fences older coordinators
    sluice.copied          "true" where the rows were copied from the staged files to others
    sluice.parent          the branch's snapshot before the commit, or "none": pyiceberg forgets a
                           snapshot's own parent when that one expires
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.core.timeline import Timeline
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

SINK = "sluice.sink"
CHECKPOINT = "sluice.checkpoint-id"
PARENT = "sluice.parent"
THROUGH = "sluice.through"
COPIED = "sluice.copied"
NONE = "none"


@dataclass(frozen=True, slots=True)
class Lineage:
    """The snapshots of *branch* of *table*, seen by the sink *identity*."""

    table: Table
    branch: str
    identity: str

    @property
    def head(self) -> Snapshot | None:
        return self.table.metadata.snapshot_by_name(self.branch)

    def summary(
        self,
        checkpoint_id: int | None,
        *,
        through: int | None = None,
        are_copied: bool = False,
    ) -> dict[str, str]:
        """The summary of the snapshots of a commit on top of the head."""
        head = self.head
        marks = {SINK: self.identity, PARENT: NONE if head is None else str(head.snapshot_id)}
        if checkpoint_id is not None:
            marks[CHECKPOINT] = str(checkpoint_id)
        if through is not None:
            marks[THROUGH] = str(through)
        if are_copied:
            marks[COPIED] = "true"
        return marks

    def is_empty(self) -> bool:
        """Whether the branch has no rows; False where its head does not count them."""
        return self.head is None or _mark(self.head, "total-records") == "0"

    def of_checkpoint(self, checkpoint_id: int) -> Snapshot | None:
        """The last snapshot of the checkpoint's commit; None if it has expired or never existed."""
        mine = [
            one
            for one in self.table.metadata.snapshots
            if _mark(one, SINK) == self.identity and _mark(one, CHECKPOINT) == str(checkpoint_id)
        ]
        return max(mine, key=lambda one: one.sequence_number or 0, default=None)

    def has_copied(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint's staged files were copied, and are garbage; False if unknown."""
        snapshot = self.of_checkpoint(checkpoint_id)
        return snapshot is not None and _mark(snapshot, COPIED) == "true"

    def before(self, undone: tuple[int, ...]) -> int | None:
        """The id of the snapshot before the first of *undone*; None if there was none.

        Raises:
            ConfigurationError: other writers' snapshots would be undone, too, or it has expired.
        """
        wanted = {str(checkpoint_id) for checkpoint_id in undone}
        found: set[str] = set()
        others: list[Snapshot] = []
        for snapshot in self._ancestors():
            if _mark(snapshot, SINK) == self.identity:
                found.add(_mark(snapshot, CHECKPOINT))
                if wanted <= found:
                    self._check_foreign(others, undone)
                    return self._parent(snapshot)
            elif not _is_compaction(snapshot):
                others.append(snapshot)
        gone = sorted(int(one) for one in wanted - found)
        raise ConfigurationError(
            f"{self._name} cannot be rolled back: the snapshots of checkpoints "
            f"{', '.join(map(str, gone))} are not in the history of {self.branch} any more; "
            "restore without rolling back, or repair the table by hand"
        )

    def _ancestors(self) -> Iterator[Snapshot]:
        from pyiceberg.table.snapshots import ancestors_of

        yield from ancestors_of(self.head, self.table.metadata)

    def _parent(self, oldest: Snapshot) -> int | None:
        parent = _mark(oldest, PARENT)
        if parent == NONE:
            return None
        if self.table.metadata.snapshot_by_id(int(parent)) is None:
            raise ConfigurationError(
                f"{self._name} cannot be rolled back to snapshot {parent}, which has expired; "
                "restore without rolling back, or repair the table by hand"
            )
        return int(parent)

    def _check_foreign(self, others: list[Snapshot], undone: tuple[int, ...]) -> None:
        if not others:
            return
        names = ", ".join(
            f"{one.snapshot_id} ({one.summary.operation.value if one.summary else 'unknown'})"
            for one in reversed(others)
        )
        raise ConfigurationError(
            f"{self._name} cannot be rolled back behind checkpoint {undone[0]}: other writers' "
            f"snapshots would be lost: {names}; undo these first, or restore without rolling back"
        )

    @property
    def _name(self) -> str:
        return f"the Iceberg table {'.'.join(self.table.name())}"


def _mark(snapshot: Snapshot, key: str) -> str:
    return snapshot.summary.additional_properties.get(key, "") if snapshot.summary else ""


def _is_compaction(snapshot: Snapshot) -> bool:
    """Whether the snapshot rewrote files and changed no row."""
    from pyiceberg.table.snapshots import Operation

    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def undone(noted: Timeline, version: int | None, table: str) -> tuple[int, ...]:
    """The checkpoints after *version* that the table shows; *table* is its name for messages.

    Raises:
        ConfigurationError: the note has forgotten some of them.
    """
    if noted.is_cut and (version or 0) < noted.oldest:
        raise ConfigurationError(
            f"the {table} cannot be rolled back to checkpoint {version or 'nothing'}: its note has "
            f"forgotten which checkpoints it shows before {noted.oldest}; restore without rolling "
            "back, or empty the table"
        )
    return tuple(noted.after(version))
