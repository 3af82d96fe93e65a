"""Blocks: rows that are sent, as columns, to the subtasks that own their keys.

A row of Spark's shuffle is one block, an Arrow stream for one subtask, or the place of that stream
in a file of this machine.  Spark moves it as a single value; rows of their own would be converted
to Spark's rows and back, twice.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import polars as pl
import pyarrow as pa

from sluice.connectors.files.plain_json import UndecidedError
from sluice.core.plan import TaskPlan
from sluice.declaration.nodes import StageNode
from sluice.subtask.block_files import BlockFile, BlockFolder, Place, read_block
from sluice.subtask.carried_clock import TimedInput, times_frame
from sluice.subtask.chunks import CHUNK_BYTES, CHUNK_ROWS
from sluice.subtask.feed import Feed, JsonRows, read_together
from sluice.subtask.key_hash import with_hash
from sluice.subtask.operators.build import build_operator, hashes_groups
from sluice.subtask.operators.operator import ROW_COUNT, EpochTime, Partial
from sluice.subtask.owners import Counts, Owners

SUBTASK = "subtask"
BLOCK_BYTES = 16 * 1024**2  # Of one block: Spark holds several in memory, each in one piece.
# A chunk with fewer rows for each of its groups is cheaper to send than they are to make.
_ROWS_PER_GROUP = 1.5

BLOCK_SCHEMA = pa.schema(
    [
        pa.field(SUBTASK, pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("name", pa.string()),
        pa.field("input_rows", pa.int64()),
        pa.field("body", pa.binary()),
        pa.field("file", pa.string()),  # Empty where the body is here.
        pa.field("offset", pa.int64()),
    ]
)


class BlockKind(StrEnum):
    """The kind of rows in a block, and the meaning of the block's name."""

    ROWS = "rows"  # Rows of an input; the name is its number.
    GROUPS = "groups"  # Pre-aggregated rows; the name is that of their group frame.
    LATE = "late"  # Late rows of an input; the name is its number.
    UNDECIDED = "undecided"  # No rows: only Spark can read some; the name says why.
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


def send(spec: ExchangeSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the shares whose numbers *batches* hold, and yield blocks; run by ``mapInArrow``.

    Where only Spark can read a row, all subtasks are told, and no more is read.
    """
    for share in (index for batch in batches for index in batch.column(0).to_pylist()):
        with Sender(spec, share) as sender:
            try:
                yield from _sent(spec, share, sender)
            except UndecidedError as error:
                yield from sender.to_all(BlockKind.UNDECIDED, str(error), pl.DataFrame())
                return


def _sent(spec: ExchangeSpec, share: int, sender: Sender) -> Iterator[pa.RecordBatch]:
    timed = {side: given.reader(share) for side, given in spec.timed.items()}
    for sides in _with_same_rows(spec.feeds):
        for side, chunk in read_together(sides, share, timed):
            yield from sender.rows(side, chunk)
    for side, one in timed.items():
        if one.times_ms:
            yield from sender.to_all(BlockKind.TIMES, str(side), times_frame(one.times_ms))


def _with_same_rows(feeds: Sequence[Feed]) -> list[dict[int, Feed]]:
    """The inputs by their numbers, those together that read the same slices or segments."""
    found: list[dict[int, Feed]] = []
    for side, feed in enumerate(feeds):
        same = (sides for sides in found if next(iter(sides.values())).rows == feed.rows)
        sides = next(same, None)
        if sides is None:
            found.append({side: feed})
        else:
            sides[side] = feed
    return found


def _check_event_time(stage: StageNode, side: int, feed: Feed, rows: pl.DataFrame) -> None:
    """Raises UndecidedError if a line has no event time: it is to be reported, with its place."""
    at = stage.inputs[side].event_time
    is_needed = isinstance(feed.rows, JsonRows) and stage.goes_by_event_time
    if is_needed and at in rows.columns and rows[at].null_count():
        raise UndecidedError("a line without event time")


class Sender(AbstractContextManager["Sender"]):
    """One of those that send the rows of an exchange; *index* is its number."""

    def __init__(self, spec: ExchangeSpec, index: int) -> None:
        self._spec = spec
        self._index = index
        self._file = BlockFile(spec.folder, index)
        self._operator = (
            build_operator(spec.stage, [feed.sent for feed in spec.feeds])
            if spec.pre_aggregates
            else None
        )
        self._owners = Owners(spec.task)

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)

    def rows(self, side: int, chunk: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        """Blocks of the rows of input *side* that *chunk* holds as they were read, or of their
        groups, as long as these are many fewer.

        Raises:
            UndecidedError: only Spark can read one of them.
        """
        operator, feed = self._operator, self._spec.feeds[side]
        is_hashed = operator is None or not hashes_groups(operator)
        rows = feed.keyed(chunk, is_hashed=is_hashed)
        _check_event_time(self._spec.stage, side, feed, rows)
        if operator is None:
            yield from self._blocks(BlockKind.ROWS, str(side), rows)
            return
        partial = operator.partial(rows, self._spec.epoch_time, side)
        counts = self._counts(rows, partial, feed)
        for name, groups in partial.groups.items():
            yield from self._blocks(BlockKind.GROUPS, name, groups, counts)
            counts = np.zeros_like(counts)
        if partial.late.height:
            owner = self._index % self._spec.task.parallelism
            yield from self.to_one(owner, BlockKind.LATE, str(side), partial.late)
        groups_made = 0 if partial.counted is None else partial.counted.height
        if groups_made * _ROWS_PER_GROUP > rows.height:
            self._operator = None

    def _counts(self, rows: pl.DataFrame, partial: Partial, feed: Feed) -> Counts:
        """The number of *rows* that each subtask owns."""
        if partial.counted is None:
            return self._owners.count(rows)
        late = with_hash(partial.late, feed.hashed)
        return self._owners.count(partial.counted, ROW_COUNT) + self._owners.count(late)

    def to_one(
        self, subtask: int, kind: BlockKind, name: str, rows: pl.DataFrame
    ) -> Iterator[pa.RecordBatch]:
        yield from self._pieces(subtask, kind, name, rows, 0)

    def to_all(self, kind: BlockKind, name: str, rows: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        for subtask in range(self._spec.task.parallelism):
            yield from self._pieces(subtask, kind, name, rows, 0)

    def _blocks(
        self, kind: BlockKind, name: str, rows: pl.DataFrame, counts: Counts | None = None
    ) -> Iterator[pa.RecordBatch]:
        """A block per subtask; *counts* are the input's rows of each, if pre-aggregated."""
        for subtask, part in enumerate(self._owners.split(rows)):
            count = part.height if counts is None else int(counts[subtask])
            if part.height or count:
                yield from self._pieces(subtask, kind, name, part, count)

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


_CARRIED = Place("", 0)  # The place of a body that the block itself has.


def _block(
    subtask: int, kind: BlockKind, name: str, input_rows: int, body: bytes, place: Place
) -> pa.RecordBatch:
    values = [subtask, kind.value, name, input_rows, body, *place]
    return pa.RecordBatch.from_arrays(
        [pa.array([v], f.type) for v, f in zip(values, BLOCK_SCHEMA, strict=True)],
        schema=BLOCK_SCHEMA,
    )


def received(batches: Iterable[pa.RecordBatch]) -> Iterator[Received]:
    """The blocks that one subtask was sent, put together to larger frames."""
    pending: dict[tuple[BlockKind, str], list[pl.DataFrame]] = defaultdict(list)
    counts: dict[tuple[BlockKind, str], int] = defaultdict(int)
    for batch in batches:
        kinds, names, input_rows = (batch.column(n).to_pylist() for n in (1, 2, 3))
        for index, count in enumerate(input_rows):
            key = (BlockKind(kinds[index]), names[index])
            pending[key].append(_rows(batch, index))
            counts[key] += count
            rows = sum(frame.height for frame in pending[key])
            size = sum(frame.estimated_size() for frame in pending[key])
            if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield _together(key, pending.pop(key), counts.pop(key))
    for key, frames in pending.items():
        yield _together(key, frames, counts[key])


def _rows(blocks: pa.RecordBatch, index: int) -> pl.DataFrame:
    place = Place(blocks.column(5)[index].as_py(), blocks.column(6)[index].as_py())
    if place == _CARRIED:
        return pl.read_ipc_stream(blocks.column(4)[index].as_py())
    return read_block(place)


def _together(key: tuple[BlockKind, str], frames: list[pl.DataFrame], input_rows: int) -> Received:
    kind, name = key
    return Received(kind=kind, name=name, rows=pl.concat(frames), input_rows=input_rows)
