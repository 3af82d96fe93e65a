"""The base of sources of Parquet and Avro files, whose offsets are rows.

A footer holds the number of rows, and any range of them can be read: ``plan`` reads footers only,
and cuts at any row.  A file is complete when it appears and never changes; all files have the same
columns in the same order.  Empty files are allowed.  A bounded source refuses an incomplete file,
an unbounded one leaves it for a later epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from sluice.connectors.columns import unreadable_columns
from sluice.connectors.files.file_set import FileSet
from sluice.connectors.files.source import (
    HEAD_RECORDS,
    FileReadLimit,
    FileSource,
    NotWholeError,
    Part,
    is_silent,
    leave_for_later,
)
from sluice.core.plan import PartitionOffset, Slice
from sluice.declaration.places import WEIGHT
from sluice.errors import ConfigurationError
from sluice.store.object_store import Listed

if TYPE_CHECKING:
    import pyarrow as pa

FOOTER_THREADS = 16  # In parallel: a footer is two small requests, mostly latency.
PREFETCHED_FOOTERS = 4 * FOOTER_THREADS
FEW_FILES = 8  # On a disk of this machine their footers are read before threads have started.

# A cut moves to a row group's end that is at most 1/NEAR of a slice away.  A group with a cut in it
# is decoded by both slices; the second one decodes what is before the cut in vain.
NEAR = 2


@dataclass(frozen=True, slots=True)
class Footer:
    """The columns of a file, and the number of rows up to each end of a part of it.

    A part is decoded whole: a row group of Parquet, a block of Avro.
    """

    schema: pa.Schema
    group_ends: Sequence[int]

    @property
    def rows(self) -> int:
        return self.group_ends[-1] if len(self.group_ends) else 0


@dataclass(frozen=True, slots=True)
class WholeFile(ABC):
    """The file *name* of *files*."""

    files: FileSet
    name: str
    size_bytes: int
    version: str  # The ``Listed.version`` of these bytes.

    @property
    def what(self) -> str:
        return f"{self.name} of {self.files.location}"

    @abstractmethod
    def footer(self) -> Footer:
        """The footer, read at most once per process.

        Raises:
            NotWholeError: the file ends too early.
            ConfigurationError: it is of another format, or its columns cannot be mapped.
        """

    @abstractmethod
    def rows(
        self, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows from *start* to *end*, fewer where the file has fewer.

        Row groups, blocks and columns outside are not decoded.
        """


@dataclass(frozen=True, slots=True)
class RowCut:
    partition: str
    start: int
    end: int
    group_ends: Sequence[int]
    version: str


@dataclass(frozen=True, slots=True)
class WholeFileSource(FileSource[RowCut]):
    """A source of files with footers; see ``FileSource``."""

    _format_name: ClassVar[str]  # In messages.
    _kind: ClassVar[type[WholeFile]]

    def _file(self, listed: Listed) -> WholeFile:
        return self._kind(self._files, listed.key, listed.size_bytes, listed.version)

    def schema(self) -> pa.Schema:
        """The columns of the first complete file, and of its folders.

        Raises:
            ConfigurationError: there is no complete file yet.
        """
        incomplete = ""
        for file in self._files.listed():
            try:
                schema = self._file(file).footer().schema
                return self.folder_columns.added_to_schema(self.with_weight(schema))
            except NotWholeError:
                if self.bounded or is_silent(file, self.give_up_after_s):
                    raise
                incomplete = f" ({file.key} ends too early)"
        raise ConfigurationError(
            f"there is no complete {self._format_name} file at {self.location} yet{incomplete}, so "
            "its columns are unknown; put one there, an empty one will do"
        )

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one slice.  See ``Source.read``.

        Only *columns*, in the order of the file, if they are given; ``a.b`` is the field b of
        the column a, which then is a struct of no others.  Columns of folders come last.
        """
        folders = self.folder_columns
        ours = {*folders.names, WEIGHT}
        own = None if columns is None else [name for name in columns if name not in ours]
        with self._opened(piece) as file:
            if own == []:  # The rows have to be counted.
                schema = file.footer().schema
                refused = unreadable_columns(schema)
                own = [name for name in schema.names if name not in refused][:1]
            rows = piece.start
            for batch in file.rows(piece.start, piece.end, own):
                rows += batch.num_rows
                weighed = self.weighed(batch, piece, columns)
                yield folders.added_to(weighed, piece.partition, self.location, columns)
            if rows != piece.end:
                raise ConfigurationError(
                    f"{piece.partition} of {self.location} has {rows} rows where it had "
                    f"{piece.end} or more; restore it, for a file of this kind may not change"
                )

    @contextmanager
    def _opened(self, piece: Slice) -> Iterator[WholeFile]:
        """The file of *piece*, or its copy, as it was planned."""
        copy = self._copy_of(piece)
        if copy is not None:
            listed = Listed(
                key=copy.key, size_bytes=copy.size_bytes, modified_ms=0, version=copy.checksum
            )
            files = FileSet(copy.place.root, copy.place.endpoint_url)
            yield replace(self._file(listed), files=files)
            return
        identity = self._identity(self._identity(piece.partition).name_now(piece))
        file = self._file(identity.found(piece))
        with identity.unchanged(piece):
            yield file

    def _cut_again(self, read: PartitionOffset) -> RowCut:
        return RowCut(read.partition, 0, read.offset, (), read.version)

    def _head(self, file: Listed) -> Slice | None:
        try:
            records = min(self._file(file).footer().rows, HEAD_RECORDS)
        except NotWholeError:
            return None
        return _slice(file.key, 0, records, self._marked(file)) if records else None

    def _prepared(
        self,
        files: Iterable[Listed],
        read: Mapping[str, PartitionOffset],
        is_full: Callable[[], bool],
    ) -> Iterator[Listed]:
        """Read the footers of many files at once, into the process's cache; check their columns."""
        files = iter(files)
        expected: tuple[str, pa.Schema] | None = None
        with ThreadPoolExecutor(FOOTER_THREADS) as pool:
            # An epoch of a long backlog does not need the footers of files behind it.
            while not is_full() and (ahead := list(islice(files, PREFETCHED_FOOTERS))):
                wanted = [file for file in ahead if self._is_wanted(read.get(file.key))]
                if wanted and expected is None and ahead[0] is not wanted[0]:
                    wanted.insert(0, ahead[0])
                is_quick = len(wanted) <= FEW_FILES and self._files.is_local
                footers = (map if is_quick else pool.map)(self._cached_footer, wanted)
                for file, footer in zip(wanted, footers, strict=True):
                    if footer is not None:
                        expected = expected or (file.key, footer.schema)
                        self._check_columns(file.key, footer.schema, *expected)
                yield from ahead
        yield from files

    def _cached_footer(self, file: Listed) -> Footer | None:
        try:
            footer = self._file(file).footer()
        except NotWholeError:
            return None  # When the file's turn comes, it is an error, or the file waits.
        self._marked(file)
        return footer

    def _part(self, before: PartitionOffset, file: Listed, asked: FileReadLimit) -> Part[RowCut]:
        if not self._is_wanted(before):
            return Part(after=before, end=before.offset)
        if asked.most == 0 and asked.until is None:
            return Part(after=before, end=before.offset, has_rest=True)
        try:
            footer = self._file(file).footer()
        except NotWholeError as error:
            if self.bounded or before.offset > 0:
                raise
            leave_for_later(file, error, self.give_up_after_s)
            return Part(after=before)
        self._check_rows(before, footer.rows)
        end = footer.rows if asked.until is None else min(asked.until, footer.rows)
        if asked.most is not None:
            end = min(end, before.offset + asked.most)
        end = max(end, before.offset)
        is_begun = end > 0 or footer.rows == 0
        was_begun = before.offset > 0 or before.sealed
        version = (before.version if was_begun else "") or (self._marked(file) if is_begun else "")
        after = replace(before, offset=end, records=end, sealed=end == footer.rows, version=version)
        records = end - before.offset
        return Part(
            after=after,
            cut=RowCut(file.key, before.offset, end, footer.group_ends, version)
            if records
            else None,
            records=records,
            end=footer.rows,
            has_rest=not after.sealed,
        )

    def _slices(self, cuts: list[RowCut], parallelism: int) -> tuple[Slice, ...]:
        longest = max(1, -(-sum(cut.end - cut.start for cut in cuts) // parallelism))
        return tuple(
            _slice(cut.partition, a, b, cut.version)
            for cut in cuts
            for a, b in _ranges(cut.start, cut.end, longest, cut.group_ends)
        )

    def _is_wanted(self, before: PartitionOffset | None) -> bool:
        """Whether a file has to be opened: it is new or unfinished, or its position has no mark."""
        return before is None or not before.sealed or not before.version

    def _check_rows(self, before: PartitionOffset, rows: int) -> None:
        if rows < before.offset or (before.sealed and rows != before.offset):
            raise ConfigurationError(
                f"{before.partition} of {self.location} was read to row {before.offset} and has "
                f"{rows} rows now; restore it, and write new rows to a new file: a file of this "
                "kind may not change"
            )

    def _check_columns(self, name: str, schema: pa.Schema, first: str, expected: pa.Schema) -> None:
        if schema == expected:
            return
        # Refused where it is read; a column of nulls has no type in one file, and one in the next.
        is_refused = unreadable_columns(schema) | unreadable_columns(expected)
        for column in dict.fromkeys([*expected.names, *schema.names]):
            found, wanted = (
                each.field(column).type if column in each.names else "no such column"
                for each in (schema, expected)
            )
            is_there = column in schema.names and column in expected.names
            if found != wanted and not (column in is_refused and is_there):
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


def _slice(partition: str, start: int, end: int, version: str) -> Slice:
    return Slice(
        partition=partition,
        start=start,
        end=end,
        first_record=start,
        records=end - start,
        version=version,
    )


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
