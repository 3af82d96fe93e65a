"""Declared operations of stages, and their windows: frozen data that ``sluice.operators`` computes.

The key columns of a stateful operation are part of the stage's inputs (``declaration.nodes``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from sluice.declaration import functions, results
from sluice.declaration.aggregates import Aggregate
from sluice.declaration.arguments import checked_initializer
from sluice.declaration.column_types import row_schema
from sluice.declaration.durations import PositiveDuration, in_words
from sluice.declaration.expressions import Step
from sluice.declaration.keyed_functions import KeyedProcessFunction
from sluice.declaration.keyed_states import State
from sluice.declaration.params import Param
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame

Keep = Literal["matched", "unmatched", "all"]
JoinKind = Literal["inner", "left", "semi", "anti"]
RegularJoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
IntervalJoinKind = Literal["inner", "left"]


@checked_initializer
@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, back to back, aligned to 1970 (TumblingEventTimeWindows)."""

    size: PositiveDuration


@checked_initializer
@dataclass(frozen=True, slots=True)
class Hopping:
    """Windows of one size that start every ``slide``, aligned to 1970 (SlidingEventTimeWindows)."""

    size: PositiveDuration
    slide: PositiveDuration

    def __post_init__(self) -> None:
        if self.size < self.slide:
            raise ConfigurationError(
                f"a hopping window of {in_words(self.size)} cannot slide by "
                f"{in_words(self.slide)}, as rows between two windows would be in none; make the "
                "slide at most as long as the window"
            )


@checked_initializer
@dataclass(frozen=True, slots=True)
class Session:
    """Rows of a key that follow each other within ``gap`` (EventTimeSessionWindows).

    Rows exactly a gap apart are of one session, as in Flink and in Spark's ``session_window``.
    """

    gap: PositiveDuration


@checked_initializer
@dataclass(frozen=True, slots=True)
class Attached:
    """The windows that the rows already carry, in ``window_start`` and ``window_end``.

    So the result of an earlier window stage is windowed again, as by Flink's cascading window TVFs.
    """


RankedWindow: TypeAlias = Tumbling | Hopping | Attached  # A session ends as rows come.
Window: TypeAlias = RankedWindow | Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """Any DataFrame -> DataFrame that needs no other row: it runs in Spark's JVM.

    The rows carry ``_source`` (partition, record), by which a function that keeps it lets sluice
    say where a row came from.  A row whose ``_malformed`` column is not null goes to the side
    output ``malformed``.
    """

    function: Callable[..., DataFrame]
    arguments: Mapping[str, str | int | Param]
    version: str | None = None  # Of what the function means; None: its source says.


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Rows of a table that are valid from a time on, until the next one of their key."""

    valid_from: str  # SQL expression over the table.
    time: str  # Column of the stream: its event time.


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Rows against a small table as of the same barrier, by a broadcast join.

    ``add`` are the columns that the table gives to a row: name -> SQL expression over the table,
    of whose rows the lookup sees those behind ``steps``, Spark SQL.  Of *versions* of a key a row
    sees the one that was valid at its event time.
    """

    table: str
    on: Mapping[str, str]  # Column of the stream -> SQL expression over the table.
    keep: Keep
    add: Mapping[str, str] = field(default_factory=dict[str, str])
    steps: tuple[Step, ...] = ()
    versions: Versions | None = None

    @property
    def compared(self) -> tuple[tuple[str, str, str], ...]:
        """Column of the stream, SQL expression over the table, and argument that has both."""
        of = self.versions
        by_time = () if of is None else ((of.time, of.valid_from, "valid_from="),)
        return (*((column, sql, "on=") for column, sql in self.on.items()), *by_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedLookup:
    """A lookup of rows that are updated.

    It remembers the rows that it sent for each key, and takes back those, even if the table has
    other rows by then.
    """

    lookup: Lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """The rows of all inputs, which have the same columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedAggregate:
    """Running results per key, over all time."""

    aggregates: Mapping[str, Aggregate]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAggregate:
    """Results per key and window, once the watermark passed the window's end.

    A window is kept ``allowed_lateness_ms`` longer, and each row that comes then fires it again.
    """

    window: Window
    aggregates: Mapping[str, Aggregate]
    allowed_lateness_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTopN:
    """The *n* rows with the largest ``by`` per key and window; ``has_ties`` keeps all of a rank."""

    window: RankedWindow
    n: int
    by: str
    has_ties: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopN:
    """The *n* rows of each key with the largest ``by``, of equal ones the smallest ``ties_by``.

    Without ``unique`` every row counts (Flink's AppendOnlyTopN); with it a row replaces the one
    that is equal in those columns, and its ``by`` must never decrease (UpdatableTopN).  Of a
    changelog the current rows count (RetractableTopN).
    """

    n: int
    by: str
    ties_by: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The row of each key with the largest ``by``, compared column by column."""

    by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogNormalize:
    """The current row of each key, by changes that another system captured.

    A change has a position, the columns ``by``, says in ``deleted`` whether the row is gone, and
    else has its ``columns``, which are of these types.  Where it has the row that it replaces, that
    is in the columns of ``images``, by name.  A text of ``unlogged``, by column, stands for the
    value of the row before.
    """

    by: tuple[str, ...]
    deleted: str
    columns: Mapping[str, str]
    images: Mapping[str, str] = field(default_factory=dict[str, str])
    unlogged: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicate:
    """The row of each key that came first, once.

    Of several in one epoch it is the one with the smallest ``by``, then the one with the smallest
    other columns.
    """

    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowJoin:
    """Rows of two inputs with equal keys in the same window, once that has ended."""

    window: Window
    how: JoinKind


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalJoin:
    """The pairs of a left and a right row whose event time lies in its interval, ends included.

    From ``left time + lower_ms`` to ``left time + upper_ms``, or to the instant in the left column
    ``upper_column``.
    """

    lower_ms: int
    upper_ms: int = 0
    upper_column: str | None = None
    how: IntervalJoinKind = "inner"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegularJoin:
    """Every left row with every right row of its key; without a TTL both are kept for ever.

    A result row is taken back when it no longer holds, which cannot happen in an inner or a semi
    join of append-only streams.
    """

    how: RegularJoinKind = "inner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A vectorized function of the epoch's rows and the state of the keys they touch.

    ``function(rows, state)`` gets Polars frames and returns (result, new state); the state has a
    row per key, with the key columns and those of ``state``, null for a key that is new.  A key
    left out of what it returns keeps its state; one whose state columns are all null is forgotten.
    """

    function: Callable[[pl.DataFrame, pl.DataFrame], tuple[pl.DataFrame, pl.DataFrame]]
    state: Mapping[str, object]  # Column -> type, as Polars takes it: int, str, datetime, ...
    result: Mapping[str, object]
    version: str | None = None  # Of what the function means; None: its source says.

    def __post_init__(self) -> None:
        kind = self.function if isinstance(self.function, type) else type(self.function)
        if issubclass(kind, KeyedProcessFunction):
            raise ConfigurationError(
                f"process() is given a KeyedProcessFunction, {kind.__name__}, which sees one row "
                f"at a time; declare process_keyed(..., {kind.__name__}(), ...) instead"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKeyed:
    """One key at a time, with value, list and map state, and timers: KeyedProcessFunction."""

    function: KeyedProcessFunction
    result: Mapping[str, object]
    version: str | None = None  # Of what the function means; None: its source says.

    def __post_init__(self) -> None:
        function: object = self.function  # The author may not have run a type checker.
        if isinstance(function, type) and issubclass(function, KeyedProcessFunction):
            raise ConfigurationError(
                f"process_keyed() is given the class {function.__name__}; give it an instance, "
                f"{function.__name__}()"
            )
        if not isinstance(function, KeyedProcessFunction):
            name = getattr(function, "__name__", repr(function))
            raise ConfigurationError(
                f"process_keyed() is given {name}, which is no KeyedProcessFunction; give it an "
                "instance of a class that derives from that, or declare process() for a function "
                "of Polars frames"
            )
        for name, state in vars(function).items():
            if isinstance(state, State) and not state.name:
                kind, owner = type(state).__name__, type(function).__name__
                raise ConfigurationError(
                    f"{owner} sets the {kind} {name!r} on self, where no checkpoint keeps it; "
                    f"declare it in the class: {name} = {kind}(...)"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """The table source ``uid`` behind ``steps``, Spark SQL."""

    uid: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCode:
    """Spark code as it is: ``function(**increments, **tables, previous) -> DataFrame``, on the
    driver.

    ``names`` are the parameters that get the stage's inputs, in their order, of which ``changes``
    get rows that are taken back, too, and ``current`` the rows that are there behind the epoch;
    ``tables`` get tables as the barrier pinned them.
    ``schema``, Spark's DDL, has the columns of the result.  With ``takes_previous`` the parameter
    of that name gets the result as of the parent checkpoint.

    A function of several results returns a dict of them.  ``results`` are then the stages that keep
    them, by their names; ``schema`` is that of ``packed_schema``, and ``previous`` a dict, too.
    """

    function: Callable[..., object]  # What it returns is checked where it is called.
    names: tuple[str, ...]
    schema: str
    result: results.Result
    takes_previous: bool
    tables: Mapping[str, TableRead] = field(default_factory=dict[str, TableRead])
    changes: frozenset[str] = frozenset()
    current: frozenset[str] = frozenset()
    results: Mapping[str, str] = field(default_factory=dict[str, str])
    version: str | None = None  # Of what the function means; None: its source says.

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which rows of the result are placed on subtasks; none if none is kept."""
        match self.result:
            case results.Append():
                return ()
            case results.ReplacePartitions(partitions=partitions):
                return partitions
            case kept:
                if kept.columns:
                    return kept.columns
                columns = row_schema("the result", self.schema).items()
                return tuple(name for name, of in columns if not of.has_map)  # Spark hashes none.

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns in which no two rows of the result are equal; none where nothing says so."""
        return () if isinstance(self.result, results.Append) else self.result.columns

    @property
    def previous_of(self) -> tuple[str, ...]:
        """The other stages of which the function is given the result so far."""
        return tuple(self.results.values()) if self.takes_previous else ()


Stateless: TypeAlias = Transform | Lookup | Union
Stateful: TypeAlias = (
    KeyedAggregate
    | KeyedLookup
    | WindowAggregate
    | WindowTopN
    | TopN
    | Latest
    | ChangelogNormalize
    | Deduplicate
    | WindowJoin
    | IntervalJoin
    | RegularJoin
    | Process
    | ProcessKeyed
)
Operation: TypeAlias = Stateless | Stateful | SparkCode  # It has state if its result has a key.


def needs_own_session(operation: Operation) -> bool:
    """Whether a function of *operation* may make temporary views, or their like, which are those of
    its session: stages that run beside each other there would read each other's.
    """
    match operation:
        case SparkCode():
            return True
        case Transform(function=function):
            return functions.may_register(function)
        case _:
            return False


def tables_of(operation: Operation) -> tuple[str, ...]:
    """The table sources that *operation* reads beside its inputs."""
    match operation:
        case (Lookup() as lookup) | KeyedLookup(lookup=lookup):
            return (lookup.table,)
        case SparkCode(tables=tables):
            return tuple(dict.fromkeys(table.uid for table in tables.values()))
        case _:
            return ()


def named_by(operation: Operation) -> tuple[str, ...]:
    """The columns of its first input that *operation* names, beside those in expressions."""
    match operation:
        case WindowTopN(by=by):
            return (by,)
        case TopN(by=by, ties_by=ties_by, unique=unique):
            return (by, *ties_by, *unique)
        case Latest(by=columns):
            return columns
        case ChangelogNormalize(by=by, deleted=deleted, columns=columns, images=images):
            return (*by, deleted, *columns, *images.values())
        case Deduplicate(by=str() as by):
            return (by,)
        case IntervalJoin(upper_column=str() as upper):
            return (upper,)
        case (Lookup() as lookup) | KeyedLookup(lookup=lookup):
            return tuple(column for column, _, _ in lookup.compared)
        case _:
            return ()
