"""``Debezium``: the changes of a database's table, as Debezium writes them, as its current rows.

Debezium sends an envelope for each change: ``before``, ``after``, ``op`` and ``source``, plain or
as the ``payload`` beside its schema.  Changes of a key apply in the order of their position in
the database's log; one that comes twice, or late, changes nothing.  The stream has the rows of keys
that are not deleted, and takes the old row back when one changes: from its state, or by ``before``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.columns import check_columns
from sluice.declaration.operations import ChangelogNormalize
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.declaration.durations import PositiveDuration
    from sluice.declaration.pipeline import Stream

# What Debezium writes in the place of a large value (TOAST) that PostgreSQL did not log.
UNAVAILABLE = "__debezium_unavailable_value"
OWN = "debezium__"  # The prefix of the stage's own columns, which no column of the table has.
ORDER = f"{OWN}source_"  # That of the position's.
BEFORE = f"{OWN}before_"  # That of the row before a change.
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
    "a value was not logged (unchanged TOAST), and no row before has it; ALTER TABLE ... REPLICA "
    "IDENTITY FULL, or leave the column out"
)


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
        ConfigurationError: a key column is not among *columns*, there is no key or order, or a
            column has the prefix OWN.
    """

    columns: Mapping[str, str]
    key: tuple[str, ...]
    order: Mapping[str, str] = field(default_factory=lambda: {"lsn": "bigint"})
    before: bool = False
    payload: bool = True

    def __post_init__(self) -> None:
        check_columns(self.columns, "Debezium")
        if not self.key or not self.order:
            raise ConfigurationError("Debezium needs a key and an order; name their columns")
        if missing := [name for name in self.key if name not in self.columns]:
            raise ConfigurationError(
                f"the key {missing[0]!r} of Debezium is missing in its columns: "
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
        return f"{fields}, payload {_struct(envelope)}" if self.payload else fields

    def table(self, uid: str, events: Stream, *, ttl: PositiveDuration | None = None) -> Stream:
        """The current rows of the table whose changes *events* are, kept by the stage *uid*.

        An event without a change (tombstone, heartbeat, message) is passed over.  A ``TRUNCATE``
        fails the stage, and so does a value that PostgreSQL did not log and that no row before has.
        With *ttl* a key that did not change for so long is forgotten.
        """
        op, after = self._of("op"), {name: self._of(f"after.`{name}`") for name in self.columns}
        before = {name: self._of(f"before.`{name}`") for name in self.columns}
        wanted = f"{op} IN ('c', 'r', 'u', 'd', 't')"
        key = {name: f"coalesce({after[name]}, {before[name]})" for name in self.key}
        order = {f"{ORDER}{name}": self._of(f"source.`{name}`") for name in self.order}
        texts = [name for name, kind in self.columns.items() if kind.strip().lower() == "string"]
        new = "" if self.before else f"{op} IN ('c', 'r') AND "  # It replaces no row.
        cases = [(f"{op} = 't'", TRUNCATED)]
        cases += [(f"{one} IS NULL", UNNAMED) for one in (*key.values(), *[*order.values()][:1])]
        cases += [(f"{new}{after[name]} = '{UNAVAILABLE}'", NOT_LOGGED) for name in texts]
        refused = " ".join(f"WHEN {when} THEN raise_error('{why}')" for when, why in cases)
        columns = after | key | order | {DELETED: f"CASE {refused} ELSE {op} = 'd' END"}
        images = {name: f"{BEFORE}{name}" for name in self.columns} if self.before else {}
        columns |= {name: before[of] for of, name in images.items()}
        changes = events.where(wanted).select(
            *(f"{value} AS `{name}`" for name, value in columns.items())
        )
        operation = ChangelogNormalize(
            by=tuple(order),
            deleted=DELETED,
            columns=self.columns,
            images=images,
            unlogged={} if self.before else dict.fromkeys(texts, UNAVAILABLE),
        )
        return changes.key_by(*self.key).stage(uid, operation, ttl=ttl)

    def _of(self, path: str) -> str:
        """A field of the envelope, with its schema beside it or without."""
        return f"coalesce({path}, payload.{path})" if self.payload else path


def _struct(fields: Mapping[str, str]) -> str:
    return f"STRUCT<{', '.join(f'`{name}`: {kind}' for name, kind in fields.items())}>"
