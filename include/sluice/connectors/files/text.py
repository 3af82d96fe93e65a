"""Lines of text files, in a folder, a bucket, or one by one: a source whose offsets are bytes.

Epochs are exact.  ``plan`` scans for newlines from the last offset, so that a slice starts at a
line, line numbers are true, and ``max_records`` is kept to the line; the price is one more
sequential read of the epoch's bytes, on the coordinator's side.

A file only grows: what was read is never read again, and a file that shrank below its offset, or
has other bytes before it, stops the pipeline, unless it was rotated (see ``FileSource``).  A last
line without a newline is a record of a bounded source; an unbounded one leaves it until its newline
arrives, as it may still be incomplete, or, where files are ordered, until the next file exists.
Bytes that are not UTF-8 are read as ``\\xNN``, so no line is lost.

The text of a file whose name says that it is compressed is read decompressed, and its offsets are
bytes of that text (see ``encodings``).  Such a file never changes: its last line is a record, and
growing it is an error.  An unbounded source leaves one that is not whole yet for a later epoch.

The header of a CSV file has to name the columns that the source declares.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from sluice.connectors.files.encodings import (
    BYTE_ORDER_MARK,
    checked_text,
    is_compressed,
    read_text,
)
from sluice.connectors.files.file_set import HEAD_BYTES, ContentMark, mark_of, tail_bytes
from sluice.connectors.files.folders import FolderColumns
from sluice.connectors.files.lines import (
    MAX_FIRST_LINE_BYTES,
    FileCut,
    RowsOf,
    RowsT,
    ScannedBlocks,
    lines_in,
    lines_of,
    lines_schema,
    read_blocks,
    scan_lines,
    slices_of,
    unix_lines,
    whole_lines,
)
from sluice.connectors.files.source import (
    HEAD_RECORDS,
    FileReadLimit,
    FileSource,
    NotWholeError,
    Part,
    is_silent,
    leave_for_later,
)
from sluice.connectors.plain_lines import PlainLines, plain_lines
from sluice.core.plan import PartitionOffset, Slice
from sluice.declaration.column_types import row_schema
from sluice.declaration.places import (
    WEIGHT,
    Barrier,
    Source,
    SourceDefaults,
    SourcePosition,
    TextDecoding,
)
from sluice.errors import ConfigurationError
from sluice.store.object_store import Listed
from sluice.store.open import open_store

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_BYTES = 64 * 1024
LINE_FORMATS = ("text", "json", "csv")


@dataclass(frozen=True, slots=True)
class FilesSource(FileSource[FileCut]):
    """The lines of *location*: a file, or every file below a folder.  See ``FileSource``.

    Columns: ``line`` without its line end, ``file``, relative to the folder, and ``line_number``
    from 1.  With the formats ``json`` and ``csv`` Spark decodes the lines, as ``decoding`` says.
    """

    format: str = "text"
    text_decoding: TextDecoding | None = None

    def __post_init__(self) -> None:
        FileSource.__post_init__(self)
        if self.format not in LINE_FORMATS:
            raise ConfigurationError(
                f"files of {self.location!r} cannot be read as {self.format!r}; use 'text' and "
                "parse the lines in a transform, or 'json', 'csv', 'parquet' or 'avro'"
            )
        decodes = self.text_decoding.format if self.text_decoding is not None else "text"
        assert decodes == self.format

    @property
    def decoding(self) -> TextDecoding | None:
        if self.text_decoding is None:
            return None
        how = with_folders(self.text_decoding, self.folder_columns, f"Files({self.location!r})")
        return replace(how, keeps=(*how.keeps, WEIGHT)) if self.keeps_copies else how

    def schema(self) -> pa.Schema:
        return self.folder_columns.added_to_schema(self.with_weight(lines_schema()))

    def read(
        self,
        piece: Slice,
        columns: Sequence[str] | None = None,  # noqa: ARG002 - a line is read as a whole
    ) -> Iterator[pa.RecordBatch]:
        """Yield the lines of one slice.  See ``Source.read``."""
        folders = self.folder_columns
        for rows in self.read_as(lines_of, piece):
            yield folders.added_to(self.weighed(rows, piece), piece.partition, self.location)

    def decoded(self) -> Source | None:
        """See ``Source``; lines of JSON and CSV are decoded as far as ``plain_lines`` goes."""
        how = self.decoding
        if how is None:
            return self
        plain = plain_lines(how)
        return None if plain is None else PlainLinesSource(self, plain, how.has_header)

    def read_as(self, lines: RowsOf[RowsT], piece: Slice) -> Iterator[RowsT]:
        """Yield what *lines* makes of the slice's whole lines, a block at a time."""
        found = 0
        with self._blocks_of(piece) as blocks:
            for whole in whole_lines(blocks):
                rows, count = lines(whole, piece.partition, piece.first_record + found)
                found += count
                yield rows
            if found != piece.records:
                raise ConfigurationError(
                    f"{piece.partition} of {self.location} has {found} lines between bytes "
                    f"{piece.start} and {piece.end} where it had {piece.records}; it was changed: "
                    "restore it, for a source file may only grow"
                )

    @contextmanager
    def _blocks_of(self, piece: Slice) -> Iterator[Iterator[bytes]]:
        """The text of *piece*, of its file or the copy of that, as it was planned."""
        copy = self._copy_of(piece)
        if copy is not None:
            store, is_packed = open_store(copy.place), is_compressed(piece.partition)
            read = read_text if is_packed else read_blocks
            what = f"the copy of {piece.partition} of {self.location}"
            yield read(store, copy.key, what, piece.start, piece.end)
            return
        name = self._identity(piece.partition).name_now(piece)
        with self._identity(name).unchanged(piece):
            yield self._blocks(name, piece.start, piece.end)

    def whole(self, max_bytes: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """See ``Source``; the last line of a file is there without its newline, too."""
        listed = list(self._files.listed())
        folders = self.with_folders(file.key for file in listed).folder_columns
        size = sum(file.size_bytes for file in listed)
        if size > max_bytes:
            raise self._too_large(f"has {size} bytes", max_bytes)
        remaining = max_bytes
        for file in listed:
            end = None if is_compressed(file.key) else file.size_bytes
            blocks = []
            for block in self._text(file.key, 0, end):
                remaining -= len(block)
                if remaining < 0:
                    raise self._too_large("has more bytes when it is decompressed", max_bytes)
                blocks.append(block)
            body = b"".join(blocks)
            if body not in {b"", BYTE_ORDER_MARK}:
                decoding = self.text_decoding
                if decoding is not None and decoding.has_header:
                    first, _, _ = body.partition(b"\n")
                    check_header(first, decoding, f"{file.key} of {self.location}")
                lines, _ = lines_of(body.removesuffix(b"\n"), file.key, 0)
                yield file.key, folders.added_to(lines, file.key, self.location)

    def _head(self, file: Listed) -> Slice | None:
        end, is_all = None, False
        if not is_compressed(file.key):
            end = min(file.size_bytes, FIRST_BYTES)
            is_all = self.bounded and end == file.size_bytes
        blocks = islice(self._text(file.key, 0, end), 1)
        start = PartitionOffset(partition=file.key, offset=0, records=0)
        try:
            cut = scan_lines(blocks, start, size=end, max_records=HEAD_RECORDS, bounded=is_all)
        except NotWholeError:
            return None
        if not cut.records:
            return None
        grows = self._may_grow(file.key)
        version = self._mark_at(cut.end, file) if grows else self._marked(file)
        return Slice(
            partition=file.key,
            start=0,
            end=cut.end,
            first_record=0,
            records=cut.records,
            version=version,
        )

    def _may_grow(self, name: str) -> bool:
        return not self.keeps_copies and not is_compressed(name)

    def _place(self, offset: PartitionOffset) -> str:
        return f"byte {offset.offset}"

    def _cut_again(self, read: PartitionOffset) -> FileCut:
        return FileCut(
            partition=read.partition,
            start=0,
            end=read.offset,
            first_record=0,
            records=read.records,
            marks=[],
            is_whole=True,
            version=read.version,
        )

    def _slices(self, cuts: list[FileCut], parallelism: int) -> tuple[Slice, ...]:
        return slices_of(cuts, parallelism)

    def _part(self, before: PartitionOffset, file: Listed, asked: FileReadLimit) -> Part[FileCut]:
        if is_compressed(file.key):
            return self._part_of_compressed(before, file, asked)
        size = file.size_bytes
        if size < before.offset:
            raise ConfigurationError(
                f"{file.key} of {self.location} was read to byte {before.offset} and has shrunk to "
                f"{size} bytes; restore it, for a source file may only grow"
            )
        end = size if asked.until is None else min(asked.until, size)
        is_complete = self.bounded or self.keeps_copies or (self.ordered and not asked.is_last)
        ends_here = is_complete and end == size
        if before.sealed or asked.most == 0 or end <= before.offset:
            is_read = before.sealed or (ends_here and before.offset == size)
            after = before if before.sealed == is_read else replace(before, sealed=is_read)
            if not after.version and (is_read or before.offset > 0):
                after = replace(after, version=self._mark_at(before.offset, file))
            has_rest = not is_read and before.offset != size
            return Part(after=after, end=size, has_rest=has_rest)
        blocks = ScannedBlocks(self._text(file.key, before.offset, end), before.offset)
        cut = scan_lines(blocks, before, size=end, max_records=asked.most, bounded=ends_here)
        if cut.end == before.offset:
            return Part(after=before, end=size, has_rest=True, is_half_a_record=end == size)
        if cut.records > 0:
            self._check_header(before, file, blocks)
        after = PartitionOffset(
            partition=file.key,
            offset=cut.end,
            records=before.records + cut.records,
            sealed=ends_here and cut.is_whole,
            version=self._mark_at(cut.end, file, blocks, before),
        )
        return Part(
            after=after,
            cut=replace(cut, version=after.version) if cut.records > 0 else None,
            records=cut.records,
            end=size,
            has_rest=not after.sealed and after.offset != size,
            is_half_a_record=end == size and cut.records != asked.most,
        )

    def _part_of_compressed(
        self, before: PartitionOffset, file: Listed, asked: FileReadLimit
    ) -> Part[FileCut]:
        if before.sealed:
            return Part(after=before, end=before.offset)
        if file.size_bytes == 0:  # Its writer may just have opened it.
            is_empty = self.bounded or is_silent(file, self.give_up_after_s)
            version = self._marked(file) if is_empty else ""
            return Part(after=replace(before, sealed=is_empty, version=version))
        try:
            return self._compressed_cut(before, file, asked)
        except NotWholeError as error:
            if self.bounded or before.offset > 0:
                raise
            leave_for_later(file, error, self.give_up_after_s)
            return Part(after=before)

    def _compressed_cut(
        self, before: PartitionOffset, file: Listed, asked: FileReadLimit
    ) -> Part[FileCut]:
        size = None
        if asked.until is not None and asked.until > before.offset:
            size = sum(len(block) for block in self._blocks(file.key, 0, None))
        end = size if asked.until is None or size is None else min(asked.until, size)
        if asked.most == 0 or (asked.until is not None and (end or 0) <= before.offset):
            return Part(after=before, end=size or before.offset, has_rest=True)
        texts = self._text(file.key, before.offset, end)
        blocks = ScannedBlocks(texts, before.offset)
        ends_here = end == size
        cut = scan_lines(blocks, before, size=end, max_records=asked.most, bounded=ends_here)
        if before.offset == 0 and not self.bounded:
            for _ in texts:
                pass  # Raises NotWholeError if the file is incomplete: then no line of it is read.
        if cut.records > 0:
            self._check_header(before, file, blocks)
        after = PartitionOffset(
            partition=file.key,
            offset=cut.end,
            records=before.records + cut.records,
            sealed=ends_here and cut.is_whole,
            version=(before.version if before.offset else "") or self._marked(file),
        )
        return Part(
            after=after,
            cut=replace(cut, version=after.version) if cut.records > 0 else None,
            records=cut.records,
            end=size or cut.end,
            has_rest=not after.sealed,
        )

    def _check_header(self, before: PartitionOffset, file: Listed, blocks: ScannedBlocks) -> None:
        decoding = self.text_decoding
        if decoding is not None and decoding.has_header and before.offset == 0:
            check_header(blocks.first_line, decoding, f"{file.key} of {self.location}")

    def _mark_at(
        self,
        end: int,
        file: Listed,
        blocks: ScannedBlocks | None = None,
        before: PartitionOffset | None = None,
    ) -> str:
        """The mark of the bytes before *end*, read for it unless *blocks* and *before* have it."""
        if blocks is None or before is None or len(tail := blocks.tail(end)) < tail_bytes(end):
            return str(self._identity(file.key).mark_at(end, file))
        head = blocks.head
        if end > HEAD_BYTES > len(head):
            mark = ContentMark.parse(before.version) if before.version else None
            if mark is None or mark.end <= HEAD_BYTES:
                return str(self._identity(file.key).mark_at(end, file))
            return str(replace(mark_of(end, tail, file), head=mark.head))
        return str(mark_of(end, tail, file, head=head))

    def _copies(
        self,
        lost: Mapping[str, PartitionOffset],
        present: Mapping[str, Listed],
        new: Mapping[str, Listed],
    ) -> Iterable[tuple[str, str]]:
        """See ``FileSource``.  The one of which most was read comes first."""
        begun = {name: one for name, one in lost.items() if one.offset and self._may_grow(name)}
        replaced = {name for name in begun if name in present}
        of_stem: dict[str, set[str]] = {}
        for name in begun:
            of_stem.setdefault(_stem_of(name), set()).add(name)
        for file in new.values():
            likely = set(replaced)
            if is_compressed(file.key):
                likely |= of_stem.get(_stem_of(file.key), set())
            marks = {
                name: ContentMark.parse(begun[name].version) for name in likely if name in begun
            }
            by_end = sorted(marks.items(), key=lambda one: (-one[1].end, one[0]))
            found = next(self._beginnings(file, dict(by_end)), None) if marks else None
            if found is not None:
                del begun[found]
                yield found, file.key

    def _beginnings(self, file: Listed, marks: Mapping[str, ContentMark]) -> Iterator[str]:
        """The names of *marks* whose bytes are the first of the text of *file*."""
        if not is_compressed(file.key):
            identity = self._identity(file.key)
            yield from (
                name for name, mark in marks.items() if identity.problem(mark, file, "") is None
            )
            return
        blocks = ScannedBlocks(self._blocks(file.key, 0, None), 0)
        found: dict[int, tuple[str, str]] = {}
        ends = sorted({mark.end for mark in marks.values()})
        try:
            at = 0
            for block in blocks:
                at += len(block)
                while ends and ends[0] <= at:
                    end = ends.pop(0)
                    found_mark = mark_of(end, blocks.tail(end), file, head=blocks.head)
                    found[end] = (found_mark.head, found_mark.checksum)
                if not ends:
                    break
        except (NotWholeError, ConfigurationError):
            pass  # It is being written, or its turn to be refused comes.
        for name, mark in marks.items():
            if found.get(mark.end) == (mark.head, mark.checksum):
                yield name

    def _moved_offset(self, before: PartitionOffset, file: Listed) -> PartitionOffset:
        if self._may_grow(before.partition) == self._may_grow(file.key):
            return FileSource._moved_offset(self, before, file)  # noqa: SLF001 - its own
        return replace(before, partition=file.key, version=self._marked(file))

    def _blocks(self, name: str, start: int, end: int | None) -> Iterator[bytes]:
        """Read a file's text in blocks; only that of a compressed one may be read to its end."""
        store, what = self._files.store_of(name), f"{name} of {self.location}"
        if is_compressed(name):
            return read_text(store, name, what, start, end)
        assert end is not None
        return read_blocks(store, name, what, start, end)

    def _text(self, name: str, start: int, end: int | None) -> Iterator[bytes]:
        """``_blocks`` that are looked at before lines are made of them, as each plan does."""
        what = f"{name} of {self.location}"
        return checked_text(self._blocks(name, start, end), start, what)

    def _too_large(self, how: str, most: int) -> ConfigurationError:
        return ConfigurationError(
            f"the table {self.location} {how}, more than {most}; read it as a stream "
            "into keyed state"
        )


@dataclass(frozen=True, slots=True)
class PlainLinesSource(SourceDefaults):
    """The rows in the *lines* of JSON or CSV, decoded by *plain*.  See ``Source.decoded``."""

    lines: FilesSource
    plain: PlainLines
    has_header: bool

    @property
    def bounded(self) -> bool:
        return self.lines.bounded

    @property
    def partitions_end(self) -> bool:
        return self.lines.partitions_end

    def schema(self) -> pa.Schema:
        return self.lines.folder_columns.added_to_schema(self.lines.with_weight(self.plain.schema))

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """See ``Source.plan``."""
        return self.lines.plan(
            position, max_records=max_records, parallelism=parallelism, until=until
        )

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one slice; blank lines are none.

        Raises:
            UndecidedError: only Spark can read one of the lines.
        """
        folders = self.lines.folder_columns
        decoded = self.plain.schema.names
        wanted = decoded
        if columns is not None:
            asked = {path.partition(".")[0] for path in columns}
            wanted = [name for name in decoded if name in asked]
        names = wanted or decoded[:1]  # The rows have to be counted.

        def rows(whole: bytes, _: str, first_record: int) -> tuple[pa.Table, int]:
            text = unix_lines(whole)
            if first_record == 0:
                text = text.removeprefix(BYTE_ORDER_MARK)
                if self.has_header:
                    text = text.partition(b"\n")[2]
            return self.plain.decoded(text).select(names), lines_in(whole)

        for table in self.lines.read_as(rows, piece):
            for batch in table.to_batches():
                weighed = self.lines.weighed(batch, piece, columns)
                yield folders.added_to(weighed, piece.partition, self.lines.location, columns)


def with_folders(how: TextDecoding, folders: FolderColumns, source: str) -> TextDecoding:
    """The decoding of lines whose rows keep the columns of their *folders*.

    Raises:
        ConfigurationError: it decodes a column of the same name; *source* names the declaration.
    """
    decoded = {name.lower(): kind for name, kind in row_schema(source, how.schema).items()}
    for name in folders.names:
        if name.lower() in decoded:
            raise ConfigurationError(
                f"the schema of {source} has the column {name!r}, which its folders have, too; "
                "take it out of the schema, and declare its type as "
                f"Files(..., partitions='{name} {decoded[name.lower()]}')"
            )
    return replace(how, keeps=(*how.keeps, *folders.names))


def _stem_of(name: str) -> str:
    """The last part of *name* without numbers, and without the end that compression gives it."""
    stem, dot, end = name.rpartition("/")[2].rpartition(".")
    return re.sub(
        r"[-_.:]?\d+", "", stem if dot and is_compressed(f".{end}") else f"{stem}{dot}{end}"
    )


def check_header(line: bytes, how: TextDecoding, what: str) -> None:
    """Compare the header's names with those of the schema, ignoring case as Spark does.

    Raises:
        ConfigurationError: names or their order differ; *what* names the file.
    """
    if len(line) > MAX_FIRST_LINE_BYTES:
        raise ConfigurationError(
            f"the first line of {what} has more than {MAX_FIRST_LINE_BYTES} bytes and names no "
            "columns; correct the file, or declare header=False"
        )
    text = line.removeprefix(BYTE_ORDER_MARK).removesuffix(b"\r").decode("utf-8", "replace")
    found = header_names(text, how)
    declared = list(row_schema("the source", how.schema))
    if [name.lower() for name in found] != [name.lower() for name in declared]:
        raise ConfigurationError(
            f"the first line of {what} names the columns {', '.join(found) or 'none'}, and the "
            f"schema {', '.join(declared)}; correct the schema or the file, or declare header=False"
        )


def header_names(text: str, how: TextDecoding) -> list[str]:
    """The fields of a line as ``from_csv`` would split it, without blanks around them."""
    delimiter = how.delimiter
    quote, escape = how.options.get("quote", '"'), how.options.get("escape", "\\")
    names: list[str] = []
    at = 0 if text else 1
    while at <= len(text):
        if text.startswith(quote, at):
            name, at = _quoted(text, at + 1, quote, escape)
        else:
            name = ""
        end = text.find(delimiter, at)
        end = len(text) if end < 0 else end
        names.append((name + text[at:end]).strip())
        at = end + len(delimiter)
    return names


def _quoted(text: str, at: int, quote: str, escape: str) -> tuple[str, int]:
    """The text of a quoted field that begins at *at*, and the position behind its last quote."""
    taken: list[str] = []
    while at < len(text):
        if text[at] == escape and text.startswith(quote, at + 1):
            taken.append(quote)
            at += 2
        elif text[at] == quote:
            return "".join(taken), at + 1
        else:
            taken.append(text[at])
            at += 1
    return "".join(taken), at
