"""Where records come from: light descriptors for declarations, one module for each kind."""

from sluice.sources.files import Files
from sluice.sources.iceberg import IcebergTable
from sluice.sources.kafka import Kafka
from sluice.sources.nexmark import Nexmark
from sluice.sources.postgres import PostgresTable
from sluice.sources.spec import SourceSpec

__all__ = ["Files", "IcebergTable", "Kafka", "Nexmark", "PostgresTable", "SourceSpec"]
