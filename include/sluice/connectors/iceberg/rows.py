"""The reader of a range of rows of one data file, in the columns of the table's present schema.

Columns are matched by field id, or by the table's name mapping where the file has none, as the
format demands: a renamed column is found, and one that was added later is null.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sluice.connectors.files.parquet_file import batch_rows, known
from sluice.connectors.files.parquet_types import known_schema
from sluice.connectors.iceberg.projection import projected
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


def arrow_schema(schema: Schema) -> pa.Schema:
    """*schema* with the types that sources yield; see ``parquet_file``."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return known_schema(schema_to_pyarrow(schema, include_field_ids=False), "the Iceberg table")


def rows_of(
    table: Table, location: str, start: int, end: int, schema: Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows from *start* to *end*; row groups and columns outside are not read.

    Raises:
        FileNotFoundError: it is gone.
        ConfigurationError: it has fewer rows.
    """
    import pyarrow.parquet as pq

    with table.io.new_input(location).open() as stream, pq.ParquetFile(stream) as file:
        if file.metadata.num_rows < end:
            raise ConfigurationError(
                f"{location} has {file.metadata.num_rows} rows, and its manifest says {end} or "
                "more; restore it, for a data file may not change"
            )
        wanted = arrow_schema(schema)
        for batch in _projected(table, file, start, end, schema):
            yield known(batch, wanted, location)


def _projected(
    table: Table, file: pq.ParquetFile, start: int, end: int, schema: Schema
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
    from pyiceberg.schema import prune_columns

    names = table.metadata.name_mapping()
    found = pyarrow_to_schema(file.schema_arrow, names, downcast_ns_timestamp_to_us=True)
    _check_partition_columns(table, found, schema)
    # Lists and maps have the ids of their elements.
    ids = {id_ for id_ in schema.field_ids if schema.find_type(id_).is_primitive}
    there = prune_columns(found, ids & found.field_ids, select_full_types=False)
    columns = [column.name for column in there.columns]
    if not columns:  # All requested columns were added to the table later.
        empty = schema_to_pyarrow(schema, include_field_ids=False)
        nulls = [pa.nulls(end - start, field.type) for field in empty]
        yield pa.RecordBatch.from_arrays(nulls, names=empty.names)
        return
    for batch in _ranged(file, start, end, columns):
        yield projected(batch, there, schema)


def _ranged(
    file: pq.ParquetFile, start: int, end: int, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    groups: list[int] = []
    first = at = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if at < end and at + rows > start:
            first = first if groups else at
            groups.append(group)
        at += rows
    at = first
    most = batch_rows([file.metadata.row_group(group) for group in groups])
    for batch in file.iter_batches(batch_size=most, row_groups=groups, columns=columns):
        begin, at = at, at + batch.num_rows
        wanted = batch.slice(max(start - begin, 0), min(end, at) - max(start, begin))
        if begin < end and at > start and wanted.num_rows:
            yield wanted


def _check_partition_columns(table: Table, found: Schema, schema: Schema) -> None:
    """Refuse a column that is missing in a file because its value is in the partition only."""
    from pyiceberg.transforms import IdentityTransform

    by_partition = {
        field.source_id
        for spec in table.specs().values()
        for field in spec.fields
        if isinstance(field.transform, IdentityTransform)
    }
    for column in schema.fields:
        if column.field_id in by_partition - found.field_ids:
            raise ConfigurationError(
                f"column {column.name!r} of the Iceberg table {'.'.join(table.name())} is in a "
                "partition's name and not in its files, which is not read here; rewrite the data "
                "files, or leave the column out with columns=(...)"
            )
