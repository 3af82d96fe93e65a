"""The figures of the page of benchmarks are those of the newest full record of each row."""

from __future__ import annotations

import re

from bench.history import read_history
from tests.house.test_repository import REPOSITORY

PAGE = REPOSITORY / "docs/explanation/benchmarks.md"
ROW = re.compile(r"^\| `(\w+)` \| ([\d.]+ / [\d.]+) \| ([\d.]+ / [\d.]+) \|", re.MULTILINE)
SHOWN = ("sluice", "flink_hashmap")


def test_the_table_of_figures_is_the_newest_full_record() -> None:
    newest = {
        (record.row, record.engine): record
        for record in read_history()
        if record.source == "measured" and record.form == "full" and record.engine in SHOWN
    }

    page = PAGE.read_text()
    shown = {
        (row, engine): cell
        for row, *cells in ROW.findall(page)
        for engine, cell in zip(SHOWN, cells, strict=True)
    }

    assert shown == {
        key: f"{record.wall_min_s:.2f} / {record.cpu_min_s:.2f}" for key, record in newest.items()
    }
    assert {record.commit for record in newest.values() if record.commit not in page} == set()
