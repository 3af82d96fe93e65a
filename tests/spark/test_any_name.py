"""A column may be called like any word of SQL: through filters, keys, windows, joins and state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.expressions import LITERAL
from sluice.declaration.operations import Tumbling
from sluice.errors import ConfigurationError
from sluice.job.places import open_result_table
from sluice.sinks import FilesTable
from sluice.sources import Files
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
    largest: dict[str, Any] = {f"{word}_": agg.max(word) for word in WORDS}
    same.key_by(loud="upper(user)").window("hours", Tumbling(timedelta(hours=1)), **largest).sink(
        "hours_out", FilesTable()
    )
    keyed.join("joined", as_read.select(*WORDS).key_by(*WORDS)).sink("joined_out", FilesTable())
    row = {word: [word] * 2 for word in WORDS} | {"at_": [AT, AT + timedelta(hours=3)]}
    folder.write("1.parquet", pl.DataFrame(row))

    folder.epoch()

    def published(sink: str) -> pl.DataFrame:
        frame = pl.from_arrow(open_result_table(folder.job, {}, sink).read())
        assert isinstance(frame, pl.DataFrame)
        return frame

    assert published("totals_out").rows(named=True) == [{word: word for word in WORDS} | {"n_": 2}]
    assert published("hours_out").select(f"{word}_" for word in WORDS).rows() == [tuple(WORDS)]
    assert published("joined_out").select(WORDS).rows() == [tuple(WORDS)] * 4


@pytest.mark.parametrize("condition", ["n >= 0", "abs(n) >= 0"])  # Past the JVM, and through it.
def test_a_column_with_a_name_of_ours_is_lost_nowhere(
    tmp_path: Path, spark: SparkSession, condition: str
) -> None:
    """Where sluice has a column of that name it is refused, and renamed it goes through."""
    folder = FolderJob(spark, tmp_path)
    rows = folder.pipeline.source("rows", Files(str(folder.files), format="parquet", bounded=False))
    rows.where(condition).key_by("n").deduplicate("keyed").sink("keyed_out", FilesTable())
    folder.write("1.parquet", pl.DataFrame({"n": [1], "_hash": ["mine"]}))

    with pytest.raises(ConfigurationError, match="'keyed' reads a column '_hash' of 'rows', a nam"):
        folder.epoch()

    other = FolderJob(spark, tmp_path / "other")
    rows = other.pipeline.source("rows", Files(str(other.files), format="parquet", bounded=False))
    kept = rows.where(condition).select("n", "_hash AS hash_", "_deleted")
    kept.transform("same", lambda found: found).sink("same_out", FilesTable())
    kept.select("n", "hash_").key_by("n").deduplicate("keyed").sink("keyed_out", FilesTable())
    other.write("1.parquet", pl.DataFrame({"n": [1], "_hash": ["mine"], "_deleted": [True]}))

    assert "sink 'same_out' gets a column '_deleted' of 'same', by which" in other.failure()
