"""The result table of a job: the same rows in the same order, whatever file they are written to."""

from __future__ import annotations

import csv
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.jobs import a_job, a_pipeline, a_running_job
from sluice.cli.run import (
    check_result_columns,
    check_result_file,
    chosen_sink,
    final_table,
    write_result,
)
from sluice.connectors.files_table.table import ManifestTable as FilesTableSink
from sluice.connectors.json_rows import encode_lines
from sluice.declaration.places import VersionedSink
from sluice.errors import ConfigurationError
from sluice.job.places import open_result_table
from sluice.sinks import FilesTable
from tests.subtasks import take_checkpoint

NOON = datetime(2015, 7, 15, 12, tzinfo=UTC)
TABLE = pa.table(
    {
        "name": pa.array(["ü", None]),
        "bids": pa.array([1, 2], pa.int64()),
        "at": pa.array([NOON, NOON], pa.timestamp("us", tz="UTC")),
    }
)


@pytest.mark.parametrize("name", ["out.txt", "out", "out.parquet.gz", "OUT.CSV"])
def test_an_unknown_ending_is_refused_with_the_known_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"name it \.parquet or \.json or \.csv"):
        check_result_file(tmp_path / name)


def test_a_folder_that_is_not_there_is_refused_before_the_work(tmp_path: Path) -> None:
    check_result_file(None)
    check_result_file(tmp_path / "out.csv")

    with pytest.raises(ConfigurationError, match=r"there is no folder .*/nowhere"):
        check_result_file(tmp_path / "nowhere" / "out.csv")


def test_parquet_keeps_rows_and_types(tmp_path: Path) -> None:
    write_result(TABLE, tmp_path / "out.parquet")

    assert pq.read_table(tmp_path / "out.parquet").equals(TABLE)


def test_json_is_an_array_of_rows_with_times_in_utc(tmp_path: Path) -> None:
    write_result(TABLE, tmp_path / "out.json")

    assert json.loads((tmp_path / "out.json").read_text()) == [
        {"name": "ü", "bids": 1, "at": "2015-07-15T12:00:00Z"},
        {"name": None, "bids": 2, "at": "2015-07-15T12:00:00Z"},
    ]


def test_json_has_the_form_that_sinks_write(tmp_path: Path) -> None:
    """NaN is not null, instants are in UTC whatever zone their column has, maps are objects."""
    counts = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))
    at = pa.array([NOON], pa.timestamp("us", tz="Europe/Berlin"))
    table = pa.table({"share": [math.nan], "at": at, "counts": counts, "took": [timedelta(1)]})

    write_result(table, tmp_path / "out.json")

    rows = json.loads((tmp_path / "out.json").read_text())
    assert rows == json.loads(b"[" + encode_lines(table).strip() + b"]")
    assert rows == [
        {"share": "NaN", "at": "2015-07-15T12:00:00Z", "counts": {"a": 1}, "took": "P1D"}
    ]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1], pa.timestamp("ns")), "out.json cannot write column 'at' of type timestamp"),
        (pa.array([10**18], pa.timestamp("us")), "column 'at' has times outside of the years 1 to"),
    ],
)
def test_what_json_has_no_form_for_is_refused_and_no_file_is_left(
    tmp_path: Path, column: pa.Array, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        write_result(pa.table({"at": column}), tmp_path / "out.json")

    assert not (tmp_path / "out.json").exists()


def test_csv_has_a_header_and_a_row_each(tmp_path: Path) -> None:
    write_result(TABLE, tmp_path / "out.csv")

    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["bids"]) for row in rows] == [("ü", "1"), ("", "2")]
    assert rows[0]["at"].startswith("2015-07-15 12:00:00")


@pytest.mark.parametrize("ending", ["parquet", "json", "csv"])
def test_a_table_without_rows_can_be_written(tmp_path: Path, ending: str) -> None:
    write_result(pa.table({}), tmp_path / f"out.{ending}")

    assert (tmp_path / f"out.{ending}").exists()


def test_the_final_table_is_sorted_by_its_columns() -> None:
    job = a_running_job()
    take_checkpoint(job)
    take_checkpoint(job)

    table = final_table(job, {})

    assert table["record"].to_pylist() == list(range(20))


def test_a_job_that_published_nothing_has_an_empty_table() -> None:
    assert final_table(a_job(a_pipeline()), {}).num_columns == 0


def test_the_first_declared_sink_is_the_result() -> None:
    pipeline = a_pipeline(location="memory://the-first-result")
    job = a_running_job(pipeline)
    take_checkpoint(job)

    assert isinstance(pipeline.sinks["results"].spec, FilesTable)
    assert final_table(job, {}).num_rows == 10
    table = open_result_table(job, {})
    assert isinstance(table, VersionedSink)
    assert table.size().root == "memory://the-first-result"


def test_a_column_without_an_order_does_not_keep_a_table_from_being_sorted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = pa.table({"tags": [["b"], ["a"]], "name": ["x", "a"]})
    job = a_running_job()
    monkeypatch.setattr(FilesTableSink, "read", lambda _: rows)

    assert final_table(job, {})["name"].to_pylist() == ["a", "x"]


def test_several_sinks_need_a_name_when_one_is_to_be_written() -> None:
    two = a_pipeline(beside={"other": FilesTable(changelog=True)})

    assert chosen_sink(a_pipeline(), None, Path("x.json")) == "results"
    assert chosen_sink(two, None, None) is None
    assert chosen_sink(two, "other", Path("x.json")) == "other"
    with pytest.raises(ConfigurationError, match="has the sinks results, other; say which one"):
        chosen_sink(two, None, Path("x.json"))
    with pytest.raises(ConfigurationError, match="--sink nothing: pipeline 'auctions' has no such"):
        chosen_sink(two, "nothing", None)


@pytest.mark.parametrize("of", [pl.List(pl.Int64()), pl.Struct({"a": pl.Int64()}), pl.Binary()])
def test_a_column_that_no_csv_file_holds_is_refused_before_the_work(of: pl.DataType) -> None:
    columns = pl.Schema({"name": pl.String(), "extra": of})

    check_result_columns(Path("x.json"), "out", columns)
    check_result_columns(None, "out", columns)
    with pytest.raises(ConfigurationError, match="column 'extra' of sink 'out' is "):
        check_result_columns(Path("x.csv"), "out", columns)
