"""``KeyedAggregate``: running aggregates per key, over all time; Flink's group aggregation.

Output is an upsert stream on the key: the current row of every key whose result changed in this
epoch, sorted by hash and key.  A row that changes nothing writes no state and no output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from sluice.aggregates import Aggregate
from sluice.runtime.operators.aggregates import changed_groups, group_rows, kernels
from sluice.runtime.operators.operator import (
    Outcome,
    Partial,
    Watermarks,
    input_schema,
    key_types,
    require_distinct,
)
from sluice.runtime.state.keyed import KeyedState, StateSchema
from sluice.runtime.state.segments import HASH


class KeyedAggregate:
    """An ``Operator``; see ``sluice.runtime.operators.operator``."""

    def __init__(
        self,
        uid: str,
        keys: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        schema: pl.Schema,
    ) -> None:
        """*schema* is that of the input.

        Raises:
            ConfigurationError: the input cannot be aggregated so.
        """
        self._input = input_schema(schema)
        key_columns = key_types(uid, self._input, keys)
        require_distinct(uid, [*keys, *aggregates])
        self._keys = tuple(keys)
        self._kernels = kernels(uid, aggregates, self._input)
        self.state_schema = StateSchema(
            columns=pl.Schema({**key_columns, **{k.name: k.state_type for k in self._kernels}}),
            key_columns=self._keys,
        )
        self.output_schema = pl.Schema(
            {**key_columns, **{k.name: k.result_type for k in self._kernels}}
        )

    def partial(self, rows: pl.DataFrame, watermarks: Watermarks) -> Partial:  # noqa: ARG002 - time plays no part here
        groups = group_rows(rows, self._keys, [k.partial for k in self._kernels])
        return Partial(groups=groups, late=self._input.to_frame())

    def combine(self, groups: pl.DataFrame) -> pl.DataFrame:
        return group_rows(groups, self._keys, [k.combine for k in self._kernels])

    def process(self, groups: pl.DataFrame, state: KeyedState, watermarks: Watermarks) -> Outcome:  # noqa: ARG002 - as above
        changed = changed_groups(self._kernels, groups, state)
        return Outcome(
            # The result of each kind is a one-to-one function of its growing state.
            output=changed.select(*self._keys, *(k.final for k in self._kernels)),
            upserts=changed,
            deletes=self.state_schema.live.to_frame().select(HASH, *self._keys),
            late=self._input.to_frame(),
        )
