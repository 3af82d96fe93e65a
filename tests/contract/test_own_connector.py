"""The page on writing a connector: its code runs, and keeps what every other one promises."""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sluice.store.open import StoreLocation
from tests.contract.sink_case import Row, SinkCase
from tests.contract.sink_rules import APPEND_RULES
from tests.contract.source_rules import check_replay

PAGE = Path(__file__).parents[2] / "docs" / "connectors" / "own.md"
IMPORTS = """
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
import pyarrow as pa
from sluice.connectors.offsets import OffsetSource, Readable
from sluice.declaration.places import RollBack
from sluice.connectors.staged_files import StagedFiles
from sluice.connectors.staged_sink import Note, StagedSink, decoded_note, encoded_note
from sluice.core.timeline import Timeline
from sluice.errors import ConfigurationError
from sluice.declaration.params import Param
from sluice.store.open import open_store
"""
LONGEST = 70  # Lines of a block that a reader of the page takes in.


@pytest.fixture(scope="module", name="page")
def _page() -> dict[str, Any]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    assert all(block.count("\n") < LONGEST for block in blocks)
    found: dict[str, Any] = {}
    exec(IMPORTS + "\n".join(blocks), found)  # noqa: S102 - it is our own page
    return found


def test_the_source_replays_its_rows_however_they_are_cut(
    page: dict[str, Any], tmp_path: Path
) -> None:
    expected = [{"id": number * 3, "name": f"n{number}"} for number in range(20)]
    with closing(sqlite3.connect(tmp_path / "db")) as db, db:
        db.execute("CREATE TABLE events (id, name)")
        db.executemany("INSERT INTO events VALUES (:id, :name)", expected)
    source = page["Rows"](str(tmp_path / "db"), bounded=True).open({}, None)

    check_replay(source, [(7, 2), (1, 1)], expected, files=1)


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
