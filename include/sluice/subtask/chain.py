"""Chained stages: the output of one goes to the subtasks of the next in the same Spark job.

Flink's operator chains, with a shuffle inside.  Rows leave as the blocks in which an exchange sends
rows of files; behind them come the acks, by which the next stage knows how far event time has come,
and the token of the execution that they are of.  A chained subtask's ack is written when the
subtasks behind it have acknowledged: by the driver.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from sluice.core.acks import Ack
from sluice.core.executions import Execution
from sluice.core.stage_clock import StageClock
from sluice.core.watermarks import combined_watermark
from sluice.errors import ConfigurationError
from sluice.protocol.records import decode_ack, encode_ack
from sluice.subtask.exchange_blocks import BLOCK_SCHEMA, BlockKind, ExchangeSpec, Sender
from sluice.subtask.operators.operator import EpochTime
from sluice.subtask.state.segments import to_frame

# The columns of executions, also of what a Spark job yields.  A token holds no comma.
ACK, TOKEN, READ = "ack", "token", "read"
RESULT_SCHEMA = pa.schema([(ACK, pa.binary()), (TOKEN, pa.string()), (READ, pa.string())])
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

    def __exit__(self, *details: object) -> None:
        self._file.close()
        self._sender.__exit__(*details)

    def add(self, rows: pa.Table) -> None:
        """Raises ConfigurationError when the rows are not those that were expected."""
        if not rows.schema.equals(self._schema):
            raise ConfigurationError(
                f"stage {self._stage!r} yields {_columns(rows.schema)}, and its declaration says "
                f"{_columns(self._schema)}; declare {self._exchange.stage.uid!r} with "
                "disable_chaining()"
            )
        for block in self._sender.rows(0, to_frame(rows)):
            self._writer.write_batch(block)

    def undecided(self, why: str) -> Iterator[pa.RecordBatch]:
        """Tell the subtasks of the next stage that the rows are undecided."""
        yield from self._sender.to_all(BlockKind.UNDECIDED, why, pl.DataFrame())

    def blocks(
        self, done: Execution, earlier: Mapping[str, list[Execution]]
    ) -> Iterator[pa.RecordBatch]:
        """All rows, what this execution came to, and the whole executions of *earlier* stages,
        which the first subtask passes on.

        The others behind get of its ack only what decides how far event time has come.
        """
        self._writer.close()
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)
        said = replace(done.ack, state=(), output=(), schema=b"", committables=())
        brief = [replace(done, ack=said)]
        for subtask in range(1, self._exchange.task.parallelism):
            yield from self._sender.to_one(subtask, BlockKind.ACK, self._stage, _frame(brief))
        for stage, executions in {**earlier, self._stage: [done]}.items():
            yield from self._sender.to_one(0, BlockKind.ACK, stage, _frame(executions))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def rows_of(executions: Sequence[Execution]) -> pa.RecordBatch:
    columns = {
        ACK: [encode_ack(one.ack) for one in executions],
        TOKEN: [one.token for one in executions],
        READ: [",".join(one.read) for one in executions],
    }
    return pa.RecordBatch.from_pydict(columns, schema=RESULT_SCHEMA)


def executions_in(rows: Iterable[tuple[bytes, str, str]], stage: str) -> list[Execution]:
    """The executions in *rows* as ``rows_of`` makes them, of *stage* or its chain."""
    return [
        Execution(
            ack=decode_ack(bytes(body), f"ack of {stage}"),
            token=token,
            read=tuple(read.split(",")) if read else (),
        )
        for body, token, read in rows
    ]


def _frame(executions: Sequence[Execution]) -> pl.DataFrame:
    return to_frame(pa.Table.from_batches([rows_of(executions)]))
