"""``Handover``: what tasks that all run at once send each other, in files of this machine.

There is one for each exchange of a Spark job.  A task's file of it appears whole and stays: a task
that Spark tries again sends nothing twice, and goes on behind what it has sent.  Of two tries that
run at once either may be read, as of a shuffle; a chain compares (ADR 4).
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import StoreUnavailable

# A look takes some 50 microseconds; who has waited long looks seldom, and learns of it 5 % later.
_SHORTEST_S, _LONGEST_S = 0.001, 0.05
_PART_OF_WAIT = 0.05


@dataclass(frozen=True, slots=True)
class Handover:
    """The exchange in *folder*, by which *senders* tasks send.

    The driver makes the folder, and removes it when the job has ended, however it ends.
    """

    folder: Path
    senders: int

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
            StoreUnavailable: the job has ended, or its folder is gone.
        """
        started = time.monotonic()
        while self._sent() < self.senders:
            waited_s = time.monotonic() - started
            time.sleep(min(max(_PART_OF_WAIT * waited_s, _SHORTEST_S), _LONGEST_S))

    def received(self, receiver: int, column: str) -> Iterator[pa.RecordBatch]:
        """The rows for *receiver*, which *column* names, in the order of their senders."""
        for sender in range(self.senders):
            with pa.memory_map(str(self._file(sender))) as file:
                for batch in pa.ipc.open_stream(file):
                    mine = batch.filter(pc.equal(batch.column(column), receiver))
                    if mine.num_rows:
                        yield mine

    def _sent(self) -> int:
        try:
            return len(os.listdir(self.folder))  # noqa: PTH208 - a third of the time of iterdir
        except FileNotFoundError as error:
            raise StoreUnavailable(
                f"the Spark job whose rows are in {self.folder} ended"
            ) from error

    def _file(self, sender: int) -> Path:
        return self.folder / str(sender)
