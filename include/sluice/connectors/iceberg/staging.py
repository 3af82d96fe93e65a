"""Staged files of an Iceberg sink, in the table's own location, which no snapshot names yet.

{data path}/sluice-{identity}/{checkpoint}-{subtask}-{attempt}.parquet          rows, as they stay
{data path}/sluice-{identity}/{checkpoint}-{subtask}-{attempt}-deletes.parquet  keys of deleted rows
{data path}/sluice-{identity}/{checkpoint}-99999-rewrite-{token}.parquet        what a commit kept
                                                                                of an older file
Readers of a table open what its snapshots name, so publishing writes no row a second time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.connectors.contracts.sink import Staged
from sluice.connectors.iceberg.data_files import footer, write
from sluice.core.acks import Committable
from sluice.errors import ProtocolViolation, StoreUnavailable
from sluice.protocol.checksums import Written, checksum_of
from sluice.storage.parallel import in_parallel

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

DELETES = "-deletes.parquet"
REWRITE = "99999-rewrite-"
STAGED_FILE = re.compile(r"([0-9]{20})-[0-9]{5,}-[A-Za-z0-9-]+\.parquet")
THREADS = 16  # A footer or manifest is a request or two, mostly latency.
PIECE_BYTES = 4 << 20  # Of a file that is compared, by each of the threads.


@dataclass(frozen=True, slots=True)
class Staging:
    """The staged files of the sink *identity* in *table*."""

    table: Table
    identity: str

    @property
    def folder(self) -> str:
        return f"{self.table.location_provider().data_path}/sluice-{self.identity}"

    def location(self, file: str) -> str:
        if not STAGED_FILE.fullmatch(file):
            raise ProtocolViolation(f"{file!r} is not the name of a staged file")
        return f"{self.folder}/{file}"

    def stage(self, sink: str, file: str, rows: pa.Table) -> Committable:
        """Write *rows*, whose sink calls itself *sink* in its acks."""
        written = self.write(file, rows)
        return Committable(
            sink=sink,
            file=file,
            rows=rows.num_rows,
            size_bytes=written.size_bytes,
            checksum=written.checksum,
        )

    def write(self, file: str, rows: pa.Table) -> Written:
        return write(self.table, self.location(file), rows)

    def read(self, staged: Committable, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a staged file, or only their *columns*.

        Raises ProtocolViolation when the file is missing or changed.
        """
        import pyarrow.parquet as pq

        self._checked(staged)
        with self.table.io.new_input(self.location(staged.file)).open() as stream:
            return pq.read_table(stream, columns=None if columns is None else [*columns])

    def footers(self, staged: Iterable[Committable]) -> list[pq.FileMetaData]:
        """The footers of *staged*; ProtocolViolation when a file is missing or changed."""
        return in_parallel(self._checked, staged, THREADS)

    def damage_of(self, staged: Iterable[Committable]) -> list[str]:
        """What is not there any more as it was staged, a sentence each; every file is read."""
        return [one for one in in_parallel(self._damage, staged, THREADS) if one]

    def _damage(self, staged: Committable) -> str:
        place = self.location(staged.file)
        what = f"{place}, staged for sink {staged.sink!r}, is "
        try:
            with self.table.io.new_input(place).open() as stream:
                found = checksum_of(iter(lambda: stream.read(PIECE_BYTES), b""))
        except FileNotFoundError:
            return what + "missing"
        return what + "damaged" if found != staged.checksum else ""

    def listed(self) -> list[Staged]:
        from pyarrow import fs

        filesystem, path = self._place()
        try:
            infos = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        except OSError as error:
            raise StoreUnavailable(f"the files at {self.folder} cannot be listed") from error
        return [
            Staged(
                file=info.base_name,
                checkpoint_id=int(name[1]),
                size_bytes=info.size,
                modified_ms=info.mtime_ns // 1_000_000,
            )
            for info in infos
            if (name := STAGED_FILE.fullmatch(info.base_name)) is not None
        ]

    def discard(self, files: Iterable[str]) -> None:
        """Delete *files*; missing ones are no error."""
        in_parallel(self._delete, files, THREADS)

    def named(self) -> set[str]:
        """The files that some snapshot names, on any branch.

        Reads each manifest of the table's history once.
        """
        lists = in_parallel(self._manifests, self.table.metadata.snapshots, THREADS)
        manifests = {one.manifest_path: one for found in lists for one in found}
        names = in_parallel(self._names, manifests.values(), THREADS)
        return {name for found in names for name in found}

    def _manifests(self, snapshot: Snapshot) -> list[Any]:
        return snapshot.manifests(self.table.io)

    def _names(self, manifest: Any) -> list[str]:  # noqa: ANN401 - pyiceberg's ManifestFile
        below = f"{self.folder}/"
        paths = (
            entry.data_file.file_path for entry in manifest.fetch_manifest_entry(self.table.io)
        )
        return [path.removeprefix(below) for path in paths if path.startswith(below)]

    def _checked(self, staged: Committable) -> pq.FileMetaData:
        place = self.location(staged.file)
        try:
            found = footer(self.table.io, place)
        except FileNotFoundError as error:
            raise ProtocolViolation(f"{place} was committed and is missing") from error
        if found.num_rows != staged.rows:
            raise ProtocolViolation(
                f"{place} has {found.num_rows} rows where {staged.rows} were committed"
            )
        return found

    def _delete(self, file: str) -> None:
        filesystem, folder = self._place()
        try:
            filesystem.delete_file(f"{folder}/{file}")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreUnavailable(f"{self.folder}/{file} cannot be deleted") from error

    def _place(self) -> tuple[Any, str]:
        """pyarrow's file system, and the folder's path in it."""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        io = self.table.io
        assert isinstance(io, PyArrowFileIO)
        scheme, netloc, path = io.parse_location(self.folder, io.properties)
        return io.fs_by_scheme(scheme, netloc), path


def file_name(checkpoint_id: int, rest: str) -> str:
    return f"{checkpoint_id:020d}-{rest}"


def checkpoint_of(file: str) -> int:
    found = STAGED_FILE.fullmatch(file)
    assert found is not None, f"not a staged file's name: {file!r}"
    return int(found[1])


def of_checkpoint(listed: Iterable[Staged], checkpoint_id: int) -> Iterator[str]:
    return (one.file for one in listed if one.checkpoint_id == checkpoint_id)
