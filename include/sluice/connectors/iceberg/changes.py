"""What a snapshot of an Iceberg table did to its rows: those that came, and those that went.

The rows of a snapshot are those of its data files, without the places that its delete files name
(position deletes, or the deletion vectors of format version 3).  A change is the difference between
a snapshot and its parent, whatever their writer says of them; only manifests that they do not share
are read, and of delete files all.  So a data file that both have is read where its deletes differ.

Equality deletes name no place in a file, and are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

# How the rows of a data file changed, and their weights: all that there are came, or all that there
# were went; and places that were deleted, or whose deletes are gone.
CAME, WENT, DELETED, BACK = "came", "went", "deleted", "back"
WEIGHTS = {CAME: 1, WENT: -1, DELETED: -1, BACK: 1}

FILE_PATH_ID = 2147483546  # The field of a delete file that names the data file; the format's.


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A data file with changed rows: what they did is one of ``WEIGHTS``."""

    file: DataFile
    did: str
    rows: int


@dataclass(frozen=True)
class Rows:
    """The rows of *snapshot*; of no snapshot there are none."""

    table: Table
    snapshot: Snapshot | None
    _opened: dict[str, pa.Table] = field(default_factory=dict[str, Any])

    @cached_property
    def data_manifests(self) -> dict[str, ManifestFile]:
        return {path: one for path, one in self._manifests.items() if not _has_deletes(one)}

    @cached_property
    def deletes(self) -> dict[tuple[str, int], ManifestEntry]:
        """The live delete files, by what tells them apart: several vectors may be in one.

        Raises:
            ConfigurationError: some are equality deletes.
        """
        from pyiceberg.manifest import DataFileContent

        found = {}
        for manifest in self._manifests.values():
            if not _has_deletes(manifest):
                continue
            for entry in manifest.fetch_manifest_entry(self.table.io):
                file = entry.data_file
                if file.content is DataFileContent.EQUALITY_DELETES:
                    raise ConfigurationError(
                        f"{self._name} has equality deletes, as Flink writes them, and these name "
                        "no rows; rewrite the data files of the table (rewrite_data_files with "
                        "delete-file-threshold 1), and begin anew with the snapshot of that"
                    )
                found[file.file_path, entry.sequence_number or 0] = entry
        return found

    def live(self, manifests: Sequence[ManifestFile]) -> dict[str, ManifestEntry]:
        """The live data files of *manifests*, by their paths."""
        entries = (one for of in manifests for one in of.fetch_manifest_entry(self.table.io))
        return {entry.data_file.file_path: entry for entry in entries}

    def deleted(self, path: str) -> NDArray[np.int64]:
        """The places of the data file *path* whose rows are deleted, in order."""
        import numpy as np

        found = [np.empty(0, np.int64)]
        for entry in self.deletes.values():
            if _may_name(entry.data_file, path):
                places = self.places(entry.data_file)
                chosen = places.filter(_equal(places, path)).column("pos")
                found.append(chosen.to_numpy().astype(np.int64))
        places = np.sort(np.concatenate(found))  # np.unique hashes, and takes 20 times as long.
        is_first = np.ones(len(places), np.bool_)
        is_first[1:] = places[1:] != places[:-1]
        return places[is_first]

    def places(self, file: DataFile) -> pa.Table:
        """What the delete *file* names: columns ``file_path`` and ``pos``."""
        if file.file_path not in self._opened:
            self._opened[file.file_path] = self._read(file)
        return self._opened[file.file_path]

    def _read(self, file: DataFile) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyiceberg.manifest import FileFormat
        from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
        from pyiceberg.table.puffin import PuffinFile

        with self.table.io.new_input(file.file_path).open() as stream:
            if file.file_format is FileFormat.PARQUET:
                return pq.ParquetFile(stream).read(["file_path", "pos"], use_threads=False)
            if file.file_format is not FileFormat.PUFFIN:
                raise ConfigurationError(
                    f"the delete file {file.file_path} of {self._name} is "
                    f"{file.file_format.value}; only Parquet and deletion vectors are read here: "
                    "rewrite the data files of the table"
                )
            vectors = deletion_vectors_from_puffin_file(PuffinFile(stream.read()))
        found = [(one.referenced_data_file, one.to_vector().combine_chunks()) for one in vectors]
        kinds = pa.schema([("file_path", pa.string()), ("pos", pa.int64())])
        tables = [
            pa.table([pa.repeat(pa.scalar(path), len(at)), at.cast(pa.int64())], schema=kinds)
            for path, at in found
        ]
        return pa.concat_tables(tables) if tables else kinds.empty_table()

    @cached_property
    def _manifests(self) -> dict[str, ManifestFile]:
        if self.snapshot is None:
            return {}
        return {one.manifest_path: one for one in self.snapshot.manifests(self.table.io)}

    @property
    def _name(self) -> str:
        id_ = self.snapshot.snapshot_id if self.snapshot is not None else "none"
        return f"snapshot {id_} of the Iceberg table {'.'.join(self.table.name())}"


def changed_files(before: Rows, after: Rows) -> Iterator[ChangedFile]:
    """The changes that lead from the rows *before* to those *after*, in no order."""
    own = before.data_manifests.keys() - after.data_manifests.keys()
    new = after.data_manifests.keys() - before.data_manifests.keys()
    were = before.live([before.data_manifests[path] for path in own])
    are = after.live([after.data_manifests[path] for path in new])
    shared = after.data_manifests.keys() & before.data_manifests.keys()
    if touched := _touched(before, after) - were.keys() - are.keys():
        entries = after.live([after.data_manifests[path] for path in shared])
        for path in touched & entries.keys():
            were[path] = are[path] = entries[path]
    for path, entry in were.items():
        if path not in are:
            rows = entry.data_file.record_count - len(before.deleted(path))
            yield ChangedFile(entry.data_file, WENT, rows)
    for path, entry in are.items():
        if path not in were:
            rows = entry.data_file.record_count - len(after.deleted(path))
            yield ChangedFile(entry.data_file, CAME, rows)
            continue
        for did in (DELETED, BACK):
            if rows := len(places_of(did, path, before, after)):
                yield ChangedFile(entry.data_file, did, rows)


def places_of(did: str, path: str, before: Rows, after: Rows) -> NDArray[np.int64]:
    """The places of the rows of the data file *path* that were deleted, or are back."""
    import numpy as np

    own, new = before.deleted(path), after.deleted(path)
    more, less = (new, own) if did == DELETED else (own, new)
    return np.setdiff1d(more, less, assume_unique=True)


def _touched(before: Rows, after: Rows) -> set[str]:
    """The data files that delete files name which only one of the two has."""
    found: set[str] = set()
    for rows, others in ((before, after), (after, before)):
        for key in rows.deletes.keys() - others.deletes.keys():
            places = rows.places(rows.deletes[key].data_file)
            found.update(places.column("file_path").unique().to_pylist())
    return found


def _has_deletes(manifest: ManifestFile) -> bool:
    from pyiceberg.manifest import ManifestContent

    return manifest.content is ManifestContent.DELETES


def _may_name(file: DataFile, path: str) -> bool:
    """Whether the delete *file* may name the data file *path*, by its statistics."""
    least = (file.lower_bounds or {}).get(FILE_PATH_ID)
    most = (file.upper_bounds or {}).get(FILE_PATH_ID)
    name = path.encode()
    return (not least or least <= name) and (not most or name <= most)


def _equal(places: pa.Table, path: str) -> pa.Array:
    import pyarrow.compute as pc

    return pc.equal(places.column("file_path"), path)
