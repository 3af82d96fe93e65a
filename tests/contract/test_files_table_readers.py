"""DuckDB and Polars read ``_latest`` as the documentation says, and see what ``read`` shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from sluice.connectors.files_table.table import ManifestTable
from sluice.core.answers import Attempt
from sluice.core.timeline import Recovery
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation, open_store
from tests.builders import ATTEMPTED, PLANNED
from tests.contract.sink_case import (
    JOB,
    RESTORED,
    Row,
    publish,
    rows,
    stage,
    stage_deletes,
    staged_rows,
)

DOCS = Path(__file__).parents[2] / "docs/connectors/files_table.md"


def snippet(name: str) -> str:
    """The code block behind ``<!-- name -->``."""
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None, f"{DOCS} has no snippet {name}"
    return found[1]


def table_at(path: Path, **options: Any) -> ManifestTable:
    store = open_store(StoreLocation(root=f"file://{path}/a table"))
    return ManifestTable("alerts", store, latest=True, **options)


def ordered(found: list[Row]) -> list[Row]:
    return sorted(found, key=lambda row: (row["id"], str(row)))


def by_duckdb(table: ManifestTable, name: str) -> list[Row]:
    code = snippet("duckdb-files") + snippet(name)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        *first, last = code.replace("TABLE", table.store.root[7:]).rstrip(";\n ").split(";\n")
        for statement in first:
            connection.execute(statement)
        found: list[dict[str, Any]] = connection.sql(last).to_arrow_table().to_pylist()
        return found


def by_polars(table: ManifestTable, name: str) -> list[Row]:
    names: dict[str, Any] = {"pl": pl}
    code = (snippet("polars-files") + snippet(name)).replace("TABLE", table.store.root[7:])
    exec(code, names)  # noqa: S102 - the documentation's own
    found: list[dict[str, Any]] = names["rows"].collect().to_arrow().to_pylist()
    return found


def test_what_is_staged_or_rolled_back_is_not_seen(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    for checkpoint_id in (1, 2, 3):
        publish(table, checkpoint_id, checkpoint_id - 1 or None, rows(checkpoint_id))
    stage(table, 9, rows(9))
    table.recover(RESTORED, Recovery(version=1, through=8, roll_back=True))

    assert by_duckdb(table, "duckdb-append") == rows(1)
    assert by_polars(table, "polars-append") == rows(1)

    publish(table, 10, 1, rows(10), RESTORED)
    assert ordered(by_duckdb(table, "duckdb-append")) == rows(1, 10)
    assert ordered(by_polars(table, "polars-append")) == rows(1, 10)


@pytest.mark.parametrize("compacted_at", [None, 2, 4])
@pytest.mark.parametrize("options", [{}, {"partition_by": ("name",)}], ids=["flat", "partitioned"])
def test_an_upserted_table_is_shown_as_it_is_read(
    tmp_path: Path, options: dict[str, Any], compacted_at: int | None
) -> None:
    table = table_at(tmp_path, upsert_key=("id",), **options)
    publish(table, 1, None, rows(1, 2, 3, 7))
    publish(table, 2, 1, rows(2, name="second"))
    table.commit(JOB, 3, 2, [stage_deletes(table, 3, rows(1, 7))])
    staged = [staged_rows(table, 4, 3, name="again"), stage_deletes(table, 4, rows(3))]
    table.commit(JOB, 4, 3, staged)
    if compacted_at is not None:
        table.compact(compacted_at)
        publish(table, 5, 4, rows(5))

    shown = table.read().to_pylist()

    assert len(shown) == (2 if compacted_at is None else 3)
    assert ordered(by_duckdb(table, "duckdb-upsert")) == ordered(shown)
    assert ordered(by_polars(table, "polars-upsert")) == ordered(shown)


def test_json_lines_are_shown_as_they_are_read(tmp_path: Path) -> None:
    table = table_at(tmp_path, format="json")
    publish(table, 1, None, rows(1, 7))
    publish(table, 2, 1, rows(2))

    assert ordered(table.read().to_pylist()) == rows(1, 2, 7)
    assert sorted(row["id"] for row in by_duckdb(table, "duckdb-json")) == [1, 2, 7]
    assert [row["price"] for row in by_polars(table, "polars-json")] == [0.25, 1.75, 0.5]


def test_partitions_are_read_right_with_their_folders_and_without(tmp_path: Path) -> None:
    table = table_at(tmp_path, partition_by=("day", "kind"))
    values = {
        "day": pa.array(["2026-01-01", "2026-01-01", None], pa.string()),
        "kind": pa.array(["a/b=c %d", "", "ü*'"], pa.string()),
        "n": pa.array([1, 2, 3], pa.int64()),
    }
    staged = table.stage(
        pa.table(values),
        Attempt(checkpoint_id=1, subtask=0, checkpoint_token=PLANNED, attempt_token=ATTEMPTED),
    )
    assert staged is not None
    table.commit(JOB, 1, None, [staged])
    _, *files = (table.store.get("_latest") or b"").decode().splitlines()
    expected = {(1, "2026-01-01", "a/b=c %d"), (2, "2026-01-01", ""), (3, None, "ü*'")}

    for is_hive in (False, True):
        read = pl.scan_parquet(files, hive_partitioning=is_hive, glob=False).collect()
        # By folders alone, the empty text and null are the same.
        by_row = read.select("n", "day", "kind").iter_rows()
        assert {(n, day, kind or "") for n, day, kind in by_row} == expected
        with duckdb.connect() as connection:
            found = connection.execute(
                "SELECT n, day::VARCHAR, kind FROM read_parquet(?, hive_partitioning = ?)",
                [files, is_hive],
            ).fetchall()
        assert {(n, day, kind or "") for n, day, kind in found} == expected


@pytest.mark.s3
def test_polars_reads_it_from_s3(store: ObjectStore, s3_endpoint: str) -> None:
    if not store.root.startswith("s3://"):
        pytest.skip("only S3 is read by URI")
    table = ManifestTable("alerts", store, latest=True, partition_by=("name",))
    publish(table, 1, None, rows(1, 7))

    header, *files = (store.get("_latest") or b"").decode().splitlines()
    read = pl.scan_parquet(
        files,
        glob=False,
        storage_options={
            "aws_endpoint_url": s3_endpoint,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        },
    )

    assert json.loads(header.removeprefix("# "))["rows"] == 2
    assert ordered(read.collect().to_arrow().to_pylist()) == rows(1, 7)
