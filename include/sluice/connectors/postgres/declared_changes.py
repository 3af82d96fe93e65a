"""``PostgresChanges``: the declared source of a PostgreSQL table's rows and their changes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.datasets import Dataset
from sluice.declaration.params import Env, Param, of_place, said_of, value_of
from sluice.declaration.places import SourceMeaning, params_of
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.connectors.postgres.changes import PostgresChangesSource

_SLOT = re.compile(r"[a-z0-9_]{1,63}")


@checked_initializer
@dataclass(frozen=True, slots=True)
class PostgresChanges:
    """The rows of ``table`` (``schema.name``), which take back what an update or a delete takes.

    They come from the server's log, by logical decoding, through ``slot``, a replication slot that
    no other job uses.  It is made by the first checkpoint if it is missing.  ``publication`` is one
    that has the table; ``columns`` are names, all of them when empty.

    Raises:
        ConfigurationError: the table has no schema, or the slot's name is none.
    """

    dsn: str | Param | Env
    table: str | Param
    slot: str
    publication: str
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from sluice.connectors.postgres.server import table_name

        if isinstance(self.table, str):
            table_name(self.table)
        if not _SLOT.fullmatch(self.slot):
            raise ConfigurationError(
                f"the slot {self.slot!r} of table {self.table} is no name of a replication slot; "
                "write up to 63 small letters, digits and underscores"
            )

    @property
    def params(self) -> tuple[Param, ...]:
        return params_of(self.dsn, self.table)

    @property
    def takes_rows_back(self) -> bool:
        """See ``ChangingSourceSpec``."""
        return True

    def datasets(self, params: Mapping[str, str]) -> tuple[Dataset, ...]:
        """See ``NamedPlaceSpec``."""
        from sluice.connectors.postgres.server import dataset_of

        return (dataset_of(of_place(self.dsn, params), value_of(self.table, params)),)

    def meaning(self, params: Mapping[str, str]) -> SourceMeaning:
        return SourceMeaning(places=(f"changing rows of table {said_of(self.table, params)}",))

    def open(
        self,
        params: Mapping[str, str],
        endpoint_url: str | None,  # noqa: ARG002 - S3's
    ) -> PostgresChangesSource:
        from sluice.connectors.postgres.changes import PostgresChangesSource
        from sluice.connectors.postgres.server import Server, table_name

        table = table_name(value_of(self.table, params))
        return PostgresChangesSource(
            server=Server(value_of(self.dsn, params), f"source {table}"),
            table=table,
            slot=self.slot,
            publication=self.publication,
            columns=self.columns,
        )
