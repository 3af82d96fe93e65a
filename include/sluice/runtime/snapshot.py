"""A keyed subtask's snapshot: the epoch's groups merged with its slice of state, the delta kept."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pyarrow as pa

from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.key_groups import hash_range, key_group_range
from sluice.runtime.operators.build import build_operator
from sluice.runtime.operators.operator import Watermarks
from sluice.runtime.output import SOURCE, Output
from sluice.runtime.state.keyed import (
    KeyedState,
    Run,
    delta_table,
    merge_runs,
    min_time,
    runs_to_merge,
)
from sluice.runtime.state.segments import checksum, encode_segment
from sluice.runtime.workspace import Workspace


class KeyedSnapshot:
    def __init__(self, work: Workspace, schema: pa.Schema) -> None:
        spec = work.spec
        self._work = work
        self._watermarks = Watermarks(
            previous_ms=spec.previous_watermark_ms, current_ms=spec.watermark_ms
        )
        empty = pl.from_arrow(schema.empty_table())
        assert isinstance(empty, pl.DataFrame)
        empty = empty.drop(SOURCE, strict=False)
        self._operator = build_operator(spec.stage, empty.schema)
        self._partials = [self._operator.partial(empty, self._watermarks)]
        self.rows_in = 0

    def add(self, rows: pl.DataFrame) -> None:
        """Pre-aggregate one chunk of the epoch's rows."""
        self.rows_in += rows.height
        rows = rows.drop(SOURCE, strict=False)
        self._partials.append(self._operator.partial(rows, self._watermarks))

    def finish(self, output: Output) -> tuple[StateHandle, ...]:
        """Merge with the state, hand the result to *output*, upload the delta.

        Returns every live segment, oldest first: what the parent had, and what changed.
        """
        state = self._merge(output)
        return tuple(map(self._copied, state)) if self._work.spec.is_full else state

    def _merge(self, output: Output) -> tuple[StateHandle, ...]:
        schema = self._operator.state_schema
        inherited = self._work.spec.state[self._work.subtask.index]
        runs = [
            Run(
                table=self._work.cache.open(handle.segment),
                first_hash=handle.first_hash,
                last_hash=handle.last_hash,
                min_time_ms=handle.min_time_ms,
            )
            for handle in inherited
        ]
        groups = self._operator.combine(pl.concat([p.groups for p in self._partials]))
        outcome = self._operator.process(groups, KeyedState(schema, runs), self._watermarks)
        output.add(outcome.output)
        for late in (*(p.late for p in self._partials), outcome.late):
            output.add_late(late)
        if not outcome.upserts.height and not outcome.deletes.height:
            return inherited
        delta = delta_table(schema, outcome.upserts, outcome.deletes)
        counts = [*(run.table.num_rows for run in runs), delta.num_rows]
        merged = runs_to_merge(counts) - 1  # How many inherited runs the new segment swallows.
        kept = inherited[: len(inherited) - merged]
        if merged:
            newest = [*runs[len(runs) - merged :], Run(table=delta)]
            delta = merge_runs(schema, newest, drop_tombstones=not kept)
        return (*kept, self._write(delta, min_time(schema, delta)))

    def _copied(self, handle: StateHandle) -> StateHandle:
        """The segment as a file of this checkpoint: it was a savepoint's, or another root's."""
        segment, key = handle.segment, self._work.state_key(handle.segment.checksum)
        if segment.inline is not None or segment.key == key:
            return handle
        self._work.upload(key, self._work.cache.read(segment))
        return replace(handle, segment=replace(segment, key=key, root=""))

    def _write(self, table: pa.Table, min_time_ms: int | None) -> StateHandle:
        body = encode_segment(table)
        digest = checksum(body)
        spec, subtask = self._work.spec, self._work.subtask
        groups = key_group_range(spec.task.max_parallelism, spec.task.parallelism, subtask.index)
        first_hash, last_hash = hash_range(spec.task.max_parallelism, groups)
        segment = SegmentHandle(
            key="", size_bytes=len(body), rows=table.num_rows, checksum=digest, inline=body
        )
        if len(body) >= spec.inline_threshold_bytes:
            key = self._work.state_key(digest)
            self._work.upload(key, body)
            segment = replace(segment, key=key, inline=None)
            self._work.cache.add(segment, body)
        return StateHandle(
            segment=segment, first_hash=first_hash, last_hash=last_hash, min_time_ms=min_time_ms
        )
