"""``PostgresTable`` and ``PostgresChanges``: the declared sources of a table's rows, appended ones
or all of their changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.durations import PositiveMicroseconds
from sluice.declaration.params import Env, Param, of_place, said_of, value_of
from sluice.declaration.places import Dataset, SourceMeaning, params_of
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.connectors.postgres.changes import PostgresChangesSource
    from sluice.connectors.postgres.source import PostgresTableSource


@dataclass(frozen=True, slots=True)
class _OfTable:
    """What both sources of a table have in common."""

    dsn: str | Param | Env
    table: str | Param

    def __post_init__(self) -> None:
        from sluice.connectors.postgres.server import table_name

        if isinstance(self.table, str):
            table_name(self.table)

    @property
    def params(self) -> tuple[Param, ...]:
        return params_of(self.dsn, self.table)

    def datasets(self, params: Mapping[str, str]) -> tuple[Dataset, ...]:
        """See ``NamedPlaceSpec``."""
        from sluice.connectors.postgres.server import dataset_of

        return (dataset_of(of_place(self.dsn, params), value_of(self.table, params)),)


@checked_initializer
@dataclass(frozen=True, slots=True)
class PostgresTable(_OfTable):
    """Rows of ``table`` (``schema.name``) in the order of ``offset_column``, a growing bigint.

    ``dsn`` is libpq's connection string or URI; ``env("SHOP_DSN")`` keeps its password secret.
    ``columns`` are names, or ``name::type`` to cast one; all of them when empty.  ``where`` is a
    condition in SQL on columns that never change.

    ``late_commits`` decides about rows whose transaction has taken a number and not committed yet:
    ``"wait"`` waits for these transactions, which needs a sequence without CACHE; a duration is
    the longest time between the timestamp of a row, in ``lag_column``, and its commit.

    ``continues`` names a database and timeline of which the present ones have all rows, as the
    error names them that a failover to a server of unknown history, or a move, causes.

    Raises:
        ConfigurationError: the table has no schema, or the options contradict each other.
    """

    offset_column: str
    columns: tuple[str, ...] = ()
    late_commits: Literal["wait"] | PositiveMicroseconds = "wait"
    lag_column: str = ""
    bounded: bool = False
    where: str = ""
    continues: str = ""

    def __post_init__(self) -> None:
        _OfTable.__post_init__(self)
        if isinstance(self.late_commits, timedelta) != bool(self.lag_column):
            raise ConfigurationError(
                f"source {self.table!r}: late_commits=timedelta(...) and lag_column, a column of "
                "timestamps, go together; give both, or neither to wait for transactions"
            )

    def meaning(self, params: Mapping[str, str]) -> SourceMeaning:
        named = [text.partition("::") for text in self.columns]
        return SourceMeaning(
            places=(f"table {said_of(self.table, params)} by {self.offset_column}",),
            decoding=f"where({self.where})" if self.where else "",
            columns={name: f"{name}::{of}" for name, sign, of in named if sign},
        )

    def open(
        self,
        params: Mapping[str, str],
        endpoint_url: str | None,  # noqa: ARG002 - S3's
    ) -> PostgresTableSource:
        from sluice.connectors.postgres.server import Server, table_name
        from sluice.connectors.postgres.source import Lag, PostgresTableSource, Wait

        table = table_name(value_of(self.table, params))
        lag = self.late_commits
        return PostgresTableSource(
            server=Server(value_of(self.dsn, params), f"source {table}"),
            table=table,
            offset_column=self.offset_column,
            columns=self.columns,
            late_commits=Lag(self.lag_column, lag) if isinstance(lag, timedelta) else Wait(),
            where=self.where,
            bounded=self.bounded,
            continues=self.continues,
        )


_SLOT = re.compile(r"[a-z0-9_]{1,63}")


@checked_initializer
@dataclass(frozen=True, slots=True)
class PostgresChanges(_OfTable):
    """The rows of ``table`` (``schema.name``), which take back what an update or a delete takes.

    They come from the server's log, by logical decoding, through ``slot``, a replication slot that
    no other job uses.  It is made by the first checkpoint if it is missing.  ``publication`` is one
    that has the table; ``columns`` are names, all of them when empty.

    Raises:
        ConfigurationError: the table has no schema, or the slot's name is none.
    """

    slot: str
    publication: str
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _OfTable.__post_init__(self)
        if not _SLOT.fullmatch(self.slot):
            raise ConfigurationError(
                f"the slot {self.slot!r} of table {self.table} is no name of a replication slot; "
                "write up to 63 small letters, digits and underscores"
            )

    @property
    def takes_rows_back(self) -> bool:
        """See ``ChangingSourceSpec``."""
        return True

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
