"""A column may be called like any word of SQL: through filters, keys, windows, joins and state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from sluice import aggregates as agg
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.sql_names import LITERAL
from sluice.windows import Tumbling
from tests.spark.folder_job import FolderJob
from tests.sql_keywords import KEYWORDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = [word for word in KEYWORDS if not LITERAL.fullmatch(word)] + ["now", "pi", "e"]


def test_every_keyword_names_a_column_in_every_operator(
    tmp_path: Path, spark: SparkSession
) -> None:
    folder = FolderJob(spark, tmp_path)
    source = folder.pipeline.source(
        "rows", Files(str(folder.files), format="parquet", bounded=False), event_time="at_"
    )
    all_there = " AND ".join(f"{word} = '{word}'" for word in WORDS)
    as_read = source.where(all_there).select(*WORDS, "at_")
    same = as_read.transform("same", lambda rows: rows).where(all_there).select(*WORDS, "at_")
    keyed = same.key_by(*WORDS)
    keyed.aggregate("totals", n_=agg.count(WORDS[0], where=f"{WORDS[1]} IS NOT NULL")).sink(
        "totals_out", FilesTable(upsert_key=tuple(WORDS))
    )
    largest = {f"{word}_": agg.max(word) for word in WORDS}
    same.key_by(loud="upper(user)").window("hours", Tumbling(timedelta(hours=1)), **largest).sink(
        "hours_out", FilesTable()
    )
    keyed.join("joined", as_read.select(*WORDS).key_by(*WORDS)).sink("joined_out", FilesTable())
    row = {word: [word] * 2 for word in WORDS} | {"at_": [AT, AT + timedelta(hours=3)]}
    folder.write("1.parquet", pl.DataFrame(row))

    folder.epoch()

    def published(sink: str) -> pl.DataFrame:
        frame = pl.from_arrow(folder.job.result_table({}, sink).read())
        assert isinstance(frame, pl.DataFrame)
        return frame

    assert published("totals_out").rows(named=True) == [{word: word for word in WORDS} | {"n_": 2}]
    assert published("hours_out").select(f"{word}_" for word in WORDS).rows() == [tuple(WORDS)]
    assert published("joined_out").select(WORDS).rows() == [tuple(WORDS)] * 4
