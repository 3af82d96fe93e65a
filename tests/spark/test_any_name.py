"""A column may be called like any word of SQL: through filters, keys, windows, joins and state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from sluice import aggregates as agg
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.windows import Tumbling
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = datetime(2026, 1, 1, tzinfo=UTC)
# SQL has no other way to tell these; CURRENT_PATH Spark takes for its function.
ONLY_QUOTED = {"true", "false", "null", "current_path"}
FUNCTIONS = {"user", "now", "session_user", "current_date", "current_timestamp", "pi", "e"}


def keywords(spark: SparkSession) -> list[str]:
    words = {row[0].lower() for row in spark.sql("SELECT keyword FROM sql_keywords()").collect()}
    return sorted((words | FUNCTIONS) - ONLY_QUOTED)


def test_every_keyword_of_spark_names_a_column_in_every_operator(
    tmp_path: Path, spark: SparkSession
) -> None:
    words = keywords(spark)
    folder = FolderJob(spark, tmp_path)
    source = folder.pipeline.source(
        "rows", Files(str(folder.files), format="parquet", bounded=False), event_time="at_"
    )
    all_there = " AND ".join(f"{word} = '{word}'" for word in words)
    as_read = source.where(all_there).select(*words, "at_")
    same = as_read.transform("same", lambda rows: rows).where(all_there).select(*words, "at_")
    keyed = same.key_by(*words)
    keyed.aggregate("totals", n_=agg.count(words[0], where=f"{words[1]} IS NOT NULL")).sink(
        "totals_out", FilesTable(upsert_key=tuple(words))
    )
    largest = {f"{word}_": agg.max(word) for word in words}
    same.key_by(loud="upper(user)").window("hours", Tumbling(timedelta(hours=1)), **largest).sink(
        "hours_out", FilesTable()
    )
    keyed.join("joined", as_read.select(*words).key_by(*words)).sink("joined_out", FilesTable())
    row = {word: [word] * 2 for word in words} | {"at_": [AT, AT + timedelta(hours=3)]}
    folder.write("1.parquet", pl.DataFrame(row))

    folder.epoch(drain=True)

    def published(sink: str) -> pl.DataFrame:
        frame = pl.from_arrow(folder.job.result_table({}, sink).read())
        assert isinstance(frame, pl.DataFrame)
        return frame

    assert published("totals_out").rows(named=True) == [{word: word for word in words} | {"n_": 2}]
    assert published("hours_out").select(f"{word}_" for word in words).rows() == [tuple(words)] * 2
    assert published("joined_out").select(words).rows() == [tuple(words)] * 4
