"""Opens the connector of a declared sink, or of a stage's side output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.connectors.files_table.declared_sink import FilesTable
from sluice.protocol.paths import PipelinePaths

if TYPE_CHECKING:
    from sluice.connectors.contracts.sink import Sink
    from sluice.connectors.files_table.table import FilesTable as FilesTableSink
    from sluice.declaration.nodes import SinkNode
    from sluice.storage.open import StoreLocation


def open_sink(
    node: SinkNode, params: Mapping[str, str], location: StoreLocation, paths: PipelinePaths
) -> Sink:
    """The connector of a declared sink; *location* is the job's root."""
    return node.spec.open(node.uid, params, location.below(paths.table(node.uid)))


def open_side_output(uid: str, location: StoreLocation, paths: PipelinePaths) -> FilesTableSink:
    """The connector of a side output, which is published exactly once, as a table of its own."""
    return FilesTable().open(uid, {}, location.below(paths.side_output(uid)))
