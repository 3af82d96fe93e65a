"""The sources: real places, each filled with the same number of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from deltalake import DeltaTable as DeltaLog
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
    producer.init_transactions(60)
    sent: list[Row] = []

    def keep(_: object, message: Any) -> None:
        place = {"partition": message.partition(), "offset": message.offset()}
        sent.append(place | {"value": message.value().decode()})

    for start in range(0, RECORDS, 10):
        producer.begin_transaction()
        for number in range(start, min(start + 10, RECORDS)):
            value = f"group {number % GROUPS}"
            producer.produce(topic, value, partition=number % 2, on_delivery=keep)
        producer.commit_transaction(60)
        producer.begin_transaction()
        producer.produce(topic, "group 0", partition=0)
        producer.flush(60)
        producer.abort_transaction(60)
    columns = ("partition", "offset")
    spec = Kafka(
        places.kafka.servers, topic, value=Raw(as_text=True), bounded=True, columns=columns
    )
    return SourcePlace("kafka", spec, columns, "value", tuple(sent))


def iceberg_table(places: Places) -> SourcePlace:
    """A table that was appended to in four commits."""
    rows = _of_groups(range(RECORDS))
    catalog = load_catalog("default", **places.catalog)
    if not catalog.table_exists("shop.events"):
        table = catalog.create_table("shop.events", rows.schema)
        for start in range(0, RECORDS, 9):
            table.append(rows.slice(start, 9))
    spec = IcebergTable("shop.events", places.catalog, bounded=True)
    return SourcePlace("iceberg", spec, ("id",), "grp", tuple(rows.to_pylist()))


def delta_table(places: Places) -> SourcePlace:
    """A table that was appended to in four versions."""
    rows = _of_groups(range(RECORDS))
    location = places.folder / "delta"
    if not location.exists():
        for start in range(0, RECORDS, 9):
            write_deltalake(str(location), rows.slice(start, 9), mode="append")
    spec = DeltaTable(f"file://{location}", start=0, bounded=True)
    return SourcePlace("delta", spec, ("id",), "grp", tuple(rows.to_pylist()))


def delta_changes(places: Places) -> SourcePlace:
    """A table with a change feed: rows move to a group that is new, and goes; some are deleted."""
    location = places.folder / "delta_changes"
    if not location.exists():
        feeds = {"delta.enableChangeDataFeed": "true"}
        for start in range(0, RECORDS, 12):
            table = _of_groups(range(start, min(start + 12, RECORDS)))
            write_deltalake(str(location), table, mode="append", configuration=feeds)
            DeltaLog(str(location)).update(predicate="id % 3 = 0", updates={"grp": "'moved'"})
        DeltaLog(str(location)).delete("id % 5 = 4")
        DeltaLog(str(location)).update(predicate="grp = 'moved'", updates={"grp": "'group 1'"})
    expected = DeltaLog(str(location)).to_pyarrow_table().to_pylist()
    spec = DeltaTable(f"file://{location}", start=0, changes="rows", bounded=True)
    return SourcePlace("delta changes", spec, ("id",), "grp", tuple(expected))


def iceberg_changes(places: Places) -> SourcePlace:
    """The same of a table whose files are rewritten."""
    catalog = load_catalog("default", **places.catalog)
    if not catalog.table_exists("shop.changes"):
        table = catalog.create_table("shop.changes", _of_groups(()).schema)
        for start in range(0, RECORDS, 12):
            table.append(_of_groups(range(start, min(start + 12, RECORDS))))
            moved = _of_groups(range(start, min(start + 12, RECORDS), 3), "moved")
            table.overwrite(moved, _among(moved["id"].to_pylist()))
        table.delete(_among(range(4, RECORDS, 5)))
        moved = table.scan("grp = 'moved'").to_arrow()
        table.overwrite(_of_groups(moved["id"].to_pylist(), "group 1"), "grp = 'moved'")
    expected = catalog.load_table("shop.changes").scan().to_arrow().to_pylist()
    spec = IcebergTable("shop.changes", places.catalog, changes="rows", bounded=True)
    return SourcePlace("iceberg changes", spec, ("id",), "grp", tuple(expected))


def _among(ids: Iterable[int]) -> str:
    return f"id in ({', '.join(map(str, ids))})"


def _of_groups(ids: Iterable[int], group: str = "") -> pa.Table:
    rows = [{"id": number, "grp": group or f"group {number % GROUPS}"} for number in ids]
    return pa.Table.from_pylist(rows, pa.schema([("id", pa.int64()), ("grp", pa.string())]))


ORIGINS: tuple[Origin, ...] = (text_files, postgres_table, kafka_topic, iceberg_table, delta_table)
CHANGING: tuple[Origin, ...] = (delta_changes, iceberg_changes)  # They take rows back.
