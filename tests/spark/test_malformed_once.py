"""Malformed rows of a source are reported once, however many stages read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sluice.declaration import aggregates as agg
from sluice.job.places import open_result_table, open_side_table
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_row_that_cannot_be_read_is_reported_by_the_first_stage_alone(
    tmp_path: Path, spark: SparkSession
) -> None:
    folder = FolderJob(spark, tmp_path)
    files = Files(str(folder.files), format="json", schema="id bigint", bounded=False)
    rows = folder.pipeline.source("rows", files)
    first = rows.key_by("id").join("first", rows.key_by("id"))
    first.sink("first_out", FilesTable())
    rows.key_by("id").aggregate("second", n=agg.count()).sink(
        "second_out", FilesTable(upsert_key=("id",))
    )
    rows.where("id > 1").transform("third", lambda frame: frame).sink("third_out", FilesTable())
    (folder.files / "a.json").write_text('{"id": 1}\n{"id": \n{"id": 2}\n')

    folder.epoch()

    reported = {
        uid: [
            (row["line"], row["record_number"])
            for row in open_side_table(folder.job, uid).read().to_pylist()
        ]
        for uid in ("first.malformed", "second.malformed", "third.malformed")
    }
    assert reported == {
        "first.malformed": [('{"id": ', 2)],
        "second.malformed": [],
        "third.malformed": [],
    }
    assert sorted(open_result_table(folder.job, {}, "second_out").read()["id"].to_pylist()) == [
        1,
        2,
    ]
    assert open_result_table(folder.job, {}, "third_out").read()["id"].to_pylist() == [2]
