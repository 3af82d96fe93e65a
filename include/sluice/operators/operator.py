"""``Operator``: the interface between a stateful operator and the subtask that runs it.

    rows of the epoch --partial--> groups --combine--> groups of a hash range --process--> Outcome
        (chunk by chunk)                                     ^ state, epoch time

An operator is a pure function: the same rows, state and times give the same outcome, whatever the
order of the rows and wherever the chunks were cut.  It writes nothing; the subtask writes what the
outcome holds.  When it is built, it refuses a declaration that the input cannot satisfy.

``process`` may be called for one range of the hash space after the other, each with the groups and
the state of that range alone: no operator may compare rows of different keys.  Output and changes
are sorted by hash first, so that the ranges together give the outcome of a single call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Protocol, TypeAlias, runtime_checkable

import polars as pl

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.core.transitions import Adoption
from sluice.declaration.arguments import nearest_word
from sluice.declaration.expressions import unknown_column
from sluice.declaration.places import WEIGHT as WEIGHT  # noqa: PLC0414 - as if it were its own
from sluice.errors import ConfigurationError
from sluice.operators.sql import spark_type
from sluice.state.at_once import constant, differ
from sluice.state.keyed import Changes, KeyedState
from sluice.state.runs import gathered, order_of
from sluice.state.segments import DELETED, HASH, WRITTEN, StateSchema

# Prefixes of columns that are computed for an aggregate of the name that follows: whether a row
# passes its ``where``, and the value of the SQL that it aggregates, or orders by.
FILTER = "_where_"
ARGUMENT = "_argument_"
ORDER = "_order_"
COMPUTED = (FILTER, ARGUMENT, ORDER)
# On groups of rows: the number of rows in each.
ROW_COUNT = "_rows"
# The number of a row among those of its key: its checkpoint in the upper bits, then its place.
SEQUENCE = "_sequence"
_PLACE_BITS = 32  # Room for four billion rows of one key in one epoch, and two billion checkpoints.
_NUMBER = "_number"

Frames: TypeAlias = Mapping[str, pl.DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTime:
    """The times that an operator may read: those of the barriers, never a machine's clock.

    ``previous_watermark_ms``, of the epoch's start, decides what is late; ``watermark_ms``, of its
    end, what fires.  ``processing_time_ms`` is that of the barrier, and never behind the parent's.
    """

    checkpoint_id: int = 1
    previous_watermark_ms: int = MIN_WATERMARK
    watermark_ms: int = MIN_WATERMARK
    processing_time_ms: int = 0

    def __post_init__(self) -> None:
        assert MIN_WATERMARK <= self.previous_watermark_ms <= self.watermark_ms <= MAX_WATERMARK


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partial:
    """A chunk of one input's rows, pre-aggregated, and its late rows.

    Every frame of ``groups`` has the column ``_hash``; ``late`` has the input's columns.
    ``counted`` has ``_hash`` and ``ROW_COUNT``, the number of rows of this hash that are not late;
    it is None if the operator does not count them.
    """

    groups: Frames
    late: pl.DataFrame
    counted: pl.DataFrame | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """The outcome of an epoch.  Every frame has its exact types even when it is empty.

    ``retracted`` are rows of earlier output that ``output`` replaces or takes back, as they were;
    None for an operator whose output is append-only.  ``late`` are rows found late only now, by
    the number of their input.  Tables without changes may be left out of ``changes``.
    """

    output: pl.DataFrame
    changes: Mapping[str, Changes]
    retracted: pl.DataFrame | None = None
    late: Mapping[int, pl.DataFrame] = field(default_factory=dict[int, pl.DataFrame])


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPartial:
    """``partial`` in Spark SQL, for an epoch whose keys repeat: group *by*, compute *columns*.

    The result has the columns of the group frame ``groups`` but the hash; ``by`` starts with the
    key columns.  ``expressions`` are computed first, name -> SQL over the input's rows.
    """

    by: tuple[str, ...]
    columns: Mapping[str, str]  # Column of the group frame -> SQL aggregate.
    expressions: Mapping[str, str] = field(default_factory=dict[str, str])


@runtime_checkable
class ComputesColumns(Protocol):
    """An operator that computes each column of its result on its own."""

    def state_of(self, column: str) -> frozenset[str]:
        """The columns of its state, and the tables, that serve this *column* alone, also in an
        earlier form.
        """
        ...

    def state_of_means(self, means: Mapping[str, tuple[str, ...]]) -> Mapping[str, pl.Expr]:
        """The columns of its state that serve *means*, each of the sum and the count beside it."""
        ...


@runtime_checkable
class HoldsResult(Protocol):
    """An operator whose state has its whole result: every row that it has sent, as it was sent."""

    def held(self, state: Mapping[str, KeyedState]) -> pl.DataFrame:
        """The current rows of the result, in the columns of the output."""
        ...


@runtime_checkable
class Adopts(Protocol):
    """An operator that takes over, in one epoch, state of another meaning."""

    def adopted(
        self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime, was: Adoption
    ) -> Outcome:
        """``process`` of an epoch in which the state was that of *was*: it reads all of it, and its
        outcome is the difference from all that was sent.
        """
        ...


class Operator(Protocol):
    """A built-in stateful operator, built for one stage and the schemas of its inputs.

    Its initializer raises ConfigurationError for inputs over which it cannot compute.
    """

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        """The tables of keyed state, by name; names are part of the state's format."""
        ...

    @property
    def output_schema(self) -> pl.Schema: ...

    @property
    def is_order_sensitive(self) -> bool:
        """Whether the last bits of a result depend on the order of the rows: sums of floats."""
        ...

    def needed_columns(self) -> tuple[str, ...] | None:
        """The columns that ``partial`` reads beside keys and filters; None for all."""
        ...

    def spark_partial(self) -> SparkPartial | None:
        """``partial`` for Spark's JVM; None where it cannot be written in SQL."""
        ...

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:
        """Pre-aggregate one chunk of input *side*; *rows* carry ``_hash`` and the input's columns.

        Operators for which ``hashes_groups`` holds take rows without ``_hash``, too, and count
        them.  Without rows, the result has every group frame of that input with its exact types.
        """
        ...

    def combine(self, groups: Frames) -> Frames:
        """Fold the concatenated groups of several chunks.  Associative; keeps names and types."""
        ...

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        """The epoch's outcome; *groups* are combined, and may be empty: windows still fire."""
        ...


class RawRows:
    """Base of the operators whose groups are whole rows: joins, rankings and users' functions.

    Rows are not folded before ``process``, unless an operator drops those that cannot matter.
    """

    @property
    def is_order_sensitive(self) -> bool:
        return False

    def needed_columns(self) -> tuple[str, ...] | None:
        """The columns that are needed: None is all."""
        return None

    def spark_partial(self) -> None:
        """Nothing: there is nothing to aggregate."""

    def combine(self, groups: Frames) -> Frames:
        return groups


def column_type(uid: str, schema: pl.Schema, column: str, purpose: str) -> pl.DataType:
    """The type of a column that the declaration names for *purpose*; raises as
    ``require_column`` does.
    """
    require_column(uid, schema, column, purpose)
    return schema[column]


def require_column(uid: str, columns: Collection[str], column: str, purpose: str) -> None:
    """
    Raises:
        ConfigurationError: the stage's input, which has these *columns*, has no such one.
    """
    if column in columns:
        return
    close = nearest_word(column, [*columns])
    hint = f"; did you mean {close!r}?" if close else ";"
    raise ConfigurationError(
        f"stage {uid!r} has no column {column!r} {purpose}{hint} {_columns_of(columns)}"
    )


def require_columns(
    uid: str, sql: str, columns: Collection[str], where: str, *, beside: Collection[str] = ()
) -> None:
    """``require_column`` of each that *sql* is known to read *where* it stands, but for those
    *beside* them.
    """
    missing = unknown_column(sql, (*columns, *beside))
    if missing is not None:
        require_column(uid, columns, missing, f"{where}, {sql!r}")


def wrong_type(
    uid: str, schema: pl.Schema, column: str, purpose: str, *, called: str | None = None
) -> ConfigurationError:
    """The error for a column whose type is wrong for its purpose.

    *called* is the SQL in the declaration, where the column is computed from SQL.
    """
    name = called or column
    return ConfigurationError(
        f"stage {uid!r} cannot use column {name!r} of type {spark_type(schema[column])} {purpose}; "
        f"{_columns_of(input_schema(schema))}"
    )


def key_types(uid: str, schema: pl.Schema, keys: Sequence[str]) -> pl.Schema:
    """The key columns and their types.

    Raises:
        ConfigurationError: there is no such column.
    """
    return pl.Schema({key: column_type(uid, schema, key, "for its key") for key in keys})


def require_distinct(uid: str, names: Iterable[str]) -> None:
    """Refuse result columns that share a name, or have a reserved one."""
    reserved = {HASH, DELETED, WEIGHT, WRITTEN, ROW_COUNT}
    taken = set(reserved)
    for name in names:
        if name in taken:
            why = "is reserved" if name in reserved else "is there twice"
            raise ConfigurationError(
                f"stage {uid!r} would have a column {name!r} that {why}; rename it"
            )
        taken.add(name)


def input_schema(schema: pl.Schema) -> pl.Schema:
    """*schema* without the reserved columns that some callers have already added."""
    return pl.Schema({name: of for name, of in schema.items() if is_of_input(name)})


def is_of_input(name: str) -> bool:
    """Whether a column called *name* is no reserved one that some callers have already added."""
    return name not in (HASH, WEIGHT) and not name.startswith(COMPUTED)


def _columns_of(columns: Iterable[str]) -> str:
    return "its columns are: " + ", ".join(columns)


def in_order(rows: pl.DataFrame, first: Iterable[str]) -> pl.DataFrame:
    """*rows* sorted by the columns *first*, then by all others, so that only equal rows tie."""
    names = dict.fromkeys((*first, *rows.columns))
    return rows.sort(*names)


def sequenced(
    rows: pl.DataFrame, run: Sequence[str], time: EpochTime, *, then: Sequence[str] = ()
) -> pl.DataFrame:
    """*rows* in order, numbered within those equal in the columns *run*, which start with the hash.

    Within a run they are sorted by the columns *then*, and only then by all others.  The number
    does not depend on rows of other keys: a range of hashes numbers as the whole does.
    """
    assert run[0] == HASH, "the hash is never null, so the first row differs from none before it"
    first_number = time.checkpoint_id << _PLACE_BITS
    number = (place_in_run(run) + first_number).alias(SEQUENCE)
    return in_order(rows, (*run, *then)).with_columns(number)


def place_in_run(run: Sequence[str]) -> pl.Expr:
    """The number of rows of the same *run* before a row, in a frame that is sorted by it."""
    place = pl.int_range(pl.len(), dtype=pl.Int64)
    return place - pl.when(differs_from_previous(run)).then(place).forward_fill()


def differs_from_previous(columns: Sequence[str]) -> pl.Expr:
    """Whether a sorted row is the first with its values in *columns*, which start with the hash."""
    return pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()) for name in columns)


def differs(left: pl.DataFrame, right: pl.DataFrame, columns: Sequence[str]) -> pl.Series:
    """Row by row, whether two frames of one height differ in any of *columns*."""
    same = constant("", value=False, dtype=pl.Boolean(), height=left.height)
    return reduce(or_, (differ(left[name], right[name]) for name in columns), same)


def beside(rows: pl.DataFrame, others: pl.DataFrame, identity: Sequence[str]) -> pl.DataFrame:
    """For each of *rows* the one of *others* with its *identity*; all null where there is none."""
    numbered = others.with_row_index(_NUMBER).select(*identity, _NUMBER)
    joined = rows.select(identity).join(
        numbered, on=identity, how="left", nulls_equal=True, maintain_order="left"
    )
    return others.select(pl.all().gather(joined[_NUMBER]))


def by_hash(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """*frames* as one, sorted by hash; rows of one hash keep their order."""
    rows = pl.concat(frames)
    order = order_of(rows[HASH].to_numpy())
    return rows if order is None else gathered(rows, order)
