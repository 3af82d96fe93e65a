"""``Process``: a user's function of the epoch's rows and of the state of the keys they touch.

The function gets the rows sorted by key, event time and all other columns, and one row of state per
key, in the same order; so its result depends neither on the order of arrival nor on chunks.  It is
called for one range of keys at a time, and not at all without rows: it must not compare rows of
different keys.  Its result is checked against the declaration, column by column.

A key's state is written only if it changed or, with a TTL, if it was returned at all.  Output is
sorted by hash where it has the key columns; otherwise it keeps the function's order.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.errors import CheckpointDeclined, ConfigurationError, StageFailed
from sluice.operators.declared_columns import conformed, declared_schema
from sluice.operators.operator import (
    EpochTime,
    Frames,
    Outcome,
    Partial,
    RawRows,
    column_type,
    in_order,
    input_schema,
    key_types,
    require_distinct,
)
from sluice.state.keyed import Changes, KeyedState
from sluice.state.segments import HASH, StateSchema

_ROWS = "rows"
_STATE = "state"
_PLACE = "_place"


class ProcessOperator(RawRows):
    """An ``Operator``; see ``sluice.operators.operator``."""

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        """*schema* is that of the input.

        Raises:
            ConfigurationError: the declared columns cannot be kept.
        """
        assert isinstance(stage.operation, ops.Process)
        self._uid = stage.uid
        self._function = stage.operation.function
        self._input = input_schema(schema)
        self._key_types = key_types(stage.uid, self._input, stage.keys)
        declared = declared_schema(stage.uid, stage.operation.state)
        require_distinct(stage.uid, [*stage.keys, *declared, _PLACE])
        self._declared = declared
        self._keys = stage.keys
        event_time = stage.inputs[0].event_time
        if event_time is not None:
            column_type(stage.uid, self._input, event_time, "for its event time")
        self._order = (HASH, *stage.keys, *([] if event_time is None else [event_time]))
        self._is_refreshed = stage.ttl_ms is not None
        self._state_schema = StateSchema(
            columns=pl.Schema({**self._key_types, **declared}),
            key_columns=stage.keys,
            ttl_ms=stage.ttl_ms,
        )
        self.tables = {_STATE: self._state_schema} if declared else {}
        self.output_schema = declared_schema(stage.uid, stage.operation.result)
        require_distinct(stage.uid, [*self.output_schema, _PLACE])

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        groups = {_ROWS: rows.select(HASH, *self._input)}
        return Partial(groups=groups, late=self._input.to_frame())

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        live = self._state_schema.live
        if _ROWS not in groups or groups[_ROWS].is_empty():
            return self._outcome(self.output_schema.to_frame(), live.to_frame(), live.to_frame())
        rows = in_order(groups[_ROWS], self._order)
        keys = rows.select(self._state_schema.key).unique(maintain_order=True)
        kept = state[_STATE].find(keys) if self._declared else live.to_frame().clear(keys.height)
        before = keys.hstack(kept.select(self._declared.names()))

        result, returned = self._returned(rows.select(self._input.names()), before.drop(HASH))

        after = self._hashed(returned, keys)
        is_known = kept[HASH].is_not_null().gather(after[_PLACE])
        is_same = is_known
        is_null = pl.repeat(True, after.height, eager=True)  # noqa: FBT003 - a value
        for name in self._declared:
            is_null &= after[name].is_null()
            is_same &= after[name].eq_missing(before[name].gather(after[_PLACE]))
        is_written = ~is_null if self._is_refreshed else ~is_null & ~is_same
        after = after.select(live.names())
        return self._outcome(
            self._sorted(result, keys), after.filter(is_written), after.filter(is_null & is_known)
        )

    def _outcome(
        self, output: pl.DataFrame, upserts: pl.DataFrame, deletes: pl.DataFrame
    ) -> Outcome:
        changes = Changes(upserts=upserts, deletes=deletes)
        return Outcome(output=output, changes={_STATE: changes} if self._declared else {})

    def _returned(
        self, rows: pl.DataFrame, state: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The function's result, with exactly the columns and types that were declared."""
        what = f"stage {self._uid!r}: what its function returns"
        try:
            returned = self._function(rows, state)
        except CheckpointDeclined:
            raise
        except Exception as error:
            raise StageFailed(
                f"stage {self._uid!r}: its function raised {type(error).__name__}: {error}"
            ) from error
        match returned:
            case (pl.DataFrame() as result, pl.DataFrame() as after):
                return (
                    conformed(result, self.output_schema, f"{what} as the result"),
                    conformed(after, self._state_schema.columns, f"{what} as the new state"),
                )
            case _:
                raise ConfigurationError(
                    f"{what} is {_described(returned)}; return two Polars DataFrames, "
                    "(result, new state)"
                )

    def _hashed(self, returned: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        """The new state with the hash and the place of its keys among *keys*, sorted by it."""
        what = f"stage {self._uid!r}: the new state that its function returns has the key"
        keys_of_state = returned.select(self._keys)
        repeated = keys_of_state.filter(keys_of_state.is_duplicated())
        for key in repeated.head(1).iter_rows(named=True):
            raise ConfigurationError(f"{what} {key} twice; return one row per key")
        after = self._with_hash(returned, keys)
        for key in after.filter(pl.col(HASH).is_null()).select(self._keys).iter_rows(named=True):
            raise ConfigurationError(
                f"{what} {key}, which no row has; return only keys that it was given"
            )
        return after.sort(_PLACE)

    def _sorted(self, result: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        """*result* sorted by hash, if it has the key columns."""
        if any(self.output_schema.get(name) != of for name, of in self._key_types.items()):
            return result
        hashed = self._with_hash(result, keys).sort(_PLACE, maintain_order=True, nulls_last=True)
        return hashed.select(result.columns)

    def _with_hash(self, rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        """*rows* with the hash of their key and its place; null for a key not among *keys*."""
        return rows.join(
            keys.with_row_index(_PLACE),
            on=list(self._keys),
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )


def _described(returned: object) -> str:
    if isinstance(returned, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in returned) or 'nothing'}"
    return f"a {type(returned).__name__}"
