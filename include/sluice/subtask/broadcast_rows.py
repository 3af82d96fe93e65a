"""The broadcast rows of an epoch and the state that they write, as one subtask has them."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pyarrow as pa

from sluice.core.handles import StateHandle
from sluice.subtask.operators.keyed_broadcast import BROADCAST_HASH, BroadcastSide
from sluice.subtask.operators.operator import Changes
from sluice.subtask.state.keyed import KeyedState, Run, delta_table
from sluice.subtask.state.segments import to_frame
from sluice.subtask.state_files import open_runs
from sluice.subtask.workspace import Workspace


class BroadcastRows:
    """All of them: each subtask reads the segments whole, and plays them on the same state."""

    def __init__(self, work: Workspace, side: BroadcastSide) -> None:
        self._work = work
        self._side = side
        first, last = work.hash_range
        self._is_owner = first <= BROADCAST_HASH <= last
        self.rows_in = 0  # Counted by one subtask.

    def state(self) -> tuple[dict[str, KeyedState], Mapping[str, Changes]]:
        """The broadcast state behind the epoch's rows, and what this subtask keeps of the changes.

        Raises:
            ConfigurationError, StageFailed: the function did.
        """
        time = self._work.spec.epoch_time
        before = {name: self._before(name) for name in self._side.tables}
        rows = self._rows()
        if not rows.height:
            return before, {}
        changes = self._side.received(rows, before, time)
        after = {name: self._after(name, changes[name]) for name in before}
        if not self._is_owner:
            return after, {}
        self.rows_in = rows.height
        return after, changes

    def _rows(self) -> pl.DataFrame:
        spec = self._work.spec
        if not spec.broadcast_schema:
            return pl.DataFrame()
        schema = pa.ipc.read_schema(pa.py_buffer(spec.broadcast_schema))
        self._work.cache.prefetch(spec.broadcast)
        tables = [self._work.cache.open(one).cast(schema) for one in spec.broadcast]
        return to_frame(pa.concat_tables([schema.empty_table(), *tables]))

    def _before(self, table: str) -> KeyedState:
        return self._state(table, [])

    def _after(self, table: str, changes: Changes) -> KeyedState:
        delta = delta_table(self._side.tables[table], changes.upserts, changes.deletes)
        return self._state(table, [Run(table=delta)])

    def _state(self, table: str, more: list[Run]) -> KeyedState:
        runs = open_runs(self._work.cache, self._handles(table))
        return KeyedState(
            self._side.tables[table],
            [*runs, *more],
            owner=f"stage {self._work.spec.stage.uid!r}",
        )

    def _handles(self, table: str) -> list[StateHandle]:
        """The segments of *table*, whichever subtask keeps them."""
        return [
            handle
            for handles in self._work.spec.state
            for handle in handles
            if handle.table == table
        ]
