"""An Iceberg table keeps every sink's promises; strangers read it with Polars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError

from sluice.connectors.iceberg.sink import IcebergSink
from sluice.sinks.iceberg import IcebergTable
from sluice.storage.open import StoreLocation
from tests.contract.sink_rules import APPEND_RULES, SCHEMA, UPSERT_RULES, Row, SinkCase
from tests.iceberg_catalog import TABLE, a_table, loaded, properties

pytestmark = pytest.mark.usefixtures("planned_by_pyiceberg")

ROOT = "s3://jobs/root/shop/tables/sales"


@pytest.fixture
def planned_by_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which files there are is pyiceberg's answer; Polars' own planner is a package of its own."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


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
    return scan.collect().select(SCHEMA.names).to_dicts()


def case_in(folder: Path, *key: str, create: bool = False) -> SinkCase:
    return SinkCase(
        lambda: a_sink(folder, *key, create=create), lambda: read_by_polars(folder)
    )


@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended(tmp_path: Path, rule: Callable[[SinkCase], None]) -> None:
    a_table(tmp_path, SCHEMA)

    rule(case_in(tmp_path))


@pytest.mark.parametrize("rule", UPSERT_RULES, ids=lambda rule: rule.__name__)
def test_upserted(tmp_path: Path, rule: Callable[[SinkCase], None]) -> None:
    rule(case_in(tmp_path, "id", create=True))


@pytest.mark.parametrize("rule", UPSERT_RULES, ids=lambda rule: rule.__name__)
def test_upserted_into_partitions(tmp_path: Path, rule: Callable[[SinkCase], None]) -> None:
    table = a_table(tmp_path, SCHEMA)
    with table.update_spec() as update:
        update.add_field("id", "identity", "part")

    rule(case_in(tmp_path, "id"))
