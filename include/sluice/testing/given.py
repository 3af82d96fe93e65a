"""A source of given rows: one partition, which grows from epoch to epoch.

The rows are in one Arrow file, and the driver of the job sets how many of them have arrived.  A
slice always has the same rows, also after more have arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.connectors.contracts.offsets import OffsetSource, Readable
from sluice.connectors.contracts.source import Source, TextDecoding
from sluice.core.plan import Slice
from sluice.declaration.params import Param
from sluice.sources import Files

PARTITION = "rows"


@dataclass(frozen=True, slots=True)
class GivenSource(OffsetSource):
    """The first *arrived* rows of the file at *path*; with *ends* no more will follow."""

    uid: str
    path: Path
    columns: pa.Schema
    arrived: int
    ends: bool
    text_decoding: TextDecoding | None

    @property
    def bounded(self) -> bool:
        return self.ends

    @property
    def name(self) -> str:
        return f"the rows given for {self.uid!r}"

    @property
    def decoding(self) -> TextDecoding | None:
        return self.text_decoding

    def schema(self) -> pa.Schema:
        return self.columns

    def readable(self) -> Mapping[str, Readable]:
        return {PARTITION: Readable(0, self.arrived)}

    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(self.path)) as file:
            rows = pa.ipc.open_file(file).read_all()
        yield from rows.slice(piece.start, piece.records).to_batches()


@dataclass(eq=False, slots=True)
class GivenRows:
    """A ``SourceSpec``.  ``chunks`` are the rows of each epoch; ``arrive`` makes them readable.

    One that is ``bounded`` ends with its last chunk.
    """

    uid: str
    path: Path
    chunks: Sequence[pa.Table]
    bounded: bool
    decoding: TextDecoding | None = None
    _epoch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        with pa.OSFile(str(self.path), "wb") as file, pa.ipc.new_file(file, self.schema) as writer:
            for chunk in self.chunks:
                writer.write_table(chunk)

    @property
    def schema(self) -> pa.Schema:
        return self.chunks[0].schema

    @property
    def params(self) -> tuple[Param, ...]:
        return ()

    def arrive(self, epoch: int) -> None:
        """Make the chunks of the first *epoch* epochs readable, and no others."""
        self._epoch = epoch

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> GivenSource:  # noqa: ARG002 - of a spec
        ends = [0, *accumulate(chunk.num_rows for chunk in self.chunks)]
        return GivenSource(
            uid=self.uid,
            path=self.path,
            columns=self.schema,
            arrived=ends[min(self._epoch, len(self.chunks))],
            ends=self.bounded and self._epoch >= len(self.chunks),
            text_decoding=self.decoding,
        )


@dataclass(eq=False, slots=True)
class GivenTable:
    """A ``SourceSpec`` of a table to look up, of which each epoch has a file in *folder*.

    *spec* reads the folder; *is_text*: rows are lines.
    """

    folder: Path
    chunks: Sequence[pa.Table]
    spec: Files
    is_text: bool

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.arrive(1)

    @property
    def params(self) -> tuple[Param, ...]:
        return ()

    def arrive(self, epoch: int) -> None:
        """Make the table that of *epoch*, or the last one given before it."""
        rows = self.chunks[min(epoch, len(self.chunks)) - 1]
        for old in self.folder.iterdir():
            old.unlink()
        file = self.folder / f"{epoch:05d}"
        if self.is_text:
            file.write_text("".join(f"{line}\n" for line in rows["line"].to_pylist()))
        else:
            pq.write_table(rows, file.with_suffix(".parquet"))

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:
        return self.spec.open(params, endpoint_url)
