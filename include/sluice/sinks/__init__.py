"""Where results go: light descriptors for declarations, one module for each kind."""

from sluice.sinks.files import FilesTable
from sluice.sinks.spec import SinkSpec

__all__ = ["FilesTable", "SinkSpec"]
