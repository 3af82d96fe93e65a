"""The sinks that a declaration can use, and the formats of their values."""

from __future__ import annotations

from sluice.connectors.files_table.declared_sink import FilesTable
from sluice.connectors.iceberg.declared_sink import IcebergTable
from sluice.connectors.kafka.declared_sink import AvroValue, KafkaTopic
from sluice.connectors.postgres.declared_sink import PostgresTable
from sluice.declaration.sink_spec import SinkSpec

__all__ = [
    "AvroValue",
    "FilesTable",
    "IcebergTable",
    "KafkaTopic",
    "PostgresTable",
    "SinkSpec",
]
