"""Every Nexmark query on events of our generator, against plain SQL over all of them.

One run takes many epochs, from JSON, with all state in one run after each and little memory; a
worker is killed in the middle of it, and it goes on with another parallelism.  Another takes all in
one epoch, from Parquet that Spark scans itself.  By default the kills are for a sample, joins
and windows; ``SLUICE_NEXMARK=all`` has them for every query, and cuts it in more ways: minutes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.nexmark_files import write_json_lines, write_parquet
from sluice.connectors.nexmark.source import NexmarkSource
from sluice.coordinator.restore import restore
from sluice.core.configuration import JobStatus
from sluice.core.restoring import Latest
from sluice.declaration.checkpointing import Checkpointing, StateBackend, fixed_delay
from sluice.declaration.pipeline import Pipeline, side_outputs
from sluice.declaration.project import load_pipeline
from sluice.exchange.faults import FAULT_VARIABLE
from sluice.job.job import Job
from sluice.job.places import open_result_table, open_side_table
from sluice.local.driver import Epoch, run_epochs
from sluice.state.segments import to_frame
from tests.fuzz.on_spark import WAYS, play_on_spark, spark_plan
from tests.fuzz.plans import from_json, to_json
from tests.spark.folder_job import a_submitted_job
from tests.spark.nexmark_oracle import QUERIES, expected, rows_of

EVENTS = 6_000
MOMENT = timedelta(milliseconds=10)
PER_SECOND = 100  # A minute of event time: some windows, some sessions.
IS_WHOLE = os.environ.get("SLUICE_NEXMARK") == "all"
PLAYED = QUERIES if IS_WHOLE else ("q4",)
CUTS = [(epochs, parallelism) for epochs in (1, 7, 40) for parallelism in (1, 3)]


@pytest.fixture(name="events", scope="module")
def _events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same events as Parquet and as JSON lines, out of order as the reference's are."""
    folder = tmp_path_factory.mktemp("nexmark")
    source = NexmarkSource(EVENTS, first_event_rate=PER_SECOND, out_of_order_group_size=20)
    write_parquet(source, folder / "parquet", files=2)
    write_json_lines(source, folder / "json", files=2)
    return folder


def a_pipeline(query: str, **backend: int) -> Pipeline:
    declared = load_pipeline(f"nexmark_{query}")
    checkpointing = Checkpointing(interval=None, restart_strategy=fixed_delay(delay=MOMENT))
    return replace(declared, checkpointing=checkpointing, state_backend=StateBackend(**backend))


def start(
    pipeline: Pipeline, root: Path, events: Path, format_: str, epochs: int, parallelism: int
) -> Job:
    params = {"events": str(events / format_), "format": format_}
    limit = -(-EVENTS // epochs)
    return a_submitted_job(
        pipeline, root, params, parallelism=parallelism, max_records_per_epoch=limit
    )


def check_result(job: Job, query: str, events: Path) -> None:
    table = to_frame(open_result_table(job, job.state().configuration.params).read())
    wanted = expected(query, events / "parquet")
    assert rows_of(table, wanted.columns) == rows_of(wanted, wanted.columns)
    assert wanted.height > 0
    assert [
        uid for uid in side_outputs(job.pipeline) if open_side_table(job, uid).row_count()
    ] == []


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_in_one_epoch(
    spark: SparkSession, tmp_path: Path, events: Path, query: str
) -> None:
    job = start(a_pipeline(query), tmp_path, events, "parquet", epochs=1, parallelism=2)

    status = run_epochs(job, spark, epochs=None, drain=False, report=lambda _: None)

    assert status is JobStatus.FINISHED
    check_result(job, query, events)


@pytest.mark.parametrize("query", PLAYED)
def test_a_query_through_kill_rescale_and_compaction(
    spark: SparkSession,
    tmp_path: Path,
    events: Path,
    query: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = a_pipeline(query, max_runs=1, memory_per_subtask=1024**2)
    job = start(pipeline, tmp_path, events, "json", epochs=4, parallelism=1)
    last_stage = [*pipeline.stages][-1]
    monkeypatch.setenv(FAULT_VARIABLE, f"kill-worker stage={last_stage} checkpoint=2")
    epochs: list[Epoch] = []

    run_epochs(job, spark, epochs=2, drain=False, report=epochs.append)
    wider = replace(job.state().configuration, parallelism=3)
    restore(job, Latest(), configuration=wider)
    status = run_epochs(job, spark, epochs=None, drain=False, report=epochs.append)

    assert status is JobStatus.FINISHED
    assert [epoch.failure is None for epoch in epochs] == [True, False, True, True, True]
    check_result(job, query, events)


@pytest.mark.skipif(not IS_WHOLE, reason="minutes; set SLUICE_NEXMARK=all")
@pytest.mark.parametrize(("epochs", "parallelism"), CUTS)
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_however_it_is_cut(
    spark: SparkSession, tmp_path: Path, events: Path, query: str, epochs: int, parallelism: int
) -> None:
    job = start(a_pipeline(query), tmp_path, events, "parquet", epochs, parallelism)

    run_epochs(job, spark, epochs=None, drain=False, report=lambda _: None)

    check_result(job, query, events)


SEEDS = range(len(WAYS))
FOUND = sorted(Path(__file__).parents[1].joinpath("fuzz", "found", "on_spark").glob("*.json"))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_sink_holds_what_batch_sql_says(spark: SparkSession, seed: int) -> None:
    plan = spark_plan(seed)

    failure = play_on_spark(plan, spark)

    assert failure is None, f"seed {seed}: {failure}\n{to_json(plan)}"


@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.stem)
def test_what_was_found_on_spark_once_stays_right(spark: SparkSession, file: Path) -> None:
    assert play_on_spark(from_json(file.read_text()), spark) is None
