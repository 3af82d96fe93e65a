"""``FilesTable``: the declared sink of files that commit manifests make visible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.params import Param, value_of
from sluice.declaration.places import Dataset, check_changelog, dataset_at
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.connectors.files_table.table import ManifestTable
    from sluice.declaration.places import RowChecks
    from sluice.store.open import StoreLocation

FORMATS = ("parquet", "json")
COMPACT_WHEN_FILES = 1_000  # A reader opens these in seconds; one page of a listing has them.


@checked_initializer
@dataclass(frozen=True, slots=True)
class FilesTable:
    """A table of files; readers see only those that a commit manifest names.

    Without ``location`` the table is under the job's root.  Rows are appended; with ``upsert_key``
    the newest row per key wins; with ``changelog`` every change is appended, and the column
    ``kind`` tells inserts, updates and deletes apart.

    ``format``              ``"parquet"``, or ``"json"``: an object per line
    ``partition_by``        columns whose values become folders: ``day=2026-01-01``
    ``compact_when_files``  merge files after about so many new ones; 0: only on request
    ``latest``              write ``_latest``, a list of the files that DuckDB or Spark should read
    ``delta_log``           write ``_delta_log``, by which others read it as a Delta table

    Raises:
        ConfigurationError: *format* is not known, *partition_by* names a column twice, there are
            both a key and a changelog, or *delta_log* is of a table that no Delta log can tell.
    """

    location: str | Param = ""
    upsert_key: tuple[str, ...] = ()
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    compact_when_files: int = COMPACT_WHEN_FILES
    latest: bool = False
    delta_log: bool = False
    changelog: bool = False

    def __post_init__(self) -> None:
        check_changelog("FilesTable", self)
        if self.format not in FORMATS:
            raise ConfigurationError(
                f"FilesTable(format={self.format!r}) is not known; write {' or '.join(FORMATS)}"
            )
        if len({*map(str.lower, self.partition_by)}) != len(self.partition_by):
            raise ConfigurationError(
                f"FilesTable(partition_by={self.partition_by!r}) names a column twice"
            )
        if self.compact_when_files < 0 or self.compact_when_files == 1:
            raise ConfigurationError(
                f"FilesTable(compact_when_files={self.compact_when_files}) cannot be; write 2 or "
                "more files, or 0 for never"
            )
        if self.delta_log and (self.upsert_key or self.format != "parquet"):
            what = "an upsert_key" if self.upsert_key else f"format={self.format!r}"
            raise ConfigurationError(
                f"FilesTable(delta_log=True) has {what}, and a Delta log names Parquet files all "
                "of whose rows count; declare a DeltaTable, which has upserts, or leave it out"
            )

    @property
    def params(self) -> tuple[Param, ...]:
        return (self.location,) if isinstance(self.location, Param) else ()

    def check_types(self, uid: str, schema: pa.Schema) -> None:
        """See ``TypedSinkSpec``."""
        from sluice.connectors.row_files import check_partition_types
        from sluice.connectors.staged_files import check_format_types

        check_format_types(self.format, schema, uid)
        check_partition_types(schema, self.partition_by, uid)

    def table_of(self, params: Mapping[str, str], default: StoreLocation) -> tuple[str, ...]:
        """See ``PlacedSinkSpec``."""
        location = value_of(self.location, params)
        return ((default.elsewhere(location) if location else default).name,)

    def datasets(self, params: Mapping[str, str]) -> tuple[Dataset, ...]:
        """See ``NamedPlaceSpec``."""
        location = value_of(self.location, params)
        return (dataset_at(location),) if location else ()

    def open(self, uid: str, params: Mapping[str, str], default: StoreLocation) -> ManifestTable:
        from sluice.connectors.delta_log import DeltaPlace
        from sluice.connectors.files_table.delta_view import DeltaView
        from sluice.connectors.files_table.table import ManifestTable
        from sluice.store.open import open_store

        location = value_of(self.location, params)
        place = default.elsewhere(location) if location else default
        store = open_store(place)
        return ManifestTable(
            uid,
            store,
            at=default.root.rstrip("/") if location else "",
            upsert_key=self.upsert_key,
            format=self.format,
            partition_by=self.partition_by,
            compact_when_files=self.compact_when_files,
            latest=self.latest,
            view=DeltaView(DeltaPlace(place), store) if self.delta_log else None,
        )

    def below_root(self) -> FilesTable:
        """See ``MovableSinkSpec``."""
        return replace(self, location="", compact_when_files=0, latest=False, delta_log=False)

    def open_with_checks(
        self, uid: str, default: StoreLocation, checks: RowChecks | None
    ) -> ManifestTable:
        """The table at *default*, which stands in for a place with these *checks*."""
        from sluice.connectors.files_table.table import ManifestTable
        from sluice.store.open import open_store

        return ManifestTable(
            uid,
            open_store(default),
            upsert_key=self.upsert_key,
            compact_when_files=self.compact_when_files,
            checks=checks,
        )
