"""``StageRun``, an execution attempt on its driver, and the ``Partitions`` of its Spark job.

A stage's job is functions over partitions, and exchanges between them (ADR 7):

- ``Frame``, a DataFrame: Spark's shuffle is the exchange, wherever the tasks run.
- ``Pipelined``: the tasks all run at once, on one machine, as Flink deploys a pipelined region.
  The job is one Spark stage, not one more for each exchange; rows are handed over in files.

Both call the same functions with the same batches, in any session, Spark Connect's, too.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from sluice.core.completed import StageState
from sluice.core.configuration import JobConfiguration
from sluice.core.failures import root_cause
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.core.transitions import Adoption
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import Process, ProcessKeyed, SparkCode, Transform
from sluice.declaration.project import package_of
from sluice.exchange.faults import Fault
from sluice.job.job import Job
from sluice.job.stage_input import StageInput
from sluice.spark.session import is_remote, task_slots
from sluice.spark.versions import placed_by_id

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sluice.exchange.blocks import BlockFolder

Batches = Iterable["pa.RecordBatch"]

RowTuple: TypeAlias = tuple[Any, ...]

NUMBERS = pa.schema([("id", pa.int64())])
_TRIES = 4  # As spark.task.maxFailures by default.
# Of the DAGScheduler, when a task has failed; a job that was cancelled says otherwise.
_GIVEN_UP = "Could not recover from a failed barrier ResultStage"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Partition:
    """The number of a partition, from 0, and whether Spark has run its task before."""

    number: int
    is_retried: bool = False


PartitionFunction: TypeAlias = Callable[[Partition, Batches], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """One execution attempt of one stage, by one driver.

    ``given`` are the streams it reads, ``before`` is the stage's state in the parent checkpoint,
    ``adopts`` is what it takes over of a state of another meaning, and ``fault`` a fault to inject
    into this attempt alone.  ``republished`` sinks, which show its result otherwise by now, are
    sent all of it.  ``kept`` are states of other stages, of which its function is given the rows.
    ``driver`` is a token of the driver, of which a cluster may start several for one attempt.
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
    adopts: Adoption | None = None
    republished: tuple[str, ...] = ()
    kept: Mapping[str, StageState | None] = field(default_factory=dict[str, StageState | None])
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
        case Transform(function=function) | SparkCode(function=function):
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
        """The batches of *schema* that *step* yields for each partition."""
        ...

    def placed(self, parallelism: int, column: str) -> Partitions:
        """The rows, exchanged: *column* has the number of a row's partition."""
        ...

    def collected(self) -> list[RowTuple]: ...


def numbered_partitions(
    spark: SparkSession, count: int, folder: BlockFolder | None = None
) -> Partitions:
    """*count* partitions, each of one row: its number.

    With a *folder* all tasks of the session run on one machine; they hand over their rows there.
    """
    slots = 0 if folder is None else task_slots(spark)
    if folder is None or not slots:
        return Frame(numbers(spark, count))
    return Pipelined(spark=spark, slots=slots, count=count, folder=folder)


def numbers(spark: SparkSession, count: int) -> DataFrame:
    """*count* partitions, each of one row: its number.

    Spark Connect would ask the server for their column, at each ``mapInArrow`` over them.
    """
    from pyspark.sql.types import LongType, StructField, StructType

    rows = spark.range(0, count, 1, count)
    if is_remote(spark):
        column = StructField("id", LongType(), nullable=False)
        rows._cached_schema = StructType([column])  # type: ignore[attr-defined]  # noqa: SLF001
    return rows


@dataclass(frozen=True, slots=True)
class Frame:
    """The partitions of a DataFrame."""

    rows: DataFrame

    def mapped(self, step: PartitionFunction, schema: pa.Schema) -> Frame:
        return Frame(map_batches(self.rows, _of_spark_task(step), schema))

    def placed(self, parallelism: int, column: str) -> Frame:
        return Frame(placed_by_id(self.rows, parallelism, column))

    def is_empty(self) -> bool:
        return self.rows.isEmpty()

    def without_rows(self, count: int) -> Frame:
        """*count* empty partitions of the same columns; Spark, which cannot know, starts tasks."""
        tasks = numbers(self.rows.sparkSession, count)
        return Frame(tasks.mapInArrow(_none_of, self.rows.schema))

    def collected(self) -> list[RowTuple]:
        table = self.rows.toArrow()  # In Spark Connect ``collect`` asks for a setting beside them.
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


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


def _of_spark_task(step: PartitionFunction) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """*step*, for the partition of the Spark task that calls it."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "it runs inside a Spark task"
        partition = Partition(context.partitionId(), is_retried=context.attemptNumber() > 0)
        yield from step(partition, batches)

    return run


@dataclass(frozen=True, slots=True)
class MappedPartitions:
    """Partitions of which each task calls ``step``, which yields batches of ``schema``."""

    step: PartitionFunction
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Placed:
    """Partitions in which each row goes to the task of the number in ``column``."""

    parallelism: int
    column: str


Move: TypeAlias = MappedPartitions | Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelined:
    """Partitions of a job whose tasks all run at once, in ``slots`` of one machine at most.

    They begin as ``count`` partitions, each of one row: its number.  A task has several partitions
    where there are more than slots.  Spark starts all tasks of the job or none (barrier execution
    mode), so two jobs never wait for each other.  When one task fails, it ends the others and gives
    up; all are tried again here, as often as Spark tries a task, and go on behind what was sent.
    """

    spark: SparkSession
    slots: int
    count: int
    folder: BlockFolder
    moves: tuple[Move, ...] = ()

    def mapped(self, step: PartitionFunction, schema: pa.Schema) -> Pipelined:
        return replace(self, moves=(*self.moves, MappedPartitions(step, schema)))

    def placed(self, parallelism: int, column: str) -> Pipelined:
        return replace(self, moves=(*self.moves, Placed(parallelism, column)))

    def collected(self) -> list[RowTuple]:
        parallelisms = [move.parallelism for move in self.moves if isinstance(move, Placed)]
        if not parallelisms:  # Nobody waits for another, so Spark may run them as it likes.
            return self._one_by_one().collected()
        tasks = min(self.slots, max(self.count, *parallelisms))
        job = PipelinedJob(
            tasks=tasks,
            count=self.count,
            moves=self.moves,
            folder=self.folder,
            name=uuid.uuid4().hex,
        )
        while True:
            try:
                return self._collected(job)
            except Exception as error:
                if job.number == _TRIES - 1 or _GIVEN_UP not in str(error):
                    raise
                log.warning("all tasks of a job are tried again: %s", root_cause(str(error)))
                job = replace(job, number=job.number + 1)

    def _collected(self, job: PipelinedJob) -> list[RowTuple]:
        from pyspark.sql.pandas.types import from_arrow_schema

        def run(batches: Batches) -> Iterator[pa.RecordBatch]:
            for task in (number for batch in batches for number in batch.column(0).to_pylist()):
                yield from run_task(job, task)

        *_, schema = (move.schema for move in self.moves if isinstance(move, MappedPartitions))
        tasks = numbers(self.spark, job.tasks)
        return Frame(tasks.mapInArrow(run, from_arrow_schema(schema), barrier=True)).collected()

    def _one_by_one(self) -> Frame:
        rows = Frame(numbers(self.spark, self.count))
        for move in self.moves:
            assert isinstance(move, MappedPartitions)
            rows = rows.mapped(move.step, move.schema)
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinedJob:
    """``tasks`` that run at once, of ``count`` partitions to begin with; see ``Pipelined``.

    The ``name`` is that of all its tries, of which this is the one of that ``number``, from 0.
    """

    tasks: int
    count: int
    moves: Sequence[Move]
    folder: BlockFolder
    name: str
    number: int = 0


def run_task(job: PipelinedJob, task: int) -> Iterator[pa.RecordBatch]:
    """The work of *task* of *job* in its Python worker: of each step's partitions it has every so
    many-th.
    """
    from sluice.exchange.blocks import Handovers  # No fork may load Polars.

    def parts_of(count: int) -> range:
        return range(task, count, job.tasks)

    parts: Mapping[int, Batches] = {n: (batch_of((n,), NUMBERS),) for n in parts_of(job.count)}
    count, schema = job.count, NUMBERS
    with Handovers(
        job.folder, job.name, number=job.number, tasks=job.tasks, task=task
    ) as handovers:
        for move in job.moves:
            match move:
                case MappedPartitions(step, schema):
                    retried = job.number > 0
                    parts = {n: step(Partition(n, retried), part) for n, part in parts.items()}
                case Placed(parallelism, column):
                    handover = handovers.next(senders=count)
                    for number, part in parts.items():
                        if not handover.has_sent(number):
                            handover.send(number, part, schema)
                    count = parallelism
                    receivers = parts_of(count)
                    if receivers:
                        handover.wait()
                    parts = handover.received(receivers, column) if receivers else {}
        for part in parts.values():
            yield from part


def batch_of(row: RowTuple, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def columns_named(names: Iterable[str]) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    return [F.col(quoted(name)) for name in names]


def quoted(name: str) -> str:
    """*name*, quoted for SQL, where a dot in a bare name would select a field."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
