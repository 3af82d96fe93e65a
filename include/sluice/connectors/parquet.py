"""Rows of Parquet files, in a folder, a bucket, or one by one: a source whose offsets are rows.

Each file is a partition, read in the order of the files' names, each to its end before the next.
``plan`` reads footers only, and cuts at any row.  All files must have the same columns in the same
order.  Empty files and new ones are fine.

A file is whole when it appears and never changes: one whose rows are not as many as they were
stops the pipeline.  Files that were read to their end are looked at again only on this machine's
disks, where it costs nothing.  A file that vanished from an unbounded source is taken as finished.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.file_set import FileSet
from sluice.connectors.parquet_file import Footer, ParquetFile
from sluice.connectors.source import (
    Barrier,
    SourceDefaults,
    SourcePosition,
    check_induced,
    offsets_by_partition,
)
from sluice.core.plan import PartitionOffset, Slice
from sluice.errors import ConfigurationError
from sluice.storage.object_store import Listed

if TYPE_CHECKING:
    import pyarrow as pa

FOOTER_THREADS = 16  # A footer is two small requests; a reader waits for most of each.

# A cut moves to a row group's end if that changes a slice by at most this part of it: a group cut
# in two is decoded twice.
NEAR = 8


@dataclass(frozen=True, slots=True)
class ParquetSource(SourceDefaults):
    """The rows of *location*: a file, or every file below a folder.  See ``FileSet``."""

    location: str
    bounded: bool = True
    endpoint_url: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "location", self._files.location)

    def schema(self) -> pa.Schema:
        """See ``parquet_file`` for the types.

        Raises:
            ConfigurationError: there is no file yet.
        """
        listed = self._files.listed()
        if not listed:
            raise ConfigurationError(
                f"there is no Parquet file at {self.location} yet, so its columns are unknown; put "
                "one there, an empty one will do"
            )
        return self._file(*next(iter(listed.items()))).footer().schema

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """Cut the next epoch; reads footers.  See ``Source.plan``; offsets are rows."""
        assert max_records is None or max_records > 0
        assert parallelism > 0

        listed = self._files.listed()
        read = offsets_by_partition(position)
        footers = self._footers(listed, read)
        self._check_nothing_is_lost(read, listed, footers)
        offsets = {
            name: PartitionOffset(
                partition=name, offset=0, records=0, sealed=footers[name].rows == 0
            )
            for name in listed
            if name not in read
        } | read
        if until is not None:
            known = {
                name: (offset.offset, footers[name].rows if name in footers else offset.offset)
                for name, offset in offsets.items()
            }
            check_induced(self.location, until, known)
        parts: list[tuple[str, int, int]] = []
        missing = max_records
        for name in listed:
            before = offsets[name]
            if before.sealed:
                continue
            rows = end = footers[name].rows
            if until is not None:
                end = until.get(name, before.offset)
            if missing is not None:
                end = min(end, before.offset + missing)
                missing -= end - before.offset
            if end > before.offset:
                parts.append((name, before.offset, end))
            offsets[name] = PartitionOffset(
                partition=name, offset=end, records=end, sealed=end == rows
            )
        rest = any(not offsets[name].sealed for name in listed)
        longest = max(1, -(-sum(end - start for _, start, end in parts) // parallelism))
        return Barrier(
            position=tuple(offsets[name] for name in sorted(offsets)),
            slices=tuple(
                Slice(partition=name, start=a, end=b, first_record=a, records=b - a)
                for name, start, end in parts
                for a, b in _ranges(start, end, longest, footers[name].group_ends)
            ),
            exhausted=self.bounded and not rest,
            is_backlog=missing == 0 and rest,
        )

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one slice.  See ``Source.read``.

        Of *columns* alone, in the order of the file, if they are named; ``a.b`` is the field b of
        the column a, which then is a struct of no others.
        """
        listed = self._files.find(piece.partition)
        if listed is None:
            raise ConfigurationError(f"{piece.partition} of {self.location} is gone; put it back")
        file = self._file(piece.partition, listed)
        if file.footer().rows < piece.end:
            raise ConfigurationError(
                f"{piece.partition} of {self.location} has {file.footer().rows} rows where it had "
                f"{piece.end} or more; restore it, for a Parquet file may not change"
            )
        yield from file.rows(piece.start, piece.end, columns)

    def local_path(self, partition: str) -> str | None:
        """Where a partition's file is on this machine, or None: for who reads it with the JVM."""
        path = self._files.local_path(partition)
        return None if path is None else str(path)

    def local_paths(self, slices: Sequence[Slice]) -> list[str] | None:
        """The files of *slices*, each once, in their order; None when not all are on disks here."""
        partitions = dict.fromkeys(piece.partition for piece in slices)
        paths = [self.local_path(partition) for partition in partitions]
        known = [path for path in paths if path is not None]
        return known if len(known) == len(paths) else None

    def _footers(
        self, listed: Mapping[str, Listed], read: Mapping[str, PartitionOffset]
    ) -> dict[str, Footer]:
        """The footers of the first file, of what is still to be read, and of all files on disks."""
        wanted = {
            name: self._file(name, file)
            for index, (name, file) in enumerate(listed.items())
            if index == 0
            or name not in read
            or not read[name].sealed
            or self._files.local_path(name) is not None
        }
        with ThreadPoolExecutor(FOOTER_THREADS) as pool:
            footers = dict(zip(wanted, pool.map(ParquetFile.footer, wanted.values()), strict=True))
        first = next(iter(footers), None)
        for name, footer in footers.items():
            assert first is not None
            self._check_columns(name, footer.schema, first, footers[first].schema)
        return footers

    def _check_columns(self, name: str, schema: pa.Schema, first: str, expected: pa.Schema) -> None:
        for column in dict.fromkeys([*expected.names, *schema.names]):
            found, wanted = (
                one.field(column).type if column in one.names else "no such column"
                for one in (schema, expected)
            )
            if found != wanted:
                raise ConfigurationError(
                    f"column {column!r} of {name} is {found}, and of {first} {wanted}; all files "
                    f"of {self.location} need the same columns: rewrite one of them"
                )
        for found, wanted in zip(schema.names, expected.names, strict=True):
            if found != wanted:
                raise ConfigurationError(
                    f"column {found!r} of {name} is where {first} has {wanted!r}; all files of "
                    f"{self.location} need the same order of columns: rewrite one of them"
                )

    def _check_nothing_is_lost(
        self,
        read: Mapping[str, PartitionOffset],
        listed: Mapping[str, Listed],
        footers: Mapping[str, Footer],
    ) -> None:
        self._files.check_immutable(listed, {name for name in read if read[name].offset > 0})
        for name, offset in read.items():
            if name not in listed and self.bounded and not offset.sealed:
                raise ConfigurationError(
                    f"{name} of {self.location} was read to row {offset.offset} and is gone; put "
                    "it back"
                )
            rows = footers[name].rows if name in footers else offset.offset
            if rows < offset.offset or (offset.sealed and rows != offset.offset):
                raise ConfigurationError(
                    f"{name} of {self.location} was read to row {offset.offset} and has {rows} "
                    "rows now; restore it, and write new rows to a new file: a Parquet file may "
                    "not change"
                )

    def _file(self, name: str, listed: Listed) -> ParquetFile:
        return ParquetFile(self._files, name, listed.size_bytes, listed.version)

    @property
    def _files(self) -> FileSet:
        return FileSet(self.location, self.endpoint_url)


def _ranges(
    start: int, end: int, longest: int, group_ends: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Cut rows into nearly equal ranges of about *longest*, or fewer."""
    pieces = -(-(end - start) // longest)
    first = start
    for piece in range(1, pieces + 1):
        cut = start + (end - start) * piece // pieces
        if piece < pieces:
            at = bisect_left(group_ends, cut)
            for group_end in group_ends[max(at - 1, 0) : at + 1]:
                if abs(group_end - cut) <= longest // NEAR and first < group_end < end:
                    cut = group_end
                    break
        yield first, cut
        first = cut
