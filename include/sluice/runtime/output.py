"""A stage's result on its way out: side outputs, filter and projection, stream segments, sinks."""

from __future__ import annotations

from functools import partial

import polars as pl
import pyarrow as pa

from sluice.changelog import Append, Upsert, check_row_kind_column
from sluice.connectors.sink import DELETED, Sink
from sluice.connectors.source import MALFORMED_COLUMN, RAW
from sluice.core.acks import Committable
from sluice.core.handles import SegmentHandle
from sluice.errors import ConfigurationError
from sluice.nodes import SinkNode, StageNode
from sluice.runtime.changes import OURS, changelog_of, changes_of, split, without_pairs
from sluice.runtime.operators.operator import COMPUTED, WEIGHT
from sluice.runtime.row_files import RowFiles
from sluice.runtime.row_sql import applied
from sluice.runtime.state.segments import HASH, checksum, encode_segment, to_table
from sluice.runtime.workspace import Workspace
from sluice.sinks.opening import (
    LATE,
    LATE_RIGHT,
    MALFORMED,
    NO_EVENT_TIME,
    open_side_output,
    open_sink,
    side_output,
)
from sluice.steps import Filter

SOURCE = "_source"  # struct<partition: string, record: long>: where a row came from.
LATE_OF_SIDE = (LATE, LATE_RIGHT)


class Output:
    """Takes frames of the stage's result and leaves segments, staged files and counts."""

    def __init__(self, work: Workspace) -> None:
        self._work = work
        self._kind = work.spec.stage.kind
        self._segments: list[SegmentHandle] = []
        self._committables: list[Committable] = []
        self._stream = RowFiles(self._write_segment)
        self._taken_back = RowFiles(self._write_segment)
        self._sinks = [
            _SinkFiles(node, self._sink(node), self, work.spec.stage) for node in work.spec.sinks
        ]
        self._sides: dict[tuple[str, ...], RowFiles] = {}
        self._files = 0
        self.schema_bytes = b""
        self.rows_out = self.late_rows = self.malformed_rows = 0

    def without_malformed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """*frame* without the rows that could not be read, which go to a side output."""
        if MALFORMED_COLUMN not in frame.columns:
            return frame
        bad = frame.filter(pl.col(MALFORMED_COLUMN).is_not_null())
        self.malformed_rows += bad.height
        self._add_to_side(MALFORMED, bad)
        good = frame.filter(pl.col(MALFORMED_COLUMN).is_null())
        return good.drop(MALFORMED_COLUMN, RAW, strict=False)

    def without_event_time(self, frame: pl.DataFrame, side: int) -> pl.DataFrame:
        """*frame* without the rows of input *side* that have no event time, where the stage goes by
        it; these go to a side output, with where they came from, if that is still known.
        """
        stage = self._work.spec.stage
        at = stage.inputs[side].event_time
        if not stage.goes_by_event_time or at is None or at not in frame.columns:
            return frame
        timeless = frame.filter(pl.col(at).is_null())
        if not timeless.height:
            return frame
        self.malformed_rows += timeless.height
        reason = pl.lit("no event time").alias(MALFORMED_COLUMN)
        self._add_to_side(NO_EVENT_TIME, timeless.with_columns(reason))
        return frame.filter(pl.col(at).is_not_null())

    def add_late(self, frame: pl.DataFrame, side: int) -> None:
        frame = self.without_event_time(frame, side)
        self.late_rows += frame.height
        self._add_to_side(LATE_OF_SIDE[side], frame)

    def add(self, rows: pl.DataFrame, retracted: pl.DataFrame | None = None) -> None:
        """Rows of the stage's result, and those that they take back, before filter and projection.

        Rows of a stateless stage that reads changes carry their weight already.
        """
        stage = self._work.spec.stage
        if self._kind == Append():
            rows = narrowed(stage, rows)
            taken_back = rows.clear()
        else:
            is_weighed = WEIGHT in rows.columns
            changes = rows if is_weighed else changes_of(rows, retracted, stage.keys)
            changes = narrowed(stage, changes)
            # An operator has none; a projection, or a function, may have made some.
            if is_weighed or stage.is_projected:
                changes = without_pairs(changes)
            rows, taken_back = split(changes)
        self.rows_out += rows.height
        self._emit(rows, taken_back)

    def finish(self) -> tuple[tuple[SegmentHandle, ...], tuple[Committable, ...]]:
        """Upload and stage what is left; return what the ack will name."""
        sinks = [files for sink in self._sinks for files in sink.files]
        taken_back = self._taken_back.take()
        if taken_back is not None:
            self._stream.add(taken_back)  # The last file may hold both: a request less.
        for files in (self._stream, *sinks, *self._sides.values()):
            files.finish()
        return tuple(self._segments), tuple(self._committables)

    def stage_rows(self, sink: Sink, table: pa.Table) -> None:
        """Used by the sinks' files."""
        self._files += 1
        staged = sink.stage(
            table,
            checkpoint_id=self._work.spec.checkpoint_id,
            subtask=self._work.subtask.index,
            attempt_token=f"{self._work.token}-{self._files:04d}",
        )
        if staged is not None:
            self._committables.append(staged)

    def _emit(self, rows: pl.DataFrame, taken_back: pl.DataFrame) -> None:
        streamed, revoked = rows, taken_back
        if self._kind != Append():
            streamed = rows.with_columns(pl.lit(1, pl.Int8).alias(WEIGHT))
            revoked = taken_back.with_columns(pl.lit(-1, pl.Int8).alias(WEIGHT))
        if not self.schema_bytes:
            self.schema_bytes = to_table(streamed.clear()).schema.serialize().to_pybytes()
        if self._work.spec.has_consumers:
            self._stream.add(streamed)
            self._taken_back.add(revoked)
        for sink in self._sinks:
            sink.add(rows, taken_back)

    def _write_segment(self, table: pa.Table) -> None:
        body = encode_segment(table)
        digest = checksum(body)
        spec, index = self._work.spec, self._work.subtask.index
        key = self._work.paths.stream_segment(
            spec.stage.uid, spec.checkpoint_id, f"{index:05d}-{digest}"
        )
        self._work.upload(key, body)
        handle = SegmentHandle(key=key, size_bytes=len(body), rows=table.num_rows, checksum=digest)
        self._segments.append(handle)

    def _sink(self, node: SinkNode) -> Sink:
        spec = self._work.spec
        return open_sink(node, spec.params, spec.location, self._work.paths)

    def _add_to_side(self, name: str, frame: pl.DataFrame) -> None:
        """The two inputs of a join have columns of their own, and so files of their own."""
        if not frame.height:
            return
        rows = _readable(frame)
        files = (name, *rows.columns)
        if files not in self._sides:
            spec = self._work.spec
            uid = side_output(spec.stage.uid, name)
            sink = open_side_output(uid, spec.location, self._work.paths)
            self._sides[files] = RowFiles(partial(self.stage_rows, sink))
        self._sides[files].add(rows)


class _SinkFiles:
    """The rows of one sink and, where it can, those that it is to take away."""

    def __init__(self, node: SinkNode, sink: Sink, output: Output, stage: StageNode) -> None:
        self._node = node
        self._key = node.spec.upsert_key
        # A stage without state may have here a row, and elsewhere what it replaces.
        kind = stage.kind
        self._replaced_by = kind.key if stage.is_stateful and isinstance(kind, Upsert) else ()
        self._rows = RowFiles(partial(output.stage_rows, sink))
        self._deletes = RowFiles(partial(output.stage_rows, sink))
        self.files = (self._rows, self._deletes)

    def add(self, rows: pl.DataFrame, taken_back: pl.DataFrame) -> None:
        if self._node.spec.changelog:
            check_row_kind_column(self._node.uid, self._node.spec, self._node.input, rows.columns)
            self._rows.add(changelog_of(rows, taken_back, self._replaced_by))
            return
        self._rows.add(rows)
        if not self._key or not taken_back.height:
            return
        gone = taken_back.join(rows, on=self._key, how="anti", nulls_equal=True)
        self._deletes.add(gone.with_columns(pl.lit(True).alias(DELETED)))  # noqa: FBT003 - a value


def narrowed(stage: StageNode, frame: pl.DataFrame) -> pl.DataFrame:
    """The rows and columns that *stage* keeps of its result.

    Raises:
        ConfigurationError: the result has not the columns that its filter or projection names.
    """
    ours = tuple(name for name in OURS if name in frame.columns)
    for step in stage.steps:
        try:
            frame = applied(step, frame, kept=ours)
        except pl.exceptions.PolarsError as error:
            asked = [step.condition] if isinstance(step, Filter) else step.columns
            raise ConfigurationError(
                f"stage {stage.uid!r} cannot keep {', '.join(asked)} of its result: {error}; "
                f"there are {', '.join(frame.columns)}"
            ) from error
    return frame


def _readable(frame: pl.DataFrame) -> pl.DataFrame:
    """A side output's rows for people: where it came from first, our own names without the bar."""
    if SOURCE in frame.columns:
        origin = pl.col(SOURCE).struct
        frame = frame.select(
            origin.field("partition").alias("partition"),
            (origin.field("record") + 1).alias("record_number"),  # From 1, as editors count lines.
            pl.all().exclude(SOURCE, "partition", "record_number"),
        )
    ours = [name for name in frame.columns if name in (HASH, WEIGHT) or name.startswith(COMPUTED)]
    return frame.rename({MALFORMED_COLUMN: "reason", RAW: "line"}, strict=False).drop(ours)
