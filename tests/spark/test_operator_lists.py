"""Operator lists on a real Spark: each element stays once, with other subtasks, too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from sluice.coordinator.restore import restore
from sluice.core.restoring import Latest
from sluice.declaration.keyed_functions import (
    Context,
    KeyedProcessFunction,
    OperatorListState,
    Row,
    SubtaskContext,
    UnionListState,
)
from sluice.sinks import FilesTable
from tests.spark.folder_job import FolderJob

ROWS = 40


class Holds(KeyedProcessFunction):
    """A row waits for an epoch in its subtask; with it comes how many all subtasks had seen."""

    waiting = OperatorListState(int)
    seen = UnionListState(int)

    def initialize_state(self, context: SubtaskContext) -> None:
        self._before = self.waiting.get()
        self._seen = len(self.seen.get())

    def process(self, row: Row, context: Context) -> None:
        self.waiting.add(row["n"])
        self.seen.add(row["n"])

    def prepare_snapshot_pre_barrier(self, context: SubtaskContext) -> Iterable[Row]:
        self.waiting.update(self.waiting.get()[len(self._before) :])
        for n in self._before:
            yield {"n": n, "seen": self._seen, "subtask": context.subtask}


def test_each_element_stays_once_through_a_rescale(job: FolderJob) -> None:
    rows = job.rows()
    held = rows.key_by("n").process_keyed(
        "held", Holds(), result={"n": int, "seen": int, "subtask": int}
    )
    held.sink("out", FilesTable())

    for epoch, parallelism in enumerate((2, 3, 1)):
        if epoch > 0:
            wanted = replace(job.job.state().configuration, parallelism=parallelism)
            restore(job.job, Latest(), configuration=wanted)
        numbers = range(epoch * ROWS, (epoch + 1) * ROWS)
        job.write(f"{epoch}.parquet", pl.DataFrame({"n": numbers}))
        job.epoch()

    out = job.table("out").sort("n")
    assert out["n"].to_list() == [*range(2 * ROWS)]
    assert out["seen"].to_list() == [ROWS] * ROWS + [2 * ROWS] * ROWS
    # Forty among three subtasks: the odd one of ``seen`` went to the first.  Then one is left.
    dealt = out[:ROWS]["subtask"].value_counts().sort("subtask")["count"].to_list()
    assert dealt == [13, 14, 13]
    assert out[ROWS:]["subtask"].unique().to_list() == [0]
