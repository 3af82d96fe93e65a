"""The broadcast side of a keyed function: rows that every subtask sees, and the state they write.

Every subtask plays the same rows on the same state, so that each has the same map; the subtask that
owns the hash of its rows keeps them.  There is one copy, so a rescale is nothing special (Flink has
a copy in each subtask, and deals them out).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from sluice.declaration.broadcast_state import (
    BroadcastContext,
    BroadcastState,
    KeyedBroadcastProcessFunction,
    ReadOnlyEntries,
)
from sluice.declaration.declared_states import (
    broadcast_table_of,
    declared_broadcasts,
    with_own_states,
)
from sluice.declaration.keyed_process import Row
from sluice.declaration.keyed_states import Entries
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import ProcessKeyed
from sluice.errors import ConfigurationError, StageFailed
from sluice.subtask.operators.keyed_entries import MAP_KEY, VALUE, declared_columns
from sluice.subtask.operators.keyed_timers import instant_of
from sluice.subtask.operators.keyed_values import column_type, from_column, to_column
from sluice.subtask.operators.operator import Changes, EpochTime
from sluice.subtask.operators.raw_rows import in_order
from sluice.subtask.state.keyed import KeyedState, StateSchema
from sluice.subtask.state.segments import HASH

# The hash of all rows of broadcast state.
BROADCAST_HASH = 0


class BroadcastSide:
    """The broadcast states of a stage's function; without any there is nothing to do."""

    def __init__(self, stage: StageNode) -> None:
        assert isinstance(stage.operation, ProcessKeyed)
        self._uid = stage.uid
        self._function = stage.operation.function
        self._event_time = stage.broadcast.event_time if stage.broadcast is not None else None
        self.tables: Mapping[str, StateSchema] = {
            broadcast_table_of(state): StateSchema(
                columns=pl.Schema(
                    {MAP_KEY: column_type(state.key_type), VALUE: column_type(state.value_type)}
                ),
                key_columns=(MAP_KEY,),
                one_hash=BROADCAST_HASH,
                declared=declared_columns(stage, broadcast_table_of(state)),
            )
            for state in declared_broadcasts(self._function).values()
        }

    def received(
        self, rows: pl.DataFrame, state: Mapping[str, KeyedState], time: EpochTime
    ) -> dict[str, Changes]:
        """The changes that the broadcast *rows* of an epoch make to the *state* before it.

        Raises:
            ConfigurationError: state was misused, or the function yields rows.
            StageFailed: the function raised something else.
        """
        assert isinstance(self._function, KeyedBroadcastProcessFunction)
        own = with_own_states(self._function)
        function, broadcasts = own.function, own.broadcast
        entries = {
            name: Entries(_stored(state[broadcast_table_of(one)]))
            for name, one in broadcasts.items()
        }
        for name, one in broadcasts.items():
            one.bind(entries[name])
        at = self._event_time if self._event_time in rows.columns else None
        for row in in_order(rows, [at] if at is not None else []).iter_rows(named=True):
            context = BroadcastContext(
                timestamp=None if at is None else row[at],
                current_watermark=instant_of(time.previous_watermark_ms),
                processing_time=instant_of(time.processing_time_ms),
            )
            self._call(function, row, context)
        return {
            broadcast_table_of(one): self._changes(one, entries[name])
            for name, one in broadcasts.items()
        }

    def bind(
        self,
        broadcasts: Mapping[str, BroadcastState[Any, Any]],
        state: Mapping[str, KeyedState],
    ) -> None:
        """Let rows of keys read *broadcasts* as they are in *state*."""
        for name, one in broadcasts.items():
            one.bind(ReadOnlyEntries(_stored(state[broadcast_table_of(one)]), name))

    def _call(
        self, function: KeyedBroadcastProcessFunction, row: Row, context: BroadcastContext
    ) -> None:
        try:
            yielded: object = function.process_broadcast(row, context)
        except ConfigurationError as error:
            raise ConfigurationError(f"stage {self._uid!r}, broadcast row: {error}") from error
        except Exception as error:
            raise StageFailed(
                f"stage {self._uid!r}: process_broadcast() raised {type(error).__name__}: {error}"
            ) from error
        if yielded is not None:
            raise ConfigurationError(
                f"stage {self._uid!r}: process_broadcast() yields rows, but every subtask calls "
                "it; yield them in process()"
            )

    def _changes(self, state: BroadcastState[Any, Any], entries: Entries[Any, Any]) -> Changes:
        schema = self.tables[broadcast_table_of(state)]
        upserts = [
            (BROADCAST_HASH, key, to_column(entries.current[key]))
            for key in entries.written
            if key in entries.current and entries.current[key] != entries.stored.get(key)
        ]
        deletes = [
            (BROADCAST_HASH, key)
            for key in entries.written
            if key in entries.stored and key not in entries.current
        ]
        identity = {name: schema.live[name] for name in (HASH, MAP_KEY)}
        return Changes(
            upserts=pl.DataFrame(upserts, schema.live, orient="row"),
            deletes=pl.DataFrame(deletes, identity, orient="row"),
        )


def _stored(state: KeyedState) -> dict[Any, Any]:
    rows = state.scan().select(MAP_KEY, VALUE).iter_rows()
    return {key: from_column(value) for key, value in rows}
