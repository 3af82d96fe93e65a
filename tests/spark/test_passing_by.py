"""Whether rows pass Spark's JVM is told from the declaration, before there is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import load_pipeline
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark import deployment
from sluice.spark.deployment import Exchange, exchange_of, rows_pass_jvm
from sluice.spark.tasks import StageRun
from tests.spark.folder_job import FolderJob

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


@pytest.mark.parametrize("declare", [*PASSING_BY, *THROUGH])
def test_what_is_told_before_is_what_the_stages_then_do(
    job: FolderJob, declare: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Exchange | None] = []

    def watched(run: StageRun) -> Exchange | None:
        found.append(exchange_of(run))
        return found[-1]

    monkeypatch.setattr(deployment, "exchange_of", watched)
    rows = job.rows()
    result = declare(rows)
    result.sink("out", FilesTable(changelog=True) if declare is best_of_totals else UPSERTS)
    job.write("1.parquet", ROWS)

    said = rows_pass_jvm(job.pipeline, {}, None)
    job.epoch()

    assert said == (declare in THROUGH)
    assert said == any(exchange is None for exchange in found)


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
