"""The algebra of changes: what the rows of a stream mean, and what each operator makes of them.

Every stream has a kind, which follows from its declaration alone (Flink's ChangelogMode):

    Append         rows are only added
    Upsert(key)    at any barrier there is at most one current row per key; a later row replaces an
                   earlier one, and rows may vanish
    Retract        a bag: rows are added and taken back as whole rows; no columns identify one

Whatever is not ``Append`` carries ``_weight`` to every stage that reads it: 1 a row, -1 a row that
is taken back, exactly as it was sent.  So a result does not depend on which other stages read the
stream.  Which operation takes what, and what it then yields, is ``result_kind``, as a table in
docs/reference/pipelines.md; what a sink takes is ``check_sink``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn, TypeAlias, assert_never

from sluice.declaration.expressions import Projection, Step
from sluice.declaration.operations import (
    Attached,
    Deduplicate,
    IntervalJoin,
    KeyedAggregate,
    KeyedLookup,
    Latest,
    Lookup,
    Operation,
    Process,
    ProcessKeyed,
    RegularJoin,
    TopN,
    Transform,
    Union,
    WindowAggregate,
    WindowJoin,
    WindowTopN,
)
from sluice.declaration.places import SinkSpec
from sluice.errors import ConfigurationError

ROW_KIND = "kind"  # The column of a changelog that a sink writes.

_PLAIN = re.compile(
    r"""(["`]?)(?P<column>\w+)\1(?:\s+AS\s+(["`]?)(?P<name>\w+)\3)?""", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Append:
    """Rows are only added."""

    def __str__(self) -> str:
        return "append"


@dataclass(frozen=True, slots=True)
class Upsert:
    """At any barrier there is at most one current row per ``key``."""

    key: tuple[str, ...]

    def __str__(self) -> str:
        return f"upsert by {', '.join(self.key)}"


@dataclass(frozen=True, slots=True)
class Retract:
    """Rows are added and taken back as whole rows."""

    def __str__(self) -> str:
        return "retract"


Kind: TypeAlias = Append | Upsert | Retract


class RowKind(StrEnum):
    """Flink's, in its short form: what a row of a changelog does."""

    INSERT = "+I"
    UPDATE_BEFORE = "-U"
    UPDATE_AFTER = "+U"
    DELETE = "-D"


@dataclass(frozen=True, slots=True)
class StreamRead:
    """A stream that a stage reads: the uid that yields it, and its kind."""

    producer: str
    kind: Kind


def result_kind(
    uid: str, operation: Operation, keys: tuple[str, ...], reads: Sequence[StreamRead]
) -> Kind:
    """The kind of what the stage *uid* yields, keyed by *keys*, of what it *reads*.

    Raises:
        ConfigurationError: the operation cannot take rows back; the message names one that can.
    """
    match operation:
        case Transform():
            return reads[0].kind
        case Union() | RegularJoin(how="inner" | "semi"):
            return Append() if all(read.kind == Append() for read in reads) else Retract()
        case RegularJoin():
            return Retract()  # A row that waited alone is taken back when its partner comes.
        case KeyedAggregate() | Latest():
            return Upsert(keys)
        case TopN():
            return Upsert((*keys, "rank"))
        case KeyedLookup(lookup=lookup):
            for read in reads:
                if not isinstance(read.kind, Upsert):
                    _refuse(uid, operation, read)
            return Retract() if lookup.add else Upsert(keys)  # A table may have several matches.
        case (
            Lookup()
            | WindowAggregate()
            | WindowTopN()
            | WindowJoin()
            | IntervalJoin()
            | Deduplicate()
            | Process()
            | ProcessKeyed()
        ):
            for read in reads:
                if read.kind != Append():
                    _refuse(uid, operation, read)
            return _of_appended(operation, keys)
        case _:
            assert_never(operation)


def after(steps: Sequence[Step], kind: Kind) -> Kind:
    """What becomes of *kind* behind filters and projections.

    A key that is renamed stays one; without a column of it, nothing identifies a row any more.
    """
    for step in steps:
        if isinstance(step, Projection):
            kind = _selected(kind, step.columns)
    return kind


def _selected(kind: Kind, columns: Sequence[str]) -> Kind:
    if not isinstance(kind, Upsert) or "*" in columns:
        return kind
    items = [_PLAIN.fullmatch(column.strip()) for column in columns]
    names = {item["column"]: item["name"] or item["column"] for item in items if item is not None}
    if any(column not in names for column in kind.key):
        return Retract()
    return Upsert(tuple(names[column] for column in kind.key))


def analysed(kind: Kind, columns: Collection[str]) -> Kind:
    """*kind*, once it is known which *columns* a stage yields: a function may have dropped some."""
    if isinstance(kind, Upsert) and not set(kind.key) <= set(columns):
        return Retract()
    return kind


def check_sink(uid: str, spec: SinkSpec, read: StreamRead) -> None:
    """Whether the sink *uid* can show what it reads.

    Raises:
        ConfigurationError: it would show rows that were taken back, or lose some.
    """
    if spec.changelog:
        return  # It shows every change.
    what = f"sink {uid!r}"
    match read.kind:
        case Append():
            return
        case Upsert(key=key):
            if not spec.upsert_key:
                raise ConfigurationError(
                    f"{what} appends, but rows of {read.producer!r} replace earlier ones with the "
                    f"same {_and(key)}; keep the newest with upsert_key={key!r}, which of a "
                    "KafkaTopic is key=... and upsert=True, or write every change with "
                    "changelog=True"
                )
            if not set(key) <= set(spec.upsert_key):
                raise ConfigurationError(
                    f"{what} upserts by {_and(spec.upsert_key)}, but {read.producer!r} has a row "
                    f"for each {_and(key)}, several of which may share a key; upsert by {key!r}, "
                    f"or choose one with {_latest(spec.upsert_key)}"
                )
        case Retract():
            if not spec.upsert_key:
                raise ConfigurationError(
                    f"{what} appends, but {read.producer!r} takes rows back; write every change "
                    "with changelog=True, or give its rows a key with "
                    "key_by(...).latest(...) and keep the newest with upsert_key=..."
                )
            raise ConfigurationError(
                f"{what} upserts by {_and(spec.upsert_key)}, but no columns identify a row of "
                f"{read.producer!r}; choose one with {_latest(spec.upsert_key)}, or write every "
                "change with changelog=True"
            )
        case _:
            assert_never(read.kind)


def check_sink_columns(uid: str, spec: SinkSpec, producer: str, columns: Collection[str]) -> None:
    """Raises ConfigurationError: the sink *uid* needs a column that its rows have not."""
    names = [(name, "upserts by") for name in spec.upsert_key]
    names += [(name, "is partitioned by") for name in getattr(spec, "partition_by", ())]
    for name, needs in names:
        if name not in columns:
            raise ConfigurationError(
                f"sink {uid!r} {needs} {name!r}, which {producer!r} does not yield; it has "
                f"{', '.join(columns)}"
            )
    check_row_kind_column(uid, spec, producer, columns)


def check_row_kind_column(
    uid: str, spec: SinkSpec, producer: str, columns: Collection[str]
) -> None:
    """Raises ConfigurationError: the rows have a column where a changelog says what they do."""
    if spec.changelog and ROW_KIND in columns:
        raise ConfigurationError(
            f"sink {uid!r} writes a changelog, whose column {ROW_KIND!r} says what a row does, but "
            f"{producer!r} has a column of that name; rename it: select('{ROW_KIND} AS ...')"
        )


def _of_appended(operation: Operation, keys: tuple[str, ...]) -> Kind:
    """Of operations that read only what is appended."""
    match operation:
        case WindowAggregate(window=Attached(), allowed_lateness_ms=late_ms) if late_ms:
            # Windows of other stages' making: several may begin together.
            return Upsert(tuple(dict.fromkeys((*keys, "window_start", "window_end"))))
        case WindowAggregate(allowed_lateness_ms=late_ms) if late_ms:
            return Upsert(tuple(dict.fromkeys((*keys, "window_start"))))
        case _:
            return Append()


def _refuse(uid: str, operation: Operation, read: StreamRead) -> NoReturn:
    if isinstance(read.kind, Upsert):
        what = f"whose rows replace earlier ones with the same {_and(read.kind.key)}"
    else:
        what = "which takes rows back"
    name, instead = _instead(operation)
    raise ConfigurationError(
        f"stage {uid!r} reads {read.producer!r}, {what}, and {name} cannot take a row back; "
        f"{instead}"
    )


def _instead(operation: Operation) -> tuple[str, str]:
    """What an operation is called that reads only what is appended, and what to do instead."""
    match operation:
        case Lookup() | KeyedLookup():
            return "lookup()", (
                "look up what that stage reads, before it, or give its rows a key with "
                "key_by(...).latest(...)"
            )
        case WindowAggregate():
            return "window()", (
                "use aggregate() with the time among the keys: "
                "key_by(hour=\"date_trunc('hour', at)\")"
            )
        case WindowTopN():
            return "window_top_n()", "use top_n() with the window's start among the keys"
        case WindowJoin():
            return "window_join()", "use join() with the window's start among the keys"
        case IntervalJoin():
            return "interval_join()", "use join() and where()"
        case Deduplicate():
            return "deduplicate()", "use latest()"
        case _:
            return "a function of your own", (
                "put it before that stage, or use aggregate(), top_n(), latest() or join()"
            )


def _latest(columns: tuple[str, ...]) -> str:
    return f"key_by({', '.join(map(repr, columns))}).latest(...)"


def _and(columns: Sequence[str]) -> str:
    return ", ".join(columns)
