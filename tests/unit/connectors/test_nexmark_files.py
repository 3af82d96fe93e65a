"""Nexmark events as files: the reference's shape, the same events in JSON and in Parquet."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench.nexmark_files import EVENT_DDL, write_json_lines, write_parquet
from sluice.connectors.nexmark.source import NexmarkSource
from sluice.errors import ConfigurationError


def json_rows(paths: list[Path]) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in paths
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]


def test_json_and_parquet_hold_the_same_events_as_the_source(tmp_path: Path) -> None:
    source = NexmarkSource(40_001, first_event_rate=1_000, out_of_order_group_size=100)

    rows = json_rows(write_json_lines(source, tmp_path / "json", files=3))
    tables = [pq.read_table(path) for path in write_parquet(source, tmp_path / "parquet", files=2)]

    nested = [row for table in tables for row in table.to_pylist()]
    assert [{k: v for k, v in row.items() if v is not None} for row in nested] == rows
    assert len(rows) == 40_001
    assert all(row[("person", "auction", "bid")[row["event_type"]]] for row in rows)
    assert [table.num_rows for table in tables] == [20_000, 20_001]


def test_fields_have_the_names_and_the_order_of_the_reference(tmp_path: Path) -> None:
    rows = json_rows(write_json_lines(NexmarkSource(5), tmp_path, files=1))

    assert rows[0] == {
        "event_type": 0,
        "person": {
            "id": 1000,
            "name": "Luke Bartels",
            "emailAddress": "corwfmg@qtvxs.com",
            "city": rows[0]["person"]["city"],
            "state": rows[0]["person"]["state"],
            "dateTime": 1_436_918_400_000,
        },
    }
    assert list(rows[1]["auction"]) == (
        ["id", "itemName", "initialBid", "reserve", "dateTime", "expires", "seller", "category"]
    )
    assert list(rows[4]["bid"]) == ["auction", "bidder", "price", "channel", "url", "dateTime"]


def test_the_declared_schema_is_the_written_one(tmp_path: Path) -> None:
    [path] = write_parquet(NexmarkSource(0), tmp_path, files=1)

    spark = {"int64": "bigint", "int32": "int", "string": "string"}
    columns = []
    for field in pq.read_schema(path):
        if field.name == "event_type":
            columns.append(f"event_type {spark[str(field.type)]}")
        else:
            members = ", ".join(f"{one.name}: {spark[str(one.type)]}" for one in field.type)
            columns.append(f"{field.name} struct<{members}>")
    assert ", ".join(columns) == EVENT_DDL
    assert pq.read_table(path).num_rows == 0


def test_more_files_than_events_are_empty(tmp_path: Path) -> None:
    paths = write_json_lines(NexmarkSource(2), tmp_path, files=3)

    assert [path.name for path in paths] == [f"events-{n:06}.jsonl.gz" for n in range(3)]
    assert len(json_rows(paths)) == 2


def test_events_without_an_end_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="set a number"):
        write_json_lines(NexmarkSource(None), tmp_path, files=1)
