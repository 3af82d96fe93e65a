"""``DeltaTable``: the declared sink of a Delta Lake table, in a folder or on S3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.params import Param, value_of
from sluice.declaration.places import Dataset, check_changelog, dataset_at, params_of
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.connectors.staged_sink import StagedSink
    from sluice.store.open import StoreLocation


@checked_initializer
@dataclass(frozen=True, slots=True)
class DeltaTable:
    """The Delta table at *location*, ``s3://bucket/folder`` or ``file:///folder``.

    With ``create`` it is created from the first rows, with the partitions ``partition_by``; a table
    that exists keeps its own.  With ``upsert_key`` the newest row per key wins; with ``changelog``
    every change is appended, and the column ``kind`` tells inserts, updates and deletes apart.

    Raises:
        ConfigurationError: there are both a key and a changelog, or partitions of a table that the
            sink does not create.
    """

    location: str | Param
    upsert_key: tuple[str, ...] = ()
    create: bool = False
    partition_by: tuple[str, ...] = ()
    changelog: bool = False

    def __post_init__(self) -> None:
        check_changelog(f"DeltaTable {self.location!r}", self)
        if self.partition_by and not self.create:
            raise ConfigurationError(
                f"DeltaTable {self.location!r} has partition_by={self.partition_by!r}, which is of "
                "a table that the sink creates; write create=True, or leave it out"
            )

    @property
    def params(self) -> tuple[Param, ...]:
        return params_of(self.location)

    def check_types(self, uid: str, schema: pa.Schema) -> None:
        """See ``TypedSinkSpec``."""
        from sluice.connectors.row_files import check_partition_types

        check_partition_types(schema, self.partition_by, uid)

    def table_of(self, params: Mapping[str, str], default: StoreLocation) -> tuple[str, ...]:
        """See ``PlacedSinkSpec``."""
        return (default.elsewhere(value_of(self.location, params)).name,)

    def datasets(self, params: Mapping[str, str]) -> tuple[Dataset, ...]:
        """See ``NamedPlaceSpec``."""
        return (dataset_at(value_of(self.location, params)),)

    def open(self, uid: str, params: Mapping[str, str], default: StoreLocation) -> StagedSink:
        """Raises ConfigurationError: a parameter is missing or wrong."""
        from sluice.connectors.delta.sink import DeltaTarget
        from sluice.connectors.delta_log import DeltaPlace
        from sluice.connectors.staged_sink import StagedSink

        place = DeltaPlace(default.elsewhere(value_of(self.location, params).rstrip("/")))
        target = DeltaTarget(place, self.upsert_key, self.create, self.partition_by)
        return StagedSink.at(default, uid, self.upsert_key, target)
