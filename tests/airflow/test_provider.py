"""What Airflow loads of the provider, and what its OpenLineage provider is told of a commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from airflow.providers_manager import _create_provider_info_schema_validator

import airflow
from harness.jobs import a_running_job, trigger_one
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice_airflow import dags as dag_files
from sluice_airflow import get_provider_info, plugin
from sluice_airflow.openlineage import checkpoint_lineage
from sluice_airflow.operators import CommitOperator
from tests.airflow.acts import PIPELINE, a_checkpoint, a_context
from tests.airflow.conftest import REPOSITORY
from tests.airflow.rest import take
from tests.airflow.stand_in import StandInSpark

TOO_OLD = r"Airflow 3\.0\.6 is not supported; Sluice runs on Airflow 3\.1 or newer, below 4"


def test_the_provider_is_what_airflows_schema_asks_for() -> None:
    _create_provider_info_schema_validator().validate(get_provider_info())


def test_an_airflow_that_is_too_old_does_not_load_the_plugin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin.SluicePlugin.on_load()
    monkeypatch.setattr(plugin, "__version__", "3.0.6")

    with pytest.raises(ConfigurationError, match=TOO_OLD):
        plugin.SluicePlugin.on_load()


@pytest.mark.parametrize("asked", [dag_files.dags, dag_files.require_sound_pipelines])
def test_an_airflow_that_is_too_old_is_an_import_error_of_the_dag_files(
    monkeypatch: pytest.MonkeyPatch, asked: Any
) -> None:
    monkeypatch.setattr(airflow, "__version__", "3.0.6")

    with pytest.raises(ConfigurationError, match=TOO_OLD):
        asked()


def test_nothing_in_the_folder_of_plugins_is_scanned() -> None:
    """The entry point registers the plugin; a file that did so, too, would be an error."""
    plugins_manager = pytest.importorskip(
        "airflow._shared.plugins_manager.plugins_manager", reason="Airflow 3.1"
    )
    loaded, problems = plugins_manager._load_plugins_from_plugin_directory(  # noqa: SLF001 - Airflow has no public face for it
        str(REPOSITORY / "plugins")
    )

    assert (loaded, problems) == ([], {})


def test_a_dag_file_may_name_the_pipelines_from_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_PIPELINES", raising=False)
    (tmp_path / "flows_of_a_dag_file").mkdir()
    (tmp_path / "flows_of_a_dag_file" / "one.py").write_text("x = 1 / 0\n")
    file = tmp_path / "dags" / "problems.py"
    calling = compile("require_sound_pipelines('../flows_of_a_dag_file')", str(file), "exec")

    with pytest.raises(ConfigurationError, match=r"flows_of_a_dag_file/one.py: line 1: ZeroDiv"):
        exec(  # noqa: S102 - as Airflow runs a file
            calling,
            {"__file__": str(file), "require_sound_pipelines": dag_files.require_sound_pipelines},
        )


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
