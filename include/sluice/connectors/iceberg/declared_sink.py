"""``IcebergTable``: the declared sink of an Apache Iceberg table, in any catalog."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.iceberg.declared_source import named, table_dataset
from sluice.declaration.arguments import checked_initializer
from sluice.declaration.params import Env, Param, of_place, value_of
from sluice.declaration.places import Dataset, check_changelog, params_of
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.connectors.iceberg.sink import IcebergSink
    from sluice.store.open import StoreLocation

_OF_A_PIPELINE = re.compile(r"([^/]+)/tables/[^/]+$")
_CATALOG = ("type", "uri", "warehouse")  # The properties that say which catalog it is.
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@checked_initializer
@dataclass(frozen=True, slots=True)
class IcebergTable:
    """The Iceberg table ``namespace.table`` of a catalog that pyiceberg's properties describe.

    ``{"type": "rest", "uri": ..., "token": env("TOKEN")}``, and likewise sql, glue and hive; the
    property ``name`` is the catalog's own.  With ``create`` it is created from the first rows.
    ``identity`` names this sink in the table; by default it is derived from the job's root.
    With ``upsert_key`` the newest row per key wins; with ``changelog`` every change is appended,
    and the column ``kind`` tells inserts, updates and deletes apart.

    Raises:
        ConfigurationError: the table has no namespace, or there are both a key and a changelog.
    """

    table: str | Param
    catalog: Mapping[str, str | Param | Env]
    upsert_key: tuple[str, ...] = ()
    create: bool = False
    branch: str = "main"
    identity: str | Param = ""
    changelog: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.table, str):
            named(self.table)
        check_changelog(f"IcebergTable {self.table!r}", self)

    @property
    def params(self) -> tuple[Param, ...]:
        return params_of(self.table, self.identity, *self.catalog.values())

    def table_of(
        self,
        params: Mapping[str, str],
        default: StoreLocation,  # noqa: ARG002 - of a spec
    ) -> tuple[str, ...]:
        """See ``PlacedSinkSpec``: each branch has a time line of its own."""
        where = (of_place(self.catalog.get(key, ""), params).rstrip("/") for key in _CATALOG)
        return (f"{value_of(self.table, params)} ({self.branch})", *where)

    def datasets(self, params: Mapping[str, str]) -> tuple[Dataset, ...]:
        """See ``NamedPlaceSpec``."""
        return (table_dataset(self.catalog, self.table, params),)

    def open(self, uid: str, params: Mapping[str, str], default: StoreLocation) -> IcebergSink:
        """Raises ConfigurationError: a parameter is missing or wrong."""
        from sluice.connectors.iceberg.catalog import CatalogTable, catalog_properties
        from sluice.connectors.iceberg.sink import IcebergSink

        catalog = {key: value_of(value, params) for key, value in self.catalog.items()}
        given = value_of(self.identity, params)
        identity = given or _derived(uid, default.root)
        if not _NAME.fullmatch(identity):
            raise ConfigurationError(
                f"the identity {identity!r} of sink {uid!r} is part of file names; write letters, "
                "digits, '_', '.' and '-'"
            )
        return IcebergSink(
            uid=uid,
            place=CatalogTable(
                named(value_of(self.table, params)),
                catalog_properties(catalog, default.endpoint_url),
            ),
            identity=identity,
            at=default.root.rstrip("/"),
            upsert_key=self.upsert_key,
            create=self.create,
            branch=self.branch,
            is_shared=given != "",
        )


def _derived(uid: str, root: str) -> str:
    """An identity of the sink's uid and a digest of its root, so that jobs do not share one."""
    match = _OF_A_PIPELINE.search(root)
    digest = hashlib.sha256(root.encode()).hexdigest()[:8]
    return f"{match[1]}.{uid}-{digest}" if match is not None else f"{uid}-{digest}"
