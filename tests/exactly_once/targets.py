"""The sinks: real places, each read from outside with another tool."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from pyiceberg.catalog import load_catalog

from sluice.connectors.delta.declared_sink import DeltaTable
from sluice.connectors.iceberg.declared_sink import IcebergTable
from sluice.connectors.kafka.declared import KafkaTopic
from sluice.connectors.postgres.declared_sink import PostgresTable
from sluice.sinks import FilesTable
from tests.exactly_once.pairs import Row, SinkPlace
from tests.exactly_once.places import Places

Target = Callable[[Places, str, str], SinkPlace]  # Its name, and the key where it upserts.


def files_table(places: Places, name: str, group: str) -> SinkPlace:
    location = places.folder / name
    spec = FilesTable(f"file://{location}")
    return SinkPlace("files", spec, lambda: _by_manifests(location, None))


def upserted_files_table(places: Places, name: str, group: str) -> SinkPlace:
    location = places.folder / name
    spec = FilesTable(f"file://{location}", upsert_key=(group,))
    return SinkPlace("upserted files", spec, lambda: _by_manifests(location, group), upserts=True)


def logged_files_table(places: Places, name: str, group: str) -> SinkPlace:
    location = places.folder / name
    spec = FilesTable(f"file://{location}", delta_log=True, compact_when_files=3)
    return SinkPlace("files by their Delta log", spec, lambda: _by_log(location))


def postgres_sink(places: Places, name: str, group: str) -> SinkPlace:
    table = f"{places.schema}.{name}"
    spec = PostgresTable(places.database.dsn, table, create=True)
    return SinkPlace("postgres", spec, lambda: selected(places, table))


def upserted_postgres_sink(places: Places, name: str, group: str) -> SinkPlace:
    table = f"{places.schema}.{name}"
    spec = PostgresTable(places.database.dsn, table, upsert_key=(group,), create=True)
    return SinkPlace("upserted postgres", spec, lambda: selected(places, table), upserts=True)


def kafka_sink(places: Places, name: str, group: str) -> SinkPlace:
    topic = places.kafka.create(partitions=1)
    spec = KafkaTopic(places.kafka.servers, topic, transactional_id=name)
    return SinkPlace("kafka", spec, lambda: consumed(places, topic))


def idempotent_kafka_sink(places: Places, name: str, group: str) -> SinkPlace:
    topic = places.kafka.create(partitions=1)
    spec = KafkaTopic(places.kafka.servers, topic, transactional_id=name, transactional=False)
    return SinkPlace(
        "idempotent kafka", spec, lambda: consumed(places, topic), is_at_least_once=True
    )


def iceberg_sink(places: Places, name: str, group: str) -> SinkPlace:
    spec = IcebergTable(f"shop.{name}", places.catalog, create=True)
    return SinkPlace("iceberg", spec, lambda: scanned(places, name))


def upserted_iceberg_sink(places: Places, name: str, group: str) -> SinkPlace:
    spec = IcebergTable(f"shop.{name}", places.catalog, upsert_key=(group,), create=True)
    return SinkPlace("upserted iceberg", spec, lambda: scanned(places, name), upserts=True)


def delta_sink(places: Places, name: str, group: str) -> SinkPlace:
    location = places.folder / name
    spec = DeltaTable(f"file://{location}", create=True)
    return SinkPlace("delta", spec, lambda: _by_log(location))


def upserted_delta_sink(places: Places, name: str, group: str) -> SinkPlace:
    location = places.folder / name
    spec = DeltaTable(f"file://{location}", upsert_key=(group,), create=True)
    return SinkPlace("upserted delta", spec, lambda: _by_log(location), upserts=True)


def _by_log(location: Path) -> list[Row]:
    """The rows that Polars reads from the files that the log names."""
    return pl.read_delta(str(location)).to_dicts()


def _by_manifests(location: Path, key: str | None) -> list[Row]:
    """The rows that DuckDB reads from the files that the manifests name."""
    manifests = {
        file.stem: json.loads(file.read_text())
        for file in sorted((location / "_manifests").glob("*.json"))
    }
    chain: list[dict[str, object]] = []
    current: str | None = max(manifests)
    while current is not None:
        manifest = manifests[current]
        chain.insert(0, manifest)
        parent = manifest["parent"]
        current = None if parent is None else f"{parent:020d}"
    files = [str(location / file["file"]) for one in chain for file in one["files"]]  # type: ignore[attr-defined]
    if not files:
        return []
    newest = (
        f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY filename DESC) = 1" if key else ""
    )
    query = (
        "SELECT COLUMNS(lambda c: c NOT IN ('filename', '_deleted')) FROM "  # noqa: S608
        f"(FROM read_parquet(?, filename = true, union_by_name = true) {newest}) "
        "WHERE NOT contains(filename, '-deletes')"
    )
    with duckdb.connect() as connection:
        result = connection.execute(query, [files])
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def selected(places: Places, table: str) -> list[Row]:
    return places.database.rows(f"SELECT * FROM {table}")  # noqa: S608


def consumed(places: Places, topic: str) -> list[Row]:
    consumer = Consumer(
        {
            "bootstrap.servers": places.kafka.servers,
            "group.id": "a stranger",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    rows: list[Row] = []
    while (message := consumer.poll(60)) is not None and message.error() is None:
        rows.append(json.loads(message.value() or b""))
    consumer.close()
    return rows


def scanned(places: Places, name: str) -> list[Row]:
    """The rows that Polars reads from the metadata file that the catalog names."""
    table = load_catalog("default", **places.catalog).load_table(f"shop.{name}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # Its own plans by a plugin.
        scan = pl.scan_iceberg(table.metadata_location, reader_override="native")
        return scan.collect().to_dicts()


UPSERTING: tuple[Target, ...] = (
    upserted_files_table,
    upserted_postgres_sink,
    upserted_iceberg_sink,
    upserted_delta_sink,
)
TARGETS: tuple[Target, ...] = (
    files_table,
    logged_files_table,
    postgres_sink,
    kafka_sink,
    idempotent_kafka_sink,
    iceberg_sink,
    delta_sink,
    *UPSERTING,
)
