"""Text as rows: whole lines, and the scan that cuts a file at them.

A row of a line is its text, its file, and its number.

A scan remembers up to ``MAX_MARKS`` line ends per file, so that an epoch of any size is cut into
slices without reading it again.  In the first bytes these are ends of any lines, so a small file
is cut to the line; further on lines are only counted, a piece of ``PIECE_BYTES`` at a time, which
takes half the time of finding them, and the last end in each piece is remembered.  Which ends
those are depends on the bytes alone, not on the blocks in which a store hands them out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from sluice.connectors.files.encodings import BLOCK_BYTES, BYTE_ORDER_MARK
from sluice.connectors.files.file_set import HEAD_BYTES, TAIL_BYTES
from sluice.core.plan import PartitionOffset, Slice
from sluice.errors import StoreUnavailable
from sluice.store.object_store import ObjectStore

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

# The error of a slice is at most 1/1024 of its file's part of the epoch, and PIECE_BYTES.
MAX_MARKS = 4096
PIECE_BYTES = 64 * 1024
TO_THE_LINE_BYTES = 64 * PIECE_BYTES

# A longer first line is no header, so no more of it is kept.
MAX_FIRST_LINE_BYTES = 1024 * 1024

RowsT = TypeVar("RowsT")

# Makes rows of whole lines, of which the last has lost its newline.  Takes the lines, the name of
# their file and the number of lines before them; returns the rows, and the number of lines.
RowsOf: TypeAlias = Callable[[bytes, str, int], tuple[RowsT, int]]


def lines_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("line", pa.string()), ("file", pa.string()), ("line_number", pa.int64())])


def lines_of(whole: bytes, name: str, records_before: int) -> tuple[pa.RecordBatch, int]:
    """See ``RowsOf``: a row per line, without the ``\\r`` of a Windows line end.

    Bytes that are not UTF-8 become ``\\xNN``.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if records_before == 0:
        whole = whole.removeprefix(BYTE_ORDER_MARK)
    text = _as_utf8(whole)
    bounds = np.array([0, len(text)], np.int32)
    block = pa.StringArray.from_buffers(1, pa.py_buffer(bounds), pa.py_buffer(text))
    lines = pc.split_pattern(block, "\n").flatten()
    if b"\r" in text:
        without_last = pc.utf8_slice_codeunits(lines, 0, -1)
        lines = pc.if_else(pc.ends_with(lines, "\r"), without_last, lines)
    first = records_before + 1
    columns = [
        lines,
        pa.repeat(pa.scalar(name, pa.string()), len(lines)),
        pa.array(np.arange(first, first + len(lines), dtype=np.int64)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=lines_schema()), len(lines)


def _as_utf8(text: bytes) -> bytes:
    if text.isascii():
        return text
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode("utf-8", "backslashreplace").encode()
    return text


def unix_lines(whole: bytes) -> bytes:
    """*whole* lines without the ``\\r`` of a Windows line end, as ``lines_of`` has them."""
    if b"\r" not in whole:
        return whole
    return whole.replace(b"\r\n", b"\n").removesuffix(b"\r")


def lines_in(whole: bytes) -> int:
    """The number of *whole* lines, of which the last has lost its newline."""
    import numpy as np

    return int(np.count_nonzero(np.frombuffer(whole, np.uint8) == ord("\n"))) + 1


def whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The text of *blocks* in pieces of whole lines, of which the last has lost its newline."""
    pending: list[bytes] = []
    for block in blocks:
        end = block.rfind(b"\n")
        if end < 0:
            pending.append(block)
            continue
        yield b"".join([*pending, memoryview(block)[:end]])
        pending = [block[end + 1 :]] if end + 1 < len(block) else []
    if pending:
        yield b"".join(pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCut:
    """The part of one file that an epoch reads, and ends of lines in it.

    ``marks`` are numbers of lines from ``start`` on, each with the offset behind them, ascending;
    ``is_whole``: no bytes are left.
    """

    partition: str
    start: int
    end: int
    first_record: int
    records: int
    marks: list[tuple[int, int]]
    is_whole: bool
    version: str = ""  # The mark of the file's content up to ``end``.


def scan_lines(
    blocks: Iterable[bytes],
    before: PartitionOffset,
    *,
    size: int | None,
    max_records: int | None,
    bounded: bool,
) -> FileCut:
    """Cut at most *max_records* lines from *before* to *size*; *blocks* are these bytes.

    With *size* None the file ends with the blocks.  Bytes behind the last newline are a line if
    the source is *bounded*; a byte order mark alone is none, as in Hadoop's ``LineRecordReader``.
    """
    blocks = iter(blocks)
    at, head = before.offset, b""
    lines = _Lines(at, max_records)
    for block in blocks:
        head += block[: len(BYTE_ORDER_MARK) + 1 - len(head)]
        at += len(block)
        if lines.are_all_in(block):
            break
    records, end = lines.records, lines.end
    if bounded and records != max_records and end < at:
        assert size in {None, at}
        records += before.offset > 0 or head != BYTE_ORDER_MARK
        end = at
    is_whole = end == size if size is not None else end == at and next(blocks, None) is None
    return FileCut(
        partition=before.partition,
        start=before.offset,
        end=end,
        first_record=before.records,
        records=records,
        marks=lines.marks,
        is_whole=is_whole,
    )


class _Lines:
    """The scan of lines from byte *start* on, at most *most*: so far ``records``, up to ``end``."""

    def __init__(self, start: int, most: int | None) -> None:
        self._start = self._at = self.end = start
        self._most = most
        self.records = 0
        self.marks: list[tuple[int, int]] = []
        self._step = 1  # Every how many line ends, and later pieces, one is a mark.
        self._passed = 0  # The pieces since the last mark.

    def are_all_in(self, block: bytes) -> bool:
        """Count the lines that end in the next *block*; True when the limit is reached."""
        import numpy as np

        at, letters = self._at, np.frombuffer(block, np.uint8)
        while self._at < at + len(block):
            begin, from_start = self._at - at, self._at - self._start
            end = min(begin + PIECE_BYTES - from_start % PIECE_BYTES, len(block))
            to_the_line = from_start < TO_THE_LINE_BYTES
            if from_start == TO_THE_LINE_BYTES:
                self._step = 1
            is_line_end = letters[begin:end] == ord("\n")
            found = int(np.count_nonzero(is_line_end))
            if to_the_line or (self._most is not None and self.records + found >= self._most):
                self._find(np.flatnonzero(is_line_end), to_the_line=to_the_line)
            elif found:
                self.records += found
                self.end = at + block.rindex(b"\n", begin, end) + 1
            if self.records == self._most:
                return True
            self._at = at + end
            self._end_piece(to_the_line=to_the_line)
        return False

    def _find(self, line_ends: npt.NDArray[np.intp], *, to_the_line: bool) -> None:
        """Count the lines that end at *line_ends*, and mark some of them."""
        if self._most is not None:
            line_ends = line_ends[: self._most - self.records]
        if len(line_ends) == 0:
            return
        offsets = line_ends + (self._at + 1)
        if to_the_line:
            first = self._step - 1 - self.records % self._step
            counts = range(self.records + first + 1, self.records + len(offsets) + 1, self._step)
            self.marks.extend(zip(counts, offsets[first :: self._step].tolist(), strict=True))
        self.records += len(offsets)
        self.end = int(offsets[-1])

    def _end_piece(self, *, to_the_line: bool) -> None:
        if (self._at - self._start) % PIECE_BYTES:
            return
        if not to_the_line:
            self._passed += 1
            marked = self.marks[-1][0] if self.marks else 0
            if self._passed >= self._step and self.records > marked:
                self.marks.append((self.records, self.end))
                self._passed = 0
        while len(self.marks) > MAX_MARKS:
            self.marks = self.marks[1::2]
            self._step *= 2


class ScannedBlocks:
    """Blocks of a file from byte *start*; keeps the first line and the last bytes iterated over.

    Of a first line that is too long, ``MAX_FIRST_LINE_BYTES`` + 1 bytes are kept.
    """

    def __init__(self, blocks: Iterable[bytes], start: int) -> None:
        self._blocks = blocks
        self._start = self._at = start
        self._before = b""  # The last bytes before the block, if known.
        self._block = b""
        self.first_line = b""
        self.head = b""  # The first HEAD_BYTES, where these blocks begin with them.

    def __iter__(self) -> Iterator[bytes]:
        is_first_line = self._start == 0
        for block in self._blocks:
            if is_first_line:
                line, newline, _ = block.partition(b"\n")
                self.first_line += line[: MAX_FIRST_LINE_BYTES + 1 - len(self.first_line)]
                is_first_line = not newline and len(self.first_line) <= MAX_FIRST_LINE_BYTES
            if self._at < HEAD_BYTES and len(self.head) == self._at:
                self.head += block[: HEAD_BYTES - self._at]
            self._before = (self._before + self._block[-TAIL_BYTES:])[-TAIL_BYTES:]
            self._block = block
            self._at += len(block)
            yield block

    def tail(self, end: int) -> bytes:
        """Up to ``TAIL_BYTES`` bytes before *end*, of those iterated over."""
        taken = end - (self._at - len(self._block))
        if taken < 0:
            return b""
        if taken >= TAIL_BYTES:
            return self._block[taken - TAIL_BYTES : taken]
        return (self._before + self._block[:taken])[-TAIL_BYTES:]


def slices_of(cuts: list[FileCut], parallelism: int) -> tuple[Slice, ...]:
    """Cut the files' parts into slices of at most about ``records / parallelism`` lines."""
    longest = max(1, -(-sum(cut.records for cut in cuts) // parallelism))
    return tuple(piece for cut in cuts for piece in _slices_of_file(cut, longest))


def _slices_of_file(cut: FileCut, longest: int) -> Iterator[Slice]:
    pieces = -(-cut.records // longest)
    start, done = cut.start, 0
    for piece in range(1, pieces + 1):
        if piece == pieces:
            end, upto = cut.end, cut.records
        else:
            wanted = cut.records * piece // pieces
            marked = bisect_right(cut.marks, wanted, key=itemgetter(0))
            upto, end = cut.marks[marked - 1] if marked else (done, start)
        if upto > done:
            yield Slice(
                partition=cut.partition,
                start=start,
                end=end,
                first_record=cut.first_record + done,
                records=upto - done,
                version=cut.version,
            )
        start, done = end, upto


def read_blocks(store: ObjectStore, key: str, what: str, start: int, end: int) -> Iterator[bytes]:
    """Yield bytes *start* to *end* in blocks; *what* names the file in errors.

    Raises:
        StoreUnavailable: the file is too short.
    """
    at = start
    while at < end:
        block = store.get_range(key, at, min(at + BLOCK_BYTES, end))
        if not block:
            raise StoreUnavailable(f"{what} became shorter than {end} bytes while it was read")
        yield block
        at += len(block)
