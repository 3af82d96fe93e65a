"""What Airflow's OpenLineage provider is told of a checkpoint by its commit task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor

from harness.jobs import a_running_job, trigger_one
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice_airflow.openlineage import checkpoint_lineage
from sluice_airflow.operators import CommitOperator
from tests.airflow.acts import PIPELINE, a_checkpoint, a_context
from tests.airflow.rest import take
from tests.airflow.stand_in import StandInSpark


@pytest.fixture(name="job")
def _job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Orders of two shops, added up; one checkpoint of them, and one without new rows."""
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "orders").mkdir()
    orders = pl.DataFrame({"shop": ["a", "b", "a"], "price": [1, 2, 3], "note": ["x", "y", "z"]})
    orders.write_parquet(tmp_path / "orders" / "1.parquet")
    pipeline = Pipeline("takings", Checkpointing(max_records_per_epoch=100), parallelism=2)
    source = Files(str(tmp_path / "orders"), format="parquet", bounded=False)
    read = pipeline.source("orders", source).key_by("shop")
    summed = read.aggregate("sums", total=agg.sum("price"), most=agg.max("price"))
    summed.sink("totals", FilesTable(f"file://{tmp_path}/totals", upsert_key=("shop",)))
    job = a_running_job(pipeline)
    take(job, trigger_one(job))
    return job


def test_a_checkpoint_names_what_it_read_and_what_it_published(job: Job, tmp_path: Path) -> None:
    lineage = checkpoint_lineage(job, job.state().completed[-1].checkpoint_id)

    [read], [published] = lineage.inputs, lineage.outputs
    assert (read.namespace, read.name) == ("file", f"{tmp_path}/orders")
    assert read.inputFacets["inputStatistics"].rowCount == 3
    assert (published.namespace, published.name) == ("file", f"{tmp_path}/totals")
    assert published.outputFacets["outputStatistics"].rowCount == 2
    assert published.facets["version"].datasetVersion == "takings checkpoint 1"


def test_columns_are_traced_to_those_of_the_source(job: Job, tmp_path: Path) -> None:
    [published] = checkpoint_lineage(job, job.state().completed[-1].checkpoint_id).outputs

    traced = {
        name: [(one.name, one.field) for one in fields.inputFields]
        for name, fields in published.facets["columnLineage"].fields.items()
    }
    orders = f"{tmp_path}/orders"
    assert traced == {
        "shop": [(orders, "shop")], "total": [(orders, "price")], "most": [(orders, "price")],
    }  # fmt: skip


def test_the_provider_asks_the_commit_task(root: str, spark: StandInSpark) -> None:
    """Behind a function no column is traced, and what is below the root has its folder's name."""
    a_checkpoint("run-1")
    commit = CommitOperator(task_id="commit", pipeline=PIPELINE)
    ti: Any = a_context(run_id="run-1")["ti"]

    found = DefaultExtractor(commit).extract_on_complete(ti)

    assert found is not None
    [published] = found.outputs
    assert published.facets["version"].datasetVersion == f"{PIPELINE.uid} checkpoint 1"
    assert published.name.endswith(f"/{PIPELINE.uid}/tables/counts")
    assert "columnLineage" not in published.facets
    assert found.inputs == []
