"""Lines of text files, in a folder, a bucket, or one by one: a source whose offsets are bytes.

Epochs are exact.  ``plan`` scans for newlines from the last offset, so that a slice starts at a
line, line numbers are true, and ``max_records`` is kept to the line; the price is one more
sequential read of the epoch's bytes, on the coordinator's side.  Files are read in the order of
their names, each to its end before the next.

A file only grows: what was read is never read again, and a file that shrank below its offset stops
the pipeline.  A last line without a newline is a record of a bounded source; of an unbounded one it
is left until its newline arrives, for somebody may still be writing it.  Bytes that are not UTF-8
arrive as ``\\xNN``, so no line is lost.

As Flink and Spark do, a folder's files and folders whose names start with ``.`` or ``_`` are
ignored.  A file that vanished from an unbounded source is taken as finished; its offset is kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.connectors.line_scan import FileCut, read_blocks, scan_lines, slices_of
from sluice.connectors.source import (
    Barrier,
    SourcePosition,
    check_induced,
    offsets_by_partition,
)
from sluice.core.plan import PartitionOffset, Slice
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.storage.object_store import ObjectStore
from sluice.storage.open import StoreLocation, open_store

if TYPE_CHECKING:
    import pyarrow as pa

# A table is held in memory by every subtask that looks it up, and read whole for its version.
# Larger ones belong in a stream with keyed state.
MAX_TABLE_BYTES = 64 * 1024 * 1024

# How Python shows a byte of a file's name that is not UTF-8; JSON cannot carry it.
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class FilesSource:
    """The lines of *location*: a file, or every file below a folder.

    ``location`` is a path of this machine, resolved when the source is built, or a ``file:///``,
    ``s3://`` or ``memory://`` URI.  Such stores have no empty folders; end the URI of one that may
    have no file yet with a slash.  Columns: ``line`` without its line end, ``file``, relative to
    the folder, and ``line_number`` from 1.
    """

    location: str
    format: str = "text"
    bounded: bool = True
    endpoint_url: str | None = None

    def __post_init__(self) -> None:
        if self.format != "text":
            raise ConfigurationError(
                f"files of {self.location!r} cannot be read as {self.format!r}; use 'text' and "
                "parse the lines in a transform"
            )
        if "://" not in self.location:
            local = f"file://{Path(self.location).expanduser().resolve()}"
            object.__setattr__(self, "location", local)
        self._store_location(self.location)  # Refuses a misspelt URI.

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(
            [("line", pa.string()), ("file", pa.string()), ("line_number", pa.int64())]
        )

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """Cut the next epoch; reads its bytes once.  See ``Source.plan``; offsets are bytes."""
        assert max_records is None or max_records > 0
        assert parallelism > 0

        sizes = self._sizes()
        read = offsets_by_partition(position)
        self._check_nothing_is_lost(read, sizes)
        # A file not yet begun is in the position, too: it holds the watermark back.
        offsets = {
            name: PartitionOffset(
                partition=name, offset=0, records=0, sealed=self.bounded and size == 0
            )
            for name, size in sizes.items()
        } | read
        ends = dict(sizes)
        if until is not None:
            known = {name: (offsets[name].offset, size) for name, size in sizes.items()}
            check_induced(self.location, until, known)
            ends = {name: until.get(name, first) for name, (first, _) in known.items()}
        cuts: list[FileCut] = []
        missing = max_records
        for name, end in ends.items():
            before = offsets[name]
            if before.sealed or before.offset == end:
                continue
            if missing == 0:
                break
            cut = scan_lines(
                self._blocks(name, before.offset, end),
                before,
                size=end,
                max_records=missing,
                bounded=self.bounded and end == sizes[name],
            )
            if cut.records == 0:
                continue
            cuts.append(cut)
            missing = None if missing is None else missing - cut.records
            offsets[name] = PartitionOffset(
                partition=name,
                offset=cut.end,
                records=before.records + cut.records,
                sealed=self.bounded and cut.end == sizes[name],
            )
        rest = any(offsets[name].offset < size for name, size in sizes.items())
        return Barrier(
            position=tuple(offsets[name] for name in sorted(offsets)),
            slices=slices_of(cuts, parallelism),
            exhausted=self.bounded and not rest,
            is_backlog=missing == 0 and rest,
        )

    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the lines of one slice.  See ``Source.read``."""
        pending = b""
        records = 0
        for block in self._blocks(piece.partition, piece.start, piece.end):
            # Whole lines only; the rest waits for the next block.
            whole, newline, rest = (pending + block).rpartition(b"\n")
            pending = rest
            if newline:
                batch = self._lines(whole, piece.partition, piece.first_record + records)
                records += batch.num_rows
                yield batch
        if pending:
            records += 1
            yield self._lines(pending, piece.partition, piece.first_record + records - 1)
        if records != piece.records:
            raise ConfigurationError(
                f"{piece.partition} of {self.location} has {records} lines between bytes "
                f"{piece.start} and {piece.end} where it had {piece.records}; it was changed: "
                "restore it, for a source file may only grow"
            )

    def snapshot(self) -> tuple[str, pa.Table]:
        """Return all lines of all files as they are now, and a version: the hash of the bytes.

        Blank lines and comments are lines, too.

        Raises:
            ConfigurationError: there are more than ``MAX_TABLE_BYTES``.
        """
        import pyarrow as pa

        sizes = self._sizes()
        if sum(sizes.values()) > MAX_TABLE_BYTES:
            raise ConfigurationError(
                f"the table {self.location} has {sum(sizes.values())} bytes, more than "
                f"{MAX_TABLE_BYTES}; read it as a stream into keyed state"
            )
        digest = hashlib.blake2b(digest_size=16)
        batches = []
        for name, size in sizes.items():
            body = b"".join(self._blocks(name, 0, size))
            digest.update(f"{name}\0{len(body)}\0".encode())
            digest.update(body)
            if body:
                batches.append(self._lines(body.removesuffix(b"\n"), name, 0))
        return digest.hexdigest(), pa.Table.from_batches(batches, schema=self.schema())

    def _lines(self, whole: bytes, name: str, records_before: int) -> pa.RecordBatch:
        """Split *whole* lines, of which the last has lost its newline."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        text = whole.decode("utf-8", "backslashreplace")
        lines = pc.split_pattern(pa.array([text], pa.string()), "\n").flatten()
        if "\r" in text:
            without_last = pc.utf8_slice_codeunits(lines, 0, -1)
            lines = pc.if_else(pc.ends_with(lines, "\r"), without_last, lines)
        first = records_before + 1
        columns = [
            lines,
            pa.repeat(pa.scalar(name, pa.string()), len(lines)),
            pa.array(np.arange(first, first + len(lines), dtype=np.int64)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema())

    def _sizes(self) -> dict[str, int]:
        """The size of every file, in the order of their names."""
        parent, name = self._as_file()
        if parent is not None:
            first = next(parent.list(name), None)
            if first is not None and first.key == name:
                return {name: first.size_bytes}
        found = list(self._as_folder().list(""))
        if not found and not self._may_be_empty():
            raise ConfigurationError(
                f"there is no file and no folder at {self.location}; create it or correct the "
                "location (a folder in a bucket that has no file yet is written with a slash at "
                "its end)"
            )
        visible = {
            listed.key: listed.size_bytes
            for listed in found
            if not any(part.startswith((".", "_")) for part in listed.key.split("/"))
        }
        if unreadable := [key for key in visible if SURROGATE.search(key)]:
            raise ConfigurationError(
                f"the name of {unreadable[0]!a} below {self.location} is not UTF-8; rename the file"
            )
        return visible

    def _may_be_empty(self) -> bool:
        scheme, _, path = self.location.partition("://")
        return Path(path).is_dir() if scheme == "file" else self.location.endswith("/")

    def _check_nothing_is_lost(
        self, offsets: dict[str, PartitionOffset], sizes: dict[str, int]
    ) -> None:
        for name, offset in offsets.items():
            size = sizes.get(name)
            if size is None and self.bounded and not offset.sealed:
                raise ConfigurationError(
                    f"{name} of {self.location} was read to byte {offset.offset} and is gone; put "
                    "it back"
                )
            if size is not None and size < offset.offset:
                raise ConfigurationError(
                    f"{name} of {self.location} was read to byte {offset.offset} and has shrunk to "
                    f"{size} bytes; restore it, for a source file may only grow"
                )

    def _blocks(self, name: str, start: int, end: int) -> Iterator[bytes]:
        """Read a file's bytes in blocks; a slice does not say whether it is the one file."""
        store = self._as_folder()
        parent, own_name = self._as_file()
        if parent is not None and name == own_name and store.get_range(name, start, start) is None:
            store = parent
        for block in read_blocks(store, name, start, end):
            if block is None:
                raise StoreUnavailable(
                    f"{name} of {self.location} became shorter than {end} bytes while it was read"
                )
            yield block

    def _as_folder(self) -> ObjectStore:
        return open_store(self._store_location(self.location))

    def _as_file(self) -> tuple[ObjectStore | None, str]:
        """The store around the one file that *location* may be, and that file's name."""
        root, _, name = self.location.removesuffix("/").rpartition("/")
        if root.endswith(":/") or self.location.endswith("/"):
            return None, ""  # A bucket, or said to be a folder.
        return open_store(self._store_location(root if root != "file://" else "file:///")), name

    def _store_location(self, root: str) -> StoreLocation:
        return StoreLocation(root=root, endpoint_url=self.endpoint_url)


def read_table(location: str, *, endpoint_url: str | None = None) -> tuple[str, pa.Table]:
    """Return the version and the lines of a small table that changes: an allowlist, rates."""
    return FilesSource(location, endpoint_url=endpoint_url).snapshot()
