"""The sinks of a local run: tables in its own folder, in the place of the declared sinks.

A ``FilesTable`` is used as it is, in another place.  Any other sink is replaced by a table with its
upsert key and changelog, and with the checks that Kafka and PostgreSQL do without a connection:
that a row can be encoded as a message, and that the database can hold a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sluice.connectors.files_table.table import FilesTable as FilesTableSink
from sluice.connectors.kafka.topic_target import KafkaTarget
from sluice.connectors.staging.staged_sink import Target
from sluice.declaration.nodes import SinkNode
from sluice.declaration.params import Param
from sluice.declaration.sink_spec import SinkSpec
from sluice.sinks import FilesTable, KafkaTopic, PostgresTable
from sluice.testing.declared import placed

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.core.acks import Committable
    from sluice.storage.open import StoreLocation


def captured(node: SinkNode) -> SinkNode:
    match node.spec:
        case FilesTable() as table:
            return replace(
                node, spec=replace(table, location="", compact_when_files=0, latest=False)
            )
        case spec:
            return replace(node, spec=CapturedSink(spec))


@dataclass(frozen=True, slots=True)
class CapturedSink:
    """A ``SinkSpec``: a table in the place of the sink *declared*."""

    declared: SinkSpec

    @property
    def params(self) -> tuple[Param, ...]:
        return ()

    @property
    def upsert_key(self) -> tuple[str, ...]:
        return self.declared.upsert_key

    @property
    def changelog(self) -> bool:
        return self.declared.changelog

    def open(
        self,
        uid: str,
        params: Mapping[str, str],  # noqa: ARG002 - of a spec
        default: StoreLocation,
    ) -> CapturedTable:
        from sluice.storage.open import open_store

        match self.declared:
            case KafkaTopic() | PostgresTable() as known:
                target: Target | None = placed(known).open(uid, {}, default).target
            case _:
                target = None
        return CapturedTable(uid, open_store(default), upsert_key=self.upsert_key, target=target)


@dataclass(frozen=True, slots=True)
class CapturedTable(FilesTableSink):
    """A table with the checks of *target*, which is never connected to; None without checks."""

    target: Target | None = None

    def stage(
        self, table: pa.Table, *, checkpoint_id: int, subtask: int, attempt_token: str
    ) -> Committable | None:
        if self.target is not None:
            self.target.check_rows(table)
        return FilesTableSink.stage(
            self,
            table,
            checkpoint_id=checkpoint_id,
            subtask=subtask,
            attempt_token=attempt_token,
        )

    def check(
        self, parent: int | None, schema: pa.Schema, committables: Sequence[Committable]
    ) -> None:
        if isinstance(self.target, KafkaTarget):
            self.target.format.check(schema)
        FilesTableSink.check(self, parent, schema, committables)
