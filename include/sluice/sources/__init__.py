"""Where records come from: light descriptors for declarations, one module for each kind."""

from sluice.sources.files import Files
from sluice.sources.nexmark import Nexmark
from sluice.sources.spec import SourceSpec

__all__ = ["Files", "Nexmark", "SourceSpec"]
