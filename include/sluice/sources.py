"""The sources that a declaration can use, and the formats of their values."""

from __future__ import annotations

from sluice.connectors.files.declared_source import Files
from sluice.connectors.iceberg.declared_source import IcebergTable
from sluice.connectors.kafka.declared_source import (
    Avro,
    Json,
    Kafka,
    Protobuf,
    Raw,
    SchemaRegistry,
)
from sluice.connectors.nexmark.declared_source import Nexmark
from sluice.connectors.postgres.declared_source import PostgresTable
from sluice.declaration.source_spec import SourceSpec

__all__ = [
    "Avro",
    "Files",
    "IcebergTable",
    "Json",
    "Kafka",
    "Nexmark",
    "PostgresTable",
    "Protobuf",
    "Raw",
    "SchemaRegistry",
    "SourceSpec",
]
