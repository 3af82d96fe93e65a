"""Where results go: light descriptors for declarations; ``open`` gives the two-phase connector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sluice.params import Param, value_of
from sluice.protocol.paths import PipelinePaths

if TYPE_CHECKING:
    from sluice.connectors.files_table import FilesTable as FilesTableSink
    from sluice.connectors.sink import Sink
    from sluice.nodes import SinkNode
    from sluice.storage.open import StoreLocation

MALFORMED = "malformed"  # Side output: rows that could not be read, with where they came from.
LATE = "late"  # Side output: rows behind the watermark.
LATE_RIGHT = "late_right"  # The same of a join's second input.


class SinkSpec(Protocol):
    @property
    def params(self) -> tuple[Param, ...]: ...

    @property
    def upsert_key(self) -> tuple[str, ...]:
        """The newest row of equal values in these columns counts; empty: rows are appended.

        Rows with a true ``_deleted`` take away what has their key.
        """
        ...

    def open(self, uid: str, params: Mapping[str, str], default: StoreLocation) -> Sink:
        """*default* is the place under the job's root that is used when none is named."""
        ...


@dataclass(frozen=True, slots=True)
class FilesTable:
    """Parquet files, of which readers see only what a commit manifest names.

    Without ``location`` the table is kept under the job's root.  With ``upsert_key`` the newest row
    per key wins, else rows are appended.
    """

    location: str | Param = ""
    upsert_key: tuple[str, ...] = ()

    @property
    def params(self) -> tuple[Param, ...]:
        return (self.location,) if isinstance(self.location, Param) else ()

    def open(self, uid: str, params: Mapping[str, str], default: StoreLocation) -> FilesTableSink:
        from sluice.connectors.files_table import FilesTable as FilesTableSink
        from sluice.storage.open import StoreLocation, open_store

        named = value_of(self.location, params)
        location = (
            StoreLocation(root=named, endpoint_url=default.endpoint_url) if named else default
        )
        return FilesTableSink(uid, open_store(location), upsert_key=self.upsert_key)


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
