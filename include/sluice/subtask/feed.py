"""Feeds: inputs of a keyed stage that Python reads from files to columns, without Spark's JVM.

A ``Feed`` is built by the stage's driver and read by its workers.  An input whose filters and
projections are more than plain SQL, or whose keys only Spark can hash, has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from sluice.connectors.contracts.announced import check_announced, narrowed
from sluice.connectors.files.parquet_source import ParquetSource
from sluice.connectors.files.plain_json import decoded_lines
from sluice.connectors.files.text_lines import lines_in
from sluice.connectors.files.text_source import FilesSource
from sluice.core.handles import SegmentHandle
from sluice.core.plan import Slice
from sluice.declaration.nodes import Input
from sluice.declaration.steps import computing
from sluice.storage.open import StoreLocation
from sluice.subtask.chunks import chunks
from sluice.subtask.key_hash import with_hash
from sluice.subtask.operators.computed import Computed
from sluice.subtask.plain_input import PlainInput, once
from sluice.subtask.state.cache import SegmentCache
from sluice.subtask.state.segments import HASH


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """The Parquet files of a source.

    ``shares`` are the slices that each reader takes; ``schema`` has all columns that the source
    announced, as a serialized Arrow schema.
    """

    source: ParquetSource
    shares: tuple[tuple[Slice, ...], ...]
    schema: bytes

    def read(self, share: int, paths: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Batches of the columns or fields *paths*, each with the name of its partition."""
        announced = narrowed(pa.ipc.read_schema(pa.py_buffer(self.schema)), paths)
        for piece in self.shares[share]:
            for batch in self.source.read(piece, paths):
                check_announced(batch.schema, announced, piece.partition)
                yield piece.partition, batch


@dataclass(frozen=True, slots=True)
class JsonRows:
    """The lines of JSON of a source; see ``ParquetRows``."""

    source: FilesSource
    shares: tuple[tuple[Slice, ...], ...]
    schema: bytes

    def read(self, share: int, paths: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Batches of the columns of *paths*, whole, each with the name of its partition.

        Raises:
            UndecidedError: only Spark can read one of the lines.
        """
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        names = list(dict.fromkeys(path.partition(".")[0] for path in paths))

        def rows(whole: bytes, _: str, first_record: int) -> tuple[pa.Table, int]:
            return decoded_lines(whole, first_record, schema).select(names), lines_in(whole)

        for piece in self.shares[share]:
            for table in self.source.read_as(rows, piece):
                for batch in table.to_batches():
                    yield piece.partition, batch


@dataclass(frozen=True, slots=True)
class StreamRows:
    """The segments of a stream, verified as they are read."""

    location: StoreLocation
    shares: tuple[tuple[SegmentHandle, ...], ...]
    schema: bytes  # A serialized Arrow schema.

    def read(self, share: int, paths: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        cache = SegmentCache(self.location)
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        for handle in self.shares[share]:
            for batch in cache.open(handle).cast(schema).select(list(paths)).to_batches():
                yield "", batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One input, read without the JVM.

    ``hashed`` are the columns that decide a row's subtask; ``wanted`` the columns and SQL that
    the stage's aggregates read; ``columns`` what the subtasks get, None for everything, and
    ``types`` their types, which no worker need find out again.
    """

    rows: ParquetRows | JsonRows | StreamRows
    schema: bytes  # A serialized Arrow schema of all columns of the input.
    given: Input
    hashed: tuple[str, ...]
    wanted: tuple[Computed, ...] = ()
    columns: tuple[str, ...] | None = None
    types: tuple[pl.DataType, ...] = ()

    @property
    def plain(self) -> PlainInput:
        """What is read of the input, and what is computed of that."""
        return once(
            PlainInput(
                schema=self.schema,
                steps=self.given.steps,
                renames=(*self.given.renames.items(),),
                key_expressions=(*self.given.key_expressions.items(),),
                hashed=self.hashed,
                wanted=self.wanted,
                columns=self.columns,
            )
        )

    @property
    def prepared_schema(self) -> pl.Schema:
        """The columns of ``keyed``."""
        return self.plain.result

    def narrowed(self, columns: Sequence[str]) -> Feed:
        """The same input, of which the subtasks get *columns*, some of ``prepared_schema``."""
        types = tuple(self.prepared_schema[name] for name in columns)
        return replace(self, columns=tuple(columns), types=types)

    @property
    def sent(self) -> pl.Schema:
        """What the subtasks get of a narrowed input."""
        return pl.Schema(zip(self.columns or (), self.types, strict=True))

    def keyed(self, chunk: pl.DataFrame, *, is_hashed: bool = True) -> pl.DataFrame:
        """Rows of the input, of which *chunk* has the columns that are read, or all.

        With their hash, or without if not *is_hashed*.
        """
        columns = self.prepared_schema.names() if self.columns is None else self.columns
        rows = self.plain.prepared(chunk)
        if not is_hashed:
            return rows.select(name for name in columns if name != HASH)
        return with_hash(rows, self.hashed).select(columns)

    def of_event_time(self) -> Feed:
        """The same input, of which only the event time is read, without its filters."""
        given = self.given
        assert given.event_time is not None
        renamed = {new: name for name, new in given.renames.items()}
        steps = computing(given.steps, renamed.get(given.event_time, given.event_time))
        alone = replace(given, steps=steps, keys=(), key_expressions={})
        columns = (given.event_time,)
        return replace(self, given=alone, hashed=(), wanted=(), columns=columns, types=())


def read_together(
    feeds: Mapping[int, Feed], share: int, timed: Mapping[int, TimedFeed]
) -> Iterator[tuple[int, pl.DataFrame]]:
    """The rows of one reader's share, of inputs that read the same *rows* of files.

    They are read and decoded once, the columns that one of *feeds* or *timed* needs.  Each frame
    comes with its input's number; as the rows pass, *timed* measures their times.
    """
    measured = [timed[side] for side in feeds if side in timed]
    reading = [*feeds.values(), *(one.feed for one in measured)]
    first = reading[0]
    paths = first.plain.in_order({path for feed in reading for path in feed.plain.paths})

    def batches() -> Iterator[pa.RecordBatch]:
        for partition, batch in first.rows.read(share, paths):
            for one in measured:
                one.measure(partition, batch)
            yield batch

    for chunk in chunks(batches()):
        for side in feeds:
            yield side, chunk


class TimedFeed:
    """The event times of a feed's rows, measured before its filters.

    ``feed`` is the input of which only the event time is read, ``Feed.of_event_time``.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._plain = feed.plain
        self.times_ms: dict[str, tuple[int, int]] = {}
        at = pl.col(feed.given.event_time or "")
        self._ends = (at.min().dt.epoch("ms").alias("least"), at.max().dt.epoch("ms").alias("most"))

    def read(self, share: int) -> None:
        """Measure the rows of one reader's share, which are read for nothing else."""
        for partition, batch in self.feed.rows.read(share, self.feed.plain.paths):
            self.measure(partition, batch)

    def measure(self, partition: str, batch: pa.RecordBatch) -> None:
        """Widen the least and the largest event time of *partition*, in ``times_ms``."""
        least, most = self._plain.prepared(_frame(batch)).select(self._ends).row(0)
        if most is not None:
            before = self.times_ms.get(partition, (least, most))
            self.times_ms[partition] = min(least, before[0]), max(most, before[1])


def _frame(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame
