"""The sources: real places, each filled with the same number of records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog

from sluice.connectors.delta.declared_source import DeltaTable
from sluice.connectors.iceberg.declared_source import IcebergTable
from sluice.connectors.kafka.declared import Kafka, Raw
from sluice.connectors.postgres.declared_source import PostgresTable
from sluice.sources import Files
from tests.exactly_once.pairs import GROUPS, RECORDS, Row, SourcePlace
from tests.exactly_once.places import Places

Origin = Callable[[Places], SourcePlace]


def text_files(places: Places) -> SourcePlace:
    """Three files, so that epochs end within them and between them."""
    folder = places.folder / "input"
    expected: list[Row] = []
    if not folder.exists():
        folder.mkdir()
        for number in range(3):
            ids = range(number, RECORDS, 3)
            lines = "".join(f"group {one % GROUPS}\n" for one in ids)
            (folder / f"{number}.txt").write_text(lines)
    for file in sorted(folder.iterdir()):
        expected += [
            {"file": file.name, "line_number": index + 1, "line": line}
            for index, line in enumerate(file.read_text().splitlines())
        ]
    spec = Files(str(folder))
    return SourcePlace("files", spec, ("file", "line_number"), "line", tuple(expected))


def postgres_table(places: Places) -> SourcePlace:
    """A PostgreSQL table, with gaps in its numbers from transactions that were rolled back."""
    database, table = places.database, f"{places.schema}.events"
    if not database.run("SELECT to_regclass(%s)", table)[0][0]:
        database.run(f"CREATE TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY, grp text)")
        for number in range(RECORDS):
            if number % 8 == 3:
                database.run(f"BEGIN; INSERT INTO {table} (grp) VALUES ('gone'); ROLLBACK")  # noqa: S608
            database.run(f"INSERT INTO {table} (grp) VALUES (%s)", f"group {number % GROUPS}")  # noqa: S608
    expected = database.rows(f"SELECT id, grp FROM {table}")  # noqa: S608
    spec = PostgresTable(database.dsn, table, "id", bounded=True)
    return SourcePlace("postgres", spec, ("id",), "grp", tuple(expected))


def kafka_topic(places: Places) -> SourcePlace:
    """A topic with gaps in its offsets, from the ends of transactions and from aborted ones."""
    topic = places.kafka.create(partitions=2)
    producer = Producer(
        {"bootstrap.servers": places.kafka.servers, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(10)
    sent: list[Row] = []

    def keep(_: object, message: Any) -> None:
        place = {"partition": message.partition(), "offset": message.offset()}
        sent.append(place | {"value": message.value().decode()})

    for start in range(0, RECORDS, 10):
        producer.begin_transaction()
        for number in range(start, min(start + 10, RECORDS)):
            value = f"group {number % GROUPS}"
            producer.produce(topic, value, partition=number % 2, on_delivery=keep)
        producer.commit_transaction(10)
        producer.begin_transaction()
        producer.produce(topic, "group 0", partition=0)
        producer.flush(10)
        producer.abort_transaction(10)
    columns = ("partition", "offset")
    spec = Kafka(
        places.kafka.servers, topic, value=Raw(as_text=True), bounded=True, columns=columns
    )
    return SourcePlace("kafka", spec, columns, "value", tuple(sent))


def iceberg_table(places: Places) -> SourcePlace:
    """A table that was appended to in four commits."""
    rows = [{"id": number, "grp": f"group {number % GROUPS}"} for number in range(RECORDS)]
    catalog = load_catalog("default", **places.catalog)
    if not catalog.table_exists("shop.events"):
        schema = pa.schema([("id", pa.int64()), ("grp", pa.string())])
        table = catalog.create_table("shop.events", schema)
        for start in range(0, RECORDS, 9):
            table.append(pa.Table.from_pylist(rows[start : start + 9], schema))
    spec = IcebergTable("shop.events", places.catalog, bounded=True)
    return SourcePlace("iceberg", spec, ("id",), "grp", tuple(rows))


def delta_table(places: Places) -> SourcePlace:
    """A table that was appended to in four versions."""
    rows = [{"id": number, "grp": f"group {number % GROUPS}"} for number in range(RECORDS)]
    location = places.folder / "delta"
    if not location.exists():
        schema = pa.schema([("id", pa.int64()), ("grp", pa.string())])
        for start in range(0, RECORDS, 9):
            table = pa.Table.from_pylist(rows[start : start + 9], schema)
            write_deltalake(str(location), table, mode="append")
    spec = DeltaTable(f"file://{location}", start=0, bounded=True)
    return SourcePlace("delta", spec, ("id",), "grp", tuple(rows))


ORIGINS: tuple[Origin, ...] = (text_files, postgres_table, kafka_topic, iceberg_table, delta_table)
