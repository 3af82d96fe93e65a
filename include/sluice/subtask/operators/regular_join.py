"""``RegularJoin``: every left row with every right row of its key, in whatever order they arrive.

Flink's regular join of append-only inputs, inner and semi; ``changelog_join`` has all others.
Duplicate rows count, and each pair is emitted once, in the epoch in which the second of the two
arrives.  A semi join emits a left row once, as soon as there is a right row of its key: it keeps
only the keys of right rows, and only those left rows that have no partner yet.

Output is sorted by hash.  Without a TTL both sides are kept for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import RegularJoin as Declared
from sluice.subtask.operators.join_rows import LEFT, RIGHT, SIDES, JoinColumns
from sluice.subtask.operators.operator import Changes, EpochTime, Frames, Outcome, Partial
from sluice.subtask.operators.raw_rows import SEQUENCE, RawRows, by_hash, sequenced
from sluice.subtask.state.keyed import KeyedState, StateSchema
from sluice.subtask.state.segments import HASH


class RegularJoin(RawRows):
    """An ``Operator``; see ``sluice.subtask.operators.operator``."""

    def __init__(self, stage: StageNode, left: pl.Schema, right: pl.Schema) -> None:
        """*left* and *right* are the schemas of the inputs.

        Raises:
            ConfigurationError: the inputs cannot be joined so.
        """
        assert isinstance(stage.operation, Declared)
        assert stage.operation.how in ("inner", "semi")
        columns = JoinColumns(stage, left, right, stage.operation.how, ours=[SEQUENCE])
        self._columns = columns
        self._is_semi = stage.operation.how == "semi"
        self._is_refreshed = stage.ttl_ms is not None
        rows = [
            StateSchema(
                columns=pl.Schema({**kept, SEQUENCE: pl.Int64()}),
                key_columns=columns.keys,
                sub_key_columns=(SEQUENCE,),
                ttl_ms=stage.ttl_ms,
            )
            for kept in columns.kept
        ]
        keys = StateSchema(columns=columns.kept[1], key_columns=columns.keys, ttl_ms=stage.ttl_ms)
        self.tables = {LEFT: rows[0], RIGHT: keys if self._is_semi else rows[1]}
        self.output_schema = columns.result

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        kept = self._columns.of_input(rows, side).drop_nulls(self._columns.keys)
        late = self._columns.inputs[side].to_frame()
        return Partial(groups=self.combine({SIDES[side]: kept}), late=late)

    def combine(self, groups: Frames) -> Frames:
        if not self._is_semi or RIGHT not in groups:
            return groups
        return {**groups, RIGHT: groups[RIGHT].unique()}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        left = self._new(groups, 0, time)
        if self._is_semi:
            return self._semi(left, groups, state)
        right = self._new(groups, 1, time)
        old_left = state[LEFT].lookup(self._columns.distinct_keys(right))
        old_right = state[RIGHT].lookup(self._columns.distinct_keys(left))
        pairs = [
            self._columns.joined(left, pl.concat([old_right, right]), "inner"),
            self._columns.joined(old_left, right, "inner"),
        ]
        return Outcome(
            output=by_hash(pairs).drop(HASH),
            changes={
                LEFT: Changes(upserts=left, deletes=left.clear()),
                RIGHT: Changes(upserts=right, deletes=right.clear()),
            },
        )

    def _semi(self, left: pl.DataFrame, groups: Frames, state: Mapping[str, KeyedState]) -> Outcome:
        keys = self._frame(groups, 1).sort(self._columns.key)
        is_known = state[RIGHT].find(keys)[HASH].is_not_null()
        new_keys = keys.filter(~is_known)
        known = state[RIGHT].lookup(self._columns.distinct_keys(left))
        partners = pl.concat([known, new_keys])
        released = state[LEFT].lookup(new_keys)
        matched = self._columns.matched(left, partners, "semi")
        waiting = self._columns.matched(left, partners, "anti")
        return Outcome(
            output=by_hash([released, matched]).select(self.output_schema.names()),
            changes={
                LEFT: Changes(upserts=waiting, deletes=released),
                RIGHT: Changes(
                    upserts=keys if self._is_refreshed else new_keys, deletes=keys.clear()
                ),
            },
        )

    def _new(self, groups: Frames, side: int, time: EpochTime) -> pl.DataFrame:
        return sequenced(self._frame(groups, side), self._columns.key, time)

    def _frame(self, groups: Frames, side: int) -> pl.DataFrame:
        """The rows of one input; an input without groups had none."""
        empty = pl.Schema({HASH: pl.Int64(), **self._columns.kept[side]}).to_frame()
        return groups.get(SIDES[side], empty)
