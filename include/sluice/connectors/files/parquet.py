"""Rows of Parquet files, in a folder, a bucket, or one by one: a source whose offsets are rows.

A file is read from a disk, or with ranged reads from a bucket.  Columns are converted to types that
Spark and every sink know: timestamps, with or without a time zone (then UTC), to microseconds in
UTC, truncating finer ones; dictionaries to their values; text and lists to 32-bit offsets; unsigned
integers to wider signed ones.  A column that has no such type is refused by name where it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sluice.connectors.columns import (
    MAX_DECIMAL_DIGITS,
    cast_exactly,
    check_text,
    is_bytes,
    is_list,
    is_text,
    not_of_type,
    sentence,
    unreadable_column,
    unreadable_columns,
)
from sluice.connectors.files.source import NotWholeError
from sluice.connectors.files.whole_files import Footer, WholeFile, WholeFileSource
from sluice.declaration.columns import check_source_columns
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.store.object_store import RangeReader

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 50_000  # As spark.sql.execution.arrow.maxRecordsPerBatch: bounds what the JVM holds.
BATCH_BYTES = 64 * 1024**2

# Older Spark, Hive and Impala write times as INT96; nanoseconds would only hold 1677 to 2262.
INT96_UNIT = "us"

MAGIC = b"PAR1"
SMALLEST = 12  # The size of both magic words and the footer's length.

# A footer of a hundred columns and row groups takes some 100 kB as objects.
FOOTERS_KEPT = 4096


@dataclass(frozen=True, slots=True)
class ParquetFile(WholeFile):
    """A Parquet file; it is not whole if it begins as one, and has no footer."""

    def footer(self) -> Footer:
        return _footer(self)

    def rows(
        self, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        schema = self.footer().schema
        is_whole = columns is None and not unreadable_columns(schema)
        for batch in self._decoded(start, end, columns):
            wanted = schema if is_whole else known_schema(batch.schema, self.what)
            yield cast_to_known_schema(batch, wanted, self.what)

    def _decoded(
        self, start: int, end: int, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        try:
            with self.opened() as file:
                yield from row_range(file, start, end, columns)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise StoreUnavailable(f"{self.what} cannot be read: {error}") from error
            raise ConfigurationError(
                f"{self.what} is damaged ({sentence(error)}); restore it"
            ) from error

    def opened(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            path = self.files.local_path(self.name)
            if path is not None:
                return pq.ParquetFile(path, coerce_int96_timestamp_unit=INT96_UNIT)
            reader = RangeReader(self.files.store_of(self.name), self.name, self.size_bytes)
            return pq.ParquetFile(
                pa.PythonFile(reader, "r"),
                pre_buffer=True,
                coerce_int96_timestamp_unit=INT96_UNIT,
            )
        except FileNotFoundError as error:
            raise StoreUnavailable(f"{self.what} vanished while it was read") from error
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            kind = NotWholeError if self._is_cut_off() else ConfigurationError
            raise kind(
                f"{self.what} is not a whole Parquet file ({sentence(error)}); "
                "remove it, or write it elsewhere and move it here when it is whole"
            ) from error

    def _is_cut_off(self) -> bool:
        """Whether the file begins like a Parquet file, and does not end like one."""
        store = self.files.store_of(self.name)
        size = self.size_bytes
        head = store.get_range(self.name, 0, len(MAGIC)) or b""
        end = store.get_range(self.name, max(size - len(MAGIC), 0), size) or b""
        return MAGIC.startswith(head) and (end != MAGIC or size < SMALLEST)


@dataclass(frozen=True, slots=True)
class ParquetSource(WholeFileSource):
    """The rows of *location*: a file, or every file below a folder."""

    _format_name = "Parquet"
    _is_parquet = True
    _kind = ParquetFile


@lru_cache(maxsize=FOOTERS_KEPT)
def _footer(of: ParquetFile) -> Footer:
    import pyarrow as pa

    with of.opened() as file:
        metadata = file.metadata
        ends, rows = [], 0
        for group in range(metadata.num_row_groups):
            rows += metadata.row_group(group).num_rows
            ends.append(rows)
        try:
            schema = file.schema_arrow
        except (pa.ArrowException, OSError) as error:
            raise ConfigurationError(
                f"{of.what} is damaged: its columns cannot be read ({sentence(error)}); restore it"
            ) from error
        return Footer(_announced(schema, of.what), tuple(ends))


def row_range(
    file: Any,  # noqa: ANN401 - pyarrow has no types
    start: int,
    end: int,
    columns: Sequence[str] | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows from *start* to *end*; row groups and columns outside are not read."""
    groups: list[int] = []
    first = at = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if at < end and at + rows > start:
            first = first if groups else at
            groups.append(group)
        at += rows
    at = first
    most = _batch_rows([file.metadata.row_group(group) for group in groups])
    for batch in file.iter_batches(batch_size=most, row_groups=groups, columns=columns):
        begin, at = at, at + batch.num_rows
        wanted = batch.slice(max(start - begin, 0), min(end, at) - max(start, begin))
        if at > start and wanted.num_rows:
            yield wanted
        if at >= end:
            return  # Do not decode the rest of the row group.


def _batch_rows(groups: Sequence[Any]) -> int:
    """The number of rows to decode at a time: fewer if the footer shows that they are wide."""
    widths = [group.total_byte_size / group.num_rows for group in groups if group.num_rows]
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max([*widths, 1.0]))))


def cast_to_known_schema(batch: pa.RecordBatch, schema: pa.Schema, what: str) -> pa.RecordBatch:
    """The rows of *batch* in the types of *schema*, from ``known_schema``; *what* names the file.

    Raises:
        ConfigurationError: a type cannot hold a value, or a text is not UTF-8.
    """
    import pyarrow as pa

    columns = []
    for field in schema:
        column = batch.column(field.name)
        try:
            check_text(column)
            columns.append(cast_exactly(column, field.type))
        except pa.ArrowInvalid as error:
            raise not_of_type(field, what, error) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def known_schema(schema: pa.Schema, file: str) -> pa.Schema:
    """The columns of *file*, each in the type that stages use.

    Raises:
        ConfigurationError: a column has a type that stages cannot use.
    """
    announced = _announced(schema, file)
    for why in unreadable_columns(announced).values():
        raise ConfigurationError(why)
    return announced


def _announced(schema: pa.Schema, file: str) -> pa.Schema:
    """``known_schema``, in which a column that stages cannot use is unreadable."""
    import pyarrow as pa

    check_source_columns(schema.names, file)
    fields = []
    for field in schema:
        kind = _known(field.type)
        why = (
            f"column {field.name!r} of {file} is of type {field.type}, which no stage knows; "
            "write it as text, a number, a decimal of at most 38 digits or a timestamp, or leave "
            "it out: source(...).select(...)"
        )
        known = unreadable_column(field.name, why) if kind is None else pa.field(field.name, kind)
        fields.append(known)
    return pa.schema(fields)


def _known(kind: pa.DataType) -> pa.DataType | None:
    """The type that stages use for *kind*, or None.  Unsigned integers widen, as in Spark."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if types.is_dictionary(kind):
        return _known(kind.value_type)
    if types.is_decimal(kind):
        is_small = kind.precision <= MAX_DECIMAL_DIGITS
        return pa.decimal128(kind.precision, kind.scale) if is_small else None
    if is_list(kind):
        inner = _known(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if types.is_map(kind):
        key, item = _known(kind.key_type), _known(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if types.is_struct(kind):
        inners = [(field.name, _known(field.type)) for field in kind]
        if any(inner is None for _, inner in inners):
            return None
        return pa.struct([pa.field(name, inner) for name, inner in inners])
    for is_one, known in (
        (types.is_uint8, pa.int16()),
        (types.is_uint16, pa.int32()),
        (types.is_uint32, pa.int64()),
        (types.is_uint64, pa.decimal128(20, 0)),
        (types.is_float16, pa.float32()),
        (types.is_date, pa.date32()),
        (is_text, pa.string()),
        (is_bytes, pa.binary()),
    ):
        if is_one(kind):
            return known
    is_plain = types.is_signed_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return kind if is_plain else None
