"""Opened sinks: those that are declared, and the tables of side outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.sinks import FilesTable

if TYPE_CHECKING:
    from sluice.declaration.nodes import SinkNode
    from sluice.declaration.places import OwnTable, Sink
    from sluice.protocol.keys import PipelinePaths
    from sluice.store.open import StoreLocation


def open_sink(
    node: SinkNode, params: Mapping[str, str], location: StoreLocation, paths: PipelinePaths
) -> Sink:
    """The connector of a declared sink; *location* is the job's root."""
    return node.spec.open(node.uid, params, location.below(paths.table(node.uid)))


def open_side_output(uid: str, location: StoreLocation, paths: PipelinePaths) -> OwnTable:
    """The connector of a side output, which is published exactly once, as a table of its own."""
    return FilesTable().open(uid, {}, location.below(paths.side_output(uid)))
