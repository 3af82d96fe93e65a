"""``Debezium``: ``ChangeEvents`` as Debezium writes them.

Debezium sends an envelope for each change: ``before``, ``after``, ``op`` and ``source``, plain or
as the ``payload`` beside its schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.change_events import ChangeEvents, Kind, check_table, current_rows
from sluice.declaration.column_types import row_schema
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.declaration.durations import PositiveDuration
    from sluice.declaration.pipeline import Stream

# What Debezium writes in the place of a large value (TOAST) that PostgreSQL did not log.
UNAVAILABLE = "__debezium_unavailable_value"
KINDS: Final[Mapping[str, Kind]] = {
    "c": "insert", "r": "insert", "u": "update", "d": "delete", "t": "truncate",
}  # fmt: skip


@checked_initializer
@dataclass(frozen=True, slots=True)
class Debezium:
    """The changes of a table with these *columns*, each with its Spark type.

    ``key`` are the columns of its primary key.  ``order`` are the fields of the envelope's
    ``source`` that order changes, with their types: ``{"lsn": "bigint"}`` of PostgreSQL,
    ``{"file": "string", "pos": "bigint", "row": "int"}`` of MySQL.  With ``before`` every update
    and delete has the whole row before it (PostgreSQL's REPLICA IDENTITY FULL, MySQL's
    binlog_row_image=FULL), so that the state needs no rows.  Avro has no ``payload``.

    Raises:
        ConfigurationError: see ``ChangeEvents``.
    """

    columns: Mapping[str, str]
    key: tuple[str, ...]
    order: Mapping[str, str] = field(default_factory=lambda: {"lsn": "bigint"})
    before: bool = False
    payload: bool = True

    def __post_init__(self) -> None:
        check_table("Debezium", self.columns, self.key, self.order)

    @property
    def schema(self) -> str:
        """The schema of a JSON source that reads the envelopes."""
        row, order = _struct(self.columns), _struct(self.order)
        envelope = {"before": row, "after": row, "op": "STRING", "source": order}
        fields = ", ".join(f"{name} {kind}" for name, kind in envelope.items())
        return f"{fields}, payload {_struct(envelope)}" if self.payload else fields

    @property
    def avro(self) -> str:
        """The schema of an Avro source that reads the envelopes; a column ``payload`` is not there.

        Raises:
            ConfigurationError: a type is none in which Debezium's Avro has a column.
        """
        row, order = _record("Value", self.columns), _record("Source", self.order)
        envelope = {"before": row, "after": "Value", "op": "string", "source": order}
        return json.dumps(_nullable("Envelope", envelope))

    def table(self, uid: str, events: Stream, *, ttl: PositiveDuration | None = None) -> Stream:
        """The current rows of the table whose changes *events* are, kept by the stage *uid*.

        An event without a change (tombstone, heartbeat, message) is passed over.  A ``TRUNCATE``
        fails the stage, and so does a value that PostgreSQL did not log and that no row before has.
        With *ttl* a key that did not change for so long is forgotten.
        """
        changes = ChangeEvents(
            self.columns,
            self.key,
            op=self._of("op"),
            kinds=KINDS,
            order={name: self._of(f"source.`{name}`") for name in self.order},
            before="before",
            whole_before=self.before,
            unlogged=UNAVAILABLE,
        )
        wanted = ", ".join(f"'{kind}'" for kind in KINDS)
        return current_rows(
            uid,
            events.where(f"{changes.op} IN ({wanted})"),
            changes,
            after={name: self._of(f"after.`{name}`") for name in self.columns},
            before={name: self._of(f"before.`{name}`") for name in self.columns},
            ttl=ttl,
        )

    def _of(self, path: str) -> str:
        """A field of the envelope, with its schema beside it or without."""
        return f"coalesce({path}, payload.{path})" if self.payload else path


# Debezium's names of types are Kafka Connect's, which Avro has as these.
_AVRO = {
    "boolean": "boolean", "int": "int", "bigint": "long", "float": "float", "double": "double",
    "string": "string", "binary": "bytes",
}  # fmt: skip


def _record(name: str, columns: Mapping[str, str]) -> object:
    named = ", ".join(f"`{column}` {kind}" for column, kind in columns.items())
    fields: dict[str, object] = {}
    for column, kind in row_schema("Debezium", named).items():
        if kind.name == "decimal":
            precision, scale = (*kind.arguments, 0)[:2] if kind.arguments else (10, 0)
            digits = {"precision": precision, "scale": scale}
            fields[column] = {"type": "bytes", "logicalType": "decimal", **digits}
            continue
        if kind.name not in _AVRO:
            raise ConfigurationError(
                f"Debezium has the column {column!r} of type {kind}, which its Avro lacks; declare "
                "it as it is sent: a smallint as int, a date as int, a timestamp as bigint"
            )
        fields[column] = _AVRO[kind.name]
    return _nullable(name, fields)


def _nullable(name: str, fields: Mapping[str, object]) -> object:
    described = [
        {"name": field, "type": ["null", kind], "default": None} for field, kind in fields.items()
    ]
    return {"type": "record", "name": name, "fields": described}


def _struct(fields: Mapping[str, str]) -> str:
    return f"STRUCT<{', '.join(f'`{name}`: {kind}' for name, kind in fields.items())}>"
