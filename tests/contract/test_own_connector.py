"""The page on writing a connector: its code runs, and keeps what every other one promises."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.fingerprints import fingerprints
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.store.open import StoreLocation
from tests.contract.sink_case import Row, SinkCase
from tests.contract.sink_rules import APPEND_RULES
from tests.contract.source_rules import check_replay
from tests.own_page import blocks, insert, names_of_the_page

LONGEST = {"class Rows": 60, "class RowsSink": 70}  # Lines that a reader of the page takes in.


@pytest.fixture(scope="module", name="page")
def _page() -> dict[str, Any]:
    return names_of_the_page()


def test_each_is_short() -> None:
    for (name, most), block in zip(LONGEST.items(), blocks(), strict=True):
        assert name in block
        assert block.count("\n") < most, name


def test_the_source_replays_its_rows_however_they_are_cut(
    page: dict[str, Any], tmp_path: Path
) -> None:
    rows = [(number * 3, f"n{number}", number if number % 7 else "?") for number in range(20)]
    insert(tmp_path / "db", rows)
    expected = [
        {"id": id_, "name": name, "price": price, "_malformed": None, "_raw": None}
        if price != "?"
        else {
            "id": id_,
            "name": name,
            "price": None,
            "_malformed": "price is no number",
            "_raw": "?",
        }
        for id_, name, price in rows
    ]
    source = page["Rows"](str(tmp_path / "db"), bounded=True).open({}, None)

    check_replay(source, [(7, 2), (1, 1)], expected, files=1)


def test_its_place_is_compared_when_a_job_goes_on(page: dict[str, Any]) -> None:
    pipeline = Pipeline("own")
    rows = pipeline.source("events", page["Rows"]("/data/db"))
    rows.key_by("id").aggregate("counts", n=agg.count()).sink("out", FilesTable(upsert_key=("id",)))

    found = fingerprints(pipeline, {})

    assert found["events"].places == ("events of /data/db",)


@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_the_sink_keeps_every_sinks_promises(
    page: dict[str, Any], rule: Callable[[SinkCase], None], tmp_path: Path
) -> None:
    place = StoreLocation(root=f"memory://{secrets.token_hex(6)}")
    spec = page["RowsSink"](str(tmp_path / "db"))
    sqlite3.register_adapter(datetime, datetime.isoformat)

    def read() -> list[Row]:
        with closing(sqlite3.connect(tmp_path / "db")) as db:
            rows = db.execute("SELECT id, name, price, at FROM copy").fetchall()
        names = ("id", "name", "price", "at")
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [row | {"at": datetime.fromisoformat(row["at"])} for row in found]

    rule(SinkCase(lambda: spec.open("alerts", {}, place), read))
