"""Whole lines as rows: the text, its file, and the line's number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

# The byte order mark that Windows editors write; Hadoop's and Spark's readers drop it, too.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

RowsT = TypeVar("RowsT")

# What whole lines, of which the last has lost its newline, hold; the name of their file and the
# number of lines before them are given.  It also tells how many lines they are.
RowsOf: TypeAlias = Callable[[bytes, str, int], tuple[RowsT, int]]


def lines_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("line", pa.string()), ("file", pa.string()), ("line_number", pa.int64())])


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


def lines_in(whole: bytes) -> int:
    """The number of *whole* lines, of which the last has lost its newline."""
    import numpy as np

    return int(np.count_nonzero(np.frombuffer(whole, np.uint8) == ord("\n"))) + 1


def lines_of(whole: bytes, name: str, records_before: int) -> tuple[pa.RecordBatch, int]:
    """Split *whole* lines, of which the last has lost its newline, and count them.

    Without the ``\\r`` of a Windows line end; bytes that are not UTF-8 become ``\\xNN``.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if records_before == 0:
        whole = whole.removeprefix(BYTE_ORDER_MARK)
    text = _as_utf8(whole)
    bounds = np.array([0, len(text)], np.int32)
    one = pa.StringArray.from_buffers(1, pa.py_buffer(bounds), pa.py_buffer(text))
    lines = pc.split_pattern(one, "\n").flatten()
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
