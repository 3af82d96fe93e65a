"""``TopN``: per key, the n rows with the largest value.

Without ``unique`` columns every row counts, equal ones, too (Flink's AppendOnlyTopNFunction).  With
them, the input is an upsert stream on key and ``unique`` columns in which ``by`` never decreases
(its UpdatableTopNFunction): then a row that n others have overtaken need not be remembered, and
rows that are taken back are passed over, as their successors are among the epoch's rows.

Of equal ``by`` the smallest ``ties_by`` wins, then the smallest ``unique``, then the smallest other
columns; nulls in ``by`` come last.  Two versions of a row with equal ``by`` in one epoch: the one
with the larger other columns, so that the order of arrival decides nothing.

Output is an upsert stream on key and rank, the ranks that changed; what is retracted are the rows
that had them.  State is a row per key and rank: a rank that did not change is not written again.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice import operations as ops
from sluice.errors import ConfigurationError
from sluice.nodes import StageNode
from sluice.runtime.operators.aggregates import beside, differs
from sluice.runtime.operators.operator import (
    WEIGHT,
    Changes,
    EpochTime,
    Frames,
    Outcome,
    Partial,
    SparkPartial,
    column_type,
    input_schema,
    key_types,
    require_distinct,
)
from sluice.runtime.operators.ranking import (
    RANK,
    Ranking,
    ascending,
    descending,
    require_ordered,
    require_rows,
)
from sluice.runtime.state.keyed import KeyedState, StateSchema, newest_per_identity
from sluice.runtime.state.segments import HASH

ROWS = "rows"


class TopN:
    """An ``Operator``; see ``sluice.runtime.operators.operator``."""

    is_order_sensitive = False

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        """*schema* is that of the input.

        Raises:
            ConfigurationError: the input cannot be ranked so.
        """
        operation = stage.operation
        assert isinstance(operation, ops.TopN)
        self._input = input_schema(schema)
        key_columns = key_types(stage.uid, self._input, stage.keys)
        require_rows(stage, operation.n)
        require_ordered(stage, self._input, (operation.by,), "to rank by")
        require_ordered(stage, self._input, operation.ties_by, "to rank equal ones by")
        for column in operation.unique:
            column_type(stage.uid, self._input, column, "to make its rows unique")
        if stage.reads_updates and not operation.unique:
            raise ConfigurationError(
                f"stage {stage.uid!r} ranks rows that later ones replace; name the columns that "
                "identify a row: unique=..."
            )
        require_distinct(stage.uid, [RANK, *self._input])
        self._key = (HASH, *stage.keys)
        self._unique = operation.unique
        self._is_refreshed = stage.ttl_ms is not None
        others = {name: dtype for name, dtype in self._input.items() if name not in stage.keys}
        self._others = tuple(others)
        newest = dict.fromkeys((operation.by, *others))
        self._newest = Ranking(n=1, order=descending(newest))
        ties = dict.fromkeys((*operation.ties_by, *operation.unique, *others))
        done = (*stage.keys, operation.by)
        ties_by = ascending(name for name in ties if name not in done)
        self._ranking = Ranking(n=operation.n, order=(*descending([operation.by]), *ties_by))
        self.output_schema = pl.Schema({**key_columns, RANK: pl.Int32(), **others})
        self._schema = StateSchema(
            columns=self.output_schema,
            key_columns=stage.keys,
            sub_key_columns=(RANK,),
            ttl_ms=stage.ttl_ms,
        )
        self.tables = {ROWS: self._schema}

    def needed_columns(self) -> tuple[str, ...] | None:
        return None

    def spark_partial(self) -> SparkPartial | None:
        return None

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        if WEIGHT in rows.columns:  # Without it nobody needs what rows are taken back.
            rows = rows.filter(pl.col(WEIGHT) > 0)
        return Partial(groups={ROWS: self._best(rows)}, late=self._input.to_frame())

    def combine(self, groups: Frames) -> Frames:
        return {ROWS: self._best(groups[ROWS])}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        rows = groups[ROWS]
        before = state[ROWS].lookup(rows.select(self._key).unique())
        # The first of two versions stays: an update beats what it updates.
        both = pl.concat([rows, before.select(rows.columns)])
        if self._unique:
            both = newest_per_identity(both, [*self._key, *self._unique])
        names = self._schema.live.names()
        ranked = self._ranking.best(both, self._key).select(names)
        former = beside(ranked, before, self._schema.identity)
        is_news = differs(ranked, former, names)
        return Outcome(
            output=ranked.filter(is_news).select(self.output_schema.names()),
            retracted=former.filter(is_news & former[HASH].is_not_null()).select(
                self.output_schema.names()
            ),
            changes={
                ROWS: Changes(
                    upserts=ranked if self._is_refreshed else ranked.filter(is_news),
                    deletes=self._schema.live.to_frame(),
                )
            },
        )

    def _best(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The last version of each row, of the n best per key: no other can end among the best."""
        rows = rows.select(*self._key, *self._others)
        if self._unique:
            rows = self._newest.best(rows, [*self._key, *self._unique]).drop(RANK)
        return self._ranking.best(rows, self._key).drop(RANK)
