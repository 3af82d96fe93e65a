"""Feeds: inputs of a keyed stage that Python reads from files to columns, without Spark's JVM.

A ``Feed`` is built by the stage's driver and read by its workers.  An input has none whose filters,
projections or keys only Spark can compute: see ``CompiledInput.is_possible``.

A stage's clock may be carried by its rows: the senders measure event times as they read, and send
the times to each subtask through the shuffle that brings its rows.  When a subtask has all its rows
it has all times, too; so all subtasks compute the same watermark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter

import polars as pl
import pyarrow as pa

from sluice.connectors.columns import check_announced, narrowed, narrowed_schema
from sluice.core.event_time import StageClock, later_times
from sluice.core.handles import SegmentHandle
from sluice.core.plan import Slice
from sluice.declaration.columns import check_source_columns
from sluice.declaration.expressions import Step, computing
from sluice.declaration.nodes import Input
from sluice.declaration.places import (
    MALFORMED_COLUMN,
    RAW,
    RECORD,
    WEIGHT,
    Source,
    UndecidedError,
)
from sluice.declaration.sql import parsed
from sluice.errors import ConfigurationError
from sluice.operators.aggregate import Computed, to_compute
from sluice.operators.changes import behind
from sluice.operators.operator import EpochTime
from sluice.operators.sql import (
    Compiled,
    NotCompiledError,
    Path,
    compiled,
    computed,
    condition,
    whole_column,
)
from sluice.operators.steps import CompiledSteps, compiled_steps
from sluice.state.cache import SegmentCache
from sluice.state.key_hash import can_hash, with_hash
from sluice.state.segments import HASH, empty_frame, to_frame, to_table
from sluice.store.open import StoreLocation

SOURCE = "_source"  # struct<partition: string, record: long>: where a row came from.
SOURCE_TYPE = pa.struct([("partition", pa.string()), ("record", pa.int64())])
ORIGIN = pa.field(SOURCE, SOURCE_TYPE)

CHUNK_ROWS = 2_500_000  # Rows that are pre-aggregated at a time: large enough to be vectorized.
CHUNK_BYTES = 128 * 1024**2  # The same for wide rows: bounds memory.
BATCH_ROWS = 50_000  # As spark.sql.execution.arrow.maxRecordsPerBatch: bounds what the JVM holds.
BATCH_BYTES = 64 * 1024**2  # The same for wide rows: one column of a batch has less than 2 GiB.

_INTERNED = 256  # Inputs, of all pipelines that a process runs.

Times = Mapping[str, tuple[int, int]]  # The least and the largest, in milliseconds, by partition.
_SCHEMA = pl.Schema({"partition": pl.String(), "least": pl.Int64(), "most": pl.Int64()})


def with_origin(schema: pa.Schema) -> pa.Schema:
    """The columns of a source's rows, with ``_source``."""
    names = [name for name in schema.names if name != RECORD]
    check_source_columns(
        (name for name in names if name not in (MALFORMED_COLUMN, RAW, WEIGHT)), "a source"
    )
    return pa.schema([schema.field(name) for name in names]).append(ORIGIN)


def rows_with_origin(
    batch: pa.RecordBatch, partition: str, first_record: int, schema: pa.Schema
) -> pa.RecordBatch:
    if RECORD in batch.schema.names:
        records = batch.column(RECORD)
        batch = batch.drop_columns([RECORD])
    else:
        records = pa.array(range(first_record, first_record + batch.num_rows), pa.int64())
    partitions = pa.repeat(pa.scalar(partition, pa.string()), batch.num_rows)
    origin = pa.StructArray.from_arrays([partitions, records], fields=list(SOURCE_TYPE))
    return pa.RecordBatch.from_arrays([*batch.columns, origin], schema=schema)


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The rows of a source that decodes them itself.

    ``shares`` are the slices that each reader takes; ``schema`` has all columns that the source
    announced, but reserved ones, as a serialized Arrow schema.  With ``has_malformed`` it has a
    column ``_malformed``.  ``is_doubtful``: of its records some may be no rows, each of which the
    way by Spark reports with its place.
    """

    source: Source
    shares: tuple[tuple[Slice, ...], ...]
    schema: bytes
    has_malformed: bool = False
    is_doubtful: bool = False

    def read(self, share: int, paths: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Batches of the columns or fields *paths*, each with the name of its partition.

        Raises:
            UndecidedError: only Spark can read one of the rows, or one is malformed.
        """
        announced = narrowed_schema(pa.ipc.read_schema(pa.py_buffer(self.schema)), paths)
        asked = [*paths, MALFORMED_COLUMN] if self.has_malformed else paths
        for piece in self.shares[share]:
            for batch in self.source.read(piece, asked):
                if self.has_malformed:
                    _check_well_formed(batch, piece.partition)
                found = narrowed(batch, announced)
                check_announced(found.schema, announced, piece.partition)
                yield piece.partition, found


def _check_well_formed(batch: pa.RecordBatch, partition: str) -> None:
    place = batch.schema.get_field_index(MALFORMED_COLUMN)
    if place < 0:
        raise ConfigurationError(
            f"rows of {partition} lack the column {MALFORMED_COLUMN!r}, which their source "
            "announces; yield it whenever it is asked for"
        )
    reasons = batch.column(place)
    if reasons.null_count < len(reasons):
        raise UndecidedError(f"malformed rows: {reasons.drop_null()[0]}")


@dataclass(frozen=True, slots=True)
class StreamRows:
    """The segments of the stream of ``stage``, verified as they are read.

    ``written`` is the serialized Arrow schema of the segments, and ``steps`` are the reader's: SQL
    that Polars knows, as the stage's own.
    """

    location: StoreLocation
    shares: tuple[tuple[SegmentHandle, ...], ...]
    written: bytes
    stage: str = ""
    steps: tuple[Step, ...] = ()

    @property
    def schema(self) -> bytes:
        """The serialized Arrow schema of what is read."""
        if not self.steps:
            return self.written
        written = empty_frame(pa.ipc.read_schema(pa.py_buffer(self.written)))
        body: bytes = to_table(self.behind(written)).schema.serialize().to_pybytes()
        return body

    def behind(self, rows: pl.DataFrame) -> pl.DataFrame:
        """*rows* as they were written, behind the reader's steps."""
        return behind(self.steps, rows, self.stage)

    def read(self, share: int, paths: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Batches of the columns of *paths*, whole; a stream is one partition without a name."""
        cache = SegmentCache(self.location)
        schema = pa.ipc.read_schema(pa.py_buffer(self.written))
        for handle in self.shares[share]:
            rows = in_columns_of(cache.open(handle), schema, self.stage)
            if self.steps:
                rows = to_table(self.behind(to_frame(rows)))
            # A name with a dot is a column's; what is read by paths has none.
            whole = [
                path if path in rows.schema.names else path.partition(".")[0] for path in paths
            ]
            for batch in rows.select(list(dict.fromkeys(whole))).to_batches():
                yield "", batch


def in_columns_of(rows: pa.Table, schema: pa.Schema, stage: str) -> pa.Table:
    """*rows* of the stream of *stage* in the columns that it has now.

    Rows that have waited in flight may lack columns that were added since, or have others.

    Raises:
        ConfigurationError: they lack some and have others, or the two are not both weighed.
    """
    there = {name.lower(): name for name in rows.column_names}
    now = {name.lower(): name for name in schema.names}
    lacks, others = now.keys() - there.keys(), there.keys() - now.keys()
    if (lacks and others) or WEIGHT in lacks | others:
        raise ConfigurationError(
            f"rows of {stage!r} have waited in flight with the columns "
            f"{', '.join(rows.column_names)}, and it yields {', '.join(schema.names)} now: which "
            "of them was renamed, they do not say; yield the former ones until they are read"
        )
    columns = [
        pa.nulls(rows.num_rows, field.type) if name in lacks else rows.column(there[name])
        for name, field in zip(now, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, names=schema.names).cast(schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One input, read without the JVM.

    ``hashed`` are the columns that decide a row's subtask; ``wanted`` the columns and SQL that the
    stage's aggregates read; ``columns`` what the subtasks get, None for everything, and ``types``
    their types, so that no worker computes them again.
    """

    rows: SourceRows | StreamRows
    schema: bytes  # A serialized Arrow schema of all columns of the input.
    given: Input
    hashed: tuple[str, ...]
    wanted: tuple[Computed, ...] = ()
    columns: tuple[str, ...] | None = None
    types: tuple[pl.DataType, ...] = ()

    @property
    def compiled(self) -> CompiledInput:
        return interned_input(
            CompiledInput(
                schema=self.schema,
                steps=self.given.steps,
                spellings=(*self.given.spellings.items(),),
                key_expressions=(*self.given.key_expressions.items(),),
                hashed=self.hashed,
                wanted=self.wanted,
                columns=self.columns,
            )
        )

    @property
    def prepared_schema(self) -> pl.Schema:
        """The columns of ``keyed``."""
        return self.compiled.result

    def narrowed(self, columns: Sequence[str]) -> Feed:
        """The same input, of which the subtasks get *columns*, some of ``prepared_schema``."""
        types = tuple(self.prepared_schema[name] for name in columns)
        return replace(self, columns=tuple(columns), types=types)

    @property
    def sent(self) -> pl.Schema:
        """The columns of a narrowed input that the subtasks get."""
        return pl.Schema(zip(self.columns or (), self.types, strict=True))

    def keyed(self, chunk: pl.DataFrame, *, is_hashed: bool = True) -> pl.DataFrame:
        """Rows of the input, with their hash if *is_hashed*.

        *chunk* has the columns that are read, or all.  Raises as ``prepared`` does.
        """
        columns = self.prepared_schema.names() if self.columns is None else self.columns
        rows = self.prepared(chunk)
        if not is_hashed:
            return rows.select(name for name in columns if name != HASH)
        return with_hash(rows, self.hashed).select(columns)

    def prepared(self, chunk: pl.DataFrame) -> pl.DataFrame:
        """The columns of rows that were read, as ``CompiledInput.prepared`` has them.

        Raises:
            UndecidedError: something cannot be computed for a row of a source.  Spark may not need
                it, and says so in its own words if it does.
            ConfigurationError: the same of a stream, whose rows Spark's JVM does not see.
        """
        try:
            return self.compiled.prepared(chunk)
        except ConfigurationError as error:
            if not isinstance(self.rows, StreamRows):
                raise UndecidedError(str(error)) from error
            raise ConfigurationError(
                f"what is read of {self.given.producer!r} cannot be computed: {error}"
            ) from error

    def of_event_time(self) -> Feed:
        """The same input, of which only the event time is read, without its filters."""
        event_time = self.given.event_time
        assert event_time is not None
        renamed = {new: name for name, new in self.given.renames.items()}
        steps = computing(self.given.steps, renamed.get(event_time, event_time))
        alone = replace(self.given, steps=steps, keys=(), key_expressions={})
        return replace(self, given=alone, hashed=(), wanted=(), columns=(event_time,), types=())


@dataclass(frozen=True, kw_only=True)
class CompiledInput:
    """The columns that are read of an input, and those that are computed of them.

    ``schema`` is all columns of the input, serialized by Arrow; ``spellings`` are names in small
    letters, and as the stage has them, ``key_expressions`` names and SQL; ``hashed``, ``wanted``
    and ``columns`` are those of a ``Feed``.  If only Spark can compute some of it, everything but
    ``is_possible`` raises NotCompiledError.
    """

    schema: bytes
    steps: tuple[Step, ...]
    spellings: tuple[tuple[str, str], ...]
    key_expressions: tuple[tuple[str, str], ...]
    hashed: tuple[str, ...]
    wanted: tuple[Computed, ...]
    columns: tuple[str, ...] | None

    @cached_property
    def is_possible(self) -> bool:
        """Whether everything that the declaration asks of this input is computed without Spark."""
        try:
            result = self.result
        except NotCompiledError:
            return False
        return all(name in result and can_hash(result[name]) for name in self.hashed)

    @cached_property
    def result(self) -> pl.Schema:
        """The columns of ``prepared``, and the hash."""
        wanted, steps, _ = self._needed
        types = {name: steps.schema[name] for name in wanted}
        types |= {name: one.dtype for name, one in self._computed.items()}
        return pl.Schema({**types, HASH: pl.Int64()})

    @cached_property
    def paths(self) -> list[str]:
        """The columns and fields that have to be read, in the order of the schema.

        One column is read where rows are only counted.
        """
        paths = {".".join(path) for path in self._needed[2]}
        return self.in_order(paths) or [next(iter(self._raw))]

    def in_order(self, paths: Collection[str]) -> list[str]:
        """*paths* in the order of the schema, each column or field once."""
        order = {name: place for place, name in enumerate(self._raw)}
        whole = {path for path in paths if "." not in path}
        parts = {path for path in paths if path.partition(".")[0] not in whole}
        return sorted(whole | parts, key=lambda path: (order[path.partition(".")[0]], path))

    def prepared(self, rows: pl.DataFrame) -> pl.DataFrame:
        """*rows* of the columns that were read, in the columns that the operator expects.

        Raises:
            ConfigurationError: one of them cannot be computed for one of the rows.
        """
        wanted, steps, _ = self._needed
        whole = [(name, whole_column(name, steps.schema[name])) for name in wanted]
        return computed(steps.apply(rows), [*whole, *self._computed.items()])

    @cached_property
    def _raw(self) -> pl.Schema:
        return empty_frame(pa.ipc.read_schema(pa.py_buffer(self.schema))).schema

    @cached_property
    def _steps(self) -> CompiledSteps:
        """The declared filters and projections, up to the columns that the stage reads."""
        if any("." in name for name in self._raw):
            raise NotCompiledError("a dot in a name looks like the path to a field")
        found = compiled_steps(self.steps, self._raw)
        spellings = dict(self.spellings)
        names = [spellings.get(name.lower(), name) for name in found.schema]
        if len({name.lower() for name in names}) < len(names):
            raise NotCompiledError("names that differ in nothing, or in case alone")
        if HASH in (name.lower() for name in names):
            raise NotCompiledError("a reserved column")
        if names == found.schema.names():
            return found
        renaming = {
            new: whole_column(name, of)
            for new, (name, of) in zip(names, found.schema.items(), strict=True)
        }
        renamed = pl.Schema(zip(names, found.schema.dtypes(), strict=True))
        return CompiledSteps((*found.steps, renaming), renamed)

    @cached_property
    def _computed(self) -> dict[str, Compiled]:
        """The columns that keys and aggregates compute beside those of ``_steps``."""
        known = self._steps.schema
        keys = {name: compiled(parsed(text), known) for name, text in self.key_expressions}
        if {name.lower() for name in keys} & {name.lower() for name in known}:
            raise NotCompiledError("a key hides a column")
        return keys | {
            item.column: condition(item.sql, known)
            if item.is_condition
            else compiled(parsed(item.sql), known)
            for item in to_compute(self.wanted, [*known, *keys])
        }

    @cached_property
    def _needed(self) -> tuple[list[str], CompiledSteps, set[Path]]:
        """The columns that are used, the steps that compute them, and the paths they read."""
        wanted = self._steps.schema.names()
        if self.columns is not None:
            needed = {*self.columns, *self.hashed}
            wanted = [name for name in wanted if name in needed]
        read = {path for one in self._computed.values() for path in one.reads}
        return (wanted, *self._steps.narrowed(read.union((name,) for name in wanted)))


@lru_cache(_INTERNED)
def interned_input(given: CompiledInput) -> CompiledInput:
    """*given*, or an equal one whose properties this process has computed in an earlier epoch."""
    return given


def read_together(
    feeds: Mapping[int, Feed], share: int, timed: Mapping[int, TimedFeed]
) -> Iterator[tuple[int, pl.DataFrame]]:
    """The rows of one reader's share, of *feeds* whose ``rows`` are the same.

    The columns that one of *feeds* or *timed* needs are read and decoded once.  Each frame comes
    with its input's number; as the rows pass, *timed* measures their times.
    """
    measuring = [timed[side] for side in feeds if side in timed]
    reading = [*feeds.values(), *(timed_feed.feed for timed_feed in measuring)]
    first = reading[0]
    paths = first.compiled.in_order({path for feed in reading for path in feed.compiled.paths})

    partitions: list[tuple[str, int]] = []  # Of the rows of the next chunk, and how many.

    def batches() -> Iterator[pa.RecordBatch]:
        for partition, batch in first.rows.read(share, paths):
            partitions.append((partition, batch.num_rows))
            yield batch

    for chunk in chunks(batches()):
        start = 0
        for partition, own in groupby(partitions, itemgetter(0)):
            count = sum(rows for _, rows in own)
            for timed_feed in measuring:
                timed_feed.measure(partition, chunk.slice(start, count))
            start += count
        partitions.clear()
        for side in feeds:
            yield side, chunk


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
    """The rows in frames of about CHUNK_ROWS, or CHUNK_BYTES if that is less."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        pending.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield to_frame(pa.Table.from_batches(pending))
            pending, rows, size = [], 0, 0
    if pending:
        yield to_frame(pa.Table.from_batches(pending))


def bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most BATCH_ROWS and about BATCH_BYTES."""
    for batch in batches:
        pieces = max(1, -(-batch.nbytes // BATCH_BYTES))
        rows = max(1, min(BATCH_ROWS, -(-batch.num_rows // pieces)))
        if batch.num_rows <= rows:
            yield batch
            continue
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedInput:
    """An input whose event times are measured as its rows pass.

    ``feed`` is its ``Feed.of_event_time``; ``heads`` and ``pruned`` are the same of records that
    this epoch reads for their times alone.
    """

    feed: Feed
    heads: Feed
    pruned: Feed

    def reader(self, share: int) -> TimedFeed:
        """A measurement of one reader's share, which knows the times of the others already."""
        timed = TimedFeed(self.feed)
        for feed in (self.heads, self.pruned):
            alone = TimedFeed(feed)
            alone.read(share)
            timed.times_ms |= alone.times_ms
        return timed


class TimedFeed:
    """The event times of a feed's rows, measured before its filters.

    ``feed`` is the input of which only the event time is read, ``Feed.of_event_time``.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.times_ms: dict[str, tuple[int, int]] = {}
        at = pl.col(feed.given.event_time or "")
        self._ends = (at.min().dt.epoch("ms").alias("least"), at.max().dt.epoch("ms").alias("most"))

    def read(self, share: int) -> None:
        """Measure the rows of one reader's share, which are read for nothing else."""
        for partition, batch in self.feed.rows.read(share, self.feed.compiled.paths):
            self.measure(partition, to_frame(pa.Table.from_batches([batch])))

    def measure(self, partition: str, rows: pl.DataFrame) -> None:
        """Widen the least and the largest event time of *partition*, in ``times_ms``."""
        least, most = self.feed.prepared(rows).select(self._ends).row(0)
        if most is not None:
            before = self.times_ms.get(partition, (least, most))
            self.times_ms[partition] = min(least, before[0]), max(most, before[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedClock:
    """The clock of a stage whose senders measure the inputs ``sources``, by their numbers.

    ``heads`` are, per input, the partitions of which only the first records were read.
    """

    stage: StageClock
    sources: Mapping[int, str]
    heads: Mapping[int, frozenset[str]]

    def measured_ms(self, sent: Mapping[int, pl.DataFrame]) -> dict[str, int]:
        """By ``source/partition`` the event time that the senders measured and *sent*, by input."""
        measured: dict[str, int] = {}
        for side, times in sent.items():
            own = decisive_times(times_of(times), self.heads[side])
            named = {f"{self.sources[side]}/{name}": at_ms for name, at_ms in own.items()}
            measured = later_times(measured, named)
        return measured

    def read(self, before: EpochTime, measured_ms: Mapping[str, int]) -> EpochTime:
        """The times of the epoch, of which *before* has all but the watermark of its end."""
        return replace(before, watermark_ms=self.stage.watermark_ms(measured_ms))


def times_frame(times: Times) -> pl.DataFrame:
    rows = [(partition, *ends) for partition, ends in times.items()]
    return pl.DataFrame(rows, _SCHEMA, orient="row")


def times_of(frame: pl.DataFrame) -> Times:
    """The times in rows of ``times_frame``, of one sender or of several."""
    found: dict[str, tuple[int, int]] = {}
    for partition, least, most in frame.rows():
        first, last = found.get(partition, (least, most))
        found[partition] = min(first, least), max(last, most)
    return found


def decisive_times(times: Times, heads: frozenset[str]) -> dict[str, int]:
    """The largest time of each partition that is read; the least of one of *heads*."""
    return {
        partition: least if partition in heads else most
        for partition, (least, most) in times.items()
    }


def measured_column(stage: str, event_time: str, columns: Sequence[str]) -> str:
    """The event time among the *columns* that the function of *stage* yields.

    Raises:
        ConfigurationError: it is not there, or the column that says where a row came from is not.
    """
    if SOURCE not in columns:
        raise ConfigurationError(
            f"stage {stage!r} dropped the column {SOURCE!r}; keep it, the watermark of "
            f"{event_time!r} is measured per source partition"
        )
    found = next((name for name in columns if name.lower() == event_time.lower()), None)
    if found is None:
        raise ConfigurationError(
            f"stage {stage!r} yields no column {event_time!r}, the event time that its "
            f"source names; it yields {', '.join(columns)}"
        )
    return found


class EventTimes:
    """The largest event time per partition of *source*, from which its watermark is computed.

    Event time is the *column* of what the stage *stage* yields.
    """

    def __init__(self, stage: str, source: str, column: str) -> None:
        self._stage, self._source, self._column = stage, source, column
        self.latest_ms: dict[str, int] = {}

    def add(self, frame: pl.DataFrame) -> None:
        """Raises ConfigurationError when a column that is needed was dropped."""
        column = measured_column(self._stage, self._column, frame.columns)
        largest = (
            frame.lazy()
            .filter(pl.col(column).is_not_null())
            .group_by(pl.col(SOURCE).struct.field("partition"))
            .agg(pl.col(column).max().dt.epoch("ms"))
            .collect()
        )
        for partition, event_time_ms in largest.iter_rows():
            name = f"{self._source}/{partition}"
            self.latest_ms[name] = max(event_time_ms, self.latest_ms.get(name, event_time_ms))
