"""The result of Spark code: its answer is merged with the rows that are kept, and what differs is
sent.

Rows of the state are those of the result, by its key: ``previous`` is read of them.  An answer with
two rows of a key, or with a null in one, is refused before anything of it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.declaration import results
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import SparkCode
from sluice.errors import ConfigurationError
from sluice.operators.operator import (
    EpochTime,
    Frames,
    Outcome,
    Partial,
    RawRows,
    differs,
    input_schema,
    key_types,
    require_distinct,
)
from sluice.operators.ranking import ROWS
from sluice.state.keyed import Changes, KeyedState
from sluice.state.runs import newest_per_identity
from sluice.state.segments import DELETED, HASH, StateSchema


class SparkResultOperator(RawRows):
    """Rows of an answer replace those of their keys; by ``Replace`` the others are taken away.

    Output is an upsert stream on the key: the rows that are new or differ, with those that they
    replace, and those that are gone, as retractions.  State is a row per key, and an unchanged row
    is not written again.
    """

    def __init__(self, stage: StageNode, answer: pl.Schema) -> None:
        """*answer* are the columns of the function's answer.

        Raises:
            ConfigurationError: it has no column of the key.
        """
        code = stage.operation
        assert isinstance(code, SparkCode)
        columns = {name: of for name, of in input_schema(answer).items() if name != DELETED}
        key_types(stage.uid, pl.Schema(columns), stage.keys)
        require_distinct(stage.uid, columns)
        self._uid = stage.uid
        self._is_whole = isinstance(code.result, results.Replace)
        self._is_deleting = DELETED in answer
        self.output_schema = pl.Schema(columns)
        self._schema = StateSchema(columns=self.output_schema, key_columns=stage.keys)
        self.tables = {ROWS: self._schema}

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - neither plays a part here
        """Raises ConfigurationError for a row without a key."""
        for key in self._schema.key_columns:
            without = rows.filter(pl.col(key).is_null())
            if without.height:
                raise ConfigurationError(
                    f"the answer of stage {self._uid!r} has {key!r} null in a row with "
                    f"{_values(without, self.output_schema.names())}, and its result is kept by "
                    f"that key; leave such rows out, where({key + ' IS NOT NULL'!r}), or fill it"
                )
        deleted = [DELETED] if self._is_deleting else []
        kept = rows.select(*self._schema.live.names(), *deleted)
        return Partial(groups={ROWS: kept}, late=self.output_schema.to_frame())

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - time plays no part here
        """Raises ConfigurationError for two rows of a key."""
        answered = self._distinct(groups[ROWS])
        before = state[ROWS].find(answered)
        is_kept = pl.repeat(True, answered.height, dtype=pl.Boolean, eager=True)  # noqa: FBT003 - a value
        if self._is_deleting:
            is_kept = ~answered[DELETED].fill_null(False)  # noqa: FBT003 - a value
        after, names = answered.select(before.columns), self.output_schema.names()
        was_there = before[HASH].is_not_null()
        is_news = is_kept & differs(after, before, before.columns)
        is_gone = was_there & ~is_kept
        gone = before.filter(is_gone)
        if self._is_whole:
            held = state[ROWS].scan()
            others = held.join(after, on=self._schema.key, how="anti", nulls_equal=True)
            gone = pl.concat([gone, others])
        return Outcome(
            output=after.filter(is_news).select(names),
            retracted=pl.concat([before.filter(is_news & was_there), gone]).select(names),
            changes={ROWS: Changes(upserts=after.filter(is_news), deletes=gone)},
        )

    def held(self, state: Mapping[str, KeyedState]) -> pl.DataFrame:
        return state[ROWS].scan().select(self.output_schema.names())

    def _distinct(self, rows: pl.DataFrame) -> pl.DataFrame:
        """*rows*, sorted by their identity, of which there is one each."""
        distinct = newest_per_identity(rows, self._schema.identity)
        if distinct.height == rows.height:
            return distinct
        keys = self._schema.key_columns
        twice = rows.filter(pl.struct(keys).is_duplicated()).sort(keys)
        first = twice.head(1).select(keys)
        count = twice.join(first, on=keys, how="semi", nulls_equal=True).height
        raise ConfigurationError(
            f"the answer of stage {self._uid!r} has {count} rows with {_values(first, keys)}, and "
            "its result has one row a key; choose one of them, dropDuplicates"
            f"({[*keys]!r}) or a row_number(), or name more columns as the key"
        )


def _values(rows: pl.DataFrame, names: list[str] | tuple[str, ...]) -> str:
    """The first of *rows*, in words."""
    row = rows.select(names).row(0, named=True)
    return ", ".join(f"{name} = {value!r}" for name, value in row.items())
