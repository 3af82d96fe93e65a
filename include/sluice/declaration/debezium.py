"""``Debezium``: the changes of a database's table, as Debezium writes them, as its current rows.

Debezium sends an envelope for each change: ``before``, ``after``, ``op`` and ``source``, plain or
as the ``payload`` beside its schema.  The newest change of each key, by its position in the
database's log, is kept as state; the stream has the rows of keys that are not deleted, and takes
the old row back when a key changes.  So ``before`` is not needed, and an event that comes twice,
or late from another partition, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.columns import check_columns
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.declaration.durations import PositiveDuration
    from sluice.declaration.pipeline import Stream

# What Debezium writes in the place of a large value (TOAST) that PostgreSQL did not log.
UNAVAILABLE = "__debezium_unavailable_value"
OWN = "debezium__"  # The prefix of the stage's own columns, which no column of the table has.
ORDER = f"{OWN}source_"  # That of the position's.
DELETED = f"{OWN}is_deleted"
TRUNCATED = (
    "a TRUNCATE cannot be applied to rows by their keys; delete the rows, or have Debezium leave "
    "it out (skipped.operations=t) and begin anew"
)
UNNAMED = (
    "a change has no key, or no position in the log; name the columns of the key, declare the "
    "fields of source as order, and have the table REPLICA IDENTITY DEFAULT or FULL"
)
NOT_LOGGED = (
    "a value was not logged (unchanged TOAST); ALTER TABLE ... REPLICA IDENTITY FULL, or leave the "
    "column out"
)


@checked_initializer
@dataclass(frozen=True, slots=True)
class Debezium:
    """The changes of a table with these *columns*, each with its Spark type.

    ``key`` are the columns of its primary key.  ``order`` are the fields of the envelope's
    ``source`` that order changes, with their types: ``{"lsn": "bigint"}`` of PostgreSQL,
    ``{"file": "string", "pos": "bigint", "row": "int"}`` of MySQL.

    Raises:
        ConfigurationError: a key column is not among *columns*, there is no key or order, or a
            column has the prefix OWN.
    """

    columns: Mapping[str, str]
    key: tuple[str, ...]
    order: Mapping[str, str] = field(default_factory=lambda: {"lsn": "bigint"})

    def __post_init__(self) -> None:
        check_columns(self.columns, "Debezium")
        if not self.key or not self.order:
            raise ConfigurationError("Debezium needs a key and an order; name their columns")
        if missing := [name for name in self.key if name not in self.columns]:
            raise ConfigurationError(
                f"Debezium has the key {missing[0]!r}, which is none of its columns: "
                f"{', '.join(self.columns)}; add it with its type"
            )

        if own := [name for name in self.columns if name.lower().startswith(OWN)]:
            raise ConfigurationError(
                f"Debezium has the column {own[0]!r}, and the stage keeps its own under names that "
                f"begin with {OWN!r}; leave it out, or have Debezium rename it"
            )

    @property
    def schema(self) -> str:
        """The schema of a JSON source that reads the envelopes."""
        row, order = _struct(self.columns), _struct(self.order)
        envelope = {"before": row, "after": row, "op": "STRING", "source": order}
        fields = ", ".join(f"{name} {kind}" for name, kind in envelope.items())
        return f"{fields}, payload {_struct(envelope)}"

    def table(self, uid: str, events: Stream, *, ttl: PositiveDuration | None = None) -> Stream:
        """The current rows of the table whose changes *events* are, kept by the stage *uid*.

        An event without a change (tombstone, heartbeat, message) is passed over.  A ``TRUNCATE``
        fails the stage, and so does a value that PostgreSQL did not log.  With *ttl* a key that
        did not change for so long is forgotten.
        """
        op, after = _either("op"), {name: _either(f"after.`{name}`") for name in self.columns}
        wanted = f"{op} IN ('c', 'r', 'u', 'd', 't')"
        key = {name: f"coalesce({after[name]}, {_either(f'before.`{name}`')})" for name in self.key}
        order = {f"{ORDER}{name}": _either(f"source.`{name}`") for name in self.order}
        texts = [name for name, kind in self.columns.items() if kind.strip().lower() == "string"]
        cases = [(f"{op} = 't'", TRUNCATED)]
        cases += [(f"{one} IS NULL", UNNAMED) for one in (*key.values(), *[*order.values()][:1])]
        cases += [(f"{after[name]} = '{UNAVAILABLE}'", NOT_LOGGED) for name in texts]
        refused = " ".join(f"WHEN {when} THEN raise_error('{why}')" for when, why in cases)
        columns = after | key | order | {DELETED: f"CASE {refused} ELSE {op} = 'd' END"}
        newest = (
            events.where(wanted)
            .select(*(f"{value} AS `{name}`" for name, value in columns.items()))
            .key_by(*self.key)
            .latest(uid, by=tuple(order), ttl=ttl)
        )
        return newest.where(f"NOT {DELETED}").select(*(f"`{name}`" for name in self.columns))


def _struct(fields: Mapping[str, str]) -> str:
    return f"STRUCT<{', '.join(f'`{name}`: {kind}' for name, kind in fields.items())}>"


def _either(path: str) -> str:
    """A field of the envelope, with its schema beside it or without."""
    return f"coalesce({path}, payload.{path})"
