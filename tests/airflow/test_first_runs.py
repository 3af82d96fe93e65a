"""The first run of a checkpoint DAG, where no source has a record yet."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice_airflow.compat import AirflowSkipException
from sluice_airflow.operators import CommitOperator, FinalizeOperator
from sluice_airflow.stage import SnapshotOperator
from sluice_airflow.trigger_task import TriggerOperator
from tests.airflow.acts import a_context, execute
from tests.airflow.stand_in import StandInSpark


def a_folder_pipeline(folder: Path) -> Pipeline:
    pipeline = Pipeline("demo", checkpointing=Checkpointing(interval=timedelta(milliseconds=10)))
    lines = pipeline.source("lines", Files(f"{folder}/", bounded=False))
    lines.transform("copied", lambda rows: rows).sink("counts", FilesTable())
    return pipeline


def test_it_takes_checkpoint_1_of_no_records(
    root: str, spark: StandInSpark, tmp_path: Path
) -> None:
    pipeline = a_folder_pipeline(tmp_path)

    done = execute(TriggerOperator, pipeline=pipeline)

    assert done == {"checkpoint_id": 1, "records": 0, "parent": None, "type": "CHECKPOINT"}


def test_a_later_run_of_airflows_own_that_finds_nothing_is_skipped(
    root: str, spark: StandInSpark, tmp_path: Path
) -> None:
    pipeline = a_folder_pipeline(tmp_path)
    execute(TriggerOperator, pipeline=pipeline)
    for stage in pipeline.stages:
        SnapshotOperator(task_id="snapshot", pipeline=pipeline, stage=stage).execute(a_context())
    for operator in (FinalizeOperator, CommitOperator):
        execute(operator, pipeline=pipeline)

    with pytest.raises(AirflowSkipException, match="no new"):
        execute(TriggerOperator, pipeline=pipeline, run_id="run-2", run_type="asset_triggered")
