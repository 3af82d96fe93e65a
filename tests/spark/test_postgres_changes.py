"""A job over the changes of a real PostgreSQL, through a kill, restores and a rescale."""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.postgres_database import LOGICAL, Database, as_superuser, prepare_postgres
from harness.postgres_database import serving_postgres as serving
from sluice.connectors.files_table.table import ManifestTable
from sluice.coordinator.restore import restore, savepoint_target
from sluice.core.restoring import Choice, Latest
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing, fixed_delay
from sluice.declaration.pipeline import Pipeline
from sluice.errors import RestoreError
from sluice.exchange.faults import FAULT_VARIABLE
from sluice.job.job import Job
from sluice.job.places import open_sinks
from sluice.local.driver import Epoch, run_epochs
from sluice.sinks import FilesTable
from sluice.sources import PostgresChanges
from sluice.state.segments import to_frame
from tests.spark.folder_job import a_submitted_job, no_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINTING = Checkpointing(
    restart_strategy=fixed_delay(attempts=9, delay=timedelta(0)), num_retained=3
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    folder = tmp_path / "postgres"
    prepare_postgres(folder)
    as_superuser(folder, "ALTER ROLE airflow REPLICATION")
    with serving(folder, **LOGICAL) as server:
        yield server


def run(database: Database, *statements: str) -> None:
    for statement in statements:
        database.run(statement)


def take(job: Job, spark: SparkSession) -> list[Epoch]:
    """Epochs until one has completed."""
    taken: list[Epoch] = []
    run_epochs(job, spark, epochs=1, drain=False, report=taken.append)
    return taken


def check(job: Job, database: Database) -> None:
    for sink, source, key in (("past_out", "o", "city"), ("joined_out", "j", "id")):
        joined = "SELECT o.id, o.n, p.most FROM public.orders o JOIN p USING (city)"
        totals = "SELECT city, count(*) AS n, sum(n)::bigint AS total FROM public.orders GROUP BY 1"
        best = "SELECT city, max(n) AS most FROM public.orders GROUP BY 1"
        rows = database.rows(
            f"WITH p AS ({best}), j AS ({joined}), o AS ({totals}) SELECT * FROM {source}"
        )
        table = open_sinks(job, {})[sink]
        assert isinstance(table, ManifestTable)
        found = to_frame(table.read()).sort(key).to_dicts()
        assert found == sorted(rows, key=lambda row: str(row[key]).zfill(9)), sink


def test_what_stages_make_of_changes_is_what_sql_makes_of_the_table(
    spark: SparkSession, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(
        database,
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, city text, n bigint, note text)",
        "ALTER TABLE public.orders REPLICA IDENTITY FULL",
        "CREATE PUBLICATION orders FOR TABLE public.orders",
        "INSERT INTO public.orders SELECT i, 'c' || i % 5, i FROM generate_series(1, 300) i",
    )
    pipeline = Pipeline("orders", checkpointing=CHECKPOINTING, parallelism=2)
    changes = PostgresChanges(database.dsn, "public.orders", slot="orders", publication="orders")
    orders = pipeline.source("orders", changes)
    by_city = orders.key_by("city")
    totals = by_city.aggregate("totals", n=agg.count(), total=agg.sum("n"))
    totals.sink("past_out", FilesTable(upsert_key=("city",)))
    most = by_city.aggregate("best", most=agg.max("n")).key_by("city")
    joined = by_city.join("joined", most).key_by("id").aggregate(
        "one", n=agg.max("n"), most=agg.max("most")
    )  # fmt: skip
    joined.sink("joined_out", FilesTable(upsert_key=("id",)))
    job = a_submitted_job(pipeline, tmp_path / "root")

    take(job, spark)
    check(job, database)
    run(
        database,
        "UPDATE public.orders SET city = 'moved' WHERE id % 4 = 0",
        "DELETE FROM public.orders WHERE n > 290",
        "INSERT INTO public.orders SELECT i, 'c' || i % 7, i FROM generate_series(400, 450) i",
    )
    monkeypatch.setenv(FAULT_VARIABLE, "kill-worker stage=totals checkpoint=2")
    failed, completed = take(job, spark)
    assert (failed.failure is None, completed.failure) == (False, None)
    check(job, database)

    run(database, "UPDATE public.orders SET n = n + 1 WHERE id < 50")
    run_epochs(job, spark, epochs=1, drain=False, savepoint="before", report=no_failure)
    run(database, "DELETE FROM public.orders WHERE id % 3 = 0")
    wider = replace(job.state().configuration, parallelism=3)
    restore(job, savepoint_target(job, "before"), configuration=wider)
    take(job, spark)
    check(job, database)

    run(database, "UPDATE public.orders SET city = 'c1' WHERE city = 'moved'")
    restore(job, Latest())
    take(job, spark)
    check(job, database)

    oldest = min(one.checkpoint_id for one in job.state().completed)
    with pytest.raises(RestoreError, match="restore the newest completed checkpoint"):
        restore(job, Choice(oldest))
    check(job, database)
