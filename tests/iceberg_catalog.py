"""Real Iceberg catalogs for tests: SQL ones on SQLite, with their warehouse in a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

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
    try:
        table = loaded(folder)
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
