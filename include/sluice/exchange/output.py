"""The output of a stage: side outputs, filter and projection, segments of its stream, sinks."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import polars as pl
import pyarrow as pa

from sluice.core.answers import LATE_BOUNDS_MS, Attempt, Committable, LateRows
from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.core.handles import SegmentHandle
from sluice.declaration.changelog import Append, Upsert, after, check_row_kind_column
from sluice.declaration.columns import check_columns
from sluice.declaration.expressions import Projection, origin_of
from sluice.declaration.nodes import SinkNode, StageNode
from sluice.declaration.pipeline import LATE, LATE_RIGHT, MALFORMED, NO_EVENT_TIME, side_output
from sluice.declaration.places import DELETED, MALFORMED_COLUMN, RAW, Sink
from sluice.errors import ConfigurationError
from sluice.exchange.blocks import ChainedOutput
from sluice.exchange.reading import SOURCE
from sluice.exchange.sinks import open_side_output, open_sink
from sluice.exchange.workspace import Workspace
from sluice.operators.changes import (
    OURS,
    behind,
    changelog_of,
    changes_of,
    split_by_weight,
    stream_schema,
    with_weight,
    without_pairs,
)
from sluice.operators.operator import COMPUTED, WEIGHT
from sluice.protocol.records import checksum
from sluice.state.segments import HASH, RowFiles, encode_segment

LATE_OF_SIDE = (LATE, LATE_RIGHT)


class StageOutput:
    """Writes a stage's result: segments of its stream, staged files, and counts for the ack."""

    def __init__(self, work: Workspace, chained: ChainedOutput | None = None) -> None:
        """*chained* gets the stream, if the next stage is chained to this one."""
        self._work = work
        self._kind = work.spec.stage.kind
        self._segments: list[SegmentHandle] = []
        self._committables: list[Committable] = []
        write = self._write_segment if chained is None else chained.add
        self._stream = RowFiles(write)
        self._taken_back = RowFiles(write)
        spec = work.spec
        self._sinks = [
            _SinkFiles(
                node, open_sink(node, spec.params, work.location, work.paths), self, spec.stage
            )
            for node in spec.sinks
        ]
        # Neither filters nor projects, for anybody: what was taken back need not be told apart.
        self._is_plain = not (spec.stage.steps or any(sink.has_steps for sink in self._sinks))
        self._sides: dict[tuple[str, ...], RowFiles] = {}
        self._files = 0
        self.schema_bytes = b""
        self.rows_out = self.late_rows = self.malformed_rows = 0
        self.late: dict[str, LateRows] = {}  # By the producer that they are of.

    def without_malformed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """*frame* without its malformed rows, which go to a side output."""
        if MALFORMED_COLUMN not in frame.columns:
            return frame
        bad = frame.filter(pl.col(MALFORMED_COLUMN).is_not_null())
        if WEIGHT in bad.columns:  # What is taken back was reported when it came.
            bad = bad.filter(pl.col(WEIGHT) > 0)
        self.malformed_rows += bad.height
        self._add_to_side(MALFORMED, bad)
        good = frame.filter(pl.col(MALFORMED_COLUMN).is_null())
        return good.drop(MALFORMED_COLUMN, RAW, strict=False)

    def without_event_time(self, frame: pl.DataFrame, side: int) -> pl.DataFrame:
        """*frame* without rows of input *side* that lack an event time, if the stage needs one.

        These rows go to a side output, with their origin if it is still known.
        """
        stage = self._work.spec.stage
        at = stage.inputs[side].event_time
        if not stage.goes_by_event_time or at is None or at not in frame.columns:
            return frame
        if not frame[at].null_count():
            return frame
        timeless = frame.filter(pl.col(at).is_null())
        self.malformed_rows += timeless.height
        reason = pl.lit("no event time").alias(MALFORMED_COLUMN)
        self._add_to_side(NO_EVENT_TIME, timeless.with_columns(reason))
        return frame.filter(pl.col(at).is_not_null())

    def add_late(self, frame: pl.DataFrame, side: int) -> None:
        frame = self.without_event_time(frame, side)
        self.late_rows += frame.height
        given = self._work.spec.stage.inputs[side]
        watermark_ms = self._work.spec.epoch_time.previous_watermark_ms
        at = given.event_time
        is_known = MIN_WATERMARK < watermark_ms < MAX_WATERMARK
        if is_known and frame.height and at is not None and at in frame.columns:
            found = lateness_of(frame[at], watermark_ms)
            self.late[given.producer] = self.late.get(given.producer, LateRows()) + found
        self._add_to_side(LATE_OF_SIDE[side], frame)

    def resend(self, rows: pl.DataFrame) -> None:
        """Add rows of the stage's result to its stream once more; its sinks have them."""
        stage = self._work.spec.stage
        again = projected_result(stage, changes_of(rows, None, stage.keys))
        rows, taken_back = split_by_weight(again)
        self.rows_out += rows.height
        self._emit(rows, taken_back)

    def republish(self, rows: pl.DataFrame, sinks: Collection[str]) -> None:
        """Add rows of the stage's result to *sinks* alone once more."""
        stage = self._work.spec.stage
        again = projected_result(stage, changes_of(rows, None, stage.keys))
        for sink in self._sinks:
            if sink.uid in sinks:
                sink.add(*(sink.behind_steps(again) if sink.has_steps else split_by_weight(again)))

    def add(
        self,
        rows: pl.DataFrame,
        retracted: pl.DataFrame | None = None,
        former: pl.DataFrame | None = None,
    ) -> None:
        """Add rows of the stage's result, and those taken back, before filter and projection.

        Rows of a stateless stage that reads changes have their weight already.  *former* are the
        keys of the rows that the sinks may have of these hashes, where *rows* are all there are.
        """
        stage = self._work.spec.stage
        if self._kind == Append():
            changes = every = rows = projected_result(stage, rows)
            taken_back = rows.clear()
        elif self._is_plain and WEIGHT not in rows.columns:
            changes = every = rows  # Nobody asks for the weighed ones.
            taken_back = rows.clear() if retracted is None else retracted
        else:
            is_weighed = WEIGHT in rows.columns
            changes = rows if is_weighed else changes_of(rows, retracted, stage.keys)
            changes = every = projected_result(stage, changes)
            # An operator yields no pairs, but a projection may make equal rows of different ones.
            if is_weighed or stage.is_projected:
                changes = without_pairs(changes)
            rows, taken_back = split_by_weight(changes)
        self.rows_out += rows.height
        self._emit(rows, taken_back)
        for sink in self._sinks:
            if sink.uid in self._work.spec.republished and not self._is_plain:
                # It shows the row that is taken back otherwise, so that no row is equal to it.
                own = sink.behind_steps(every, is_anew=True)
            else:
                own = sink.behind_steps(changes) if sink.has_steps else (rows, taken_back)
            sink.add(*own)
            if former is not None:
                sink.take_away(former, but=own[0])

    def finish(self) -> tuple[tuple[SegmentHandle, ...], tuple[Committable, ...]]:
        """Stage the remaining rows; returns the segments and files that the ack names."""
        sinks = [files for sink in self._sinks for files in sink.files]
        taken_back = self._taken_back.take()
        if taken_back is not None:
            self._stream.add(taken_back)  # The last file may hold both, which saves a request.
        for files in (self._stream, *sinks, *self._sides.values()):
            files.finish()
        return tuple(self._segments), tuple(self._committables)

    def stage_rows(self, sink: Sink, table: pa.Table) -> None:
        """Stage a file of rows for *sink*; called by ``_SinkFiles``."""
        self._files += 1
        spec = self._work.spec
        staged = sink.stage(
            table,
            Attempt(
                checkpoint_id=spec.checkpoint_id,
                checkpoint_token=self._work.paths.checkpoint_token(spec.plan),
                subtask=self._work.subtask.index,
                attempt_token=f"{self._work.token}-{self._files:04d}",
            ),
        )
        if staged is not None:
            self._committables.append(staged)

    def _emit(self, rows: pl.DataFrame, taken_back: pl.DataFrame) -> None:
        streamed, revoked = rows, taken_back
        if self._kind != Append():
            streamed = with_weight(rows, 1)
            revoked = with_weight(taken_back, -1)
        if not self.schema_bytes:
            self.schema_bytes = stream_schema(streamed, self._work.spec.stage.steps)
        if self._work.spec.has_consumers:
            self._stream.add(streamed)
            self._taken_back.add(revoked)

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

    def _add_to_side(self, name: str, frame: pl.DataFrame) -> None:
        """Add rows to a side output; a join has one for each input, as their columns differ."""
        if not frame.height:
            return
        rows = readable_rows(frame)
        files = (name, *rows.columns)
        if files not in self._sides:
            uid = side_output(self._work.spec.stage.uid, name)
            sink = open_side_output(uid, self._work.location, self._work.paths)
            self._sides[files] = RowFiles(partial(self.stage_rows, sink))
        self._sides[files].add(rows)


class _SinkFiles:
    """The rows for one sink and, if it supports deletes, the rows that it must delete."""

    def __init__(self, node: SinkNode, sink: Sink, output: StageOutput, stage: StageNode) -> None:
        self._node = node
        self.uid = node.uid
        self._key = node.spec.upsert_key
        self._is_append = stage.kind == Append()
        self.has_steps = bool(node.steps)
        self._steps = (*stage.steps, *node.steps)
        # In a stage without state, another subtask may have the row that this one replaces.
        kind = after(node.steps, stage.kind)
        self._replaced_by = kind.key if stage.is_stateful and isinstance(kind, Upsert) else ()
        self._rows = RowFiles(partial(output.stage_rows, sink))
        self._deletes = RowFiles(partial(output.stage_rows, sink))
        self.files = (self._rows, self._deletes)

    def behind_steps(
        self, changes: pl.DataFrame, *, is_anew: bool = False
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows of the stage's stream that are the sink's, and those taken back; of a table that
        is published anew those, too, that are equal in what it shows by now.
        """
        steps = self._node.steps
        changes = behind(steps, changes, self._node.input)
        if self._is_append:
            return changes, changes.clear()
        is_projected = any(isinstance(step, Projection) for step in steps)
        has_pairs = is_projected and not is_anew
        return split_by_weight(without_pairs(changes) if has_pairs else changes)

    def add(self, rows: pl.DataFrame, taken_back: pl.DataFrame) -> None:
        if DELETED in rows.columns:
            raise ConfigurationError(
                f"sink {self._node.uid!r} gets a column {DELETED!r} of {self._node.input!r}, by "
                f"which sluice marks rows to be taken away; rename it: select('{DELETED} AS ...')"
            )
        if self._node.spec.changelog:
            check_row_kind_column(self._node.uid, self._node.spec, self._node.input, rows.columns)
            self._rows.add(changelog_of(rows, taken_back, self._replaced_by))
            return
        self._rows.add(rows)
        if not self._key or not taken_back.height:
            return
        gone = taken_back.join(rows, on=self._key, how="anti", nulls_equal=True)
        self._deletes.add(gone.with_columns(pl.lit(True).alias(DELETED)))  # noqa: FBT003 - a value

    def take_away(self, former: pl.DataFrame, *, but: pl.DataFrame) -> None:
        """Delete the rows with the keys *former* that the sink is not sent anew in *but*.

        A table that has others, or rows by more than that, is new.
        """
        names = {name.lower(): name for name in former.columns}
        origins = {key: (origin_of(key, self._steps) or "").lower() for key in self._key}
        if not origins or not {*origins.values()} <= names.keys():
            return
        keys = former.select(pl.col(names[of]).alias(key) for key, of in origins.items())
        gone = keys.join(but, on=self._key, how="anti", nulls_equal=True)
        rows = pl.concat([but.clear(), gone], how="diagonal")
        self._deletes.add(rows.with_columns(pl.lit(True).alias(DELETED)))  # noqa: FBT003 - a value


def projected_result(stage: StageNode, frame: pl.DataFrame) -> pl.DataFrame:
    """*frame* after the filter and the projection that *stage* declares for its result.

    Raises:
        ConfigurationError: the result lacks columns that its filter or projection names.
    """
    result = behind(stage.steps, frame, stage.uid)
    if stage.steps:
        ours = (*OURS, HASH, SOURCE, MALFORMED_COLUMN, RAW)
        check_columns(result.columns, f"the result of stage {stage.uid!r}", may_have=ours)
    return result


def lateness_of(times: pl.Series, watermark_ms: int) -> LateRows:
    """The distances of *times*, of which there are some and none is null, to *watermark_ms*."""
    at_ms = times.dt.epoch("ms")
    first_ms = at_ms.min()
    assert isinstance(first_ms, int)
    return LateRows(
        rows=len(times),
        most_ms=max(0, watermark_ms - first_ms),
        within=tuple(
            int((at_ms >= max(MIN_WATERMARK, watermark_ms - bound)).sum())
            for bound in LATE_BOUNDS_MS
        ),
    )


def readable_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """A side output's rows for people: origin first, reserved names without the underscore.

    If the rows have a column of that name, it keeps it, and the reserved one gets an underscore.
    """
    columns = {*frame.columns} - {SOURCE, MALFORMED_COLUMN, RAW, HASH, WEIGHT}
    taken = {name.lower() for name in columns}

    def free(name: str) -> str:
        return name if name not in taken else free(f"_{name}")

    if SOURCE in frame.columns:
        origin = pl.col(SOURCE).struct
        frame = frame.select(
            origin.field("partition").alias(free("partition")),
            # From 1, as editors count lines.
            (origin.field("record") + 1).alias(free("record_number")),
            pl.all().exclude(SOURCE),
        )
    computed = [name for name in columns if name.startswith(COMPUTED)]
    frame = frame.drop(HASH, WEIGHT, *computed, strict=False)
    return frame.rename({MALFORMED_COLUMN: free("reason"), RAW: free("line")}, strict=False)
