"""From a declared sink, or a stage's side output, to its connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.protocol.paths import PipelinePaths
from sluice.sinks.files import FilesTable

if TYPE_CHECKING:
    from sluice.connectors.files_table import FilesTable as FilesTableSink
    from sluice.connectors.sink import Sink
    from sluice.nodes import SinkNode
    from sluice.storage.open import StoreLocation

MALFORMED = "malformed"  # Side output: rows that could not be read, with where they came from.
NO_EVENT_TIME = "no_event_time"  # Side output: rows that have none, where a stage goes by it.
LATE = "late"  # Side output: rows behind the watermark.
LATE_RIGHT = "late_right"  # The same of a join's second input.


def open_sink(
    node: SinkNode, params: Mapping[str, str], location: StoreLocation, paths: PipelinePaths
) -> Sink:
    """The declared sink; *location* is the job's root."""
    return node.spec.open(node.uid, params, location.below(paths.table(node.uid)))


def open_side_output(uid: str, location: StoreLocation, paths: PipelinePaths) -> FilesTableSink:
    """A side output is published like a table of its own, exactly once."""
    return FilesTable().open(uid, {}, location.below(paths.side_output(uid)))


def side_output(stage: str, name: str) -> str:
    """The uid under which a stage's side output is published."""
    return f"{stage}.{name}"
