"""One Parquet file: its footer, and any range of its rows, from a disk or over ranged reads.

Columns arrive as Spark and every sink here know them: timestamps, with a zone or without one
(then they are taken as UTC), as microseconds in UTC, what is finer being cut off; dictionaries as
their values; text and lists with 32-bit offsets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sluice.connectors.file_set import FileSet
from sluice.connectors.half_written import NotWholeError
from sluice.connectors.range_reader import RangeReader
from sluice.connectors.whole_files import Footer
from sluice.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 50_000  # As spark.sql.execution.arrow.maxRecordsPerBatch: bounds what the JVM holds.

MAGIC = b"PAR1"
SMALLEST = 12  # Both magic words and the length of the footer.

# A footer of a hundred columns and row groups is some 100 kB as objects.
FOOTERS_KEPT = 4096


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """The file *name* of *files*."""

    files: FileSet
    name: str
    size_bytes: int
    version: str  # What ``Listed`` says of these bytes.

    def footer(self) -> Footer:
        """The footer, read at most once per process.

        Raises:
            NotWholeError: the file begins as a Parquet file, and has no footer.
            ConfigurationError: this is no Parquet file.
        """
        return _footer(self)

    def rows(
        self, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows from *start* to *end*; row groups and columns outside are not read."""
        footer = self.footer()
        first = bisect_right(footer.group_ends, start)
        last = min(bisect_left(footer.group_ends, end), len(footer.group_ends) - 1)
        at = footer.group_ends[first - 1] if first else 0
        with self.opened() as file:
            groups = list(range(first, last + 1))
            for batch in file.iter_batches(
                batch_size=BATCH_ROWS, row_groups=groups, columns=columns
            ):
                begin, at = at, at + batch.num_rows
                wanted = batch.slice(max(start - begin, 0), min(end, at) - max(start, begin))
                if wanted.num_rows > 0:
                    normal = footer.schema if columns is None else _normal_schema(wanted.schema)
                    yield _normal(wanted, normal)
                if at >= end:
                    return  # The rest of the group is not decoded.

    def opened(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            path = self.files.local_path(self.name)
            if path is not None:
                return pq.ParquetFile(path)
            reader = RangeReader(self.files.store_of(self.name), self.name, self.size_bytes)
            return pq.ParquetFile(pa.PythonFile(reader, "r"), pre_buffer=True)
        except FileNotFoundError as error:
            raise StoreUnavailable(
                f"{self.name} of {self.files.location} vanished while it was read"
            ) from error
        except (pa.ArrowInvalid, OSError) as error:
            kind = NotWholeError if self._is_cut_off() else ConfigurationError
            raise kind(
                f"{self.name} of {self.files.location} is not a whole Parquet file ({error}); "
                "remove it, or write it elsewhere and move it here when it is whole"
            ) from error

    def _is_cut_off(self) -> bool:
        """Whether the file begins as one of this format, and does not end so."""
        store = self.files.store_of(self.name)
        size = self.size_bytes
        head = store.get_range(self.name, 0, len(MAGIC)) or b""
        end = store.get_range(self.name, max(size - len(MAGIC), 0), size) or b""
        return MAGIC.startswith(head) and (end != MAGIC or size < SMALLEST)


@lru_cache(maxsize=FOOTERS_KEPT)
def _footer(of: ParquetFile) -> Footer:
    with of.opened() as file:
        metadata = file.metadata
        ends, rows = [], 0
        for group in range(metadata.num_row_groups):
            rows += metadata.row_group(group).num_rows
            ends.append(rows)
        return Footer(_normal_schema(file.schema_arrow), tuple(ends))


def _normal_schema(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(field.name, _normal_type(field.type)) for field in schema])


def _normal_type(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa
    from pyarrow import types

    if types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if types.is_dictionary(kind):
        return _normal_type(kind.value_type)
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_normal_type(kind.value_type))
    if types.is_map(kind):
        return pa.map_(_normal_type(kind.key_type), _normal_type(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _normal_type(field.type)) for field in kind])
    return kind


def _normal(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = []
    for field in schema:
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type, safe=False))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
