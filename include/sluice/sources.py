"""The sources that a declaration can use, and the formats of their values."""

from __future__ import annotations

from sluice.connectors.delta.declared_source import DeltaTable
from sluice.connectors.files.declared import Files
from sluice.connectors.iceberg.declared_source import IcebergTable
from sluice.connectors.kafka.declared import Avro, Json, Kafka, Protobuf, Raw, SchemaRegistry
from sluice.connectors.nexmark.declared import Nexmark
from sluice.connectors.postgres.declared_source import PostgresChanges, PostgresTable
from sluice.connectors.spark_read.declared import Column, Snapshot, SparkRead
from sluice.declaration.change_events import ChangeEvents, Debezium
from sluice.declaration.places import SourceSpec

__all__ = [
    "Avro",
    "ChangeEvents",
    "Column",
    "Debezium",
    "DeltaTable",
    "Files",
    "IcebergTable",
    "Json",
    "Kafka",
    "Nexmark",
    "PostgresChanges",
    "PostgresTable",
    "Protobuf",
    "Raw",
    "SchemaRegistry",
    "Snapshot",
    "SourceSpec",
    "SparkRead",
]
