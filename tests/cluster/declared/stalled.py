"""A function that stalls in the middle of its rows, once: Spark starts a copy of its task."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice import Checkpointing, Pipeline, param
from sluice.sinks import FilesTable
from sluice.sources import Nexmark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STALLED, COPY = "stalled", "copy"
STALLS_FOR_S = 600  # Spark kills it before.


def passed(rows: DataFrame, folder: str) -> DataFrame:
    """The rows as they are.  The files in *folder* say which tasks ran."""

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        for number, batch in enumerate(batches):
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if number == 0 and task.partitionId() == 0:
                if task.attemptNumber() == 0:
                    (Path(folder) / STALLED).write_text(str(os.getpid()))
                    time.sleep(STALLS_FOR_S)
                (Path(folder) / COPY).write_text(str(os.getpid()))
            yield batch.slice(half)

    return rows.mapInArrow(send, rows.schema)


pipeline = Pipeline("stalled", checkpointing=Checkpointing(interval=None))
events = pipeline.source(
    "events",
    Nexmark(
        events=param("events", default=60_000, help="how many events the generator makes"),
        columns=("auction_id", "bid_auction", "price"),
    ),
)
sent = events.transform(
    "passed", passed, folder=param("folder", default="", help="where tasks leave a mark")
)
sent.sink("all_rows", FilesTable())
