"""``KeyedLookup``: a lookup in a table for rows of an upsert stream.

Spark looks up the new rows of an epoch, in the table as of the same barrier, and marks the keys
that have rows taken back.  The operator keeps the rows that it sent of each key.  When the key
changes, it takes back those that no longer hold, exactly as they were sent: the table may have
changed since, so another lookup might not find the same row.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.declaration.nodes import StageNode
from sluice.subtask.change_rows import split, without_pairs
from sluice.subtask.operators.operator import (
    WEIGHT,
    Changes,
    EpochTime,
    Frames,
    Outcome,
    Partial,
    input_schema,
    key_types,
    require_distinct,
)
from sluice.subtask.operators.raw_rows import RawRows, in_order, place_in_run
from sluice.subtask.state.keyed import KeyedState, StateSchema, newest_per_identity
from sluice.subtask.state.segments import HASH

SENT = "sent"
_NUMBER = "_number"  # Distinguishes the rows that were sent of one key.


class KeyedLookup(RawRows):
    """An ``Operator``; see ``sluice.subtask.operators.operator``."""

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        """*schema* is that of the rows with the columns that the table adds to them.

        Raises:
            ConfigurationError: the columns that the input is updated by are missing.
        """
        self.output_schema = input_schema(schema)
        key_types(stage.uid, self.output_schema, stage.keys)
        require_distinct(stage.uid, [*self.output_schema, _NUMBER])
        self._schema = StateSchema(
            columns=pl.Schema({**self.output_schema, _NUMBER: pl.Int64()}),
            key_columns=stage.keys,
            sub_key_columns=(_NUMBER,),
        )
        self.tables = {SENT: self._schema}

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        groups = rows.select(HASH, *self.output_schema, WEIGHT)
        return Partial(groups={SENT: groups}, late=self.output_schema.to_frame())

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        rows, key, identity = groups[SENT], self._schema.key, self._schema.identity
        before = state[SENT].lookup(newest_per_identity(rows.select(key), key))
        after = in_order(rows.filter(pl.col(WEIGHT) > 0).drop(WEIGHT), key)
        after = after.with_columns(place_in_run(key).alias(_NUMBER))
        weighed = [
            frame.drop(_NUMBER).with_columns(pl.lit(weight, pl.Int8).alias(WEIGHT))
            for frame, weight in ((before, -1), (after, 1))
        ]
        output, retracted = split(without_pairs(pl.concat(weighed)))
        names = self.output_schema.names()
        return Outcome(
            output=output.select(names),
            retracted=retracted.select(names),
            changes={
                SENT: Changes(
                    upserts=after.join(
                        before,
                        on=after.columns,
                        how="anti",
                        nulls_equal=True,
                        maintain_order="left",
                    ),
                    deletes=before.select(identity).join(
                        after, on=identity, how="anti", nulls_equal=True, maintain_order="left"
                    ),
                )
            },
        )
