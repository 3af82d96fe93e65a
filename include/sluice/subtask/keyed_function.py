"""An epoch of a keyed function in one subtask: what is called around its keys, and its lists."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.declaration.checkpointed_function import SubtaskContext
from sluice.subtask.operators.keyed_timers import instant_of
from sluice.subtask.operators.operator import EpochTime, Outcome
from sluice.subtask.operators.operator_lists import OperatorLists
from sluice.subtask.operators.process_keyed import ProcessKeyed
from sluice.subtask.state.keyed import KeyedState
from sluice.subtask.state_files import open_runs
from sluice.subtask.workspace import Workspace


class FunctionEpoch:
    """``begin`` it before the first range of hashes, ``end`` it behind the last."""

    def __init__(self, work: Workspace, operator: ProcessKeyed) -> None:
        self._work = work
        self._operator = operator

    def begin(self, broadcast: Mapping[str, KeyedState], time: EpochTime) -> None:
        """Raises ConfigurationError, StageFailed: the function did."""
        tables = self._operator.list_tables
        rows = {name: self._rows(name) for name in tables}
        lists = OperatorLists(tables, rows, self._work.spec.task, self._work.subtask.index)
        context = self._context(time, time.previous_watermark_ms)
        self._operator.begin(lists, broadcast, context, time)

    def end(self, time: EpochTime) -> Outcome:
        """Raises ConfigurationError, StageFailed: the function did."""
        return self._operator.end(self._context(time, time.watermark_ms), time)

    def _context(self, time: EpochTime, watermark_ms: int) -> SubtaskContext:
        return SubtaskContext(
            checkpoint_id=self._work.spec.checkpoint_id,
            subtask=self._work.subtask.index,
            parallelism=self._work.spec.task.parallelism,
            current_watermark=instant_of(watermark_ms),
            processing_time=instant_of(time.processing_time_ms),
        )

    def _rows(self, table: str) -> pl.DataFrame:
        """The rows of a list, whichever subtask keeps them."""
        schema = self._operator.list_tables[table]
        found = [schema.live.to_frame()]
        for handles in self._work.spec.state:
            runs = open_runs(self._work.cache, [one for one in handles if one.table == table])
            owner = f"stage {self._work.spec.stage.uid!r}"
            found.append(KeyedState(schema, runs, owner=owner).scan().select(schema.live.names()))
        return pl.concat(found)
