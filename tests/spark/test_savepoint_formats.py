"""A native savepoint has the runs of state as they are, a canonical one a single run a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.ids import CheckpointId
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job, open_job
from sluice.job.places import open_result_table, open_source
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.spark.stage import run_stage
from sluice.store.open import StoreLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS, EPOCH = 200_000, 50_000  # So many groups a run that none is merged for being small.


def a_job(root: Path) -> Job:
    pipeline = Pipeline("bids", parallelism=1)
    bids = Nexmark(EVENTS, columns=("bid_auction", "bidder", "price"))
    events = pipeline.source("events", bids, induced=True)
    counted = events.key_by("bid_auction", "bidder", "price").aggregate("count", n=agg.count())
    counted.sink("counts", FilesTable(upsert_key=("bid_auction", "bidder", "price")))
    job = open_job(pipeline, StoreLocation(root=f"file://{root}"))
    submit(job, configure(pipeline, {}))
    return job


def take(job: Job, spark: SparkSession, until: int | None, **request: Any) -> None:
    """One checkpoint of the events before *until*, or of none, and no compaction behind it."""
    source = open_source(job, "events", {})
    partition = source.plan((), max_records=1, parallelism=1).position[0].partition
    barriers = {} if until is None else {"events": {partition: until}}
    outcome = trigger(job, is_periodic=False, barriers=barriers, **request)
    assert isinstance(outcome, Triggered)
    checkpoint_id = outcome.plan.checkpoint_id
    run_stage(job, spark, checkpoint_id, "count", attempt=1)
    finalize(job, checkpoint_id)
    commit(job, checkpoint_id)


def a_savepoint(
    job: Job, spark: SparkSession, until: int | None, name: str, **form: Any
) -> CheckpointMetadata:
    take(job, spark, until, type=CheckpointType.SAVEPOINT, savepoint_name=name, **form)
    return job.savepoint_metadata(name)


def runs_of(metadata: CheckpointMetadata) -> int:
    stage = metadata.stage("count")
    assert stage is not None
    return max(len({handle.run for handle in subtask.state}) for subtask in stage.subtasks)


def test_a_canonical_savepoint_has_one_run_and_gives_the_same_result(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = a_job(tmp_path)
    take(job, spark, EPOCH)
    take(job, spark, 2 * EPOCH)
    native = a_savepoint(job, spark, 3 * EPOCH, "native")
    canonical = a_savepoint(job, spark, None, "canonical", is_canonical=True)

    restore(job, savepoint_target(job, "canonical"))
    take(job, spark, EVENTS)
    counted = open_result_table(job, {}).read()

    assert [runs_of(one) for one in (native, canonical)] == [3, 1]
    assert job.state().status is JobStatus.FINISHED
    assert sum(counted["n"].to_pylist()) == EVENTS
    assert counted.group_by(["bid_auction", "bidder", "price"]).aggregate([]).num_rows == len(
        counted
    )


def test_a_full_checkpoint_has_files_of_its_own_and_the_same_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = a_job(tmp_path)
    take(job, spark, EPOCH)
    take(job, spark, 2 * EPOCH)

    take(job, spark, 3 * EPOCH, is_full=True)
    second, full = (job.metadata(CheckpointId(n)) for n in (2, 3))
    take(job, spark, EVENTS)

    files = [{handle.key for handle in one.files} for one in (second, full)]
    assert files[0]
    assert not files[0] & files[1]
    assert runs_of(full) == 3
    counted = open_result_table(job, {}).read()
    assert sum(counted["n"].to_pylist()) == EVENTS
