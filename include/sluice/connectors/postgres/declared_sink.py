"""``PostgresTable``: the declared sink of a PostgreSQL table, written exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.params import Env, Param, of_place, placed, value_of
from sluice.declaration.places import Dataset, check_changelog, params_of
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.connectors.postgres.target import PostgresTarget
    from sluice.connectors.staged_sink import StagedSink
    from sluice.declaration.places import RowChecks
    from sluice.store.open import StoreLocation


@checked_initializer
@dataclass(frozen=True, slots=True)
class PostgresTable:
    """Rows of ``table`` (``schema.name``); a checkpoint's appear in one transaction.

    ``dsn`` is libpq's connection string or URI; ``env("SHOP_DSN")`` keeps its password secret.
    With ``upsert_key`` the newest row per key wins, which needs a unique index on it; with
    ``changelog`` every change is appended, with its ``kind``: insert, update or delete.
    ``checkpoint_column``, a bigint of the table, gets the checkpoint of each row; an appended table
    can be rolled back with it, when a restore asks for that.  ``create`` makes a missing table.

    Raises:
        ConfigurationError: the table has no schema, the checkpoint column is part of the key, or
            there are both a key and a changelog.
    """

    dsn: str | Param | Env
    table: str | Param
    upsert_key: tuple[str, ...] = ()
    checkpoint_column: str | None = None
    create: bool = False
    changelog: bool = False

    def __post_init__(self) -> None:
        from sluice.connectors.postgres.server import table_name

        if isinstance(self.table, str):
            table_name(self.table)
        check_changelog(f"PostgresTable {self.table!r}", self)
        if self.checkpoint_column is not None and self.checkpoint_column in self.upsert_key:
            raise ConfigurationError(
                f"sink {self.table!r}: checkpoint_column {self.checkpoint_column!r} is part of the "
                "upsert key; a row would never be replaced by a later checkpoint's"
            )

    @property
    def params(self) -> tuple[Param, ...]:
        return params_of(self.dsn, self.table)

    def check_types(self, uid: str, schema: pa.Schema) -> None:
        """See ``TypedSinkSpec``: nested columns are written as JSON."""
        from sluice.connectors.postgres.copy import check_nested_types

        check_nested_types(schema, f"sink {uid!r}")

    def table_of(
        self,
        params: Mapping[str, str],
        default: StoreLocation,  # noqa: ARG002 - of a spec
    ) -> tuple[str, ...]:
        """See ``PlacedSinkSpec``."""
        from sluice.connectors.postgres.server import database_of

        return (value_of(self.table, params), *database_of(of_place(self.dsn, params)))

    def datasets(self, params: Mapping[str, str]) -> tuple[Dataset, ...]:
        """See ``NamedPlaceSpec``."""
        from sluice.connectors.postgres.server import dataset_of

        return (dataset_of(of_place(self.dsn, params), value_of(self.table, params)),)

    def open(self, uid: str, params: Mapping[str, str], default: StoreLocation) -> StagedSink:
        from sluice.connectors.staged_sink import StagedSink

        return StagedSink.at(default, uid, self.upsert_key, self._target(uid, params))

    def row_checks(self, uid: str) -> RowChecks:
        """See ``CheckingSinkSpec``."""
        return placed(self)._target(uid, {})  # noqa: SLF001 - its own

    def _target(self, uid: str, params: Mapping[str, str]) -> PostgresTarget:
        from sluice.connectors.postgres.ledger import Ledger
        from sluice.connectors.postgres.server import Server, table_name
        from sluice.connectors.postgres.target import PostgresTarget

        table = table_name(value_of(self.table, params))
        return PostgresTarget(
            server=Server(value_of(self.dsn, params), f"sink {uid!r}"),
            table=table,
            ledger=Ledger(table),
            upsert_key=self.upsert_key,
            checkpoint_column=self.checkpoint_column,
            creates=self.create,
        )
