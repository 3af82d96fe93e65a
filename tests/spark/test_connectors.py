"""Connectors on a real local Spark: read and staged by its workers, checked from outside."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from sluice.connectors.files_table.table import ManifestTable
from sluice.connectors.iceberg.declared_sink import IcebergTable
from sluice.connectors.kafka.declared import Json, Kafka, KafkaTopic
from sluice.connectors.postgres.declared_sink import PostgresTable
from sluice.connectors.postgres.declared_source import PostgresTable as PostgresSource
from sluice.core.answers import Attempt
from sluice.core.configuration import JobStatus
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing, fixed_delay
from sluice.declaration.pipeline import Pipeline
from sluice.exchange.faults import FAULT_VARIABLE
from sluice.job.places import open_side_table
from sluice.local.driver import Epoch, run_epochs
from sluice.store.open import StoreLocation, open_store
from tests.builders import ATTEMPTED, PLANNED
from tests.contract.sink_case import JOB
from tests.exactly_once.places import Places
from tests.exactly_once.targets import consumed, scanned
from tests.spark.folder_job import a_submitted_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ORDERS = 400
CHECKPOINTING = Checkpointing(restart_strategy=fixed_delay(attempts=9, delay=timedelta(0)))


@pytest.fixture(scope="module", name="places")
def _places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with ExitStack() as until_the_end:
        yield Places(tmp_path_factory.mktemp("places"), until_the_end)


def test_json_of_kafka_is_decoded_and_upserted_into_postgres(
    spark: SparkSession, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = places.kafka.create(partitions=3)
    producer = Producer({"bootstrap.servers": places.kafka.servers, "log_level": 0})
    for number in range(ORDERS):
        order = {"customer": f"c{number % 7}", "amount": number}
        producer.produce(topic, json.dumps(order), partition=number % 3)
    producer.produce(topic, "{no object", partition=1)
    producer.flush(60)
    table = f"{places.schema}.totals"
    pipeline = Pipeline("orders", checkpointing=CHECKPOINTING, parallelism=2)
    orders = pipeline.source(
        "orders",
        Kafka(
            places.kafka.servers, topic, value=Json("customer string, amount bigint"), bounded=True
        ),
    )
    totals = orders.key_by("customer").aggregate(
        "totals_by_customer", total=agg.sum("amount"), n=agg.count()
    )
    totals.sink(
        "totals",
        PostgresTable(places.database.dsn, table, upsert_key=("customer",), create=True),
    )
    monkeypatch.setenv(FAULT_VARIABLE, "kill-worker stage=totals_by_customer checkpoint=2")
    job = a_submitted_job(pipeline, tmp_path / "root", max_records_per_epoch=150)
    epochs: list[Epoch] = []

    status = run_epochs(job, spark, epochs=None, drain=False, report=epochs.append)

    assert status is JobStatus.FINISHED
    assert [epoch.failure is None for epoch in epochs] == [True, False, True, True]
    expected = {
        f"c{name}": (sum(range(name, ORDERS, 7)), len(range(name, ORDERS, 7))) for name in range(7)
    }
    rows = places.database.rows(f"SELECT * FROM {table}")  # noqa: S608
    assert {row["customer"]: (row["total"], row["n"]) for row in rows} == expected
    (bad,) = open_side_table(job, "totals_by_customer.malformed").read().to_pylist()
    assert (bad["partition"], bad["line"]) == (f"{topic}/1", "{no object")


def test_a_table_of_postgres_goes_through_spark_to_iceberg_and_kafka(
    spark: SparkSession, places: Places, tmp_path: Path
) -> None:
    table = f"{places.schema}.clicks"
    places.database.run(f"CREATE TABLE {table} (id bigserial, page text, at timestamptz)")
    places.database.run(
        f"INSERT INTO {table} (page, at) SELECT 'p' || n % 5, now() FROM generate_series(1, 300) n"  # noqa: S608
    )
    topic = places.kafka.create(partitions=1)
    pipeline = Pipeline("clicks", checkpointing=CHECKPOINTING, parallelism=2)
    clicks = pipeline.source(
        "clicks", PostgresSource(places.database.dsn, table, "id", bounded=True)
    )
    kept = clicks.transform("upper", upper)
    kept.sink("lake", IcebergTable("shop.clicks", places.catalog, create=True))
    kept.sink("topic", KafkaTopic(places.kafka.servers, topic, transactional_id="clicks"))
    job = a_submitted_job(pipeline, tmp_path / "root", max_records_per_epoch=90)

    status = run_epochs(job, spark, epochs=None, drain=False, report=lambda _: None)

    assert status is JobStatus.FINISHED
    expected = [(number, f"P{number % 5}") for number in range(1, 301)]
    in_lake = scanned(places, "clicks")
    in_topic = consumed(places, topic)
    assert sorted((row["id"], row["page"]) for row in in_lake) == expected
    assert sorted((row["id"], row["page"]) for row in in_topic) == expected
    assert {row["at"].tzinfo is not None for row in in_lake} == {True}


def upper(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    return rows.withColumn("page", F.upper("page"))


DOCS = Path(__file__).parents[2] / "docs/connectors/files_table.md"


def snippet(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("partition_by", [(), ("kind",)], ids=["flat", "partitioned"])
def test_spark_sees_what_is_committed(
    spark: SparkSession, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    store = open_store(StoreLocation(root=f"file://{tmp_path}/a table"))
    table = ManifestTable("alerts", store, latest=True, partition_by=partition_by)
    for version in (1, 2, 3):
        batch = pa.table({"id": [version, -version], "kind": ["a/b c", None]})
        staged = table.stage(
            batch,
            Attempt(
                checkpoint_id=version, subtask=0, checkpoint_token=PLANNED, attempt_token=ATTEMPTED
            ),
        )
        if version < 3 and staged is not None:
            table.commit(JOB, version, version - 1 or None, [staged])
    code = "".join(snippet(name) for name in ("polars-files", "spark-append"))
    names: dict[str, Any] = {"spark": spark}

    exec(code.replace("TABLE", f"{tmp_path}/a table"), names)  # noqa: S102

    assert sorted((row.id, row.kind) for row in names["rows"].collect()) == [
        (-2, None),
        (-1, None),
        (1, "a/b c"),
        (2, "a/b c"),
    ]
