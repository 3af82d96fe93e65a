"""The algebra of changes: the kind of a stream, and the kind of each operator's result.

Every stream has a kind, which follows from its declaration alone (Flink's ChangelogMode):

    Append         rows are only added
    Upsert(key)    at any barrier there is at most one current row per key; a later row replaces an
                   earlier one, and rows may vanish
    Retract        a bag: rows are added and taken back as whole rows; no columns identify one

A stream that is not ``Append`` carries ``_weight`` to every stage that reads it: 1 for a row, -1
for a row that is taken back exactly as it was sent.  So a result does not depend on which other
stages read the stream.  ``result_kind`` is the table of docs/reference/pipelines.md: the kinds that
an operation reads, and the kind of its result; ``check_sink`` has the kinds that a sink reads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NoReturn, TypeAlias, assert_never

from sluice.declaration import operations as ops
from sluice.declaration.arguments import nearest_word
from sluice.declaration.expressions import Projection, Step
from sluice.declaration.places import SinkSpec
from sluice.declaration.sql import parsed
from sluice.errors import ConfigurationError

ROW_KIND = "kind"  # The column of a changelog that a sink writes.


@dataclass(frozen=True, slots=True)
class Append:
    """Rows are only added.

    ``key`` are columns in which no two rows are equal, where the declaration alone shows such
    columns: those of a window, or of a deduplication.
    """

    key: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return "append"


@dataclass(frozen=True, slots=True)
class Upsert:
    """A stream with at most one current row per ``key`` at any barrier."""

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


def result_kind(  # noqa: C901 - a case for each operation
    uid: str, operation: ops.Operation, keys: tuple[str, ...], reads: Sequence[StreamRead]
) -> Kind:
    """The kind of the result of the stage *uid*, keyed by *keys*, by the streams that it *reads*.

    Raises:
        ConfigurationError: the operation cannot take rows back; the message names one that can.
    """
    match operation:
        case ops.Transform():
            return reads[0].kind
        case ops.Union() | ops.RegularJoin(how="inner" | "semi"):
            return Append() if all(read.kind == Append() for read in reads) else Retract()
        case ops.RegularJoin():
            return Retract()  # A row that waited alone is taken back when its partner comes.
        case ops.KeyedAggregate() | ops.Latest():
            return Upsert(keys)
        case ops.TopN():
            return Upsert((*keys, "rank"))
        case ops.ChangelogNormalize():
            for read in reads:
                if read.kind != Append():
                    _refuse(uid, operation, read)
            return Upsert(keys)
        case ops.KeyedLookup(lookup=lookup):
            for read in reads:
                if not isinstance(read.kind, Upsert):
                    _refuse(uid, operation, read)
            return Retract() if _may_multiply(lookup) else Upsert(keys)
        case (
            ops.Lookup()
            | ops.WindowAggregate()
            | ops.WindowTopN()
            | ops.WindowJoin()
            | ops.IntervalJoin()
            | ops.Deduplicate()
            | ops.Process()
            | ops.ProcessKeyed()
        ):
            for read in reads:
                if read.kind != Append():
                    _refuse(uid, operation, read)
            return _of_appended(operation, keys, reads[0].kind)
        case ops.SparkCode():
            return _of_code(uid, operation, reads)
        case _:
            assert_never(operation)


def _of_code(uid: str, code: ops.SparkCode, reads: Sequence[StreamRead]) -> Kind:
    for name, read in zip(code.names, reads, strict=True):
        if name not in code.changes | code.current and read.kind != Append():
            _refuse(uid, code, read)
    if not code.key:
        return Append()
    return Upsert(code.identity) if code.identity else Retract()


def after(steps: Sequence[Step], kind: Kind) -> Kind:
    """The kind of a stream of *kind* behind filters and projections.

    A renamed key column still identifies a row; once a column of the key is left out, nothing does.
    """
    for step in steps:
        if isinstance(kind, Retract):
            return kind
        items = list(map(parsed, step.columns)) if isinstance(step, Projection) else []
        if items and not any(item.is_star for item in items):
            named = {item.paths[0].parts[0].lower(): item.name for item in items if item.is_column}
            key = [named.get(column.lower()) for column in kind.key]
            known = tuple(name for name in key if name is not None)
            kind = replace(kind, key=known) if len(known) == len(key) else _without_key(kind)
    return kind


def analysed(kind: Kind, columns: Collection[str]) -> Kind:
    """*kind* with the *columns* that a stage is found to yield: a function may drop some."""
    if isinstance(kind, Retract) or _small(kind.key) <= _small(columns):
        return kind
    return _without_key(kind)


def _small(columns: Collection[str]) -> set[str]:
    return {name.lower() for name in columns}


def _without_key(kind: Append | Upsert) -> Kind:
    return Append() if isinstance(kind, Append) else Retract()


def check_sink(uid: str, spec: SinkSpec, read: StreamRead) -> None:
    """Check that the table of the sink *uid* can hold the stream that it reads.

    Raises:
        ConfigurationError: the table would have rows that were taken back, or lack some; or which
            of them it has would depend on where barriers are.
    """
    if spec.changelog:
        return  # It holds every change.
    what = f"sink {uid!r}"
    match read.kind:
        case Append(key=key):
            if spec.upsert_key and not (key and _small(key) <= _small(spec.upsert_key)):
                raise ConfigurationError(
                    f"{what} upserts by {_list(spec.upsert_key)}, but {read.producer!r} may append "
                    "several rows of one such key, and nothing says which of a checkpoint's is the "
                    f"newest; {_or_as(spec, key)}choose it with {_latest(spec.upsert_key)}, or "
                    "append every row"
                )
        case Upsert(key=key):
            if not spec.upsert_key:
                raise ConfigurationError(
                    f"{what} appends, but rows of {read.producer!r} replace earlier ones with the "
                    f"same {_list(key)}; keep the newest with upsert_key={key!r}, which of a "
                    "KafkaTopic is key=... and upsert=True, or write every change with "
                    "changelog=True"
                )
            if not _small(key) <= _small(spec.upsert_key):
                raise ConfigurationError(
                    f"{what} upserts by {_list(spec.upsert_key)}, but {read.producer!r} has a row "
                    f"for each {_list(key)}, several of which may share a key; "
                    f"{_or_as(spec, key)}or choose one with {_latest(spec.upsert_key)}"
                )
        case Retract():
            if not spec.upsert_key:
                raise ConfigurationError(
                    f"{what} appends, but {read.producer!r} takes rows back; write every change "
                    "with changelog=True, or give its rows a key with "
                    "key_by(...).latest(...) and keep the newest with upsert_key=..."
                )
            raise ConfigurationError(
                f"{what} upserts by {_list(spec.upsert_key)}, but no columns identify a row of "
                f"{read.producer!r}; choose one with {_latest(spec.upsert_key)}, or write every "
                "change with changelog=True"
            )
        case _:
            assert_never(read.kind)


def _or_as(spec: SinkSpec, key: Sequence[str]) -> str:
    """What else makes a sink of rows of *key* right: first of all, a name that is not misspelt."""
    wanted = sorted({*spec.upsert_key} - {*key})
    for name in key:
        if name not in spec.upsert_key and (close := nearest_word(name, wanted)):
            return f"if {name!r} or {close!r} is misspelt, mend it; else upsert by {key!r}, "
    return f"upsert by {key!r}, " if key else ""


def check_sink_columns(uid: str, spec: SinkSpec, producer: str, columns: Collection[str]) -> None:
    """Raises ConfigurationError if the sink *uid* needs a column that its rows do not have."""
    names = [(name, "upserts by", name in columns) for name in spec.upsert_key]
    names += [
        (name, "is partitioned by", name.lower() in map(str.lower, columns))
        for name in getattr(spec, "partition_by", ())
    ]
    for name, needs, is_there in names:
        if not is_there:
            raise ConfigurationError(
                f"sink {uid!r} {needs} {name!r}, which {producer!r} does not yield; it has "
                f"{', '.join(columns)}"
            )
    check_row_kind_column(uid, spec, producer, columns)


def check_row_kind_column(
    uid: str, spec: SinkSpec, producer: str, columns: Collection[str]
) -> None:
    """Raises ConfigurationError if the rows have a column with the name of the row kind's."""
    if spec.changelog and ROW_KIND in columns:
        raise ConfigurationError(
            f"sink {uid!r} writes a changelog, whose column {ROW_KIND!r} says what a row does, but "
            f"{producer!r} has a column of that name; rename it: select('{ROW_KIND} AS ...')"
        )


def _refuse(uid: str, operation: ops.Operation, read: StreamRead) -> NoReturn:
    if isinstance(read.kind, Upsert):
        what = f"whose rows replace earlier ones with the same {_list(read.kind.key)}"
    else:
        what = "which takes rows back"
    name, instead = _instead(operation)
    raise ConfigurationError(
        f"stage {uid!r} reads {read.producer!r}, {what}, and {name} cannot take a row back; "
        f"{instead}"
    )


def _instead(operation: ops.Operation) -> tuple[str, str]:
    """The method that declares *operation*, which reads append-only streams, and what to use."""
    match operation:
        case ops.Lookup() | ops.KeyedLookup():
            return "lookup()", (
                "look up what that stage reads, before it, or give its rows a key with "
                "key_by(...).latest(...)"
            )
        case ops.WindowAggregate():
            return "window()", (
                "use aggregate() with the time among the keys: "
                "key_by(hour=\"date_trunc('hour', at)\")"
            )
        case ops.WindowTopN():
            return "window_top_n()", "use top_n() with the window's start among the keys"
        case ops.WindowJoin():
            return "window_join()", "use join() with the window's start among the keys"
        case ops.IntervalJoin():
            return "interval_join()", "use join() and where()"
        case ops.Deduplicate():
            return "deduplicate()", "use latest()"
        case ops.SparkCode():
            return "Spark code, which is given the rows that came,", (
                "give it to the function as one of changes={...}, where a column _change says what "
                "a row does, or as current(stream), the rows that are there, or use aggregate(), "
                "top_n(), latest() or join()"
            )
        case _:
            return "a function of your own", (
                "put it before that stage, or use aggregate(), top_n(), latest() or join()"
            )


def _of_appended(operation: ops.Operation, keys: tuple[str, ...], first: Kind) -> Kind:
    """The kind of the result of an operation that reads append-only streams alone.

    *first* is the kind of the first of them.
    """
    match operation:
        case ops.WindowAggregate(window=window, allowed_lateness_ms=late_ms):
            key = tuple(dict.fromkeys((*keys, *_bounds(window))))
            return Upsert(key) if late_ms else Append(key)
        case ops.WindowTopN(window=window, has_ties=False):
            return Append(tuple(dict.fromkeys((*keys, *_bounds(window), "rank"))))
        case ops.Deduplicate():
            return Append(keys)
        case ops.Lookup() as lookup if not _may_multiply(lookup):
            return first
        case _:
            return Append()


def _may_multiply(lookup: ops.Lookup) -> bool:
    """Whether a row may leave once for each of several matches."""
    return bool(lookup.add) and lookup.versions is None


def _bounds(window: ops.Window) -> tuple[str, ...]:
    """The columns that tell windows apart; of another stage's several may begin at once."""
    return ("window_start", "window_end") if isinstance(window, ops.Attached) else ("window_start",)


def _latest(columns: tuple[str, ...]) -> str:
    return f"key_by({', '.join(map(repr, columns))}).latest(...)"


def _list(columns: Sequence[str]) -> str:
    return ", ".join(columns)
