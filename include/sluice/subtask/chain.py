"""Chained stages: the output of one goes to the subtasks of the next in the same Spark job.

Flink's operator chains, with a shuffle inside.  Rows leave as the blocks in which an exchange sends
rows of files; behind them come the acks, by which the next stage knows how far event time has come.
A chained subtask's ack is written when the subtasks behind it have acknowledged: by the driver.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from sluice.core.acks import Ack
from sluice.core.stage_clock import StageClock
from sluice.core.watermarks import combined_watermark
from sluice.errors import ConfigurationError
from sluice.protocol.records import decode_ack, encode_ack
from sluice.subtask.exchange_blocks import BLOCK_SCHEMA, BlockKind, ExchangeSpec, Sender
from sluice.subtask.operators.operator import EpochTime
from sluice.subtask.state.segments import to_frame

ACK = "ack"
SPILL_SHARE = 8  # Blocks may take up so much of the memory, then they go through local disk.


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """The way to the stage behind: ``exchange`` is its, of one input, and ``schema`` the serialized
    Arrow schema of the rows that it was deployed for.
    """

    exchange: ExchangeSpec
    schema: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedClock:
    """The clock of a stage that is chained to *producer*, whose clock is ``before``.

    ``floor_ms`` is the watermark of the stage before the epoch.
    """

    producer: str
    before: StageClock
    floor_ms: int

    def streams_ms(self, acks: Sequence[Ack]) -> int | None:
        """The watermark of the stage's input by the producer's *acks*; None where it has no say."""
        if self.before.has_no_say(acks):
            return None
        return combined_watermark([self.before.behind_ms(acks)], self.floor_ms)

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
        room = max(1, memory_bytes // SPILL_SHARE)
        self._file = tempfile.SpooledTemporaryFile(max_size=room)  # noqa: SIM115 - see __exit__
        self._writer = pa.ipc.new_stream(self._file, BLOCK_SCHEMA)

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, rows: pa.Table) -> None:
        """Raises ConfigurationError when the rows are not those that were expected."""
        if not rows.schema.equals(self._schema):
            raise ConfigurationError(
                f"stage {self._stage!r} yields {_columns(rows.schema)}, and its declaration says "
                f"{_columns(self._schema)}; declare {self._exchange.stage.uid!r} with "
                "disable_chaining()"
            )
        (feed,) = self._exchange.feeds
        for block in self._sender.rows(0, feed.keyed(to_frame(rows))):
            self._writer.write_batch(block)

    def undecided(self, why: str) -> Iterator[pa.RecordBatch]:
        """Tell the subtasks of the next stage that the rows are undecided."""
        yield from self._sender.to_all(BlockKind.UNDECIDED, why, pl.DataFrame())

    def blocks(self, ack: Ack, earlier: Mapping[str, list[Ack]]) -> Iterator[pa.RecordBatch]:
        """All rows, *ack*, and whole acks of *earlier* stages, which the first subtask passes on.

        The others behind get of *ack* only what decides how far event time has come.
        """
        self._writer.close()
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)
        said = replace(ack, state=(), output=(), schema=b"", committables=())
        for subtask in range(1, self._exchange.task.parallelism):
            yield from self._sender.to_one(subtask, BlockKind.ACK, self._stage, _frame([said]))
        for stage, acks in {**earlier, self._stage: [ack]}.items():
            yield from self._sender.to_one(0, BlockKind.ACK, stage, _frame(acks))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def acks_in(stage: str, rows: pl.DataFrame) -> list[Ack]:
    """The acks of *stage* in rows of a block of acks."""
    return [decode_ack(body, f"ack of {stage}") for body in rows[ACK]]


def _frame(acks: Sequence[Ack]) -> pl.DataFrame:
    return pl.DataFrame({ACK: [encode_ack(ack) for ack in acks]}, {ACK: pl.Binary})
