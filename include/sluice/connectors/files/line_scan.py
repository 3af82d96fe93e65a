"""The scan for line ends in a range of bytes, and the slices made of them.

A scan remembers about ``MAX_MARKS`` line ends per file, evenly spaced, so that an epoch of any size
is cut into slices without reading it again.  With fewer lines than that, cuts are to the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sluice.connectors.files.content_mark import TAIL_BYTES
from sluice.connectors.files.text_lines import BYTE_ORDER_MARK
from sluice.core.plan import PartitionOffset, Slice
from sluice.storage.object_store import ObjectStore

# One ranged read: on S3 the transfer takes as long as the latency, and the coordinator's memory is
# shared with other tasks.
BLOCK_BYTES = 1024 * 1024

# The error of a slice is at most 1/2048 of its file's part of the epoch; the marks take 32 kB.
MAX_MARKS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCut:
    """The part of one file that an epoch reads, and ends of lines in it.

    ``marks[i]`` is the offset after ``(i + 1) * step`` lines; ``is_whole``: no bytes are left.
    """

    partition: str
    start: int
    end: int
    first_record: int
    records: int
    step: int
    marks: list[int]
    is_whole: bool
    version: str = ""  # The mark of the file's content up to ``end``.


# A longer first line is no header, so no more of it is kept.
MAX_FIRST_LINE_BYTES = 1024 * 1024


class ScannedBlocks:
    """Blocks of a file from byte *start*; keeps the first line and the last bytes that passed.

    Of a first line that is too long, ``MAX_FIRST_LINE_BYTES`` + 1 bytes are kept.
    """

    def __init__(self, blocks: Iterable[bytes], start: int) -> None:
        self._blocks = blocks
        self._start = self._at = start
        self._before = b""  # The last bytes before the block, if known.
        self._block = b""
        self.first_line = b""

    def __iter__(self) -> Iterator[bytes]:
        is_first_line = self._start == 0
        for block in self._blocks:
            if is_first_line:
                line, newline, _ = block.partition(b"\n")
                self.first_line += line[: MAX_FIRST_LINE_BYTES + 1 - len(self.first_line)]
                is_first_line = not newline and len(self.first_line) <= MAX_FIRST_LINE_BYTES
            self._before = (self._before + self._block[-TAIL_BYTES:])[-TAIL_BYTES:]
            self._block = block
            self._at += len(block)
            yield block

    def tail(self, end: int) -> bytes:
        """Up to ``TAIL_BYTES`` bytes before *end*, as far as they have passed."""
        taken = end - (self._at - len(self._block))
        if taken < 0:
            return b""
        if taken >= TAIL_BYTES:
            return self._block[taken - TAIL_BYTES : taken]
        return (self._before + self._block[:taken])[-TAIL_BYTES:]


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
    import numpy as np

    blocks = iter(blocks)
    at = end = before.offset
    records, step, head = 0, 1, b""
    marks: list[int] = []
    for block in blocks:
        head += block[: len(BYTE_ORDER_MARK) + 1 - len(head)]
        line_ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + (at + 1)
        if max_records is not None:
            line_ends = line_ends[: max_records - records]
        at += len(block)
        if len(line_ends) == 0:
            continue
        marks.extend(line_ends[step - 1 - records % step :: step].tolist())
        while len(marks) > MAX_MARKS:
            marks = marks[1::2]
            step *= 2
        records += len(line_ends)
        end = int(line_ends[-1])
        if records == max_records:
            break
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
        step=step,
        marks=marks,
        is_whole=is_whole,
    )


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
            marked = (cut.records * piece // pieces) // cut.step
            end, upto = (cut.marks[marked - 1], marked * cut.step) if marked else (start, done)
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


def read_blocks(store: ObjectStore, key: str, start: int, end: int) -> Iterator[bytes | None]:
    """Yield bytes *start* to *end* in blocks; None, as the last item, if the file is too short."""
    while start < end:
        block = store.get_range(key, start, min(start + BLOCK_BYTES, end))
        if not block:
            yield None
            return
        yield block
        start += len(block)
