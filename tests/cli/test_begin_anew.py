"""A job whose source has lost what it was to read next: the first thing that a person is told names
the command, and that command, done to the letter, is the way out.
"""

from __future__ import annotations

import json
import shlex
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from harness.jobs import trigger_one
from sluice import aggregates as agg
from sluice.core.configuration import JobStatus
from sluice.declaration.pipeline import Pipeline
from sluice.errors import SourceUnreadable
from sluice.job.job import open_job
from sluice.sinks import FilesTable
from sluice.sources import IcebergTable
from sluice.store.open import StoreLocation
from sluice.surface.pipelines import pipeline_line
from tests.cli.conftest import Sluice
from tests.cli.test_run import NoSession
from tests.iceberg_catalog import TABLE, a_table, loaded, properties

SCHEMA = pa.schema([("word", pa.string())])


def append(folder: Path, *words: str) -> None:
    loaded(folder).append(pa.table({"word": list(words)}, SCHEMA))


def test_an_expired_snapshot_is_told_with_the_command_that_goes_on(
    sluice: Sluice, without_spark: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    a_table(lake, SCHEMA)
    pipeline = Pipeline("words", parallelism=1)
    rows = pipeline.source("rows", IcebergTable(TABLE, properties(lake), bounded=False))
    rows.key_by("word").aggregate("counted", n=agg.count()).sink(
        "out", FilesTable(upsert_key=("word",))
    )
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"words": pipeline}.__getitem__)
    monkeypatch.setattr("sluice.cli.run.local_session", lambda **_: nullcontext(NoSession()))
    monkeypatch.setenv("SLUICE_ROOT", f"file://{tmp_path}/jobs")
    monkeypatch.chdir(tmp_path)
    job = open_job(pipeline, StoreLocation(root=f"file://{tmp_path}/jobs"))
    append(lake, "fine")
    assert sluice("run", "words", "--epochs", 1).code == 0
    for word in ("gone", "gone", "left"):
        append(lake, word)
    unread = [one.snapshot_id for one in loaded(lake).metadata.snapshots[1:-1]]
    loaded(lake).maintenance.expire_snapshots().by_ids(unread).commit()

    refused = sluice("run", "words", "--epochs", 1)
    with pytest.raises(SourceUnreadable):  # As Airflow's task asks.
        trigger_one(job)
    health = pipeline_line(job).health
    listed = sluice("checkpoints", "list", "words")
    assert health is not None
    assert health.next_step is not None
    told = shlex.split(health.next_step.command)
    mended = sluice(*told[1:], "--epochs", 1, "--output", "out.json")

    assert told == ["sluice", "run", "words", "--fresh"]
    assert (refused.code, "'sluice run words --fresh'" in refused.err) == (1, True), refused.err
    assert "have expired before they were read" in health.says
    assert "  sluice run words --fresh\n" in listed.out
    assert mended.code == 0, mended.err
    counts = {row["word"]: row["n"] for row in json.loads(Path("out.json").read_text())}
    assert counts == {"fine": 1, "gone": 2, "left": 1}  # All that the table has now, and once.
    assert job.state().status is JobStatus.RUNNING  # Airflow goes on from here.
