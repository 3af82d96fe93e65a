"""Lines of text files, in a folder, a bucket, or one by one: a source whose offsets are bytes.

Epochs are exact.  ``plan`` scans for newlines from the last offset, so that a slice starts at a
line, line numbers are true, and ``max_records`` is kept to the line; the price is one more
sequential read of the epoch's bytes, on the coordinator's side.  Files are read in the order of
their names, each to its end before the next.

A file only grows: what was read is never read again, and a file that shrank below its offset stops
the pipeline.  A last line without a newline is a record of a bounded source; of an unbounded one it
is left until its newline arrives, for somebody may still be writing it.  Bytes that are not UTF-8
arrive as ``\\xNN``, so no line is lost.

The text of ``*.gz`` is read decompressed, and its offsets are bytes of that text.  Such a file is
whole when it appears and never changes: its last line is a record, and growing it is an error.

A file that vanished from an unbounded source is taken as finished; its offset is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.file_set import FileSet
from sluice.connectors.gzip_text import read_text
from sluice.connectors.line_scan import FileCut, read_blocks, scan_lines, slices_of
from sluice.connectors.source import (
    Barrier,
    SourceDefaults,
    SourcePosition,
    TextDecoding,
    check_induced,
    offsets_by_partition,
)
from sluice.core.plan import PartitionOffset, Slice
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.storage.object_store import Listed

if TYPE_CHECKING:
    import pyarrow as pa

# A table is held in memory by every subtask that looks it up, and read whole for its version.
# Larger ones belong in a stream with keyed state.
MAX_TABLE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FilesSource(SourceDefaults):
    """The lines of *location*: a file, or every file below a folder.  See ``FileSet``.

    Columns: ``line`` without its line end, ``file``, relative to the folder, and ``line_number``
    from 1.  With the format ``json`` each line is an object, to be decoded by who reads the
    DataFrame: ``json_schema`` is what it holds, as Spark writes it.
    """

    location: str
    format: str = "text"
    bounded: bool = True
    endpoint_url: str | None = None
    json_schema: str | None = None

    def __post_init__(self) -> None:
        if self.format not in {"text", "json"}:
            raise ConfigurationError(
                f"files of {self.location!r} cannot be read as {self.format!r}; use 'text' and "
                "parse the lines in a transform, or 'json', or 'parquet'"
            )
        assert (self.json_schema is not None) == (self.format == "json")
        object.__setattr__(self, "location", self._files.location)

    @property
    def decoding(self) -> TextDecoding | None:
        if self.json_schema is None:
            return None
        return TextDecoding(format="json", schema=self.json_schema)

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

        listed = self._files.listed()
        read = offsets_by_partition(position)
        self._check_nothing_is_lost(read, listed)
        # A file not yet begun is in the position, too: it holds the watermark back.
        offsets = {
            name: PartitionOffset(
                partition=name, offset=0, records=0, sealed=self.bounded and file.size_bytes == 0
            )
            for name, file in listed.items()
        } | read
        sizes = self._text_sizes(listed, until)
        ends = self._ends(offsets, sizes, until)
        cuts: list[FileCut] = []
        missing = max_records
        for name, size in sizes.items():
            before = offsets[name]
            if before.sealed or before.offset == ends[name]:
                continue
            if missing == 0:
                break
            is_bounded = (self.bounded or _is_compressed(name)) and ends[name] == size
            cut = scan_lines(
                self._blocks(name, before.offset, ends[name]),
                before,
                size=ends[name],
                max_records=missing,
                bounded=is_bounded,
            )
            offsets[name] = PartitionOffset(
                partition=name,
                offset=cut.end,
                records=before.records + cut.records,
                sealed=is_bounded and cut.is_whole,
            )
            if cut.records > 0:
                cuts.append(cut)
                missing = None if missing is None else missing - cut.records
        rest = any(
            not offsets[name].sealed and offsets[name].offset != size
            for name, size in sizes.items()
        )
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

        listed = self._files.listed()
        size = sum(file.size_bytes for file in listed.values())
        if size > MAX_TABLE_BYTES:
            raise self._too_large(f"has {size} bytes")
        digest = hashlib.blake2b(digest_size=16)
        batches = []
        remaining = MAX_TABLE_BYTES
        for name, file in listed.items():
            end = None if _is_compressed(name) else file.size_bytes
            blocks = []
            for block in self._blocks(name, 0, end):
                remaining -= len(block)
                if remaining < 0:
                    raise self._too_large("has more bytes when it is decompressed")
                blocks.append(block)
            body = b"".join(blocks)
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

    def _text_sizes(
        self, listed: Mapping[str, Listed], until: Mapping[str, int] | None
    ) -> dict[str, int | None]:
        """The size of every file's text; None of a compressed one, unless a barrier lies in it."""
        sizes: dict[str, int | None] = {}
        for name, file in listed.items():
            if not _is_compressed(name):
                sizes[name] = file.size_bytes
            elif until is not None and name in until:
                sizes[name] = sum(len(block) for block in self._blocks(name, 0, None))
            else:
                sizes[name] = None
        return sizes

    def _ends(
        self,
        offsets: Mapping[str, PartitionOffset],
        sizes: Mapping[str, int | None],
        until: Mapping[str, int] | None,
    ) -> dict[str, int | None]:
        """How far each file may be read in this epoch; None is to its end."""
        if until is None:
            return dict(sizes)
        known = {}
        for name, size in sizes.items():
            first = offsets[name].offset
            known[name] = (first, first if size is None else size)
        check_induced(self.location, until, known)
        return {name: until.get(name, first) for name, (first, _) in known.items()}

    def _check_nothing_is_lost(
        self, offsets: Mapping[str, PartitionOffset], listed: Mapping[str, Listed]
    ) -> None:
        compressed = {name: file for name, file in listed.items() if _is_compressed(name)}
        begun = {name for name, offset in offsets.items() if offset.offset > 0}
        self._files.check_immutable(compressed, begun)
        for name, offset in offsets.items():
            file = listed.get(name)
            if file is None and self.bounded and not offset.sealed:
                raise ConfigurationError(
                    f"{name} of {self.location} was read to byte {offset.offset} and is gone; put "
                    "it back"
                )
            if file is None or name in compressed:
                continue
            if file.size_bytes < offset.offset:
                raise ConfigurationError(
                    f"{name} of {self.location} was read to byte {offset.offset} and has shrunk to "
                    f"{file.size_bytes} bytes; restore it, for a source file may only grow"
                )

    def _blocks(self, name: str, start: int, end: int | None) -> Iterator[bytes]:
        """Read a file's text in blocks; only that of a compressed one may be read to its end."""
        store = self._files.store_of(name)
        if _is_compressed(name):
            yield from read_text(store, name, f"{name} of {self.location}", start, end)
            return
        assert end is not None
        for block in read_blocks(store, name, start, end):
            if block is None:
                raise StoreUnavailable(
                    f"{name} of {self.location} became shorter than {end} bytes while it was read"
                )
            yield block

    def _too_large(self, how: str) -> ConfigurationError:
        return ConfigurationError(
            f"the table {self.location} {how}, more than {MAX_TABLE_BYTES}; read it as a stream "
            "into keyed state"
        )

    @property
    def _files(self) -> FileSet:
        return FileSet(self.location, self.endpoint_url)


def read_table(location: str, *, endpoint_url: str | None = None) -> tuple[str, pa.Table]:
    """Return the version and the lines of a small table that changes: an allowlist, rates."""
    return FilesSource(location, endpoint_url=endpoint_url).snapshot()


def _is_compressed(name: str) -> bool:
    return name.endswith(".gz")
