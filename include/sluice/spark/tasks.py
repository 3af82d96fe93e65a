"""``StageRun``, an execution attempt on its driver, and the ``Partitions`` of its Spark job.

A stage's job is functions over partitions, and shuffles between them.  Its partitions are of the
fastest kind that the session has (ADR 7):

- ``Frame``, a DataFrame, goes everywhere, also over Spark Connect, but Spark analyses, optimizes
  and plans each epoch's anew.
- ``Objects``, an RDD, is scheduled as it is.  Its rows are pickled, so it is for rows that only say
  where others are.
- ``Pipelined``: the tasks all run at once, on one machine that has a slot for each, as Flink
  deploys the tasks of a pipelined region.  The job is one Spark stage, not one more for each
  exchange, and its tasks hand over their rows in files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from sluice.core.completed import StageState
from sluice.core.configuration import JobConfiguration
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import Process, ProcessKeyed, Transform
from sluice.declaration.project import package_of
from sluice.exchange.faults import Fault
from sluice.job.job import Job
from sluice.job.stage_input import StageInput
from sluice.spark.session import has_rdds, is_on_one_machine, task_slots

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession

Batches = Iterable["pa.RecordBatch"]

PartitionFunction: TypeAlias = Callable[[Batches], Iterator[pa.RecordBatch]]
RowTuple: TypeAlias = tuple[Any, ...]

NUMBERS = pa.schema([("id", pa.int64())])
_PARALLELISMS = 8  # How many are cached of the RDDs of numbers, one for each parallelism.


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """One execution attempt of one stage, by one driver.

    ``given`` are the streams it reads, ``before`` is the stage's state in the parent checkpoint,
    and ``fault`` a fault to inject into this attempt alone.  ``driver`` is a token of the driver,
    of which a cluster may start several for one attempt.
    """

    job: Job
    spark: SparkSession
    plan: CheckpointPlan
    node: StageNode
    configuration: JobConfiguration
    given: StageInput
    before: StageState | None
    attempt: int
    driver: str
    fault: Fault | None = None

    @property
    def task(self) -> TaskPlan:
        return self.plan.task(self.node.uid)


def pickle_functions_by_value(node: StageNode) -> None:
    """Pickle the functions of the stage by value, and the UDFs that a transform makes.

    The module that defines them may not be installed where Spark runs.  The whole package of a
    project's pipelines is sent, so a function may call one in another module; anything else that
    they import must be installed on the workers.
    """
    match node.operation:
        case Transform(function=function):
            _register(package_of(_module_of(function)))  # It runs here: only its UDFs are sent.
        case Process(function=function) | ProcessKeyed(function=function):
            module = _module_of(function)
            _register(package_of(module) or module)
        case _:
            pass


def _module_of(function: object) -> str:
    while isinstance(function, partial):
        function = function.func
    module: str = getattr(function, "__module__", type(function).__module__)
    return module


def _register(name: str | None) -> None:
    from pyspark import cloudpickle

    module = None if name is None else sys.modules.get(name)
    if module is not None and not module.__name__.startswith(("sluice.", "__main__")):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


class Partitions(Protocol):
    """Rows in partitions; computed by a Spark job, when they are collected."""

    def mapped(self, step: PartitionFunction, schema: pa.Schema) -> Partitions:
        """What *step* yields for each partition, batches of *schema*."""
        ...

    def placed(self, parallelism: int, column: str) -> Partitions:
        """The rows, shuffled: *column* has the number of a row's partition."""
        ...

    def collected(self) -> list[RowTuple]: ...


def numbered_partitions(spark: SparkSession, count: int) -> Partitions:
    """*count* partitions, each of one row: its number."""
    if not (has_rdds(spark) and is_on_one_machine(spark)):
        return Frame(spark.range(0, count, 1, count))
    context = spark.sparkContext
    if count <= task_slots(context):
        return Pipelined(context, count)
    return Objects(numbers(context, count), NUMBERS)


@lru_cache(_PARALLELISMS)
def numbers(context: SparkContext, count: int) -> RDD[RowTuple]:
    """The numbers below *count*, one in each partition: every epoch of a stage begins so."""
    return context.parallelize([(number,) for number in range(count)], count)


@dataclass(frozen=True, slots=True)
class Frame:
    """The partitions of a DataFrame."""

    rows: DataFrame

    def mapped(self, step: PartitionFunction, schema: pa.Schema) -> Frame:
        return Frame(map_batches(self.rows, step, schema))

    def placed(self, parallelism: int, column: str) -> Frame:
        return Frame(self.rows.repartitionById(parallelism, column))

    def is_empty(self) -> bool:
        return self.rows.isEmpty()

    def without_rows(self, count: int) -> Frame:
        """*count* empty partitions of the same columns; Spark, which cannot know, starts tasks."""
        numbers = self.rows.sparkSession.range(0, count, 1, count)
        return Frame(numbers.mapInArrow(_none_of, self.rows.schema))

    def collected(self) -> list[RowTuple]:
        names = self.rows.columns
        return [tuple(row[name] for name in names) for row in self.rows.collect()]


def map_batches(
    rows: DataFrame,
    function: Callable[[Batches], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """``rows.mapInArrow``, but for columns of any name: Spark looks each up by its bare name."""
    from pyspark.sql.pandas.types import from_arrow_schema

    names, yielded = rows.columns, from_arrow_schema(schema)  # DDL would be parsed in the JVM.
    if all(map(str.isidentifier, names)):
        return rows.mapInArrow(function, yielded)

    def by_name(batches: Batches) -> Iterator[pa.RecordBatch]:
        return function(batch.rename_columns(names) for batch in batches)

    return rows.toDF(*(f"_{place}" for place in range(len(names)))).mapInArrow(by_name, yielded)


def _none_of(batches: Batches) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield from ()


@dataclass(frozen=True, slots=True)
class Objects:
    """The partitions of an RDD, whose elements are rows of ``schema``."""

    rows: RDD[RowTuple]
    schema: pa.Schema

    def mapped(self, step: PartitionFunction, schema: pa.Schema) -> Objects:
        before = self.schema  # Not self, which has the RDD: Spark pickles the function.

        def over_rows(rows: Iterable[RowTuple]) -> Iterator[RowTuple]:
            for batch in step(batch_of(row, before) for row in rows):
                yield from row_tuples(batch)

        return Objects(self.rows.mapPartitions(over_rows), schema)

    def placed(self, parallelism: int, column: str) -> Objects:
        index = self.schema.get_field_index(column)
        keyed = self.rows.map(lambda row: (row[index], row))
        shuffled = keyed.partitionBy(parallelism, lambda subtask: subtask)
        return Objects(shuffled.values(), self.schema)

    def collected(self) -> list[RowTuple]:
        return self.rows.collect()


@dataclass(frozen=True, slots=True)
class MappedPartitions:
    """Each task calls ``step``, which yields batches of ``schema``."""

    step: PartitionFunction
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Placed:
    """Each row goes to the task, of ``parallelism``, whose number ``column`` has."""

    parallelism: int
    column: str


Move: TypeAlias = MappedPartitions | Placed


@dataclass(frozen=True, slots=True)
class Pipelined:
    """Partitions, of which there are never more than the context has slots.

    They begin as ``count`` partitions, each of one row: its number.
    """

    context: SparkContext
    count: int
    moves: tuple[Move, ...] = ()

    def mapped(self, step: PartitionFunction, schema: pa.Schema) -> Pipelined:
        return replace(self, moves=(*self.moves, MappedPartitions(step, schema)))

    def placed(self, parallelism: int, column: str) -> Pipelined | Objects:
        if parallelism > task_slots(self.context):
            return self._shuffled().placed(parallelism, column)
        return replace(self, moves=(*self.moves, Placed(parallelism, column)))

    def collected(self) -> list[RowTuple]:
        exchanges = [move for move in self.moves if isinstance(move, Placed)]
        if not exchanges:
            return self._shuffled().collected()
        count, moves = self.count, self.moves
        tasks = max(count, *(exchange.parallelism for exchange in exchanges))
        with _taken(self.context, tasks), _folder(self.context) as folder:
            for number in range(len(exchanges)):
                (folder / str(number)).mkdir()

            def run(rows: Iterable[RowTuple]) -> Iterator[RowTuple]:
                for (task,) in rows:  # Read to their end, or Spark gives up the worker.
                    yield from run_task(task, count, moves, folder)

            return numbers(self.context, tasks).mapPartitions(run).collect()

    def _shuffled(self) -> Objects:
        rows = Objects(numbers(self.context, self.count), NUMBERS)
        for move in self.moves:
            match move:
                case MappedPartitions(step, schema):
                    rows = rows.mapped(step, schema)
                case Placed(parallelism, column):
                    rows = rows.placed(parallelism, column)
        return rows


@contextmanager
def _folder(context: SparkContext) -> Iterator[Path]:
    """A folder that is deleted with the block, or else by Spark.

    A task that still runs then ends when it does not find its files.
    """
    with TemporaryDirectory(dir=_files_of(context), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@lru_cache(1)
def _files_of(_: SparkContext) -> str:
    """The folder of a context's own files."""
    from pyspark import SparkFiles

    return SparkFiles.getRootDirectory()


@contextmanager
def _taken(context: SparkContext, tasks: int) -> Iterator[None]:
    """Take *tasks* of the slots of *context* as soon as no other pipelined job has taken them.

    Two jobs that had a part each would wait for ever.  The tasks of other jobs end by themselves.
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


def run_task(task: int, tasks: int, moves: Iterable[Move], folder: Path) -> Iterator[RowTuple]:
    """What *task* does in its Python worker.

    Of all tasks of the job the first *tasks* begin, and of each exchange the first ``parallelism``
    go on; the others only send.
    """
    batches: Batches = (batch_of((task,), NUMBERS),)
    schema = NUMBERS
    exchange = 0
    for move in moves:
        match move:
            case MappedPartitions(step, schema):
                batches = step(batches) if task < tasks else ()
            case Placed(parallelism, column):
                from sluice.exchange.blocks import Handover  # No fork may load Polars.

                handover = Handover(folder / str(exchange), tasks)
                if task < tasks and not handover.has_sent(task):
                    handover.send(task, batches, schema)
                tasks, exchange = parallelism, exchange + 1
                if task < tasks:
                    handover.wait()
                    batches = handover.received(task, column)
    if task < tasks:
        for batch in batches:
            yield from row_tuples(batch)


def batch_of(row: RowTuple, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def row_tuples(batch: pa.RecordBatch) -> Iterator[RowTuple]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def columns_named(names: Iterable[str]) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    return [F.col(quoted(name)) for name in names]


def quoted(name: str) -> str:
    """*name*, quoted for SQL, where a dot in a bare name would select a field."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
