"""The table of Parquet files keeps every sink's promises, on every kind of store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.connectors.files_table import FilesTable
from sluice.storage.open import StoreLocation, open_store
from tests.contract.sink_rules import APPEND_RULES, UPSERT_RULES, Row, SinkCase


def case_at(location: StoreLocation, *key: str) -> SinkCase:
    def open_() -> FilesTable:
        return FilesTable("alerts", open_store(location), upsert_key=key)

    def read() -> list[Row]:
        return open_().read().to_pylist()

    return SinkCase(open_, read)


@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended(location: StoreLocation, rule: Callable[[SinkCase], None]) -> None:
    rule(case_at(location))


@pytest.mark.parametrize("rule", UPSERT_RULES, ids=lambda rule: rule.__name__)
def test_upserted(location: StoreLocation, rule: Callable[[SinkCase], None]) -> None:
    rule(case_at(location, "id"))
