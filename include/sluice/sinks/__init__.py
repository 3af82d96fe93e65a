"""Where results go: light descriptors for declarations, one module for each kind."""

from sluice.sinks.files import FilesTable
from sluice.sinks.iceberg import IcebergTable
from sluice.sinks.kafka import KafkaTopic
from sluice.sinks.postgres import PostgresTable
from sluice.sinks.spec import SinkSpec

__all__ = ["FilesTable", "IcebergTable", "KafkaTopic", "PostgresTable", "SinkSpec"]
