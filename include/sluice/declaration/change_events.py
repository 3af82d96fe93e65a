"""``ChangeEvents``: the changes of a table, as another system captured them, as its current rows.

Changes of a key apply in the order of their position in the database's log; one that comes twice,
or late, changes nothing.  The stream has the rows of keys that are not deleted, and takes the old
row back when one changes: from its state, or by the row that the change has.  Debezium's envelopes,
Maxwell's and DMS's events differ in where these are.  ``Debezium`` has them in an envelope for each
change: ``before``, ``after``, ``op`` and ``source``, plain or as the ``payload`` beside its schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.column_types import row_schema
from sluice.declaration.columns import check_columns
from sluice.declaration.operations import ChangelogNormalize
from sluice.errors import BEGIN_ANEW, ConfigurationError

if TYPE_CHECKING:
    from sluice.declaration.durations import PositiveDuration
    from sluice.declaration.pipeline import Stream

OWN = "debezium__"  # The prefix of the stage's own columns, which no column of the table has.
ORDER = f"{OWN}source_"  # That of the position's.
BEFORE = f"{OWN}before_"  # That of the row before a change.
DELETED = f"{OWN}is_deleted"
TRUNCATED = (
    "a TRUNCATE cannot be applied to rows by their keys; delete the rows, or have Debezium leave "
    f"it out (skipped.operations=t) and {BEGIN_ANEW}"
)
UNNAMED = (
    "a change has no key, or no position in the log; name the columns of the key, declare the "
    "fields of source as order, and have the table REPLICA IDENTITY DEFAULT or FULL"
)
UNKNOWN = "a change is of a kind that `kinds` lacks; add it, as skip if it changes no row"
REKEYED = (
    "an update has another key than the row before it, which would stay; have the key changed by a "
    "delete and an insert"
)
NOT_LOGGED = (
    "a value was not logged (unchanged TOAST), and no row before has it; ALTER TABLE ... REPLICA "
    "IDENTITY FULL, or leave the column out"
)
_NAME = re.compile(r"[A-Za-z0-9_.: -]+")

Kind = Literal["insert", "update", "delete", "truncate", "skip"]


@checked_initializer
@dataclass(frozen=True, slots=True)
class ChangeEvents:
    """The changes of a table with these *columns*, each with its Spark type, and this *key*.

    ``op`` and the values of ``order`` are SQL of the event's columns: what it did, by ``kinds``,
    and its position in the database's log.  ``after`` is the column or field with the row that a
    change left, or that it deleted; empty if the event has the table's columns itself.  ``before``
    is that with the row before, if there is one, and with ``whole_before`` every update and delete
    has it whole, so that the state needs no rows.  ``unlogged`` is the text that stands for a value
    that did not change.

    Raises:
        ConfigurationError: a key column is not among *columns*, there is no key or order, or a
            column has a prefix of ours.
    """

    columns: Mapping[str, str]
    key: tuple[str, ...]
    op: str
    kinds: Mapping[str, Kind]
    order: Mapping[str, str]
    after: str = ""
    before: str = ""
    whole_before: bool = False
    unlogged: str = ""

    def __post_init__(self) -> None:
        check_table("ChangeEvents", self.columns, self.key, self.order)
        if odd := [text for text in (*self.kinds, self.unlogged) if text and not is_plain(text)]:
            raise ConfigurationError(
                f"ChangeEvents has the text {odd[0]!r}, which is none of an event; write letters, "
                "digits, blanks and _ . : -"
            )
        if self.whole_before and not self.before:
            raise ConfigurationError(
                "ChangeEvents has whole_before, and no before; name the field with the row before"
            )

    def table(self, uid: str, events: Stream, *, ttl: PositiveDuration | None = None) -> Stream:
        """The current rows of the table whose changes *events* are, kept by the stage *uid*.

        An event whose ``op`` is null, as of a tombstone, is passed over; one of another kind than
        ``kinds`` has fails the stage, and so do a ``truncate``, an unlogged value that no row
        before has, and an update whose ``before`` has another key.  With *ttl* a key that did not
        change for so long is forgotten.
        """
        kept = [kind for kind, does in self.kinds.items() if does == "skip"]
        change = f"({self.op}) IS NOT NULL"
        if kept:
            change += f" AND ({self.op}) NOT IN ({_texts(kept)})"
        known = f"({self.op}) NOT IN ({_texts(self.kinds)})"
        return current_rows(
            uid,
            events.where(change),
            self,
            after={name: _field(self.after, name) for name in self.columns},
            before={name: _field(self.before, name) for name in self.columns if self.before},
            refused=((known, UNKNOWN),),
            ttl=ttl,
        )


def check_table(
    what: str, columns: Mapping[str, str], key: tuple[str, ...], order: Mapping[str, str]
) -> None:
    """Check a declaration of *what*; see ``ChangeEvents``."""
    check_columns(columns, what)
    if not key or not order:
        raise ConfigurationError(f"{what} needs a key and an order; name their columns")
    if missing := [name for name in key if name not in columns]:
        raise ConfigurationError(
            f"the key {missing[0]!r} of {what} is missing in its columns: {', '.join(columns)}; "
            "add it with its type"
        )
    if own := [name for name in columns if name.lower().startswith(OWN)]:
        raise ConfigurationError(
            f"{what} has the column {own[0]!r}, and the stage keeps its own under names that begin "
            f"with {OWN!r}; leave it out, or rename it where the events are made"
        )


def current_rows(
    uid: str,
    events: Stream,
    of: ChangeEvents,
    *,
    after: Mapping[str, str],
    before: Mapping[str, str],
    refused: tuple[tuple[str, str], ...] = (),
    ttl: PositiveDuration | None,
) -> Stream:
    """The stage *uid* of *events*, all of them changes; *after* and *before* are SQL by column."""
    kinds = {
        does: [kind for kind, it in of.kinds.items() if it == does] for does in of.kinds.values()
    }
    is_of = {does: f"({of.op}) IN ({_texts(named)})" for does, named in kinds.items()}
    key = {name: f"coalesce({after[name]}, {before.get(name, 'NULL')})" for name in of.key}
    order = {f"{ORDER}{name}": value for name, value in of.order.items()}
    names = [name for name, kind in of.columns.items() if kind.strip().lower() == "string"]
    texts = names if of.unlogged else []
    cases = [*refused]
    if "truncate" in is_of:
        cases.append((is_of["truncate"], TRUNCATED))
    cases += [(f"{one} IS NULL", UNNAMED) for one in (*key.values(), *[*order.values()][:1])]
    cases += [(f"{before[one]} <> {after[one]}", REKEYED) for one in of.key if one in before]
    if texts and (of.whole_before or "insert" in is_of):  # An insert replaces no row.
        new = "" if of.whole_before else f"{is_of['insert']} AND "
        cases += [(f"{new}{after[name]} = '{of.unlogged}'", NOT_LOGGED) for name in texts]
    said = [(when, why.replace("'", "\\'")) for when, why in cases]
    failing = " ".join(f"WHEN {when} THEN raise_error('{why}')" for when, why in said)
    columns = dict(after) | key | order
    columns[DELETED] = f"CASE {failing} ELSE {is_of.get('delete', 'false')} END"
    images = {name: f"{BEFORE}{name}" for name in of.columns} if of.whole_before else {}
    columns |= {name: before[column] for column, name in images.items()}
    operation = ChangelogNormalize(
        by=tuple(order),
        deleted=DELETED,
        columns=of.columns,
        images=images,
        unlogged={} if of.whole_before else dict.fromkeys(texts, of.unlogged),
    )
    changes = events.select(*(f"{value} AS `{name}`" for name, value in columns.items()))
    return changes.key_by(*of.key).stage(uid, operation, ttl=ttl)


def is_plain(text: str) -> bool:
    """Whether *text* needs no escapes in SQL."""
    return _NAME.fullmatch(text) is not None


def _texts(values: Mapping[str, str] | list[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


def _field(of: str, name: str) -> str:
    return f"{of}.`{name}`" if of else f"`{name}`"


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
