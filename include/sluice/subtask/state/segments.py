"""Segments: immutable Arrow IPC files of rows, each known by the checksum of its bytes.

Promises: equal tables encode to equal bytes on every machine that runs the same Arrow, whatever
chunks or slices they were made of; every column of a decoded segment is one chunk over the file's
own bytes, so opening costs no copy.  Refuses: bytes that do not match their recorded checksum.
This module knows neither the bucket nor the cache; a segment's name is only for messages.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sluice.errors import CorruptSegment
from sluice.protocol.checksums import checksum as checksum  # noqa: PLC0414 - theirs who use segments

HASH = "_hash"  # Signed int64: Spark's xxhash64 of the key columns, computed in the JVM.
DELETED = "_deleted"  # True in a tombstone of state; never in a stream.
WRITTEN = "_written_ms"  # The processing time of a row's last write; only in state with a TTL.

# The one piece of metadata that a segment keeps: which columns its rows are sorted by after the
# hash.  Rows sorted by other columns cannot be searched, so a reader must be able to tell.
IDENTITY = b"sluice.identity"


def encode_segment(table: pa.Table) -> bytes:
    """The Arrow IPC file of *table*: one record batch, no metadata but its identity columns."""
    columns = [_canonical(column) for column in table.columns]
    fields = [
        pa.field(field.name, column.type)
        for field, column in zip(table.schema, columns, strict=True)
    ]
    identity = (table.schema.metadata or {}).get(IDENTITY)
    metadata = None if identity is None else {IDENTITY: identity}
    canonical = pa.table(columns, schema=pa.schema(fields, metadata))
    sink = io.BytesIO()  # Its value is bytes without a copy; that of Arrow's own sink is not.
    with pa.ipc.new_file(sink, canonical.schema) as writer:
        writer.write_table(canonical)
    return sink.getvalue()


def decode_segment(body: bytes | memoryview, *, checksum: str, name: str) -> pa.Table:
    """The rows in *body*, without a copy.

    Raises:
        CorruptSegment: the bytes are not those that the ack described.
    """
    return _verified(pa.py_buffer(body), expected=checksum, name=name)


def open_segment(path: Path, *, checksum: str | None, name: str) -> pa.Table:
    """The rows in a local file, memory-mapped: only the pages that are read cost anything.

    Verifying reads every page once.  ``checksum=None`` skips it, for a caller that verified these
    bytes when it put them there; the time of an epoch must follow its delta, not the state.

    Raises:
        CorruptSegment: the bytes are not those that the ack described.
    """
    if path.stat().st_size == 0:  # A file that cannot be mapped, an empty one, is no segment.
        return _verified(pa.py_buffer(b""), expected=checksum, name=name)
    with pa.memory_map(str(path)) as source:
        return _verified(source.read_buffer(), expected=checksum, name=name)


def to_table(frame: pl.DataFrame) -> pa.Table:
    """*frame* in the types that a segment keeps, one chunk per column."""
    return frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()


def to_frame(table: pa.Table) -> pl.DataFrame:
    """*table* as a Polars frame: numbers without a copy, strings as views, which costs a pass."""
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def hash_column(table: pa.Table) -> npt.NDArray[np.int64]:
    """The hashes of a segment's rows, without a copy."""
    column = table.column(HASH)
    if not column.num_chunks:
        return np.empty(0, np.int64)
    hashes: npt.NDArray[np.int64] = column.chunk(0).to_numpy(zero_copy_only=True)
    return hashes


def _verified(buffer: pa.Buffer, *, expected: str | None, name: str) -> pa.Table:
    if expected is not None:
        actual = checksum(memoryview(buffer))
        if actual != expected:
            raise CorruptSegment(
                f"segment {name} is corrupt: its ack recorded checksum {expected}, "
                f"its {buffer.size} bytes have {actual}; restore another checkpoint"
            )
    if buffer.address % 8:  # Columns of 64-bit values must be aligned; a slice may not be.
        buffer = pa.py_buffer(buffer.to_pybytes())
    try:
        with pa.ipc.open_file(buffer) as reader:
            table = reader.read_all()
    except pa.ArrowInvalid as error:
        raise CorruptSegment(
            f"segment {name} is corrupt: its {buffer.size} bytes are not an Arrow file; "
            "restore another checkpoint"
        ) from error
    if any(column.num_chunks > 1 for column in table.columns):
        raise CorruptSegment(
            f"segment {name} is corrupt: it has several batches of rows; restore another checkpoint"
        )
    return table


def _canonical(column: pa.ChunkedArray) -> pa.Array:
    """*column* as one chunk whose buffers are determined by its values alone.

    Arrow leaves the bytes under a null and the last bits of a bitmap undefined, and lists may skip
    parts of their child; ``take`` writes all of them anew.
    """
    array = _with_wide_offsets(column).combine_chunks()
    if array.null_count or array.type.num_fields or pa.types.is_boolean(array.type):
        return array.take(pa.array(np.arange(len(array), dtype=np.int64)))
    return array


def _with_wide_offsets(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Strings as large strings: a chunk may exceed 2 GiB, and Polars reads it without a copy."""
    if pa.types.is_string(column.type) or pa.types.is_string_view(column.type):
        return column.cast(pa.large_string())
    if pa.types.is_binary(column.type) or pa.types.is_binary_view(column.type):
        return column.cast(pa.large_binary())
    return column
