"""A lookup reads its table in every format that Files has."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.errors import ConfigurationError
from sluice.job.places import open_result_table
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "city string, country string, tags array<string>"
CITIES: list[dict[str, Any]] = [
    {"city": "Rome", "country": "IT", "tags": ["old"]},
    {"city": "Oslo", "country": "NO", "tags": None},
]
EXPECTED = [("ann", "IT"), ("bob", "NO")]


def as_csv(folder: Path) -> Files:
    (folder / "cities.csv").write_text("City,country\nRome,IT\nOslo,NO\n")
    schema = "city string, country string"
    return Files(str(folder / "cities.csv"), format="csv", header=True, schema=schema)


def as_json(folder: Path) -> Files:
    pl.DataFrame(CITIES).write_ndjson(folder / "cities.json")
    return Files(str(folder / "cities.json"), format="json", schema=SCHEMA)


def as_gzip(folder: Path) -> Files:
    body = pl.DataFrame(CITIES).write_ndjson().encode()
    (folder / "cities.json.gz").write_bytes(gzip.compress(body))
    return Files(str(folder / "cities.json.gz"), format="json", schema=SCHEMA)


def as_parquet(folder: Path) -> Files:
    cities = folder / "cities"
    cities.mkdir()
    for city in CITIES:  # A file each.
        table = pa.Table.from_pylist([city], pa.schema([("city", pa.string())]))
        tags = pa.array([city["tags"]], pa.large_list(pa.large_string()))
        table = table.append_column("country", [[city["country"]]]).append_column("tags", tags)
        pq.write_table(table, cities / f"{city['city']}.parquet")
    return Files(str(cities), format="parquet")


def as_avro(folder: Path) -> Files:
    import fastavro

    fields = [{"name": name, "type": "string"} for name in ("city", "country")]
    schema = {"type": "record", "name": "City", "fields": fields}
    with (folder / "cities.avro").open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), CITIES)
    return Files(str(folder / "cities.avro"), format="avro")


def as_text(folder: Path) -> Files:
    (folder / "cities.txt").write_text("Rome\nOslo\n")
    return Files(str(folder / "cities.txt"))


def located(folder: FolderJob, cities: Files, **how: object) -> list[tuple[object, ...]]:
    people = folder.pipeline.source(
        "people", Files(str(folder.files), format="parquet", bounded=False)
    )
    table = folder.pipeline.source("cities", cities, table=True)
    people.lookup("located", table, **how).sink("out", FilesTable())  # type: ignore[arg-type]
    rows = pl.DataFrame({"name": ["ann", "bob", "cid"], "city": ["Rome", "Oslo", "Bonn"]})
    folder.write("1.parquet", rows)
    folder.epoch()
    found = open_result_table(folder.job, {}).read().to_pylist()
    return sorted(tuple(row[name] for name in row if name != "city") for row in found)


@pytest.mark.parametrize("write", [as_csv, as_json, as_gzip, as_parquet, as_avro])
def test_a_lookup_knows_the_columns_of_its_table(
    tmp_path: Path, spark: SparkSession, write: Callable[[Path], Files]
) -> None:
    folder = FolderJob(spark, tmp_path / "job")

    assert located(folder, write(tmp_path), on="city", add=("country",)) == EXPECTED


def test_a_table_of_text_has_lines(tmp_path: Path, spark: SparkSession) -> None:
    folder = FolderJob(spark, tmp_path / "job")

    rows = located(folder, as_text(tmp_path), on={"city": "line"}, keep="unmatched")

    assert rows == [("cid",)]


def test_a_row_of_a_table_that_cannot_be_read_is_named(tmp_path: Path, spark: SparkSession) -> None:
    folder = FolderJob(spark, tmp_path / "job")
    (tmp_path / "cities.json").write_text('{"city": "Rome"}\n{"city": \n')
    cities = Files(str(tmp_path / "cities.json"), format="json", schema=SCHEMA)

    with pytest.raises(AssertionError) as error:
        located(folder, cities, on="city", add=("country",))

    assert (
        "USER_RAISED_EXCEPTION: line 2 of cities.json, which table source cities reads, is not a "
        "JSON object of the source's schema"
    ) in str(error.value)


def test_the_header_of_a_table_is_checked(tmp_path: Path, spark: SparkSession) -> None:
    folder = FolderJob(spark, tmp_path / "job")
    (tmp_path / "cities.csv").write_text("town,country\nRome,IT\n")
    schema = "city string, country string"
    cities = Files(str(tmp_path / "cities.csv"), format="csv", header=True, schema=schema)

    with pytest.raises(ConfigurationError, match="names the columns town, country"):
        located(folder, cities, on="city", add=("country",))
