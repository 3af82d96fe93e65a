"""A lookup reads its table in every format that Files has."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.errors import ConfigurationError
from sluice.job.places import open_side_table
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.spark.folder_job import FolderJob

SCHEMA = "city string, country string, tags array<string>"
OF_CSV = "city string, country string"
CITIES: list[dict[str, Any]] = [
    {"city": "Rome", "country": "IT", "tags": ["old"]},
    {"city": "Oslo", "country": "NO", "tags": None},
]
EXPECTED = [("ann", "IT"), ("bob", "NO")]


def as_csv(folder: Path) -> Files:
    (folder / "cities.csv").write_text("City,country\nRome,IT\nOslo,NO\n")
    return Files(str(folder / "cities.csv"), format="csv", header=True, schema=OF_CSV)


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


def located(job: FolderJob, cities: Files, **how: object) -> list[tuple[object, ...]]:
    table = job.pipeline.source("cities", cities, table=True)
    people = job.rows()
    people.lookup("located", table, **how).sink("out", FilesTable())  # type: ignore[arg-type]
    rows = pl.DataFrame({"name": ["ann", "bob", "cid"], "city": ["Rome", "Oslo", "Bonn"]})
    job.write("1.parquet", rows)
    job.epoch()
    return sorted(job.table("out").drop("city").rows())


@pytest.mark.parametrize("write", [as_csv, as_json, as_gzip, as_parquet, as_avro])
def test_a_lookup_knows_the_columns_of_its_table(
    job: FolderJob, tmp_path: Path, write: Callable[[Path], Files]
) -> None:
    assert located(job, write(tmp_path), on="city", add=("country",)) == EXPECTED


@pytest.mark.parametrize("add", [(), ("country",)])
def test_malformed_lines_are_reported_by_a_lookup_that_keeps_what_matches(
    job: FolderJob, tmp_path: Path, add: tuple[str, ...]
) -> None:
    (tmp_path / "cities.csv").write_text("City,country\nRome,IT\nRome,IT\nOslo,NO\n")
    cities = Files(str(tmp_path / "cities.csv"), format="csv", header=True, schema=OF_CSV)
    people = tmp_path / "people"
    people.mkdir()
    (people / "1.json").write_text('{"city": "Rome"}\n{"city": \n{"city": "Bonn"}\n')
    lines = Files(str(people), format="json", schema="city string", bounded=False)
    table = job.pipeline.source("cities", cities, table=True)
    located = job.pipeline.source("people", lines).lookup("located", table, on="city", add=add)
    located.sink("out", FilesTable())

    job.epoch()

    assert job.table("out")["city"].to_list() == ["Rome"] * (2 if add else 1)
    side = open_side_table(job.job, "located.malformed").read()
    assert side["line"].to_pylist() == ['{"city": ']


@pytest.mark.parametrize("keep", ["matched", "unmatched", "all"])
def test_a_malformed_line_is_reported_once_whatever_its_values_would_find(
    job: FolderJob, tmp_path: Path, keep: str
) -> None:
    (tmp_path / "cities.csv").write_text("City,country\nRome,IT\nRome,VA\n")
    cities = Files(str(tmp_path / "cities.csv"), format="csv", header=True, schema=OF_CSV)
    bad, *good = '{"city": "Rome", "n": "two"}', '{"city": "Rome"}', '{"city": "Oslo"}'
    (job.files / "1.json").write_text("\n".join((bad, *good, "")))
    lines = Files(str(job.files), format="json", schema="city string, n int", bounded=False)
    table = job.pipeline.source("cities", cities, table=True)
    add = ("country",) if keep != "unmatched" else ()
    people = job.pipeline.source("people", lines)
    located = people.lookup("located", table, on="city", add=add, keep=keep)  # type: ignore[arg-type]
    located.sink("out", FilesTable())

    job.epoch()

    found = {"matched": ["Rome", "Rome"], "unmatched": ["Oslo"], "all": ["Oslo", "Rome", "Rome"]}
    assert sorted(job.table("out")["city"]) == found[keep]
    side = open_side_table(job.job, "located.malformed").read()
    assert side["line"].to_pylist() == [bad]


def test_a_table_of_text_has_lines(job: FolderJob, tmp_path: Path) -> None:
    (tmp_path / "cities.txt").write_text("Rome\nOslo\n")

    rows = located(job, Files(str(tmp_path / "cities.txt")), on={"city": "line"}, keep="unmatched")

    assert rows == [("cid",)]


def test_a_row_of_a_table_that_cannot_be_read_is_named(job: FolderJob, tmp_path: Path) -> None:
    (tmp_path / "cities.json").write_text('{"city": "Rome"}\n{"city": \n')
    cities = Files(str(tmp_path / "cities.json"), format="json", schema=SCHEMA)

    with pytest.raises(AssertionError) as error:
        located(job, cities, on="city", add=("country",))

    assert (
        "USER_RAISED_EXCEPTION: line 2 of cities.json, which table source cities reads, is not a "
        "JSON object of the source's schema"
    ) in str(error.value)


def test_the_header_of_a_table_is_checked(job: FolderJob, tmp_path: Path) -> None:
    (tmp_path / "cities.csv").write_text("town,country\nRome,IT\n")
    cities = Files(str(tmp_path / "cities.csv"), format="csv", header=True, schema=OF_CSV)

    with pytest.raises(ConfigurationError, match="names the columns town, country"):
        located(job, cities, on="city", add=("country",))
