"""``KeyedAggregate``: running aggregates per key, over all time; Flink's group aggregation.

Output is an upsert stream on the key: the current row of every key whose result changed in this
epoch; what is retracted are the rows that these replace.  A row that changes nothing writes no
state and no output.

``count_distinct`` keeps the values it has seen in a table of their own, a row each, so that an
epoch costs what is new in it; with a TTL a value that did not come for so long counts anew.  Over a
changelog the number of rows of a group is kept, too; when none is left, so is no group: its state
goes, and its result is taken back.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice import operations as ops
from sluice.aggregates import Aggregate, AggregateKind
from sluice.nodes import StageNode
from sluice.runtime.operators.aggregates import Fold, differs, kernels
from sluice.runtime.operators.kernels import Argument, counted
from sluice.runtime.operators.operator import (
    Changes,
    EpochTime,
    Frames,
    Outcome,
    Partial,
    SparkPartial,
    input_schema,
    key_types,
    require_distinct,
)
from sluice.runtime.operators.value_kernels import distinct_count
from sluice.runtime.state.keyed import KeyedState, StateSchema, newest_per_identity
from sluice.runtime.state.segments import HASH

GROUPS = "groups"
_DISTINCT = "distinct:"

_ROW_COUNT = "_row_count"
_ROWS = Argument(name=_ROW_COUNT, column=None, dtype=pl.Null())


class KeyedAggregate:
    """An ``Operator``; see ``sluice.runtime.operators.operator``."""

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        """*schema* is that of the input.

        Raises:
            ConfigurationError: the input cannot be aggregated so.
        """
        assert isinstance(stage.operation, ops.KeyedAggregate)
        aggregates = stage.operation.aggregates
        self._input = input_schema(schema)
        key_columns = key_types(stage.uid, self._input, stage.keys)
        self._keys = stage.keys
        self._is_changelog = stage.reads_updates
        computed = kernels(stage, aggregates, self._input, distinct_count)
        self._distinct = {
            name: _argument(name, aggregate, self._input)
            for name, aggregate in aggregates.items()
            if aggregate.kind is AggregateKind.COUNT_DISTINCT
        }
        hidden = (counted(_ROWS, is_changelog=True),) if self._is_changelog else ()
        self._fold = Fold((*hidden, *computed))
        # Rows alone can tell everything but which values are new.
        self._folded = Fold((*hidden, *(k for k in computed if k.name not in self._distinct)))
        self._finals = [kernel.final.alias(kernel.name) for kernel in computed]
        require_distinct(stage.uid, [*self._keys, *aggregates])
        require_distinct(stage.uid, [*self._keys, *self._fold.columns])
        self._is_refreshed = stage.ttl_ms is not None
        self.output_schema = pl.Schema({**key_columns, **{k.name: k.result_type for k in computed}})
        self.tables = {
            GROUPS: StateSchema(
                columns=pl.Schema({**key_columns, **self._fold.states}),
                key_columns=self._keys,
                ttl_ms=stage.ttl_ms,
            )
        } | {
            _DISTINCT + name: StateSchema(
                columns=pl.Schema({**key_columns, name: argument.dtype}),
                key_columns=self._keys,
                sub_key_columns=(name,),
                ttl_ms=stage.ttl_ms,
            )
            for name, argument in self._distinct.items()
        }

    @property
    def is_order_sensitive(self) -> bool:
        return self._fold.is_order_sensitive

    def needed_columns(self) -> tuple[str, ...] | None:
        return tuple(name for name in self._fold.reads if name not in self._keys)

    def spark_partial(self) -> SparkPartial | None:
        columns = self._fold.sql()
        return None if columns is None else SparkPartial(by=self._keys, columns=columns)

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        groups = {GROUPS: self._folded.partial(rows, self._keys)}
        for name, argument in self._distinct.items():
            values = rows.select(HASH, *self._keys, argument.value.alias(name))
            groups[_DISTINCT + name] = self._unique(values.drop_nulls(name), name)
        return Partial(groups=groups, late=self._input.to_frame())

    def combine(self, groups: Frames) -> Frames:
        combined = {GROUPS: self._folded.combine(groups[GROUPS], self._keys)}
        for name in self._distinct:
            combined[_DISTINCT + name] = self._unique(groups[_DISTINCT + name], name)
        return combined

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        touched = newest_per_identity(groups[GROUPS], self.tables[GROUPS].identity)
        changes: dict[str, Changes] = {}
        for name in self._distinct:
            table = _DISTINCT + name
            values = newest_per_identity(groups[table], self.tables[table].identity)
            new = values.filter(state[table].find(values)[HASH].is_null())
            touched = self._with_count(touched, new, name)
            upserts = values if self._is_refreshed else new
            changes[table] = Changes(upserts=upserts, deletes=values.clear())
        before = state[GROUPS].find(touched)
        after = self._fold.merge(touched.select(self.tables[GROUPS].live.names()), before)
        return self._outcome(before, after, changes)

    def _outcome(
        self, before: pl.DataFrame, after: pl.DataFrame, changes: Mapping[str, Changes]
    ) -> Outcome:
        """*before* and *after* are the state of the same groups, row by row."""
        known = before[HASH].is_not_null()
        lives = after[_ROW_COUNT] > 0 if self._is_changelog else after[HASH].is_not_null()
        result = after.select(*self._keys, *self._finals)
        replaced = after.select(self._keys).hstack(before.select(self._finals))
        is_news = differs(result, replaced, result.columns) | ~known
        is_changed = differs(after, before, list(self._fold.states)) | ~known
        written = lives if self._is_refreshed else lives & is_changed
        groups = Changes(
            upserts=after.filter(written),
            deletes=after.filter(known & ~lives).select(self.tables[GROUPS].identity),
        )
        return Outcome(
            output=result.filter(lives & is_news),
            retracted=replaced.filter(known & (is_news | ~lives)),
            changes={GROUPS: groups, **changes},
        )

    def _unique(self, values: pl.DataFrame, name: str) -> pl.DataFrame:
        query = values.lazy().group_by(*self._keys, name).agg(pl.col(HASH).first())
        return query.collect(engine="streaming").select(values.columns)

    def _with_count(self, groups: pl.DataFrame, new: pl.DataFrame, name: str) -> pl.DataFrame:
        """*groups* with the number of *new* values of each."""
        key = (HASH, *self._keys)
        counts = new.group_by(key).agg(pl.len().cast(pl.Int64).alias(name))
        joined = groups.join(counts, on=key, how="left", nulls_equal=True, maintain_order="left")
        return joined.with_columns(pl.col(name).fill_null(0))


def _argument(name: str, aggregate: Aggregate, schema: pl.Schema) -> Argument:
    assert aggregate.column is not None, "checked when it was declared"
    return Argument(
        name=name,
        column=aggregate.column,
        dtype=schema[aggregate.column],
        has_where=aggregate.where is not None,
    )
