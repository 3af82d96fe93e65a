"""``IcebergTable``: the declared source of rows appended to an Iceberg table, in any catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.params import Env, Param, of_place, said_of, value_of
from sluice.declaration.places import Dataset, SourceMeaning, params_of
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.declaration.places import Source


@checked_initializer
@dataclass(frozen=True, slots=True)
class IcebergTable:
    """The Iceberg table ``namespace.table`` of a catalog that pyiceberg's properties describe.

    ``{"type": "rest", "uri": ..., "token": env("TOKEN")}``, and likewise sql, glue and hive; the
    property ``name`` is the catalog's own.  ``start``: ``earliest`` begins with all rows of the
    oldest existing snapshot, a snapshot's id with all rows of that one, ``latest`` with rows that
    are appended from now on.  Snapshots that change or delete rows stop the pipeline, unless
    ``skip_overwrites`` is set.  With ``changes="rows"`` they are read, too: the stream has the rows
    of the table, and takes back those that an update or a delete took from it.  Without ``columns``
    a row has those of the table.  A ``bounded`` source ends with the snapshots that exist.

    Raises:
        ConfigurationError: the table has no namespace.
    """

    table: str | Param
    catalog: Mapping[str, str | Param | Env]
    start: str | int | Param = "earliest"
    columns: tuple[str, ...] = ()
    changes: Literal[False, "rows"] = False
    skip_overwrites: bool = False
    bounded: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.table, str):
            named(self.table)

    @property
    def params(self) -> tuple[Param, ...]:
        return params_of(self.table, self.start, *self.catalog.values())

    @property
    def takes_rows_back(self) -> bool:
        """See ``ChangingSourceSpec``."""
        return self.changes == "rows"

    def meaning(self, params: Mapping[str, str]) -> SourceMeaning:
        what = "changing table" if self.changes else "table"
        return SourceMeaning(places=(f"{what} {said_of(self.table, params)}",))

    def datasets(self, params: Mapping[str, str]) -> tuple[Dataset, ...]:
        """See ``NamedPlaceSpec``."""
        return (table_dataset(self.catalog, self.table, params),)

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:
        """Raises ConfigurationError: a parameter is missing or wrong."""
        from sluice.connectors.iceberg.catalog import CatalogTable, catalog_properties
        from sluice.connectors.iceberg.source import IcebergSource

        catalog = {key: value_of(value, params) for key, value in self.catalog.items()}
        return IcebergSource(
            place=CatalogTable(
                named(value_of(self.table, params)), catalog_properties(catalog, endpoint_url)
            ),
            start=value_of(self.start, params) or "earliest",
            columns=self.columns,
            changes=self.changes,
            skip_overwrites=self.skip_overwrites,
            bounded=self.bounded,
        )


def named(table: str) -> str:
    """*table*; ConfigurationError if its name has no namespace."""
    if "." not in table.strip("."):
        raise ConfigurationError(
            f"the Iceberg table {table!r} names no namespace; write namespace.table"
        )
    return table


def table_dataset(
    catalog: Mapping[str, str | Param | Env], table: str | Param, params: Mapping[str, str]
) -> Dataset:
    """The table by the address of its catalog, or by the warehouse of one that has none."""
    address = of_place(catalog.get("uri", "") or catalog.get("warehouse", ""), params)
    # SQLAlchemy takes any sign in a password, and one in the query.
    without_password, _, _ = re.sub(r"//.*@", "//", address).partition("?")
    return Dataset(without_password.rstrip("/") or "iceberg", value_of(table, params))
