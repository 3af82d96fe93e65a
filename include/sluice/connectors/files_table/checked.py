"""A table that refuses what another place would, in whose place a test has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.files_table.table import ManifestTable
from sluice.core.answers import Committable
from sluice.declaration.places import RowChecks

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class CheckedTable(ManifestTable):
    """A table with the *checks* of the declared sink; None without."""

    checks: RowChecks | None = None

    def stage(
        self,
        table: pa.Table,
        *,
        checkpoint_id: int,
        checkpoint_token: str,
        subtask: int,
        attempt_token: str,
    ) -> Committable | None:
        if self.checks is not None:
            self.checks.check_rows(table)
        return ManifestTable.stage(
            self,
            table,
            checkpoint_id=checkpoint_id,
            checkpoint_token=checkpoint_token,
            subtask=subtask,
            attempt_token=attempt_token,
        )

    def check(
        self, parent: int | None, schema: pa.Schema, committables: Sequence[Committable]
    ) -> None:
        if self.checks is not None:
            self.checks.check_columns(schema)
        ManifestTable.check(self, parent, schema, committables)
