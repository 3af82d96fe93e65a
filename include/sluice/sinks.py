"""The sinks that a declaration can use, and the formats of their values."""

from __future__ import annotations

from sluice.connectors.delta.declared_sink import DeltaTable
from sluice.connectors.files_table.declared import FilesTable
from sluice.connectors.iceberg.declared_sink import IcebergTable
from sluice.connectors.kafka.declared import AvroValue, KafkaTopic
from sluice.connectors.postgres.declared_sink import PostgresTable
from sluice.declaration.places import SinkSpec

__all__ = [
    "AvroValue",
    "DeltaTable",
    "FilesTable",
    "IcebergTable",
    "KafkaTopic",
    "PostgresTable",
    "SinkSpec",
]
