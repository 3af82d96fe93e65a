"""The rows of several files, read in the order in which the files apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.connectors.contracts.sink import DELETED
from sluice.connectors.files_table.table_columns import conformed, united
from sluice.connectors.files_table.table_manifest import READ_THREADS
from sluice.connectors.staging.staged_files import RowFile, StagedFiles, newest_rows
from sluice.storage.parallel import in_parallel

if TYPE_CHECKING:
    import pyarrow as pa


def read_chain(
    files: StagedFiles, wanted: Sequence[RowFile], upsert_key: Sequence[str] | None
) -> pa.Table:
    """All rows, or with an *upsert_key* the newest of each key that was not taken away.

    Without files there are no columns.

    Raises:
        ConfigurationError: a column has two types in these files without a common one.
    """
    import pyarrow as pa

    if not wanted:
        return pa.table({})

    def read(file: RowFile) -> pa.Table:
        return files.read(file.file, rows=file.rows, size_bytes=file.size_bytes)

    tables = in_parallel(read, wanted, READ_THREADS)
    table = pa.concat_tables(_alike(tables, f"the table at {files.store.root}"))
    if not upsert_key:
        return table
    return _without_deleted(table.take(newest_rows(table, upsert_key)))


def _alike(tables: Sequence[pa.Table], where: str) -> list[pa.Table]:
    """The tables with the same columns, of the same types."""
    import pyarrow as pa

    if all(table.schema.equals(tables[0].schema) for table in tables):
        return [*tables]
    schema = united([table.schema for table in tables], where)
    alike = [conformed(table, schema) for table in tables]
    if not any(DELETED in table.column_names for table in alike):
        return alike
    return [
        table
        if DELETED in table.column_names
        else table.append_column(DELETED, pa.nulls(table.num_rows, pa.bool_()))
        for table in alike
    ]


def _without_deleted(table: pa.Table) -> pa.Table:
    """*table* without the mark of deletes; a file without the mark has no deletes."""
    import pyarrow.compute as pc

    if DELETED not in table.column_names:
        return table
    is_deleted = pc.fill_null(table.column(DELETED), False)  # noqa: FBT003 - a value
    return table.filter(pc.invert(is_deleted)).drop_columns([DELETED])
