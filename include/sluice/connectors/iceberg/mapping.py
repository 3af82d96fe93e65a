"""``FieldMapping``: from the columns of a staged file to those that its table has at the commit.

A staged file has the ids of its fields and of its table, so that a commit can map its columns:

    renamed, moved, widened     by the field's id
    dropped                     left out, as readers leave it out
    dropped and created again   by its name: the stage writes to the column of this name
    added                       null, or its initial default; refused where it is required
    table created again         by name, as its ids have changed

A file that needs no change is published as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.iceberg.data_files import fitted
from sluice.connectors.iceberg.projection import projected
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

TABLE_ID = b"sluice.table"  # A key of a staged file's metadata.


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """The mapping of a file with the Arrow schema *staged*, including field ids, to *table*."""

    table: Table
    staged: pa.Schema

    @property
    def is_of_table(self) -> bool:
        """Whether the file's ids are the table's: the table was not created again."""
        return (self.staged.metadata or {}).get(TABLE_ID) == table_id(self.table)

    @property
    def fits(self) -> bool:
        """Whether the file has exactly the table's present columns."""
        if not self.is_of_table:
            return False
        now = {field.field_id: field for field in self.table.schema().fields}
        then = {field.field_id: field for field in self._schema().fields}
        return now.keys() == then.keys() and all(
            (one.name, one.field_type) == (then[id_].name, then[id_].field_type)
            and (not one.required or then[id_].required)
            for id_, one in now.items()
        )

    def mapped(self, rows: pa.Table) -> pa.Table:
        """*rows* of the file in the table's columns.

        Raises:
            ConfigurationError: a column is required and has no value, or does not fit.
        """
        name = ".".join(self.table.name())
        if not self.is_of_table:
            return fitted(_plain(rows), self.table.schema(), name)
        return fitted(self._by_id(rows), self.table.schema(), name)

    def names_now(self, columns: Sequence[str]) -> list[str]:
        """The names of the file's *columns* in the table.

        Raises:
            ConfigurationError: one was dropped.
        """
        found = []
        schema = self.table.schema()
        for column in columns:
            id_ = self._schema().find_field(column).field_id if self.is_of_table else None
            now = None if id_ is None else schema.find_column_name(id_)
            now = now or (column if column in schema.column_names else None)
            if now is None:
                raise ConfigurationError(
                    f"column {column!r}, by which a sink upserts, was dropped from the Iceberg "
                    f"table {'.'.join(self.table.name())}; add it again and fill it, or put the "
                    "table's schema back, and try again"
                )
            found.append(now)
        return found

    def _by_id(self, rows: pa.Table) -> pa.Table:
        import pyarrow as pa
        from pyiceberg.schema import Schema

        now, then = self.table.schema(), self._schema()
        # Optional: ``fitted`` checks required columns, with an error that names the fix.
        optional = Schema(*(one.model_copy(update={"required": False}) for one in now.fields))
        batches = [projected(batch, then, optional) for batch in rows.to_batches()]
        mapped = _plain(pa.Table.from_batches(batches)) if batches else rows.select([])
        for column in then.fields:
            is_gone = now.find_column_name(column.field_id) is None
            if not is_gone or column.name not in now.column_names:
                continue
            if now.find_field(column.name).field_id not in then.field_ids:
                index = mapped.schema.get_field_index(column.name)
                mapped = mapped.set_column(index, column.name, rows.column(column.name))
        return mapped

    def _schema(self) -> Schema:
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        return pyarrow_to_schema(self.staged)


def table_id(table: Table) -> bytes:
    return str(table.metadata.table_uuid).encode()


def of_table(rows: pa.Table, table: Table) -> pa.Table:
    """*rows* with the id of the *table* whose field ids they have."""
    return rows.replace_schema_metadata({TABLE_ID: table_id(table)})


def _plain(rows: pa.Table) -> pa.Table:
    """*rows* without field ids, which are those of another table."""
    import pyarrow as pa

    fields = [pa.field(one.name, one.type) for one in rows.schema]
    return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))
