"""Whether rows can be added to a table of files: asked before their checkpoint completes.

    _columns/{schema}.arrow     these columns go with all that the table has

A schema that is there was compared with every file, and whoever came after it with it: to find it
is one GET.  Another is compared with those that are there.  A restore deletes them all, and so does
who finds one in its way that no file has, for its checkpoint was aborted: then the files
themselves are asked, by the ends of Parquet's, and by the names of JSON lines'.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.range_reader import RangeReader
from sluice.connectors.row_files import PARQUET, check_json_types, decode_schema, encode_schema
from sluice.connectors.staged_files import RowFile, StagedFiles
from sluice.connectors.table_columns import united
from sluice.connectors.table_manifest import READ_THREADS, TableLog
from sluice.connectors.table_names import COLUMNS, columns_key, is_json, schema_key
from sluice.errors import ConfigurationError, ProtocolViolation

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TableSchemas:
    """Of the table that *files* are staged for."""

    files: StagedFiles

    def check(self, parent: int | None, schema: pa.Schema) -> None:
        """Whether rows of *schema* can be read together with those of version *parent*.

        Raises:
            ConfigurationError: a column has another type; or JSON cannot say it.
        """
        store = self.files.store
        if self.files.format != PARQUET:
            check_json_types(schema, self.files.sink)
        if store.get(columns_key(encode_schema(schema)[0])) is not None:
            return
        known = [self._decoded(one.key) for one in store.list(COLUMNS)]
        where = f"the table at {store.root}"
        if known:
            try:
                united([*known, schema], where)
            except ConfigurationError:
                pass  # One of them may be no file's.
            else:
                self._remember([schema])
                return
        of_files = self._of(parent)
        united([*of_files, schema], where)
        self.forget()
        self._remember([*of_files, schema])

    def forget(self) -> None:
        """The table is about to go back, or forward: its files are to be asked again."""
        store = self.files.store
        store.delete([one.key for one in store.list(COLUMNS)])

    def _decoded(self, key: str) -> pa.Schema:
        return decode_schema(self.files.store.get(key), f"{self.files.store.root}/{key}")

    def _remember(self, schemas: Sequence[pa.Schema]) -> None:
        for schema in schemas:
            name, body = encode_schema(schema)
            self.files.store.put(columns_key(name), body)

    def _of(self, version: int | None) -> list[pa.Schema]:
        """Those of all files of the table's *version*, each once, in the order of the files."""
        if version is None:
            return []
        files = TableLog(self.files.store).chain(version).files
        by_name = {schema_key(one.file): one for one in files if is_json(one.file)}
        found = [self._decoded(key) for key in by_name]
        with ThreadPoolExecutor(READ_THREADS) as pool:
            found += pool.map(self._footer, [one for one in files if not is_json(one.file)])
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
