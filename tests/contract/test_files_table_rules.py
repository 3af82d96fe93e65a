"""The table of files keeps every sink's promises, in all its forms, on every kind of store.

In a folder and on S3 the fullest form alone, as what a store promises has a suite of its own; with
``SLUICE_CONTRACT=all`` every form.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.connectors.files_table.table import FilesTable
from sluice.storage.open import StoreLocation, open_store
from tests.contract.sink_rules import APPEND_RULES, UPSERT_RULES, Row, SinkCase


@dataclass(frozen=True)
class Form:
    name: str
    options: dict[str, Any] = field(default_factory=dict)


FORMS = (
    Form("parquet"),
    Form("json", {"format": "json", "latest": True}),
    Form("partitioned", {"partition_by": ("name",), "latest": True}),
    Form("compacted at 2 files", {"compact_when_files": 2, "latest": True}),
    Form(
        "partitioned JSON, compacted at 2 files",
        {"format": "json", "partition_by": ("name", "id"), "compact_when_files": 2},
    ),
)
ELSEWHERE = FORMS if os.environ.get("SLUICE_CONTRACT") == "all" else FORMS[-1:]
PLAYED = [
    *(pytest.param("memory", form, id=f"memory-{form.name}") for form in FORMS),
    *(pytest.param("file", form, id=f"file-{form.name}") for form in ELSEWHERE),
    *(pytest.param("s3", form, id=f"s3-{form.name}", marks=pytest.mark.s3) for form in ELSEWHERE),
]
each_form = pytest.mark.parametrize(("location", "form"), PLAYED, indirect=["location"])


def case_at(location: StoreLocation, form: Form, *key: str) -> SinkCase:
    def open_() -> FilesTable:
        return FilesTable("alerts", open_store(location), upsert_key=key, **form.options)

    def read() -> list[Row]:
        found: list[Row] = open_().read().to_pylist()
        return found

    return SinkCase(open_, read)


@each_form
@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended(location: StoreLocation, form: Form, rule: Callable[[SinkCase], None]) -> None:
    rule(case_at(location, form))


@each_form
@pytest.mark.parametrize("rule", UPSERT_RULES, ids=lambda rule: rule.__name__)
def test_upserted(location: StoreLocation, form: Form, rule: Callable[[SinkCase], None]) -> None:
    rule(case_at(location, form, "id"))
