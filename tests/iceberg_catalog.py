"""Real Iceberg catalogs for tests: SQL ones on SQLite, with their warehouse in a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT, Record

from sluice.connectors.iceberg.declared_sink import IcebergTable
from sluice.connectors.iceberg.sink import IcebergSink
from sluice.store.open import StoreLocation
from tests.contract.sink_case import SCHEMA, Row, SinkCase, rows

TABLE = "shop.sales"
ROOT = "s3://jobs/root/shop/tables/sales"


def properties(folder: Path, warehouse: str = "") -> dict[str, str]:
    """The properties of a catalog in *folder*; its tables are there, or in another *warehouse*."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": warehouse or f"file://{folder}/warehouse",
    }


def a_catalog(folder: Path) -> Catalog:
    """A new handle, as another process has it."""
    return load_catalog("default", **properties(folder))


def a_table(folder: Path, schema: pa.Schema, **created: Any) -> Table:
    catalog = a_catalog(folder)
    catalog.create_namespace_if_not_exists("shop")
    return catalog.create_table(TABLE, schema, **created)


def loaded(folder: Path) -> Table:
    return a_catalog(folder).load_table(TABLE)


@dataclass
class Interference:
    count: int = 0


def interfere(
    patch: pytest.MonkeyPatch,
    commit_another: Callable[[], object],
    times: int,
    *,
    before_the_catalog_looks: bool = False,
) -> Interference:
    """Let another writer commit in the next commits; the conflict is the catalog's own.

    It commits before the catalog swaps the metadata it has loaded, or before it loads them.
    """
    method = "commit_table" if before_the_catalog_looks else "_update_and_stage_table"
    original = getattr(SqlCatalog, method)
    interference = Interference()
    is_inside = False

    def commit_once_more() -> None:
        nonlocal is_inside
        if not is_inside and interference.count < times:
            is_inside = True
            commit_another()
            is_inside = False
            interference.count += 1

    def interfered(*arguments: Any) -> Any:
        if before_the_catalog_looks:
            commit_once_more()
            return original(*arguments)
        staged = original(*arguments)
        commit_once_more()
        return staged

    patch.setattr(SqlCatalog, method, interfered)
    return interference


def a_sink(folder: Path, *key: str, create: bool = False, root: str = ROOT) -> IcebergSink:
    spec = IcebergTable(TABLE, properties(folder), upsert_key=key, create=create)
    return spec.open("sales", {}, StoreLocation(root=root))


def read_by_polars(folder: Path) -> list[Row]:
    """Polars reads the metadata file by itself; only its place is asked of the catalog."""
    return read_of(a_catalog(folder))


def read_of(catalog: Catalog, name: str = TABLE) -> list[Row]:
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        return []
    if table.current_snapshot() is None:
        return []
    scan = pl.scan_iceberg(table.metadata_location, reader_override="native")
    with pytest.MonkeyPatch.context() as patch:
        # Polars' own planner of the files to read is a plugin; pyiceberg plans instead.
        patch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        return scan.collect().select(SCHEMA.names).to_dicts()


def case_in(folder: Path, *key: str, create: bool = False) -> SinkCase:
    return SinkCase(lambda: a_sink(folder, *key, create=create), lambda: read_by_polars(folder))


def append_by_hand(folder: Path, *ids: int) -> int:
    table = loaded(folder)
    table.append(pa.Table.from_pylist(rows(*ids), SCHEMA))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def expire_all_but_the_head(folder: Path) -> None:
    tomorrow = datetime.now(tz=UTC) + timedelta(days=1)
    loaded(folder).maintenance.expire_snapshots().older_than(tomorrow).commit()


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Deleting(_FastAppendFiles):
    """A snapshot with one more delete file, as engines that merge on reading write it."""

    def with_deletes(self, file: DataFile) -> Self:
        self.file = file
        return self

    def _existing_manifests(self) -> list[ManifestFile]:
        entry = ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=self.file
        )
        output, spec = self.new_manifest_output(), self._transaction.table_metadata.spec()
        with _DeleteManifest(spec, self.schema(), output, self._snapshot_id, "deflate") as writer:
            writer.add_entry(entry)
        return [*super()._existing_manifests(), writer.to_manifest_file()]


class _Compacting(_OverwriteFiles):
    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        summary = super()._summary(snapshot_properties)
        return Summary(Operation.REPLACE, **summary.additional_properties)


def delete_places(
    table: Table, places: Sequence[tuple[str, int]], *, is_equality: bool = False
) -> None:
    """Commit a delete file that names *places* of data files; or says that it names values."""
    rows = pa.table({"file_path": [path for path, _ in places], "pos": [at for _, at in places]})
    location = f"{table.location()}/data/{uuid4()}-deletes.parquet"
    with table.io.new_output(location).create(overwrite=False) as stream:
        pq.write_table(rows, stream)
    content = DataFileContent.EQUALITY_DELETES if is_equality else DataFileContent.POSITION_DELETES
    file = DataFile.from_args(
        content=content, file_path=location, file_format=FileFormat.PARQUET, partition=Record(),
        record_count=len(places), file_size_in_bytes=len(table.io.new_input(location)),
    )  # fmt: skip
    file.spec_id = 0
    with table.transaction() as transaction:
        counts = {"added-delete-files": "1", "added-position-deletes": str(len(places))}
        deleting = _Deleting(Operation.DELETE, transaction, table.io, snapshot_properties=counts)
        deleting.with_deletes(file).commit()


def places_of(table: Table, column: str, value: int) -> list[tuple[str, int]]:
    """The places in data files, deleted ones too, whose *column* is at least *value*."""
    found = []
    for path in table.inspect.files()["file_path"].to_pylist():
        with table.io.new_input(path).open() as stream:
            names = pq.read_schema(stream).names
        if column not in names:
            continue
        with table.io.new_input(path).open() as stream:
            values = pq.read_table(stream, columns=[column])[column].to_pylist()
        found += [(path, at) for at, one in enumerate(values) if one >= value]
    return found


def compact(table: Table) -> None:
    """Write all rows into one file anew: a snapshot that replaces files and changes no row."""
    tasks = list(table.scan().plan_files())
    rows = table.scan().to_arrow()
    if not rows.num_rows:
        return
    with table.transaction() as transaction:
        compacting = _Compacting(Operation.OVERWRITE, transaction, table.io)
        for task in tasks:
            compacting.delete_data_file(task.file)
        for file in _dataframe_to_data_files(table.metadata, rows, table.io):
            compacting.append_data_file(file)
        compacting.commit()
