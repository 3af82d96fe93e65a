"""The appends to an Iceberg table: the files that each snapshot added, in a fixed order.

Snapshots are immutable, so the files of one are the same whenever they are looked up.  A compaction
(``replace``) changes no row and is skipped.  A snapshot that deletes or changes rows
(``overwrite``, ``delete``) cannot be read as appended rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

NOTHING = ""  # Stands for the id of the snapshot before the first one.


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A data file; ``name`` is relative to the table's location where it lies below it."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class Step:
    """A snapshot to read: the files it added, or with ``is_base`` all files of the table then."""

    snapshot: Snapshot
    is_base: bool = False

    @property
    def sequence(self) -> int:
        return self.snapshot.sequence_number or 0


@dataclass(frozen=True, slots=True)
class Appends:
    """The history of *table*'s main branch."""

    table: Table
    skip_overwrites: bool = False

    @property
    def name(self) -> str:
        return f"the Iceberg table {'.'.join(self.table.name())}"

    def head(self) -> Snapshot | None:
        return self.table.current_snapshot()

    def ancestors(self) -> list[Snapshot]:
        """The head and its ancestors, newest first, as far as they have not expired."""
        from pyiceberg.table.snapshots import ancestors_of

        if self.table.metadata.format_version < 2:
            raise ConfigurationError(
                f"{self.name} is of format version 1, which does not number its snapshots; upgrade "
                "it to version 2"
            )
        return list(ancestors_of(self.head(), self.table.metadata))

    def base(self, snapshot_id: int | None) -> Step | None:
        """The snapshot of this id, or by default the oldest that exists, to be read whole."""
        found = [
            one for one in self.ancestors() if snapshot_id is None or one.snapshot_id == snapshot_id
        ]
        if not found and snapshot_id is not None:
            raise ConfigurationError(
                f"snapshot {snapshot_id} is not in the history of {self.name}; begin with one of "
                f"{', '.join(str(one.snapshot_id) for one in reversed(self.ancestors()))}"
            )
        return Step(found[-1], is_base=True) if found else None

    def after(self, sequence: int, snapshot_id: str) -> list[Step]:
        """The snapshots after the one of that number and id, oldest first.

        Raises:
            ConfigurationError: some of them have expired, or the table was rolled back.
        """
        steps: list[Step] = []
        oldest: Snapshot | None = None
        for one in self.ancestors():
            if (one.sequence_number or 0) <= sequence:
                if str(one.snapshot_id) != snapshot_id:
                    raise ConfigurationError(
                        f"{self.name} was read to snapshot {snapshot_id or 'none'} (sequence "
                        f"number {sequence}), which is not in its history any more: it was rolled "
                        f"back to {one.snapshot_id} ({one.sequence_number}); begin anew without "
                        "this state"
                    )
                return steps[::-1]
            steps.append(Step(one))
            oldest = one
        if oldest is None and sequence:
            raise ConfigurationError(
                f"{self.name} was read to snapshot {snapshot_id} and has none now: it was rolled "
                "back or made anew; begin anew, too"
            )
        if oldest is not None:
            self._check_begin(oldest, sequence, snapshot_id)
        return steps[::-1]

    def files(self, step: Step) -> list[AddedFile]:
        """The files to read of *step*, in order; none where no row was added.

        Raises:
            ConfigurationError: rows were changed or deleted, or a file cannot be read.
        """
        from pyiceberg.table.snapshots import Operation

        summary = step.snapshot.summary
        operation = summary.operation if summary is not None else None
        if step.is_base:
            return self._described(self._live(step.snapshot))
        if operation is Operation.APPEND:
            return self._described(self._added(step.snapshot))
        if operation is Operation.REPLACE:
            return []
        what = f"snapshot {step.snapshot.snapshot_id} of {self.name} "
        what += f"({operation.value if operation else 'unknown'}) changes or deletes rows"
        if not self.skip_overwrites:
            raise ConfigurationError(
                f"{what}, and a source of appended rows cannot tell which; pass over all that it "
                "did with skip_overwrites=True, or begin anew behind it"
            )
        log.warning("%s; passed over", what)
        return []

    def rows(self, step: Step) -> int | None:
        """The rows to read of *step*, by its summary alone; None where that does not say."""
        from pyiceberg.table.snapshots import Operation

        summary = step.snapshot.summary
        if summary is None:
            return None
        if not step.is_base and summary.operation is not Operation.APPEND:
            return 0
        name = "total-records" if step.is_base else "added-records"
        found = summary.additional_properties.get(name, "" if step.is_base else "0")
        return int(found) if found.isdecimal() else None

    def adds_rows(self, step: Step) -> bool:
        """Whether *step* may have added rows, by its summary alone."""
        summary = step.snapshot.summary
        if summary is None or step.is_base:
            return True
        return summary.additional_properties.get("added-records", "0") != "0"

    def _check_begin(self, oldest: Snapshot, sequence: int, snapshot_id: str) -> None:
        """Check that *oldest*, the first existing snapshot, follows the last one that was read."""
        first = oldest.sequence_number or 0
        follows = first == sequence + 1 or str(oldest.parent_snapshot_id or NOTHING) == snapshot_id
        if oldest.parent_snapshot_id is None and not snapshot_id:
            follows = first == 1
        if not follows:
            raise ConfigurationError(
                f"{self.name} was read to snapshot {snapshot_id or 'none'} (sequence number "
                f"{sequence}), and the snapshots with the sequence numbers {sequence + 1} to "
                f"{first - 1} have expired before they were read; the first that there is, is "
                f"{oldest.snapshot_id} ({first}): begin anew there, and keep snapshots for longer"
            )

    def _added(self, snapshot: Snapshot) -> Iterator[ManifestEntry]:
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

        for manifest in snapshot.manifests(self.table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            if manifest.content is not ManifestContent.DATA:
                continue
            for entry in manifest.fetch_manifest_entry(self.table.io):
                is_new = entry.snapshot_id == snapshot.snapshot_id
                if is_new and entry.status is ManifestEntryStatus.ADDED:
                    yield entry

    def _live(self, snapshot: Snapshot) -> Iterator[ManifestEntry]:
        from pyiceberg.manifest import ManifestContent

        for manifest in snapshot.manifests(self.table.io):
            entries = manifest.fetch_manifest_entry(self.table.io)
            if manifest.content is ManifestContent.DATA:
                yield from entries
            elif entries:
                raise ConfigurationError(
                    f"snapshot {snapshot.snapshot_id} of {self.name} has delete files, which are "
                    "not applied here; rewrite its data files, and begin with the snapshot of that"
                )

    def _described(self, entries: Iterator[ManifestEntry]) -> list[AddedFile]:
        from pyiceberg.manifest import FileFormat

        below = f"{self.table.location().rstrip('/')}/"
        found = []
        for entry in entries:
            file = entry.data_file
            if file.file_format is not FileFormat.PARQUET:
                raise ConfigurationError(
                    f"{file.file_path} of {self.name} is {file.file_format.value}; only Parquet "
                    "can be read by rows: rewrite it"
                )
            if file.record_count:
                name = file.file_path.removeprefix(below)
                found.append((entry.sequence_number or 0, name, file.record_count))
        return [AddedFile(name, rows) for _, name, rows in sorted(found)]
