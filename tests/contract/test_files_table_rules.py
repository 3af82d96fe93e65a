"""The table of files keeps every sink's promises, in all its forms, on every kind of store.

In a folder and on S3 the fullest form alone, with a key: what a store promises has a suite of its
own, and ``UPSERT_RULES`` has every rule.  With ``SLUICE_CONTRACT=all`` each form, with and without.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.connectors.files_table.table import ManifestTable
from sluice.store.open import StoreLocation, open_store
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
IS_WHOLE = os.environ.get("SLUICE_CONTRACT") == "all"


def each_form(*elsewhere: Form) -> pytest.MarkDecorator:
    """Every form in memory; those *elsewhere*, or all, in a folder and on S3."""
    played = [pytest.param("memory", form, id=f"memory-{form.name}") for form in FORMS]
    for form in FORMS if IS_WHOLE else elsewhere:
        played.append(pytest.param("file", form, id=f"file-{form.name}"))
        played.append(pytest.param("s3", form, id=f"s3-{form.name}", marks=pytest.mark.s3))
    return pytest.mark.parametrize(("location", "form"), played, indirect=["location"])


def case_at(location: StoreLocation, form: Form, *key: str) -> SinkCase:
    def open_() -> ManifestTable:
        return ManifestTable("alerts", open_store(location), upsert_key=key, **form.options)

    def read() -> list[Row]:
        found: list[Row] = open_().read().to_pylist()
        return found

    return SinkCase(open_, read)


@each_form()
@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended(location: StoreLocation, form: Form, rule: Callable[[SinkCase], None]) -> None:
    rule(case_at(location, form))


@each_form(FORMS[-1])
@pytest.mark.parametrize("rule", UPSERT_RULES, ids=lambda rule: rule.__name__)
def test_upserted(location: StoreLocation, form: Form, rule: Callable[[SinkCase], None]) -> None:
    rule(case_at(location, form, "id"))
