"""Data files of an Iceberg table: rows are cast to its schema, and written with its field ids.

A file with field ids is read correctly when columns are renamed or dropped later.  Files for
``Table.add_files`` have none and depend on names, so that is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError
from sluice.protocol.checksums import Written

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record

NEWEST_WRITTEN = 2  # The newest format version that pyiceberg 0.12 writes.


def fitted(rows: pa.Table, schema: Schema, name: str) -> pa.Table:
    """*rows* with the columns of *schema*, in its order and types.

    Raises:
        ConfigurationError: a column is unknown to the table *name*, missing and required, null and
            required, or its values do not fit.
    """
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    wanted = schema_to_pyarrow(schema, include_field_ids=True)
    if unknown := [column for column in rows.column_names if column not in wanted.names]:
        raise ConfigurationError(
            f"the Iceberg table {name} has no column {unknown[0]!r}; add it to the table, or "
            f"select others in the stage: it has {', '.join(wanted.names)}"
        )
    columns = []
    for field in wanted:
        if field.name not in rows.column_names:
            column = pa.nulls(rows.num_rows, field.type)
        else:
            column = _cast(rows.column(field.name), field, name)
        if not field.nullable and column.null_count:
            raise ConfigurationError(
                f"column {field.name!r} of the Iceberg table {name} is required, and "
                f"{column.null_count} rows have no value in it; fill it in the stage, or make the "
                "column optional"
            )
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=wanted)


def check_writable(table: Table) -> None:
    """Check, before a checkpoint is committed, that pyiceberg can write the table.

    Raises:
        ConfigurationError: the table is of a format that pyiceberg only reads.
        NotInstalledError: rows cannot be put into partitions of this kind without pyiceberg-core.
    """
    if table.metadata.format_version > NEWEST_WRITTEN:
        raise ConfigurationError(
            f"the Iceberg table {'.'.join(table.name())} is of format version "
            f"{table.metadata.format_version}, which pyiceberg reads and cannot write; use a table "
            f"of version {NEWEST_WRITTEN}"
        )
    schema = table.schema()
    for field in table.spec().fields:
        field.transform.pyarrow_transform(schema.find_type(field.source_id))


def check_required(table: Table, columns: Sequence[str], name: str) -> None:
    """Raises ConfigurationError when the table requires a column that rows do not have."""
    for field in table.schema().fields:
        if field.required and field.name not in columns and field.write_default is None:
            raise ConfigurationError(
                f"column {field.name!r} of the Iceberg table {name} is required, and the rows have "
                f"only {', '.join(columns)}; write it in the stage, or make the column optional"
            )


def write(table: Table, location: str, rows: pa.Table) -> Written:
    """Write *rows* to *location*; what is returned knows the file's size and checksum.

    The table's own settings count as they do for pyiceberg.
    """
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import _get_parquet_writer_kwargs

    settings = _get_parquet_writer_kwargs(table.metadata.properties)
    output = table.io.new_output(location)
    with output.create(overwrite=True) as stream:
        written = Written(stream)
        pq.write_table(rows, written, **settings)
    return written


def footer(io: FileIO, location: str) -> pq.FileMetaData:
    """Raises FileNotFoundError when it is gone."""
    import pyarrow.parquet as pq

    with io.new_input(location).open() as stream:
        return pq.read_metadata(stream)


def described(
    metadata: TableMetadata,
    location: str,
    parquet: pq.FileMetaData,
    size_bytes: int,
    partition: Record | None = None,
) -> DataFile:
    """The manifest's entry of the file, with statistics of its columns."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema = metadata.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=parquet,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition if partition is not None else Record(),
        file_size_in_bytes=size_bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _cast(column: pa.ChunkedArray, field: pa.Field, name: str) -> pa.ChunkedArray:
    import pyarrow as pa

    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigurationError(
            f"column {field.name!r} is {column.type}, and {field.type} in the Iceberg table "
            f"{name}: {error}; cast it in the stage"
        ) from error
