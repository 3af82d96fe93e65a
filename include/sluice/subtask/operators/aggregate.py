"""``KeyedAggregate``: running aggregates per key, over all time; Flink's group aggregation.

Output is an upsert stream on the key: the current row of every key whose result changed in this
epoch, with the rows that it replaces as retractions.  A key whose result did not change writes
neither state nor output.

Some aggregates keep their values in tables of their own, see ``aggregate_values``.  Over a
changelog the number of rows of a group is kept, too; when none is left, the group is removed: its
state is deleted, and its result is taken back.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.subtask.key_hash import with_hash
from sluice.subtask.operators.aggregate_values import ValueTable, value_table
from sluice.subtask.operators.aggregates import Fold, kernel_of
from sluice.subtask.operators.argument import Argument
from sluice.subtask.operators.arguments import argument_of
from sluice.subtask.operators.kernels import Kernel, counted
from sluice.subtask.operators.operator import (
    ROW_COUNT,
    WEIGHT,
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
from sluice.subtask.operators.row_comparison import differs
from sluice.subtask.state.keyed import KeyedState, StateSchema, newest_per_identity
from sluice.subtask.state.segments import HASH

GROUPS = "groups"

_ROW_COUNT = "_row_count"
_ROWS = Argument(name=_ROW_COUNT, label="count()", column=None, dtype=pl.Null())


class KeyedAggregate:
    """An ``Operator``; see ``sluice.subtask.operators.operator``."""

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
        self._is_changelog = WEIGHT in schema
        self._values: dict[str, ValueTable] = {}
        computed: list[Kernel] = []
        for name, aggregate in aggregates.items():
            table = value_table(stage, name, aggregate, schema, key_columns)
            if table is not None:
                self._values[name] = table
                computed.append(table.kernel)
            else:
                argument = argument_of(stage.uid, name, aggregate, schema)
                computed.append(kernel_of(stage, argument, aggregate, schema))
        hidden = (counted(_ROWS, is_changelog=True),) if self._is_changelog else ()
        self._fold = Fold(stage.uid, (*hidden, *computed))
        # Everything but the kept values is computed from the rows alone.
        folded = (*hidden, *(k for k in computed if k.name not in self._values))
        self._folded = Fold(stage.uid, folded)
        self._results = Fold(stage.uid, computed)
        require_distinct(stage.uid, [*self._keys, *aggregates])
        require_distinct(stage.uid, [*self._keys, *self._fold.columns])
        self._is_refreshed = stage.ttl_ms is not None
        self.output_schema = pl.Schema({**key_columns, **{k.name: k.result_type for k in computed}})
        self.tables = {
            GROUPS: StateSchema(
                columns=pl.Schema({**key_columns, **self._fold.kept}),
                key_columns=self._keys,
                ttl_ms=stage.ttl_ms,
            )
        } | {table.table: table.schema for table in self._values.values()}

    @property
    def is_order_sensitive(self) -> bool:
        return self._fold.is_order_sensitive

    def needed_columns(self) -> tuple[str, ...] | None:
        return tuple(name for name in self._fold.reads if name not in self._keys)

    def spark_partial(self) -> SparkPartial | None:
        columns = self._fold.sql()
        return None if columns is None else SparkPartial(by=self._keys, columns=columns)

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        if self._values and HASH not in rows.columns:
            rows = with_hash(rows, self._keys)
        folded = self._folded.partial(rows, self._keys)
        groups = {GROUPS: folded.drop(ROW_COUNT)}
        groups |= {table.table: table.partial(rows) for table in self._values.values()}
        counted = folded.select(HASH, ROW_COUNT)
        return Partial(groups=groups, late=self._input.to_frame(), counted=counted)

    def combine(self, groups: Frames) -> Frames:
        combined = {GROUPS: self._folded.combine(groups[GROUPS], self._keys)}
        for table in self._values.values():
            combined[table.table] = table.combine(groups[table.table])
        return combined

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        touched = newest_per_identity(groups[GROUPS], self.tables[GROUPS].identity)
        before = state[GROUPS].find(touched)
        changes: dict[str, Changes] = {}
        for values in self._values.values():
            table = values.table
            touched, changes[table] = values.applied(touched, before, groups[table], state[table])
        after = self._fold.merge_kept(touched.select(self.tables[GROUPS].live.names()), before)
        return self._outcome(before, after, changes)

    def _outcome(
        self, before: pl.DataFrame, after: pl.DataFrame, changes: Mapping[str, Changes]
    ) -> Outcome:
        """*before* and *after* are the state of the same groups, row by row."""
        known = before[HASH].is_not_null()
        lives = after[_ROW_COUNT] > 0 if self._is_changelog else after[HASH].is_not_null()
        result = self._results.result(after, self._keys)
        replaced = after.select(self._keys).hstack(self._results.result(before))
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
