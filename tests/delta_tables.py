"""Real Delta tables for tests, in a folder; strangers read them with Polars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable as Table
from deltalake import write_deltalake

from sluice.connectors.delta.declared_sink import DeltaTable
from sluice.connectors.staged_sink import StagedSink
from sluice.store.open import StoreLocation
from tests.contract.sink_case import SCHEMA, Row, SinkCase, rows


def place_in(folder: Path) -> str:
    return f"file://{folder}/sales"


def a_sink(folder: Path, *key: str, root: str = "root", **declared: Any) -> StagedSink:
    spec = DeltaTable(place_in(folder), upsert_key=key, **{"create": True} | declared)
    return spec.open("sales", {}, StoreLocation(root=f"file://{folder}/{root}/tables/sales"))


def loaded(folder: Path) -> Table:
    return Table(str(folder / "sales"))


def read_by_polars(folder: Path) -> list[Row]:
    """The rows that a stranger sees; none where there is no table, or it has no columns yet."""
    if not (folder / "sales" / "_delta_log").exists():
        return []
    found = pl.read_delta(str(folder / "sales"))
    return found.select(SCHEMA.names).to_dicts() if found.height else []


def case_in(folder: Path, *key: str, **declared: Any) -> SinkCase:
    return SinkCase(lambda: a_sink(folder, *key, **declared), lambda: read_by_polars(folder))


def append_by_hand(folder: Path, *ids: int) -> int:
    write_deltalake(loaded(folder), pa.Table.from_pylist(rows(*ids), SCHEMA), mode="append")
    return loaded(folder).version()
