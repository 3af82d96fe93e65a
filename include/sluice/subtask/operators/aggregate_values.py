"""``ValueTable``: the values of one running aggregate, in a table of state of their own.

An aggregate that cannot be folded into a few columns keeps its values, a row for each distinct
one, so that an epoch writes only the new ones.  Over a changelog a ``Bag`` counts the copies of
each value and deletes it with the last: when a minimum is taken back, the next one is found.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import polars as pl

from sluice.declaration.aggregates import Aggregate, AggregateKind
from sluice.declaration.nodes import StageNode
from sluice.subtask.operators.argument import Argument
from sluice.subtask.operators.arguments import argument_of, ordering_of
from sluice.subtask.operators.bag import COPIES, Bag, BagChange, repeated
from sluice.subtask.operators.grouping import grouped
from sluice.subtask.operators.kernels import Kernel
from sluice.subtask.operators.operator import WEIGHT, Changes
from sluice.subtask.operators.readings import Reading, reading_of
from sluice.subtask.operators.row_comparison import beside
from sluice.subtask.operators.value_kernels import distinct_count, kept
from sluice.subtask.state.keyed import KeyedState, StateSchema, newest_per_identity
from sluice.subtask.state.segments import HASH

_EXTREMES = (AggregateKind.MIN, AggregateKind.MAX, AggregateKind.FIRST, AggregateKind.LAST)
_LISTED = (AggregateKind.PERCENTILE, AggregateKind.STRING_AGG)
_LISTED_OF_CHANGELOGS = (
    *_LISTED,
    AggregateKind.COLLECT,
    AggregateKind.VARIANCE,
    AggregateKind.STDDEV,
)


class ValueTable(Protocol):
    """One aggregate's values: ``kernel`` computes its result from the columns ``applied`` adds."""

    @property
    def table(self) -> str:
        """The name of the table of state, and of the group frame."""
        ...

    @property
    def schema(self) -> StateSchema: ...

    @property
    def kernel(self) -> Kernel: ...

    def partial(self, rows: pl.DataFrame) -> pl.DataFrame: ...

    def combine(self, values: pl.DataFrame) -> pl.DataFrame: ...

    def applied(
        self, groups: pl.DataFrame, before: pl.DataFrame, values: pl.DataFrame, state: KeyedState
    ) -> tuple[pl.DataFrame, Changes]:
        """*groups* with the columns of the kernel's state, and the changes to write to the table.

        *before* is the stage's state of the same groups, row by row.
        """
        ...


def value_table(
    stage: StageNode, name: str, aggregate: Aggregate, schema: pl.Schema, keys: pl.Schema
) -> ValueTable | None:
    """The table of the aggregate *name* over rows of *schema*; None if it needs none.

    Raises:
        ConfigurationError: the rows cannot be aggregated so.
    """
    is_changelog, kind = WEIGHT in schema, aggregate.kind
    argument = argument_of(stage.uid, name, aggregate, schema)
    if kind is AggregateKind.COUNT_DISTINCT and not is_changelog:
        return _NewValues(stage, argument, keys)
    if kind is AggregateKind.COUNT_DISTINCT:
        return _DistinctValues(stage, argument, keys)
    if is_changelog and kind in _EXTREMES:
        order = {}
        if aggregate.kind in (AggregateKind.FIRST, AggregateKind.LAST):
            by, dtype = ordering_of(stage, name, aggregate, schema)
            order = {f"_by_{name}": (by, dtype)}
        is_first = kind in (AggregateKind.MIN, AggregateKind.FIRST)
        return _Extreme(stage, argument, keys, order, is_first=is_first)
    if kind in (_LISTED_OF_CHANGELOGS if is_changelog else _LISTED):
        return _Listed(stage, argument, keys, reading_of(aggregate, argument.dtype))
    return None


class _NewValues:
    """``count_distinct`` of append-only rows: the number of values that were not known before.

    With a TTL a value that was not seen for that long counts as new.
    """

    def __init__(self, stage: StageNode, argument: Argument, keys: pl.Schema) -> None:
        self.table = f"distinct:{argument.name}"
        self.kernel = distinct_count(argument)
        self.schema = StateSchema(
            columns=pl.Schema({**keys, argument.name: argument.dtype}),
            key_columns=tuple(keys),
            sub_key_columns=(argument.name,),
            ttl_ms=stage.ttl_ms,
        )
        self._argument = argument
        self._is_refreshed = stage.ttl_ms is not None

    def partial(self, rows: pl.DataFrame) -> pl.DataFrame:
        name = self._argument.name
        values = rows.select(HASH, *self.schema.key_columns, self._argument.value.alias(name))
        return self.combine(values.drop_nulls(name))

    def combine(self, values: pl.DataFrame) -> pl.DataFrame:
        found = grouped(values, self.schema.identity[1:], [pl.col(HASH).first()])
        return found.select(values.columns)

    def applied(
        self,
        groups: pl.DataFrame,
        before: pl.DataFrame,  # noqa: ARG002 - only what is new is counted
        values: pl.DataFrame,
        state: KeyedState,
    ) -> tuple[pl.DataFrame, Changes]:
        values = newest_per_identity(values, self.schema.identity)
        new = values.filter(state.find(values)[HASH].is_null())
        upserts = values if self._is_refreshed else new
        count = new.with_columns(pl.lit(1, pl.Int64).alias(COPIES))
        return (
            _with_sum(groups, count, self._argument.name, self.schema.key),
            Changes(upserts=upserts, deletes=values.clear()),
        )


class _Counted:
    """Base of the tables of counted values; *order* are the columns that they are ordered by."""

    def __init__(
        self,
        stage: StageNode,
        argument: Argument,
        keys: pl.Schema,
        order: dict[str, tuple[str, pl.DataType]],
    ) -> None:
        self._name = argument.name
        self.table = f"values:{argument.name}"
        columns = {name: dtype for name, (_, dtype) in order.items()}
        self._values = {**columns, argument.name: argument.dtype}
        self._bag = Bag(pl.Schema({**keys, **self._values}), tuple(keys), ttl_ms=stage.ttl_ms)
        self.schema = self._bag.schema
        self._key = self.schema.key
        self._reads = [
            *keys,
            *(pl.col(column).alias(name) for name, (column, _) in order.items()),
            argument.value.alias(argument.name),
        ]

    def partial(self, rows: pl.DataFrame) -> pl.DataFrame:
        weight = [WEIGHT] if WEIGHT in rows.columns else []
        values = rows.select(HASH, *self._reads, *weight).drop_nulls(list(self._values))
        return self._bag.weighed(values)

    def combine(self, values: pl.DataFrame) -> pl.DataFrame:
        return self._bag.folded(values)


class _DistinctValues(_Counted):
    """``count_distinct`` of a changelog: values come and go."""

    def __init__(self, stage: StageNode, argument: Argument, keys: pl.Schema) -> None:
        super().__init__(stage, argument, keys, {})
        self.kernel = distinct_count(argument)

    def applied(
        self,
        groups: pl.DataFrame,
        before: pl.DataFrame,  # noqa: ARG002 - only what comes and goes is counted
        values: pl.DataFrame,
        state: KeyedState,
    ) -> tuple[pl.DataFrame, Changes]:
        change = self._bag.changed(values, state)
        more = (change.copies > 0).cast(pl.Int64) - (change.before > 0).cast(pl.Int64)
        counts = change.rows.with_columns(more.alias(COPIES))
        return _with_sum(groups, counts, self._name, self._key), self._bag.changes(change)


class _Extreme(_Counted):
    """``min``, ``max``, ``first`` and ``last`` of a changelog.

    All values of a key are read only where its extreme was taken back.
    """

    def __init__(
        self,
        stage: StageNode,
        argument: Argument,
        keys: pl.Schema,
        order: dict[str, tuple[str, pl.DataType]],
        *,
        is_first: bool,
    ) -> None:
        super().__init__(stage, argument, keys, order)
        columns = [column for column, _ in order.values()]
        self.kernel = kept(argument, self._values, argument.dtype, also_reads=columns)
        self._is_first = is_first

    def applied(
        self, groups: pl.DataFrame, before: pl.DataFrame, values: pl.DataFrame, state: KeyedState
    ) -> tuple[pl.DataFrame, Changes]:
        change = self._bag.changed(values, state)
        current = groups.select(self._key).hstack(before.select(*self._values))
        current = current.drop_nulls(self._name).with_columns(pl.lit(1, pl.Int64).alias(COPIES))
        identity = self.schema.identity
        dead = change.rows.filter(pl.col(COPIES) == 0).select(identity)
        lost = current.join(dead, on=identity, how="semi", nulls_equal=True).select(self._key)
        known = current if lost.is_empty() else pl.concat([current, state.lookup(lost)])
        return (
            _with(groups, self._outermost(change.overlaid(known, identity)), self._values),
            self._bag.changes(change),
        )

    def _outermost(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The first row of each key, of rows that are sorted."""
        return rows.unique(
            self._key, keep="first" if self._is_first else "last", maintain_order=True
        )


class _Listed(_Counted):
    """``percentile`` and others, which read all values of each key that has new ones."""

    def __init__(
        self, stage: StageNode, argument: Argument, keys: pl.Schema, reading: Reading
    ) -> None:
        super().__init__(stage, argument, keys, {})
        self.kernel = kept(argument, {argument.name: reading.result_type}, reading.result_type)
        self._reading = reading

    def applied(
        self, groups: pl.DataFrame, before: pl.DataFrame, values: pl.DataFrame, state: KeyedState
    ) -> tuple[pl.DataFrame, Changes]:
        name = self._name
        change = self._bag.changed(values, state)
        keys = change.rows.select(self._key).unique(maintain_order=True)
        lists = beside(groups, self._lists(change, keys, state), self._key)
        result = self._reading.of(pl.col(name).fill_null([])).alias(name)
        found = groups.select(self._key).hstack(lists.select(name)).select(result)
        # A key none of whose values changed keeps its result, if it had one.
        is_same = before[HASH].is_not_null() & ~beside(groups, keys, self._key)[HASH].is_not_null()
        both = pl.select(pl.when(is_same).then(before[name]).otherwise(found[name]).alias(name))
        return groups.hstack(both), self._bag.changes(change)

    def _lists(self, change: BagChange, keys: pl.DataFrame, state: KeyedState) -> pl.DataFrame:
        rows = change.overlaid(state.lookup(keys), self.schema.identity)
        rows = repeated(rows, rows[COPIES])
        return rows.group_by(self._key, maintain_order=True).agg(pl.col(self._name))


def _with_sum(
    groups: pl.DataFrame, counts: pl.DataFrame, name: str, key: Sequence[str]
) -> pl.DataFrame:
    """*groups* with the sum of the *counts* of each."""
    sums = counts.group_by(key).agg(pl.col(COPIES).sum().alias(name))
    joined = groups.join(sums, on=key, how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(pl.col(name).fill_null(0))


def _with(groups: pl.DataFrame, found: pl.DataFrame, columns: Collection[str]) -> pl.DataFrame:
    """*groups* with these *columns* of the row found for each; null where there is none."""
    key = [name for name in found.columns if name in groups.columns and name not in columns]
    return groups.hstack(beside(groups, found, key).select(*columns))
