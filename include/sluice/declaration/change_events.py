"""``ChangeEvents``: the changes of a table, as another system captured them, as its current rows.

Changes of a key apply in the order of their position in the database's log; one that comes twice,
or late, changes nothing.  The stream has the rows of keys that are not deleted, and takes the old
row back when one changes: from its state, or by the row that the change has.  Debezium's envelopes,
Maxwell's and DMS's events differ in where these are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.columns import check_columns
from sluice.declaration.operations import ChangelogNormalize
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.declaration.durations import PositiveDuration
    from sluice.declaration.pipeline import Stream

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
    failing = " ".join(f"WHEN {when} THEN raise_error('{why}')" for when, why in cases)
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
