"""An epoch's changes to one table of keyed state, as the segments of a new run.

A run holds changed rows only, so a checkpoint's size follows the changes.  Compactions merge runs,
off the critical path.  Two cases are merged here at once: runs so small that a file for each would
cost more than their rows, and runs beyond ``max_state_runs``, which would make lookups slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import pyarrow as pa

from sluice.core.compaction import SortedRun, sorted_runs
from sluice.core.handles import StateHandle
from sluice.subtask.operators.operator import Changes
from sluice.subtask.row_file_writer import RowFiles
from sluice.subtask.state.keyed import delta_table
from sluice.subtask.state.merging import stored_table
from sluice.subtask.state.policy import GROWTH
from sluice.subtask.state.runs import Run
from sluice.subtask.state.schema import StateSchema
from sluice.subtask.state.segments import to_frame, to_table
from sluice.subtask.state_files import describe_segment, merged_frames, open_runs
from sluice.subtask.workspace import Workspace

SMALL_RUN_ROWS = 32_768  # About a megabyte: rewriting it costs as much as a request.


class StateWriter:
    """The writer of one run, range of hashes by range; *inherited* segments are oldest first."""

    def __init__(
        self, work: Workspace, table: str, schema: StateSchema, inherited: Sequence[StateHandle]
    ) -> None:
        self._work = work
        self._table = table
        self._schema = schema
        self._inherited = tuple(inherited)
        self._run = max((handle.run for handle in inherited), default=0) + 1
        self._files = RowFiles(self._write)
        self._written: list[StateHandle] = []

    def add(self, changes: Changes) -> None:
        now_ms = self._work.spec.epoch_time.processing_time_ms
        delta = delta_table(self._schema, changes.upserts, changes.deletes, now_ms=now_ms)
        self._files.add(to_frame(delta))

    def finish(self) -> tuple[StateHandle, ...]:
        """Every live segment of the table, oldest first: those of the parent, then the new ones."""
        rest = self._files.take()
        runs = sorted_runs(self._inherited)
        if rest is None and not self._written and len(runs) <= self._work.spec.max_state_runs:
            return self._inherited
        new_rows = sum(handle.segment.rows for handle in self._written)
        new_rows += 0 if rest is None else rest.height
        count = _runs_to_merge_now(
            [run.rows for run in runs], new_rows, self._work.spec.max_state_runs
        )
        kept, swallowed = runs[: len(runs) - count], runs[len(runs) - count :]
        if swallowed:
            self._merge(swallowed, rest, is_oldest=not kept)
        elif rest is not None:
            self._write(to_table(rest))
        return (*(handle for run in kept for handle in run.handles), *self._written)

    def _merge(
        self, swallowed: Sequence[SortedRun], rest: pl.DataFrame | None, *, is_oldest: bool
    ) -> None:
        """Write *swallowed* runs and the new one, of which *rest* is in no file yet, as one run."""
        handles = [handle for run in swallowed for handle in run.handles]
        runs = open_runs(self._work.cache, [*handles, *self._written])
        if rest is not None:
            runs.append(Run(table=stored_table(self._schema, rest)))
        self._written = []
        for frame in merged_frames(
            self._schema,
            runs,
            drop_tombstones=is_oldest,
            now_ms=self._work.spec.epoch_time.processing_time_ms,
        ):
            self._files.add(frame)
        self._files.finish()

    def _write(self, rows: pa.Table) -> None:
        spec = self._work.spec
        handle, body = describe_segment(self._schema, rows)
        if len(body) >= spec.inline_threshold_bytes:
            key = self._work.state_key(handle.segment.checksum)
            segment = replace(handle.segment, key=key, inline=None)
            self._work.upload_state(segment, body)
            handle = replace(handle, segment=segment)
        self._written.append(replace(handle, table=self._table, run=self._run))


def _runs_to_merge_now(row_counts: Sequence[int], new_rows: int, max_runs: int) -> int:
    """The number of newest runs, of sizes *row_counts*, to merge with the new run at once."""
    count, rows = 0, new_rows
    while count < len(row_counts):
        previous = row_counts[-count - 1]
        is_small = rows + previous <= SMALL_RUN_ROWS and previous < GROWTH * rows
        has_too_many = len(row_counts) - count + 1 > max_runs
        if not is_small and not has_too_many:
            return count
        count += 1
        rows += previous
    return count
