"""``DeltaTable``: the declared source of what is written to a Delta Lake table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.params import Param, said_of, value_of
from sluice.declaration.places import Dataset, SourceMeaning, dataset_at, params_of

if TYPE_CHECKING:
    from sluice.declaration.places import Source


@checked_initializer
@dataclass(frozen=True, slots=True)
class DeltaTable:
    """The Delta table at *location*, ``s3://bucket/folder`` or ``file:///folder``.

    ``start``: ``earliest`` begins with all rows of the table as it is, a version's number with all
    rows of that one, ``latest`` with what is written from now on.  Versions that change or delete
    rows stop the pipeline, unless ``skip_overwrites`` passes them over.  With ``changes="rows"``
    they are read, too: the stream has the rows of the table, and takes back those that an update or
    a delete took from it.  With ``changes=True`` the feed's entries are rows themselves: each has
    ``_change_type`` (``insert``, ``delete``, ``update_preimage`` or ``update_postimage``) and
    ``_commit_version``.  Without ``columns`` a row has those of the table.  A ``bounded`` source
    ends with the versions that exist.
    """

    location: str | Param
    start: str | int | Param = "earliest"
    columns: tuple[str, ...] = ()
    changes: bool | Literal["rows"] = False
    skip_overwrites: bool = False
    bounded: bool = False

    @property
    def params(self) -> tuple[Param, ...]:
        return params_of(self.location, self.start)

    @property
    def takes_rows_back(self) -> bool:
        """See ``ChangingSourceSpec``."""
        return self.changes == "rows"

    def meaning(self, params: Mapping[str, str]) -> SourceMeaning:
        what = "changes" if self.changes is True else "changing rows" if self.changes else "rows"
        return SourceMeaning(places=(f"{what} of {said_of(self.location, params)}",))

    def datasets(self, params: Mapping[str, str]) -> tuple[Dataset, ...]:
        """See ``NamedPlaceSpec``."""
        return (dataset_at(value_of(self.location, params)),)

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:
        """Raises ConfigurationError: a parameter is missing or wrong."""
        from sluice.connectors.delta.source import DeltaSource
        from sluice.connectors.delta_log import DeltaPlace
        from sluice.store.open import StoreLocation

        root = value_of(self.location, params).rstrip("/")
        return DeltaSource(
            place=DeltaPlace(StoreLocation(root, endpoint_url=endpoint_url)),
            start=value_of(self.start, params) or "earliest",
            columns=self.columns,
            changes=self.changes,
            skip_overwrites=self.skip_overwrites,
            bounded=self.bounded,
        )
