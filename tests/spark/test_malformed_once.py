"""What cannot be read of a source is reported once, however many stages read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sluice import aggregates as agg
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
            for row in folder.job.side_table(uid).read().to_pylist()
        ]
        for uid in ("first.malformed", "second.malformed", "third.malformed")
    }
    assert reported == {
        "first.malformed": [('{"id": ', 2)],
        "second.malformed": [],
        "third.malformed": [],
    }
    assert sorted(folder.job.result_table({}, "second_out").read()["id"].to_pylist()) == [1, 2]
    assert folder.job.result_table({}, "third_out").read()["id"].to_pylist() == [2]
