"""A source of partitions that grow, in this process: what a log is, and files are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from sluice.connectors.offsets import OffsetSource, Readable
from sluice.core.plan import Slice


@dataclass(eq=False)
class Growing(OffsetSource):
    """A ``SourceSpec`` and its ``Source`` in one; ``rows`` are those of each partition."""

    given: pa.Schema
    rows: dict[str, pa.Table] = field(default_factory=dict)

    @property
    def params(self) -> tuple[()]:
        return ()

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Growing:
        return self

    @property
    def bounded(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return "growing"

    def schema(self) -> pa.Schema:
        return self.given

    def readable(self) -> Mapping[str, Readable]:
        return {name: Readable(0, rows.num_rows) for name, rows in self.rows.items()}

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        yield from self.rows[piece.partition].slice(piece.start, piece.records).to_batches()

    def __hash__(self) -> int:
        return id(self)
