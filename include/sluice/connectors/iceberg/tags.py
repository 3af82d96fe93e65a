"""Tags that protect snapshots from expiry: ``{name}``, and ``{name}.next`` for a second one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.iceberg.catalog import CatalogTable, pauses
from sluice.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update.snapshot import ManageSnapshots

NEXT = ".next"


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of the table at *place*."""

    place: CatalogTable

    def keep(self, name: str, snapshot_ids: Sequence[int]) -> None:
        """Tag the snapshots; raises ConfigurationError when one of them has expired already."""
        wanted = dict(zip((name, name + NEXT), snapshot_ids, strict=False))

        def change(table: Table) -> ManageSnapshots | None:
            refs = table.metadata.refs
            missing = {
                tag: one
                for tag, one in wanted.items()
                if tag not in refs or refs[tag].snapshot_id != one
            }
            if not missing:
                return None
            update = table.manage_snapshots()
            for tag, one in missing.items():
                if table.snapshot_by_id(one) is None:
                    raise ConfigurationError(
                        f"snapshot {one} of the Iceberg table {self.place.name} has expired before "
                        "it could be kept; keep snapshots for longer"
                    )
                update.create_tag(one, tag)
            return update

        self._change(name, change)

    def release(self, name: str) -> None:
        def change(table: Table) -> ManageSnapshots | None:
            present = [tag for tag in (name, name + NEXT) if tag in table.metadata.refs]
            update = table.manage_snapshots()
            for tag in present:
                update.remove_tag(tag)
            return update if present else None

        self._change(name, change)

    def held(self, prefix: str) -> tuple[str, ...]:
        from pyiceberg.table.refs import SnapshotRefType

        names = {
            tag.removesuffix(NEXT)
            for tag, ref in self.place.load().metadata.refs.items()
            if tag.startswith(prefix) and ref.snapshot_ref_type is SnapshotRefType.TAG
        }
        return tuple(sorted(names))

    def _change(self, name: str, change: Callable[[Table], ManageSnapshots | None]) -> None:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        for _ in pauses():
            update = change(self.place.load())
            if update is None:
                return
            try:
                update.commit()
            except (CommitFailedException, CommitStateUnknownException):
                continue
            return
        raise StoreUnavailable(
            f"the tag {name} of the Iceberg table {self.place.name} could not be changed: other "
            "writers were always faster; try again"
        )
