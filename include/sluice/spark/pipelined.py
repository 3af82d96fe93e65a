"""``Pipelined``: the tasks of a stage's Spark job all run at once, and need no shuffle.

Flink deploys the tasks of a pipelined region together, and each sends to the others.  So do these,
on one machine that has a slot for each: the job is one Spark stage, not one more for each exchange,
and its tasks hand over their rows in files (ADR 7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from sluice.spark.names import Batches
from sluice.spark.partitions import NUMBERS, Objects, Row, Step, batch_of, numbers, rows_of
from sluice.spark.session import task_slots
from sluice.subtask.handover import Handover

if TYPE_CHECKING:
    from pyspark import SparkContext


@dataclass(frozen=True, slots=True)
class Mapped:
    """Each task calls ``step``, which yields batches of ``schema``."""

    step: Step
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Placed:
    """Each row goes to the task, of ``parallelism``, whose number ``column`` has."""

    parallelism: int
    column: str


Move: TypeAlias = Mapped | Placed


@dataclass(frozen=True, slots=True)
class Pipelined:
    """Partitions of which no step has more than the context has slots.

    First they are ``count``, each of one row: its number.
    """

    context: SparkContext
    count: int
    moves: tuple[Move, ...] = ()

    def mapped(self, step: Step, schema: pa.Schema) -> Pipelined:
        return replace(self, moves=(*self.moves, Mapped(step, schema)))

    def placed(self, parallelism: int, column: str) -> Pipelined | Objects:
        if parallelism > task_slots(self.context):
            return self._shuffled().placed(parallelism, column)
        return replace(self, moves=(*self.moves, Placed(parallelism, column)))

    def collected(self) -> list[Row]:
        exchanges = [move for move in self.moves if isinstance(move, Placed)]
        if not exchanges:
            return self._shuffled().collected()
        count, moves = self.count, self.moves
        tasks = max(count, *(exchange.parallelism for exchange in exchanges))
        with _taken(self.context, tasks), _folder(self.context) as folder:
            for number in range(len(exchanges)):
                (folder / str(number)).mkdir()

            def run(rows: Iterable[Row]) -> Iterator[Row]:
                for (task,) in rows:  # To their end, or Spark gives up the worker.
                    yield from run_task(task, count, moves, folder)

            return numbers(self.context, tasks).mapPartitions(run).collect()

    def _shuffled(self) -> Objects:
        rows = Objects(numbers(self.context, self.count), NUMBERS)
        for move in self.moves:
            match move:
                case Mapped(step, schema):
                    rows = rows.mapped(step, schema)
                case Placed(parallelism, column):
                    rows = rows.placed(parallelism, column)
        return rows


def run_task(task: int, tasks: int, moves: Iterable[Move], folder: Path) -> Iterator[Row]:
    """What *task* does in its Python worker; the first of *tasks* have something to do."""
    batches: Batches = (batch_of((task,), NUMBERS),)
    schema = NUMBERS
    exchange = 0
    for move in moves:
        match move:
            case Mapped(step, schema):
                batches = step(batches) if task < tasks else ()
            case Placed(parallelism, column):
                handover = Handover(folder / str(exchange), tasks)
                if task < tasks and not handover.has_sent(task):
                    handover.send(task, batches, schema)
                tasks, exchange = parallelism, exchange + 1
                if task < tasks:
                    handover.wait()
                    batches = handover.received(task, column)
    if task < tasks:
        for batch in batches:
            yield from rows_of(batch)


@contextmanager
def _folder(context: SparkContext) -> Iterator[Path]:
    """A folder that goes with the block, or else with Spark: what still runs ends when it looks."""
    with TemporaryDirectory(dir=_files_of(context), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@lru_cache(1)
def _files_of(_: SparkContext) -> str:
    """The folder of a context's own files."""
    from pyspark import SparkFiles

    return SparkFiles.getRootDirectory()


@contextmanager
def _taken(context: SparkContext, tasks: int) -> Iterator[None]:
    """Take *tasks* of the slots of *context* as soon as they are not those of such a job.

    Two that had a part each would wait for ever.  The tasks of other jobs end by themselves.
    """
    free = _free_slots(context)
    with free.changed:
        free.changed.wait_for(lambda: free.count >= tasks)
        free.count -= tasks
    try:
        yield
    finally:
        with free.changed:
            free.count += tasks
            free.changed.notify_all()


@dataclass(slots=True)
class _FreeSlots:
    count: int
    changed: Condition


@lru_cache(1)
def _free_slots(context: SparkContext) -> _FreeSlots:
    return _FreeSlots(task_slots(context), Condition())
