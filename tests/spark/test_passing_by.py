"""Whether rows pass Spark's JVM is told from the declaration, before there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from sluice.coordinator.restore import restore
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import load_pipeline
from sluice.exchange.reading import SourceRows
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark import deployment
from sluice.spark.deployment import Exchange, exchange_of, rows_pass_jvm
from sluice.spark.session import task_slots
from sluice.spark.tasks import StageRun
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pl.DataFrame({"k": [1, 2, 1], "name": ["a", "b", "c"], "n": [3, 4, 5], "x": [0.5, 1.5, 2.5]})
UPSERTS = FilesTable(upsert_key=("k",))


def totals(rows: Any) -> Any:
    return rows.key_by("k").aggregate("totals", n=agg.sum("n"))


def best_of_totals(rows: Any) -> Any:
    return totals(rows).key_by("n").top_n("best", 1, by="k")


def behind_a_transform(rows: Any) -> Any:
    return totals(rows.transform("same", lambda frame: frame))


def behind_sql_of_sparks(rows: Any) -> Any:
    return totals(rows.where("hex(name) = '61'"))


def of_floats(rows: Any) -> Any:
    return rows.key_by("k").aggregate("totals", n=agg.sum("x"))


PASSING_BY: list[Callable[[Any], Any]] = [totals, best_of_totals]
THROUGH: list[Callable[[Any], Any]] = [behind_a_transform, behind_sql_of_sparks, of_floats]


@pytest.fixture(name="found")
def _found(monkeypatch: pytest.MonkeyPatch) -> list[Exchange | None]:
    """The exchanges of the stages that run."""
    found: list[Exchange | None] = []

    def watched(run: StageRun) -> Exchange | None:
        found.append(exchange_of(run))
        return found[-1]

    monkeypatch.setattr(deployment, "exchange_of", watched)
    return found


@pytest.mark.parametrize("declare", [*PASSING_BY, *THROUGH])
def test_what_is_told_before_is_what_the_stages_then_do(
    job: FolderJob, declare: Callable[[Any], Any], found: list[Exchange | None]
) -> None:
    rows = job.rows()
    result = declare(rows)
    result.sink("out", FilesTable(changelog=True) if declare is best_of_totals else UPSERTS)
    job.write("1.parquet", ROWS)

    said = rows_pass_jvm(job.pipeline, {}, None)
    job.epoch()

    assert said == (declare in THROUGH)
    assert said == any(exchange is None for exchange in found)


def test_more_subtasks_than_slots_read_in_as_many_shares_as_there_are_slots(
    job: FolderJob, spark: SparkSession, found: list[Exchange | None]
) -> None:
    totals(job.rows()).sink("out", UPSERTS)
    job.write("1.parquet", ROWS)
    slots = task_slots(spark)
    configuration = replace(job.job.state().configuration, parallelism=slots + 3)
    restore(job.job, Latest(), configuration=configuration)

    job.epoch()

    (exchange,) = found
    assert exchange is not None
    (feed,) = exchange.feeds
    assert isinstance(feed.rows, SourceRows)
    assert len(feed.rows.shares) == slots
    assert sorted(job.table("out").select("k", "n").rows()) == [(1, 8), (2, 4)]


def test_of_json_and_of_no_files_it_cannot_be_told(tmp_path: Path) -> None:
    lines = Files(str(tmp_path), format="json", schema="k bigint, n bigint")
    no_files = Files(str(tmp_path), format="parquet")
    for given in (lines, no_files):
        pipeline = Pipeline("untold")
        totals(pipeline.source("rows", given)).sink("out", UPSERTS)

        assert rows_pass_jvm(pipeline, {}, None)


@pytest.mark.parametrize("query", ["q4", "q5", "q11", "q18"])
def test_of_nexmark_in_parquet_nothing_passes_the_jvm(query: str, tmp_path: Path) -> None:
    from bench.nexmark_files import write_parquet
    from sluice.connectors.nexmark.source import NexmarkSource

    write_parquet(NexmarkSource(1_000), tmp_path / "events", 1)
    pipeline = load_pipeline(f"nexmark_{query}")
    params = {
        one.name: str(tmp_path / "events") if one.name == "events" else "parquet"
        for one in pipeline.params
    }

    assert not rows_pass_jvm(pipeline, params, None)
