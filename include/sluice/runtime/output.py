"""A stage's result on its way out: side outputs, filter and projection, stream segments, sinks."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from sluice.connectors.sink import Sink
from sluice.core.acks import Committable
from sluice.core.handles import SegmentHandle
from sluice.errors import ConfigurationError
from sluice.runtime.state.segments import HASH, checksum, encode_segment, to_table
from sluice.runtime.workspace import Workspace
from sluice.sinks import LATE, MALFORMED, open_side_output, open_sink, side_output

SOURCE = "_source"  # struct<partition: string, record: long>: where a row came from.
MALFORMED_COLUMN = "_malformed"  # Why a row could not be read; null when it could.


class Output:
    """Takes frames of the stage's result and leaves segments, staged files and counts."""

    def __init__(self, work: Workspace) -> None:
        self._work = work
        self._frames: list[pl.DataFrame] = []
        self._malformed: list[pl.DataFrame] = []
        self._late: list[pl.DataFrame] = []
        self.schema_bytes = b""
        self.event_times_ms: dict[str, int] = {}
        self.rows_out = 0

    @property
    def malformed_rows(self) -> int:
        return sum(frame.height for frame in self._malformed)

    @property
    def late_rows(self) -> int:
        return sum(frame.height for frame in self._late)

    def add_input(self, frame: pl.DataFrame) -> None:
        """Rows of a stateless stage, with what the runtime's own columns say about them."""
        if MALFORMED_COLUMN in frame.columns:
            bad = frame.filter(pl.col(MALFORMED_COLUMN).is_not_null())
            if bad.height:
                self._malformed.append(bad)
            frame = frame.filter(pl.col(MALFORMED_COLUMN).is_null())
        if self._work.spec.measures_event_time:
            self._measure(frame)
        self.add(frame.drop(SOURCE, MALFORMED_COLUMN, strict=False))

    def add_late(self, frame: pl.DataFrame) -> None:
        if frame.height:
            self._late.append(frame)

    def add(self, frame: pl.DataFrame) -> None:
        """Rows of the stage's result, before its filter and projection."""
        stage = self._work.spec.stage
        for condition in stage.where:
            frame = frame.filter(pl.sql_expr(condition))
        if stage.select:
            self._check_columns(frame)
            frame = frame.select(stage.select)
        if not self.schema_bytes:
            self.schema_bytes = to_table(frame.clear()).schema.serialize().to_pybytes()
        self.rows_out += frame.height
        if frame.height:
            self._frames.append(frame)

    def finish(self) -> tuple[tuple[SegmentHandle, ...], tuple[Committable, ...]]:
        """Upload the stream's segment, stage the sinks' files; return what the ack will name."""
        spec = self._work.spec
        committables: list[Committable] = []
        stream: tuple[SegmentHandle, ...] = ()
        if self._frames:
            table = to_table(pl.concat(self._frames))
            if spec.has_consumers:
                stream = (self._upload(table),)
            for node in spec.sinks:
                sink = open_sink(node, spec.params, spec.location, self._work.paths)
                committables += self._stage(sink, table)
        for name, frames in ((MALFORMED, self._malformed), (LATE, self._late)):
            if frames:
                uid = side_output(spec.stage.uid, name)
                side = open_side_output(uid, spec.location, self._work.paths)
                committables += self._stage(side, to_table(_readable(pl.concat(frames))))
        return stream, tuple(committables)

    def _measure(self, frame: pl.DataFrame) -> None:
        """The largest event time per source partition: what the watermark is made of."""
        column = self._work.spec.stage.event_time
        assert column is not None
        if SOURCE not in frame.columns:
            raise ConfigurationError(
                f"stage {self._work.spec.stage.uid!r} dropped the column {SOURCE!r}; keep it, the "
                f"watermark of {column!r} is measured per source partition"
            )
        if column not in frame.columns:
            raise ConfigurationError(
                f"stage {self._work.spec.stage.uid!r} yields no column {column!r}, the event "
                f"time that its source names; it yields {', '.join(frame.columns)}"
            )
        seen = (
            frame.lazy()
            .filter(pl.col(column).is_not_null())
            .group_by(pl.col(SOURCE).struct.field("partition"))
            .agg(pl.col(column).max().dt.epoch("ms"))
            .collect()
        )
        for partition, event_time_ms in seen.iter_rows():  # A row per partition, not per record.
            before = self.event_times_ms.get(partition, event_time_ms)
            self.event_times_ms[partition] = max(before, event_time_ms)

    def _upload(self, table: pa.Table) -> SegmentHandle:
        body = encode_segment(table)
        digest = checksum(body)
        spec = self._work.spec
        key = self._work.paths.stream_segment(
            spec.stage.uid, spec.checkpoint_id, f"{self._work.subtask.index:05d}-{digest}"
        )
        self._work.upload(key, body)
        return SegmentHandle(key=key, size_bytes=len(body), rows=table.num_rows, checksum=digest)

    def _stage(self, sink: Sink, table: pa.Table) -> list[Committable]:
        staged = sink.stage(
            table,
            checkpoint_id=self._work.spec.checkpoint_id,
            subtask=self._work.subtask.index,
            attempt_token=self._work.token,
        )
        return [] if staged is None else [staged]

    def _check_columns(self, frame: pl.DataFrame) -> None:
        unknown = [name for name in self._work.spec.stage.select if name not in frame.columns]
        if unknown:
            raise ConfigurationError(
                f"stage {self._work.spec.stage.uid!r} selects {unknown[0]!r}; "
                f"there are {', '.join(frame.columns)}"
            )


def _readable(frame: pl.DataFrame) -> pl.DataFrame:
    """A side output's rows for people: where it came from first, our own names without the bar."""
    if SOURCE in frame.columns:
        origin = pl.col(SOURCE).struct
        frame = frame.select(
            origin.field("partition").alias("partition"),
            (origin.field("record") + 1).alias("record_number"),  # From 1, as editors count lines.
            pl.all().exclude(SOURCE, "partition", "record_number"),
        )
    return frame.rename({MALFORMED_COLUMN: "reason"}, strict=False).drop(HASH, strict=False)
