"""The check that rows fit a table of files, before their checkpoint completes.

    _columns/{schema}.arrow     a schema that fits all files of the table

A recorded schema was compared with every file, and each later schema with it: so checking it costs
one GET.  A new schema is compared with the recorded ones.  A restore deletes all records.  So does
a check that fails because of a record that no file has, left by an aborted checkpoint: the schemas
are then read from the files, from Parquet's footers and from the names of JSON lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.files_table.table_columns import united
from sluice.connectors.files_table.table_manifest import READ_THREADS, TableLog
from sluice.connectors.staging.file_names import COLUMNS, columns_key, is_json, schema_key
from sluice.connectors.staging.row_files import (
    PARQUET,
    check_json_types,
    decode_schema,
    encode_schema,
)
from sluice.connectors.staging.staged_files import RowFile, StagedFiles
from sluice.core.acks import Committable
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.storage.parallel import in_parallel
from sluice.storage.range_reader import RangeReader

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TableSchemas:
    """The recorded schemas of the table that *files* are staged for."""

    files: StagedFiles

    def check(
        self, parent: int | None, schema: pa.Schema | None, committables: Sequence[Committable]
    ) -> None:
        """Check that rows of *schema* can be read together with those of the version *parent*.

        Without a schema the staged files say it, as no ack has that of a side output.

        Raises:
            ConfigurationError: a column has another type, or JSON cannot hold its type.
        """
        store = self.files.store
        schemas = self._staged(committables) if schema is None else [schema]
        if self.files.format != PARQUET:
            for schema in schemas:
                check_json_types(schema, self.files.sink)
        if all(store.get(columns_key(encode_schema(one)[0])) is not None for one in schemas):
            return
        known = [self._decoded(one.key) for one in store.list(COLUMNS)]
        where = f"the table at {store.root}"
        if known:
            try:
                united([*known, *schemas], where)
            except ConfigurationError:
                pass  # A record may be of an aborted checkpoint, and of no file.
            else:
                self._remember(schemas)
                return
        of_files = self._of(parent)
        united([*of_files, *schemas], where)
        self.forget()
        self._remember([*of_files, *schemas])

    def forget(self) -> None:
        """Delete all records, before the table goes back or forward to another version."""
        store = self.files.store
        store.delete([one.key for one in store.list(COLUMNS)])

    def _decoded(self, key: str) -> pa.Schema:
        return decode_schema(self.files.store.get(key), f"{self.files.store.root}/{key}")

    def _remember(self, schemas: Sequence[pa.Schema]) -> None:
        for schema in schemas:
            name, body = encode_schema(schema)
            self.files.store.put(columns_key(name), body)

    def _staged(self, committables: Sequence[Committable]) -> list[pa.Schema]:
        files = [file for one in committables for file in self.files.files_of(one)]
        return self._schemas(files)

    def _of(self, version: int | None) -> list[pa.Schema]:
        """The distinct schemas of all files of the table's *version*, in the order of the files."""
        if version is None:
            return []
        files = TableLog(self.files.store).chain(version).files
        return self._schemas(files)

    def _schemas(self, files: Sequence[RowFile]) -> list[pa.Schema]:
        by_name = {schema_key(one.file): one for one in files if is_json(one.file)}
        found = [self._decoded(key) for key in by_name]
        columnar = [one for one in files if not is_json(one.file)]
        found += in_parallel(self._footer, columnar, READ_THREADS)
        return [*{encode_schema(schema)[0]: schema for schema in found}.values()]

    def _footer(self, file: RowFile) -> pa.Schema:
        import pyarrow as pa
        import pyarrow.parquet as pq

        store = self.files.store
        try:
            return pq.read_schema(pa.PythonFile(RangeReader(store, file.file, file.size_bytes)))
        except pa.ArrowInvalid as error:
            place = f"{store.root}/{file.file}"
            raise ProtocolViolation(f"{place} is not the file that was committed") from error
