"""Blocks: rows that are sent, as columns, to the subtasks that own their keys.

A row of Spark's shuffle is one block, an Arrow stream for one subtask.  Spark moves it as a single
value; rows of their own would be converted to Spark's rows and back, twice.

    chunks of a Feed, or a ChainedOutput --Sender--> blocks --shuffle or Handover--> received

Where one machine runs all subtasks of a stage, the body of a block need not pass Spark's JVM: the
sender writes it to a file on local disk, uncompressed, and Spark's shuffle moves its place; the
receiver maps it into memory.  The files lie in Spark's own local folders, beside those of its
shuffle, which go when the JVM ends.

The output of a chained stage goes to the subtasks of the next one in the same Spark job: Flink's
operator chains, with a shuffle inside.  After the rows come the acks, by which the next stage knows
how far event time has come, and the tokens of the executions that the acks are of.  A chained
subtask's ack is written by the driver, when the subtasks of the next stage have acknowledged.

Who cannot do its part, and could not if it were asked again, says so in place of rows: to every
subtask that it would have sent rows to, and those to the driver.  The Spark task succeeds, so Spark
does not try it again (``refusals``).
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from sluice.core.answers import Ack, Execution
from sluice.core.event_time import StageClock, combined_watermark, trailing
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.plan import TaskPlan
from sluice.declaration.nodes import StageNode
from sluice.declaration.places import UndecidedError
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.exchange.reading import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    Feed,
    SourceRows,
    StreamRows,
    TimedInput,
    chunks,
    read_together,
    times_frame,
)
from sluice.exchange.refusals import RefusedError, is_final, refusal_of
from sluice.operators.aggregate import GROUPS
from sluice.operators.build import build_operator, hashes_groups
from sluice.operators.operator import ROW_COUNT, EpochTime, Partial
from sluice.protocol.records import decode_ack, encode_ack
from sluice.state.key_hash import with_hash
from sluice.state.segments import HASH, to_frame, to_table

BLOCK_SUBTASK = "subtask"
BLOCK_BYTES = 16 * 1024**2  # Of one block: Spark holds several in memory, each in one piece.
CARRIED_BYTES = 64 * 1024  # Smaller blocks are cheaper to carry than to write, open and map.

# A chunk with fewer rows for each of its groups is cheaper to send than they are to make.
_ROWS_PER_GROUP = 1.5

# For this many subtasks at most, the frame is filtered for each; for more it is sorted.  Measured
# with 2.5 million rows of three columns: 8 ms for each subtask, and 49 ms to sort.
_FEW = 4

LOCAL_FOLDERS = "SPARK_LOCAL_DIRS"  # Set by Spark in its Python workers: a list, with commas.
_FOLDER = "sluice-blocks"
_ENDED, _FAILED = "ended", "failed"  # Beside the numbers of a job's exchanges.

# The folder is listed in some 50 microseconds.  The pauses grow with the time waited so far, which
# delays a subtask by 5 % at most.
_SHORTEST_S, _LONGEST_S = 0.001, 0.05
_PART_OF_WAIT = 0.05

_SPILL_SHARE = 8  # A chained subtask's blocks may take up an eighth of the memory, then local disk.

BLOCK_SCHEMA = pa.schema(
    [
        pa.field(BLOCK_SUBTASK, pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("name", pa.string()),
        pa.field("input_rows", pa.int64()),
        pa.field("body", pa.binary()),
        pa.field("file", pa.string()),  # Empty where the body is here.
        pa.field("offset", pa.int64()),
    ]
)

# The columns of executions, also of the rows that a Spark job yields.  A token holds no comma.
ACK, TOKEN, READ = "ack", "token", "read"
REFUSED = "refused"  # Why the stage is refused; such a row is of no execution.
RESULT_SCHEMA = pa.schema(
    [(ACK, pa.binary()), (TOKEN, pa.string()), (READ, pa.string()), (REFUSED, pa.string())]
)

RowCounts: TypeAlias = npt.NDArray[np.int64]


class BlockKind(StrEnum):
    """The kind of rows in a block, and the meaning of the block's name."""

    ROWS = "rows"  # Rows of an input; the name is its number.
    GROUPS = "groups"  # Pre-aggregated rows; the name is that of their group frame.
    LATE = "late"  # Late rows of an input; the name is its number.
    UNDECIDED = "undecided"  # No rows: only Spark can read some; the name says why.
    REFUSED = "refused"  # No rows: the sender refuses its part for good; the name says why.
    TIMES = "times"  # Event times of an input, by partition; the name is its number.
    ACK = "ack"  # An ack of a chained stage; the name is the stage's.


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A frame that a subtask received; ``input_rows`` of the epoch were aggregated into it."""

    kind: BlockKind
    name: str
    rows: pl.DataFrame
    input_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSpec:
    """The exchange of a stage: ``feeds`` are its inputs, in their order.

    With ``pre_aggregates`` rows are grouped before they are sent.  The event times of inputs in
    ``timed`` are measured as their rows pass, and sent to every subtask.  ``folder`` is for rows
    that are sent by reference; None where subtasks may run on several machines.
    """

    stage: StageNode
    task: TaskPlan
    feeds: tuple[Feed, ...]
    epoch_time: EpochTime
    pre_aggregates: bool
    timed: Mapping[int, TimedInput] = field(default_factory=dict[int, TimedInput])
    folder: BlockFolder | None = None


def send(
    spec: ExchangeSpec, batches: Iterable[pa.RecordBatch], *, is_retried: bool = False
) -> Iterator[pa.RecordBatch]:
    """Read the shares whose numbers *batches* hold, and yield blocks; run by ``mapInArrow``.

    If only Spark can read a row, all subtasks get an ``UNDECIDED`` block, and no more is read.  So
    it is with a ``REFUSED`` block where a source or a row is refused.
    """
    for share in (index for batch in batches for index in batch.column(0).to_pylist()):
        with Sender(spec, share) as sender:
            try:
                yield from _sent(spec, share, sender)
            except UndecidedError as error:
                yield from sender.to_all(BlockKind.UNDECIDED, str(error), pl.DataFrame())
                return
            except Exception as error:
                if not is_final(error, is_retried=is_retried):
                    raise
                yield from sender.to_all(BlockKind.REFUSED, refusal_of(error), pl.DataFrame())
                return


def _sent(spec: ExchangeSpec, share: int, sender: Sender) -> Iterator[pa.RecordBatch]:
    timed = {side: timed_input.reader(share) for side, timed_input in spec.timed.items()}
    for sides in _with_same_rows(spec.feeds):
        for side, chunk in read_together(sides, share, timed):
            yield from sender.rows(side, chunk)
    for side, measured in timed.items():
        if measured.times_ms:
            yield from sender.to_all(BlockKind.TIMES, str(side), times_frame(measured.times_ms))


def _with_same_rows(feeds: Sequence[Feed]) -> list[dict[int, Feed]]:
    """The inputs by their numbers; those that read the same slices or segments are together."""
    together: list[dict[int, Feed]] = []
    for side, feed in enumerate(feeds):
        same = (sides for sides in together if next(iter(sides.values())).rows == feed.rows)
        sides = next(same, None)
        if sides is None:
            together.append({side: feed})
        else:
            sides[side] = feed
    return together


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedRows:
    """Rows of an input that Spark has read and hashed, or, by their *kind*, their groups."""

    task: TaskPlan
    folder: BlockFolder | None
    kind: BlockKind
    side: int

    def send(self, index: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the blocks of a partition of them; run by ``mapInArrow``."""
        is_grouped = self.kind is BlockKind.GROUPS
        name = GROUPS if is_grouped else str(self.side)
        with BlockWriter(self.task, self.folder, index) as writer:
            for rows in chunks(batches):
                counts = writer.owners.count(rows, ROW_COUNT) if is_grouped else None
                yield from writer.to_owners(self.kind, name, rows, counts)


class BlockWriter:
    """Makes blocks for the subtasks of a task; *sender* is its number among those that do."""

    def __init__(self, task: TaskPlan, folder: BlockFolder | None, sender: int) -> None:
        self.owners = Owners(task)
        self._subtasks = range(task.parallelism)
        self._file = BlockFile(folder, sender)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)

    def to_owners(
        self, kind: BlockKind, name: str, rows: pl.DataFrame, counts: RowCounts | None = None
    ) -> Iterator[pa.RecordBatch]:
        """A block per subtask; *counts* are the input's rows of each, if pre-aggregated."""
        for subtask, part in enumerate(self.owners.split(rows)):
            count = part.height if counts is None else int(counts[subtask])
            if part.height or count:
                yield from self._pieces(subtask, kind, name, part, count)

    def to_one(
        self, subtask: int, kind: BlockKind, name: str, rows: pl.DataFrame
    ) -> Iterator[pa.RecordBatch]:
        yield from self._pieces(subtask, kind, name, rows, 0)

    def to_all(self, kind: BlockKind, name: str, rows: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        for subtask in self._subtasks:
            yield from self._pieces(subtask, kind, name, rows, 0)

    def _pieces(
        self, subtask: int, kind: BlockKind, name: str, rows: pl.DataFrame, input_rows: int
    ) -> Iterator[pa.RecordBatch]:
        if self._file.takes(rows):
            yield _block(subtask, kind, name, input_rows, b"", self._file.write(rows))
            return
        height = max(1, rows.height)
        step = max(1, height * BLOCK_BYTES // max(int(rows.estimated_size()), 1))
        for start in range(0, height, step):
            body = io.BytesIO()
            rows.slice(start, step).write_ipc_stream(body, compression="lz4")
            counted = input_rows if start == 0 else 0
            yield _block(subtask, kind, name, counted, body.getvalue(), _CARRIED)


class Sender(BlockWriter):
    """Sends the rows of an exchange; *index* is its number among the senders."""

    def __init__(self, spec: ExchangeSpec, index: int) -> None:
        super().__init__(spec.task, spec.folder, index)
        self._spec = spec
        self._index = index
        self._operator = (
            build_operator(spec.stage, [feed.sent for feed in spec.feeds])
            if spec.pre_aggregates
            else None
        )

    def rows(self, side: int, chunk: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        """Blocks of the rows of input *side*, or of their groups, as long as these are many fewer.

        *chunk* holds the rows as they were read.

        Raises:
            UndecidedError: only Spark can read one of them.
        """
        operator, feed = self._operator, self._spec.feeds[side]
        is_hashed = operator is None or not hashes_groups(operator)
        rows = feed.keyed(chunk, is_hashed=is_hashed)
        _check_event_time(self._spec.stage, side, feed, rows)
        if operator is None:
            yield from self.to_owners(BlockKind.ROWS, str(side), rows)
            return
        partial = operator.partial(rows, self._spec.epoch_time, side)
        counts = self._counts(rows, partial, feed)
        for name, groups in partial.groups.items():
            yield from self.to_owners(BlockKind.GROUPS, name, groups, counts)
            counts = np.zeros_like(counts)
        if partial.late.height:
            owner = self._index % self._spec.task.parallelism
            yield from self.to_one(owner, BlockKind.LATE, str(side), partial.late)
        groups_made = 0 if partial.counted is None else partial.counted.height
        if groups_made * _ROWS_PER_GROUP > rows.height:
            self._operator = None

    def _counts(self, rows: pl.DataFrame, partial: Partial, feed: Feed) -> RowCounts:
        """The number of *rows* that each subtask owns."""
        if partial.counted is None:
            return self.owners.count(rows)
        late = with_hash(partial.late, feed.hashed)
        return self.owners.count(partial.counted, ROW_COUNT) + self.owners.count(late)


def _check_event_time(stage: StageNode, side: int, feed: Feed, rows: pl.DataFrame) -> None:
    """Raises UndecidedError if a doubtful record has none: Spark reports it with its place."""
    at = stage.inputs[side].event_time
    is_doubtful = isinstance(feed.rows, SourceRows) and feed.rows.is_doubtful
    is_needed = is_doubtful and stage.goes_by_event_time
    if is_needed and at in rows.columns and rows[at].null_count():
        raise UndecidedError("a record without event time")


def _block(
    subtask: int, kind: BlockKind, name: str, input_rows: int, body: bytes, place: BlockLocation
) -> pa.RecordBatch:
    values = [subtask, kind.value, name, input_rows, body, *place]
    return pa.RecordBatch.from_arrays(
        [pa.array([v], f.type) for v, f in zip(values, BLOCK_SCHEMA, strict=True)],
        schema=BLOCK_SCHEMA,
    )


class Owners:
    """The subtasks of a task, by the hashes that they own."""

    def __init__(self, task: TaskPlan) -> None:
        groups = (
            key_group_range(task.max_parallelism, task.parallelism, index)
            for index in range(task.parallelism)
        )
        self._ranges = [hash_range(task.max_parallelism, owned) for owned in groups]

    def split(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        """The rows of each subtask, in the order in which they were."""
        if len(self._ranges) == 1:
            return [rows]
        if len(self._ranges) <= _FEW:
            hashes = rows[HASH]
            return [rows.filter(hashes.is_between(*bounds)) for bounds in self._ranges]
        owners = self._of(rows)
        order = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[order], np.arange(1, len(self._ranges) + 1))
        sorted_rows = rows[pl.Series(order.astype(np.uint32))]
        starts = [0, *ends[:-1]]
        return [sorted_rows[start:end] for start, end in zip(starts, ends, strict=True)]

    def count(self, rows: pl.DataFrame, counts: str | None = None) -> RowCounts:
        """The number of rows that each subtask owns.

        The column *counts* is the number of rows that a row stands for; without it, one.
        """
        if len(self._ranges) <= _FEW:
            masks = (rows[HASH].is_between(*bounds) for bounds in self._ranges)
            owned = [
                mask.sum() if counts is None else rows[counts].filter(mask).sum() for mask in masks
            ]
            return np.array(owned, np.int64)
        weights = None if counts is None else rows[counts].to_numpy()
        return np.bincount(self._of(rows), weights, len(self._ranges)).astype(np.int64)

    def _of(self, rows: pl.DataFrame) -> npt.NDArray[np.uint16]:
        """The subtask of each row; numbers of 16 bits are sorted several times faster."""
        firsts = np.array([first for first, _ in self._ranges[1:]], np.int64)
        return np.searchsorted(firsts, rows[HASH].to_numpy(), side="right").astype(np.uint16)


class BlockLocation(NamedTuple):
    """The place of a block's body: a file, and the offset of its first byte."""

    file: str
    offset: int


_CARRIED = BlockLocation("", 0)  # The place of a body that the block itself has.


@dataclass(frozen=True, slots=True)
class BlockFolder:
    """The folder of the block files of one execution attempt of a stage, below a local folder.

    ``stage`` is the part of its path that all attempts have in common; attempts sort by their age.
    """

    stage: str
    attempt: str


class BlockFile(AbstractContextManager["BlockFile"]):
    """The block file of one sender, created by the first ``write``.

    That also removes the files of the stage's earlier attempts and epochs, which nothing reads.
    """

    def __init__(self, folder: BlockFolder | None, sender: int) -> None:
        folders = os.environ.get(LOCAL_FOLDERS, "").split(",")
        local = folders[sender % len(folders)]
        self._stage = Path(local, _FOLDER, folder.stage) if folder is not None and local else None
        self._attempt = "" if folder is None else folder.attempt
        self._file: IO[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def takes(self, rows: pl.DataFrame) -> bool:
        """Whether *rows* are better written here than carried in the block."""
        return self._stage is not None and rows.estimated_size() >= CARRIED_BYTES

    def write(self, rows: pl.DataFrame) -> BlockLocation:
        """Append *rows*, for which ``takes`` holds.

        Raises:
            OSError: the local disk refuses them.
        """
        if self._file is None:
            self._file = self._created()
        offset = self._file.tell()
        table = to_table(rows)  # Texts as offsets: written in half the time of Polars' views.
        with pa.ipc.new_stream(self._file, table.schema) as stream:
            stream.write_table(table)
        self._file.flush()
        return BlockLocation(self._file.name, offset)

    def _created(self) -> IO[bytes]:
        assert self._stage is not None
        folder = _begun(self._stage, self._attempt)
        return (folder / f"{uuid.uuid4().hex}.arrow").open("xb")


def _begun(stage: Path, attempt: str) -> Path:
    """The folder of *attempt*; those of the stage's earlier attempts and epochs are removed."""
    folder = stage / attempt
    folder.mkdir(parents=True, exist_ok=True)
    for other in stage.iterdir():
        if other.name < attempt:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def received(batches: Iterable[pa.RecordBatch]) -> Iterator[Received]:
    """The blocks that one subtask was sent, put together to larger frames."""
    pending: dict[tuple[BlockKind, str], list[pl.DataFrame]] = defaultdict(list)
    counts: dict[tuple[BlockKind, str], int] = defaultdict(int)
    filled: dict[tuple[BlockKind, str], float] = defaultdict(float)  # The part of a larger frame.
    for batch in batches:
        kinds, names, input_rows = (batch.column(n).to_pylist() for n in (1, 2, 3))
        for index, count in enumerate(input_rows):
            key, rows = (BlockKind(kinds[index]), names[index]), _rows(batch, index)
            pending[key].append(rows)
            counts[key] += count
            filled[key] += max(rows.height / CHUNK_ROWS, rows.estimated_size() / CHUNK_BYTES)
            if filled[key] >= 1:
                del filled[key]
                yield _together(key, pending.pop(key), counts.pop(key))
    for key, frames in pending.items():
        yield _together(key, frames, counts[key])


def _rows(blocks: pa.RecordBatch, index: int) -> pl.DataFrame:
    place = BlockLocation(blocks.column(5)[index].as_py(), blocks.column(6)[index].as_py())
    if place == _CARRIED:
        return pl.read_ipc_stream(blocks.column(4)[index].as_py())
    return read_block(place)


def _together(key: tuple[BlockKind, str], frames: list[pl.DataFrame], input_rows: int) -> Received:
    kind, name = key
    return Received(kind=kind, name=name, rows=pl.concat(frames), input_rows=input_rows)


def read_block(place: BlockLocation) -> pl.DataFrame:
    """The rows at *place*, mapped: they take memory only when they are read, but for Polars' views
    of texts, 16 bytes each.

    Raises:
        StoreUnavailable: the file is gone, or is cut off; the attempt has to begin again.
    """
    try:
        with pa.memory_map(place.file) as mapped:
            mapped.seek(place.offset)
            table = pa.ipc.open_stream(mapped).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreUnavailable(
            f"rows that a subtask sent cannot be read from {place.file}: {error}"
        ) from error
    return to_frame(table)


@dataclass(frozen=True, slots=True)
class Handover:
    """An exchange of a Spark job between tasks that all run at once, in files of this machine.

    Each of *senders* partitions has a file in *folder*, which appears whole and stays: a task that
    Spark tries again does not send twice, but continues after what it has sent.  If two attempts of
    a task run at once, the file of either may be read, as with Spark's shuffle; a chain compares
    their tokens (ADR 4).
    """

    folder: Path
    senders: int
    failed: Path | None = None  # It is there when a task has failed.

    def has_sent(self, sender: int) -> bool:
        return self._file(sender).exists()

    def send(self, sender: int, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        """Send *batches*, all at once.

        Raises:
            OSError: the local disk refuses them, or the job has ended.
        """
        hidden = self.folder.parent / uuid.uuid4().hex
        with hidden.open("xb") as file, pa.ipc.new_stream(file, schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        hidden.replace(self._file(sender))

    def wait(self) -> None:
        """Wait until every sender has sent.

        Raises:
            AnotherFailedError: one of them will not send.
            StoreUnavailable: a newer attempt has begun, so its folder is gone.
        """
        started = time.monotonic()
        while self._sent() < self.senders:
            if self.failed is not None and self.failed.exists():
                raise AnotherFailedError
            waited_s = time.monotonic() - started
            time.sleep(min(max(_PART_OF_WAIT * waited_s, _SHORTEST_S), _LONGEST_S))

    def received(self, receivers: Sequence[int], column: str) -> dict[int, list[pa.RecordBatch]]:
        """The rows for each of *receivers*, which *column* names, in the order of their senders.

        The files are mapped: what a row holds takes memory when it is taken.
        """
        parts: dict[int, list[pa.RecordBatch]] = {receiver: [] for receiver in receivers}
        for sender in range(self.senders):
            with pa.memory_map(str(self._file(sender))) as file:
                for batch in pa.ipc.open_stream(file):
                    owners = batch.column(column)
                    for owner in parts.keys() & owners.to_pylist():
                        is_whole = batch.num_rows == 1  # As most are: a filter would copy it.
                        rows = batch if is_whole else batch.filter(pc.equal(owners, owner))
                        parts[owner].append(rows)
        return parts

    def _sent(self) -> int:
        try:
            return len(os.listdir(self.folder))  # noqa: PTH208 - a third of the time of iterdir
        except FileNotFoundError as error:
            raise StoreUnavailable(
                f"the Spark job whose rows are in {self.folder} ended"
            ) from error

    def _file(self, sender: int) -> Path:
        return self.folder / str(sender)


class AnotherFailedError(Exception):
    """Another task of the job has failed, and says why; who waits for it ends."""


class Handovers(AbstractContextManager["Handovers"]):
    """The exchanges of one *job* of an attempt in their order, as its *task* uses them.

    They are those of all *tries* of the job.  Their folders are below that of the attempt's block
    files, and go with it, or before, when all *tasks* of a try have ended.  A task that fails tells
    the others of its try, which end: Spark, which would end them, takes some four seconds.
    """

    def __init__(
        self, folder: BlockFolder, job: str, *, number: int, tasks: int, task: int
    ) -> None:
        local = os.environ.get(LOCAL_FOLDERS, "").split(",")[0] or tempfile.gettempdir()
        self._job = _begun(Path(local, _FOLDER, folder.stage), folder.attempt) / job
        self._ended = self._made(f"{_ENDED}-{number}")
        self._failed = self._job / f"{_FAILED}-{number}"
        self._task, self._tasks = task, tasks
        self._exchanges = 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if kind is AnotherFailedError:
            return True
        if kind is not None:
            self._failed.touch()
            return False
        (self._ended / str(self._task)).touch()
        with suppress(FileNotFoundError):  # Another one was the last, too.
            if len(os.listdir(self._ended)) == self._tasks:  # noqa: PTH208 - see Handover
                shutil.rmtree(self._job, ignore_errors=True)
        return False

    def next(self, senders: int) -> Handover:
        self._exchanges += 1
        return Handover(self._made(str(self._exchanges)), senders, self._failed)

    def _made(self, name: str) -> Path:
        folder = self._job / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """The way to the next stage of a chain.

    ``exchange`` is that of the next stage, with one input, a stream, and ``schema`` the serialized
    Arrow schema of the rows that it was deployed for.
    """

    exchange: ExchangeSpec
    schema: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedClock:
    """The clock of a stage that is chained to *producer*, whose clock is ``before``.

    ``floor_ms`` is the watermark of the stage before the epoch; the rows may be older than the
    producer's by ``out_of_orderness_ms``.
    """

    producer: str
    before: StageClock
    floor_ms: int
    out_of_orderness_ms: int = 0

    def streams_ms(self, acks: Sequence[Ack]) -> int | None:
        """The watermark of the stage's input by the producer's *acks*; None if it has no say."""
        if self.before.has_no_say(acks):
            return None
        behind_ms = trailing(self.before.behind_ms(acks), self.out_of_orderness_ms)
        return combined_watermark([behind_ms], self.floor_ms)

    def read(self, before: EpochTime, streams_ms: int | None) -> EpochTime:
        """The times of the epoch, of which *before* has all but the watermark of its end."""
        watermark_ms = combined_watermark([streams_ms], self.floor_ms)
        return replace(before, watermark_ms=watermark_ms)


class ChainedOutput(AbstractContextManager["ChainedOutput"]):
    """The output of a chained subtask: ``add`` its rows, then yield the ``blocks`` of all."""

    def __init__(self, stage: str, link: ChainLink, index: int, memory_bytes: int) -> None:
        self._stage = stage
        self._exchange = link.exchange
        self._schema = pa.ipc.read_schema(pa.py_buffer(link.schema))
        self._sender = Sender(link.exchange, index)
        room = max(1, memory_bytes // _SPILL_SHARE)
        self._file = tempfile.SpooledTemporaryFile(max_size=room)  # noqa: SIM115 - see __exit__
        self._writer = pa.ipc.new_stream(self._file, BLOCK_SCHEMA)

    def __exit__(self, *details: object) -> None:
        self._file.close()
        self._sender.__exit__(*details)

    def add(self, rows: pa.Table) -> None:
        """Raises ConfigurationError when the rows have other columns than declared."""
        if not rows.schema.equals(self._schema):
            raise ConfigurationError(
                f"stage {self._stage!r} yields {_columns(rows.schema)}, and its declaration says "
                f"{_columns(self._schema)}; declare {self._exchange.stage.uid!r} with "
                "disable_chaining()"
            )
        read = self._exchange.feeds[0].rows
        assert isinstance(read, StreamRows)
        for block in self._sender.rows(0, read.behind(to_frame(rows))):
            self._writer.write_batch(block)

    def undecided(self, why: str) -> Iterator[pa.RecordBatch]:
        """Blocks for all subtasks of the next stage: only Spark can read some rows, and *why*."""
        yield from self._sender.to_all(BlockKind.UNDECIDED, why, pl.DataFrame())

    def refused(self, why: str) -> Iterator[pa.RecordBatch]:
        """Blocks for all subtasks of the next stage: this one refuses its part, and *why*."""
        yield from self._sender.to_all(BlockKind.REFUSED, why, pl.DataFrame())

    def blocks(
        self, done: Execution, earlier: Mapping[str, list[Execution]]
    ) -> Iterator[pa.RecordBatch]:
        """Blocks of all rows, then of the executions.

        The first subtask of the next stage gets the whole executions, those of *earlier* stages
        too, and passes them on.  The others get of this ack only what decides how far event time
        has come.
        """
        self._writer.close()
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)
        brief = replace(done.ack, state=(), output=(), schema=b"", committables=())
        in_brief = _frame([replace(done, ack=brief)])
        for subtask in range(1, self._exchange.task.parallelism):
            yield from self._sender.to_one(subtask, BlockKind.ACK, self._stage, in_brief)
        for stage, executions in {**earlier, self._stage: [done]}.items():
            yield from self._sender.to_one(0, BlockKind.ACK, stage, _frame(executions))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def execution_rows(executions: Sequence[Execution]) -> pa.RecordBatch:
    columns = {
        ACK: [encode_ack(one.ack) for one in executions],
        TOKEN: [one.token for one in executions],
        READ: [",".join(one.read) for one in executions],
        REFUSED: [None] * len(executions),
    }
    return pa.RecordBatch.from_pydict(columns, schema=RESULT_SCHEMA)


def refused_row(why: str) -> pa.RecordBatch:
    """The answer of a chain's last subtask in place of executions, where one was refused."""
    return pa.RecordBatch.from_pylist([{REFUSED: why}], schema=RESULT_SCHEMA)


def executions_in(
    rows: Iterable[tuple[bytes, str, str, str | None]], stage: str
) -> list[Execution]:
    """The executions of ``execution_rows``, of *stage* or its chain.

    Raises:
        RefusedError: a row is a ``refused_row``.
    """
    executions: list[Execution] = []
    for body, token, read, refused in rows:
        if refused is not None:
            raise RefusedError(refused)
        ack = decode_ack(bytes(body), f"ack of {stage}")
        tokens = tuple(read.split(",")) if read else ()
        executions.append(Execution(ack=ack, token=token, read=tokens))
    return executions


def _frame(executions: Sequence[Execution]) -> pl.DataFrame:
    return to_frame(pa.Table.from_batches([execution_rows(executions)]))
