"""A job and its sinks in real places: changelogs, and a place that is changed under the job."""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable as Delta

from harness.jobs import a_running_job
from harness.kafka_cluster import Place, in_memory
from harness.no_spark import stages_without_spark
from harness.postgres_database import Database
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.places import open_sinks
from sluice.sinks import DeltaTable, FilesTable, IcebergTable, KafkaTopic, PostgresTable
from sluice.sources import Nexmark
from sluice.spark.stage import run_stage
from tests.contract.test_kafka_sink import records
from tests.iceberg_catalog import TABLE, loaded, properties

COUNT, EPOCHS = "per_auction", 3
KEY = "bid_auction"  # Null in an event that is no bid, and a key like any other.
KIND = "event_type"
Change = tuple[str, int, int]


@pytest.fixture(scope="module")
def kafka() -> Iterator[Place]:
    with in_memory() as found:
        yield found


def an_epoch(job: Job) -> CheckpointId:
    outcome = trigger(job)
    assert isinstance(outcome, Triggered)
    checkpoint_id = outcome.plan.checkpoint_id
    with stages_without_spark():
        for stage in job.pipeline.stages:
            run_stage(job, None, checkpoint_id, stage, attempt=1)  # type: ignore[arg-type]
    return checkpoint_id


def an_epoch_in_all_places(job: Job) -> None:
    checkpoint_id = an_epoch(job)
    finalize(job, checkpoint_id)
    commit(job, checkpoint_id)


def changes(rows: list[dict[str, Any]]) -> list[Change]:
    return sorted((row["kind"], row[KEY] or 0, row["n"]) for row in rows)


def what_is_left(found: list[Change]) -> dict[int, int]:
    """The result of a running count's changes: the row of each key that was not taken back."""
    left: dict[int, set[int]] = {}
    for kind, auction, n in sorted(found, key=lambda one: (one[0] in ("-U", "-D"), one)):
        if kind in ("+I", "+U"):
            assert n not in left.setdefault(auction, set()), "a row came twice"
            left[auction].add(n)
        else:
            left[auction].remove(n)
    assert all(len(rows) == 1 for rows in left.values())
    return {auction: rows.pop() for auction, rows in left.items()}


@pytest.mark.parametrize("is_made", [True, False], ids=["made by us", "made by hand"])
def test_every_change_of_a_count_is_in_each_place_once(
    is_made: bool, database: Database, kafka: Place, tmp_path: Path
) -> None:
    table, topic = f"{database.new_schema()}.changes", kafka.create(1)
    if not is_made:
        database.run(f"CREATE TABLE {table} (n bigint, {KEY} bigint, kind text)")
    pipeline = Pipeline(
        "bids",
        Checkpointing(max_records_per_epoch=150, interval=timedelta(minutes=1)),
        parallelism=2,
    )
    events = pipeline.source("events", Nexmark(450, columns=("bid_auction",)))
    counts = events.key_by("bid_auction").aggregate(COUNT, n=agg.count())
    counts.sink("files", FilesTable(changelog=True))
    counts.sink("totals", FilesTable(upsert_key=(KEY,)))
    counts.sink("database", PostgresTable(database.dsn, table, changelog=True, create=is_made))
    counts.sink("lake", IcebergTable(TABLE, properties(tmp_path), changelog=True, create=True))
    delta = f"file://{tmp_path}/delta"
    counts.sink("delta", DeltaTable(delta, changelog=True, create=True))
    counts.sink("topic", KafkaTopic(kafka.servers, topic, key=KEY, changelog=True))
    job = a_running_job(pipeline)

    for _ in range(EPOCHS):
        an_epoch_in_all_places(job)

    sinks = open_sinks(job, {})
    files = changes(sinks["files"].read().to_pylist())  # type: ignore[attr-defined]
    totals = sinks["totals"].read().to_pylist()  # type: ignore[attr-defined]
    assert what_is_left(files) == {row[KEY] or 0: row["n"] for row in totals}
    assert {kind for kind, *_ in files} == {"+I", "-U", "+U"}
    assert changes(database.rows(f"SELECT kind, {KEY}, n FROM {table}")) == files
    assert changes(loaded(tmp_path).scan().to_arrow().to_pylist()) == files
    assert changes(Delta(delta).to_pyarrow_table().to_pylist()) == files
    messages = records(kafka.servers, topic)
    assert changes([json.loads(one.value()) for one in messages]) == files
    keys = {json.loads(one.value())[KEY]: one.key() for one in messages}
    assert keys == {row[KEY]: row[KEY] and str(row[KEY]).encode() for row in totals}


@pytest.mark.parametrize(
    ("changes", "says", "mends"),
    [
        ("RENAME n TO bids", "table {} has no column 'n', and the rows", "RENAME bids TO n"),
        (
            "ADD CONSTRAINT few CHECK (n < 20) NOT VALID",
            r"table {} would refuse the rows of checkpoint 2: one violates constraint 'few', CHECK",
            "DROP CONSTRAINT few",
        ),
    ],
    ids=["a column", "a value"],
)
def test_a_place_that_was_changed_aborts_the_checkpoint_and_its_rows_come_when_it_is_mended(
    changes: str, says: str, mends: str, database: Database
) -> None:
    table = f"{database.new_schema()}.totals"
    database.run(f"CREATE TABLE {table} ({KIND} smallint NOT NULL UNIQUE, n bigint)")
    pipeline = Pipeline(
        "bids",
        Checkpointing(max_records_per_epoch=150, tolerable_failed_checkpoints=9),
        parallelism=2,
    )
    events = pipeline.source("events", Nexmark(450, columns=(KIND,)))
    counts = events.key_by(KIND).aggregate(COUNT, n=agg.count())
    counts.sink("database", PostgresTable(database.dsn, table, upsert_key=(KIND,)))
    counts.sink("files", FilesTable(upsert_key=(KIND,)))
    job = a_running_job(pipeline)
    an_epoch_in_all_places(job)
    database.run(f"ALTER TABLE {table} {changes}")

    second = an_epoch(job)
    with pytest.raises(ConfigurationError, match=says.format(table)):
        finalize(job, second)
    fail_checkpoint(job, second, Reason.FINALIZE_CHECKPOINT_FAILURE, "refused")
    database.run(f"ALTER TABLE {table} {mends}")
    for _ in range(EPOCHS - 1):
        an_epoch_in_all_places(job)

    files = open_sinks(job, {})["files"].read().to_pylist()  # type: ignore[attr-defined]
    found = database.rows(f"SELECT {KIND}, n FROM {table}")
    assert sorted(map(str, found)) == sorted(str(dict(row)) for row in files)
    assert sum(row["n"] for row in found) == 450
    assert [one.checkpoint_id for one in job.state().failed] == [second]
