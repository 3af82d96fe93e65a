"""Parquet files that readers see by commit manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.params import Param, value_of

if TYPE_CHECKING:
    from sluice.connectors.files_table import FilesTable as FilesTableSink
    from sluice.storage.open import StoreLocation


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
