"""When a reading is due: a record for each interval, of which an epoch takes those that passed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sluice.connectors.offsets import OffsetSource, Readable
from sluice.core.plan import PartitionOffset, Slice
from sluice.declaration.places import DUE

if TYPE_CHECKING:
    import pyarrow as pa

PARTITION = "readings"


@dataclass(frozen=True, slots=True)
class Readings(OffsetSource):
    """Record n is due ``every_ms`` after record n - 1; the first to be read is the newest."""

    every_ms: int

    @property
    def bounded(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return "the readings by Spark"

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([(DUE, pa.timestamp("us", tz="UTC"))])

    def readable(self) -> Mapping[str, Readable]:
        return {PARTITION: Readable(first=0, end=int(time.time() * 1000) // self.every_ms + 1)}

    def first_offset(self, partition: str, now: Readable, *, is_new: bool) -> int:  # noqa: ARG002 - there is one
        return now.end - 1

    def _check_end(self, read: PartitionOffset, there: Readable) -> None:
        """Nothing is lost where a clock goes back, or ``every_ms`` is another one than before."""

    def _begun(self, read: PartitionOffset, there: Readable) -> PartitionOffset:
        """One reading sees what all that were missed would have seen."""
        return replace(read, offset=min(max(read.offset, there.end - 1), there.end))

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - there is one
        import pyarrow as pa

        due = [number * self.every_ms * 1000 for number in range(piece.start, piece.end)]
        schema = self.schema()
        yield pa.RecordBatch.from_arrays([pa.array(due, schema[0].type)], schema=schema)
