"""Segments of state: their bytes, the schema of their rows, and where a file of rows ends.

A segment is an immutable Arrow IPC file of rows, known by the checksum of its bytes.  Promises:
equal tables encode to equal bytes on every machine that runs the same Arrow, whatever chunks or
slices they were made of; every column of a decoded segment is one chunk over the file's own bytes,
so opening costs no copy.  Refuses: bytes that do not match their recorded checksum.  This module
knows neither the bucket nor the cache; a segment's name is only for messages.

Rows alone decide where a file ends, so the same rows give the same files, however they were cut
into frames: ``RowFiles`` counts the bytes of a row by its content.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sluice.errors import CorruptSegment
from sluice.protocol.records import checksum

HASH = "_hash"  # Signed int64: Spark's xxhash64 of the key columns, computed in the JVM.
DELETED = "_deleted"  # True in a tombstone of state; never in a stream.
WRITTEN = "_written_ms"  # The processing time of a row's last write; only in state with a TTL.

# The one piece of metadata that a segment keeps: which columns its rows are sorted by after the
# hash.  Rows sorted by other columns cannot be searched, so a reader must be able to tell.
IDENTITY = b"sluice.identity"

# Rows of a file: about 64 MB of narrow rows, which one request uploads from one buffer.
ROWS_PER_FILE = 1_048_576
WIDE_ROWS_PER_FILE = 262_144

# Bytes of a file of wider rows: it ends with the row that reaches them.
BYTES_PER_FILE = 128 * 1024**2

_WIDTHS: dict[type[pl.DataType], int] = {
    pl.Boolean: 1,
    pl.Int8: 1,
    pl.UInt8: 1,
    pl.Int16: 2,
    pl.UInt16: 2,
    pl.Int32: 4,
    pl.UInt32: 4,
    pl.Float32: 4,
    pl.Date: 4,
    pl.Decimal: 16,
}
_OTHER_WIDTH = 8  # Numbers and times, and Polars' view of a text.


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredColumn:
    """A column of values that a state of a user's function declares.

    ``migrations`` have, for each former type, a function from a value of it to one of ``dtype``.
    The fields of a struct that ``is_positional`` are known by their place: none may be added or
    dropped.
    """

    state: str
    dtype: pl.DataType
    is_positional: bool = False
    migrations: tuple[tuple[pl.DataType, Callable[[object], object]], ...] = ()

    def migration_from(self, before: pl.DataType) -> Callable[[object], object] | None:
        return next((migrate for of, migrate in self.migrations if of == before), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSchema:
    """The columns of a table of state, without reserved ones; the identity of a row; the TTL.

    A row's identity is its hash, its key columns and its sub-key columns (a window's start, a
    rank); the hash is of the key columns alone.  With a TTL every row also carries the processing
    time of its last write, and is gone ``ttl_ms`` after it.

    ``time_column`` holds the timer of a row: an event time, as int64 milliseconds.  With
    ``is_written_once`` no row replaces another, and none is deleted before its timer is due.
    ``refused`` are columns that a run may not have, with the reason; ``declared`` are those of a
    user's states.  ``one_hash`` is the hash of every row, if it is not the hash of its key.

    ``live`` are the columns of rows that are read: the hash and the declared ones; ``stored``,
    those of rows in a run, are these and the reserved ones.  A subtask asks for both dozens of
    times.
    """

    columns: pl.Schema
    key_columns: tuple[str, ...]
    sub_key_columns: tuple[str, ...] = ()
    time_column: str | None = None
    is_written_once: bool = False
    ttl_ms: int | None = None
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    declared: Mapping[str, DeclaredColumn] = field(default_factory=dict[str, DeclaredColumn])
    one_hash: int | None = None
    live: pl.Schema = field(init=False, repr=False, compare=False)
    stored: pl.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert self.key_columns, "keyed state needs a key"
        assert {*self.key_columns, *self.sub_key_columns} <= self.columns.keys()
        assert not {HASH, DELETED, WRITTEN} & self.columns.keys(), "these three are reserved"
        assert self.time_column is None or self.columns[self.time_column] == pl.Int64()
        assert self.ttl_ms is None or self.ttl_ms > 0
        live = pl.Schema({HASH: pl.Int64(), **self.columns})
        written = {} if self.ttl_ms is None else {WRITTEN: pl.Int64()}
        object.__setattr__(self, "live", live)
        object.__setattr__(self, "stored", pl.Schema({**live, **written, DELETED: pl.Boolean()}))

    @property
    def is_former(self) -> bool:
        """Whether it only refuses runs of a former declaration: a stage writes no row of it."""
        return bool(self.refused) and len(self.columns) == len(self.key_columns)

    @property
    def key(self) -> tuple[str, ...]:
        return (HASH, *self.key_columns)

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.key, *self.sub_key_columns)

    def has_expired(self, written_ms: int | None, now_ms: int) -> bool:
        """Whether a write has expired; one from before the stage had a TTL never does."""
        return (
            self.ttl_ms is not None
            and written_ms is not None
            and written_ms <= now_ms - self.ttl_ms
        )

    def expired(self, now_ms: int) -> pl.Expr:
        """``has_expired`` of stored rows, as an expression."""
        if self.ttl_ms is None:
            return pl.lit(False)  # noqa: FBT003 - a value
        return (pl.col(WRITTEN) <= now_ms - self.ttl_ms).fill_null(value=False)

    def dead(self, now_ms: int) -> pl.Expr:
        """Whether a stored row is deleted or expired: not returned, but hiding older versions."""
        return pl.col(DELETED) if self.ttl_ms is None else pl.col(DELETED) | self.expired(now_ms)

    def are_dead(self, rows: pl.DataFrame, now_ms: int) -> pl.Series:
        """``dead`` of each of the stored *rows*."""
        if self.ttl_ms is None:
            return rows[DELETED]
        return rows.select(self.dead(now_ms)).to_series()


class RowFiles:
    """A buffer that calls *write* with the rows of each full file, and at last with the rest."""

    def __init__(self, write: Callable[[pa.Table], None]) -> None:
        self._write = write
        self._frames: list[pl.DataFrame] = []
        self._rows = self._bytes = 0

    def add(self, frame: pl.DataFrame) -> None:
        width = fixed_width(frame.schema)
        limit = WIDE_ROWS_PER_FILE if width is None else ROWS_PER_FILE
        sizes = np.full(frame.height, width) if width is not None else row_sizes(frame).to_numpy()
        ends_at = np.cumsum(sizes)  # The bytes of the frame up to the end of each row.
        start = 0
        while start < frame.height:
            before = int(ends_at[start - 1]) if start else 0
            is_full = int(np.searchsorted(ends_at, BYTES_PER_FILE - self._bytes + before)) + 1
            end = min(start + limit - self._rows, is_full)
            piece = frame.slice(start, end - start)
            self._frames.append(piece)
            self._rows += piece.height
            self._bytes += int(ends_at[start + piece.height - 1]) - before
            if end <= frame.height:
                self.finish()
            start = end

    def take(self) -> pl.DataFrame | None:
        """Remove and return the rows that are in no file yet; None if there are none."""
        rest = pl.concat(self._frames) if self._frames else None
        self._frames, self._rows, self._bytes = [], 0, 0
        return rest

    def finish(self) -> None:
        rest = self.take()
        if rest is not None:
            self._write(to_table(rest))


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

    Verifying reads every page once.  A caller that verified these bytes when it put them there
    passes ``checksum=None``: the time of an epoch must depend on its changes, not on its state.

    Raises:
        CorruptSegment: the bytes are not those that the ack described.
    """
    if path.stat().st_size == 0:  # A file that cannot be mapped, an empty one, is no segment.
        return _verified(pa.py_buffer(b""), expected=checksum, name=name)
    with pa.memory_map(str(path)) as source:
        return _verified(source.read_buffer(), expected=checksum, name=name)


def verify(body: bytes | memoryview, *, expected: str, name: str) -> None:
    """Raises CorruptSegment unless *body* has the checksum that the segment's ack recorded."""
    actual = checksum(body)
    if actual != expected:
        raise CorruptSegment(
            f"segment {name} is corrupt: its ack recorded checksum {expected}, "
            f"its {len(body)} bytes have {actual}; restore another checkpoint"
        )


def to_table(frame: pl.DataFrame) -> pa.Table:
    """*frame* in the types that a segment keeps, one chunk per column."""
    return frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()


def empty_frame(schema: pa.Schema) -> pl.DataFrame:
    """No rows of *schema*.  (For its own empty table Arrow imports pandas, which takes seconds.)"""
    return to_frame(pa.Table.from_batches([], schema=schema))


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


def row_sizes(rows: pl.DataFrame) -> pl.Series:
    """The bytes of each row; equal rows have equal sizes, however they are cut into frames."""
    sizes: list[pl.Expr | pl.Series] = []
    for name, dtype in rows.schema.items():
        if isinstance(dtype, pl.Struct) and not _is_fixed(dtype):
            # As a frame: to name a field of a struct takes as long as the struct has fields.
            sizes.append((row_sizes(rows[name].struct.unnest()) + 1).rename(name))
        else:
            sizes.append(_size(pl.col(name), dtype))
    # Not a chain of additions: Polars walks each of them again for every one above it.
    return rows.select(pl.sum_horizontal(sizes).cast(pl.Int64).alias("size")).to_series()


def fixed_width(schema: pl.Schema) -> int | None:
    """The bytes of any row of these columns; None where they depend on its content."""
    if any(not _is_fixed(dtype) for dtype in schema.values()):
        return None
    return sum(_width(dtype) for dtype in schema.values())


def _verified(buffer: pa.Buffer, *, expected: str | None, name: str) -> pa.Table:
    if expected is not None:
        verify(memoryview(buffer), expected=expected, name=name)
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


def _is_fixed(dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.Struct):
        return all(_is_fixed(instance_of(field.dtype)) for field in dtype.fields)
    return not (dtype.is_nested() or dtype in (pl.String(), pl.Binary()))


def _width(dtype: pl.DataType) -> int:
    if isinstance(dtype, pl.Struct):
        return 1 + sum(_width(instance_of(field.dtype)) for field in dtype.fields)
    return _WIDTHS.get(type(dtype), _OTHER_WIDTH)


def _size(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    match dtype:
        case pl.String():
            size = value.str.len_bytes() + _OTHER_WIDTH
        case pl.Binary():
            size = value.bin.size() + _OTHER_WIDTH
        case pl.Struct() if not _is_fixed(dtype):
            fields = [_size(value.struct.field(f.name), instance_of(f.dtype)) for f in dtype.fields]
            return pl.sum_horizontal(pl.lit(1), *fields)
        case pl.List() | pl.Array():
            inner = instance_of(dtype.inner)
            values = value if isinstance(dtype, pl.List) else value.arr.to_list()
            if _is_fixed(inner):
                size = values.list.len() * _width(inner) + _OTHER_WIDTH
            else:
                size = values.list.eval(_size(pl.element(), inner)).list.sum() + _OTHER_WIDTH
        case pl.Map():
            entries = as_entries(dtype)
            return _size(value.cast(entries), entries)
        case _:
            assert _is_fixed(dtype), f"the bytes of a {dtype} are not counted"
            return pl.lit(_width(dtype))
    return size.cast(pl.Int64).fill_null(_OTHER_WIDTH)


def as_entries(dtype: pl.Map) -> pl.List:
    """The type as which a map is a list of its entries, by a cast."""
    key, value = instance_of(dtype.key), instance_of(dtype.value)
    return pl.List(pl.Struct({"key": key, "value": value}))


def instance_of(dtype: object) -> pl.DataType:
    """*dtype*, which Polars may name by its class where it is an inner type."""
    if isinstance(dtype, pl.DataType):
        return dtype
    assert isinstance(dtype, type)
    assert issubclass(dtype, pl.DataType)
    return dtype()
