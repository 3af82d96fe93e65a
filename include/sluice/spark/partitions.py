"""``Partitions``: what a stage's Spark job is made of, functions over partitions and shuffles.

A DataFrame goes everywhere, also over Spark Connect, but Spark analyses, optimizes and plans each
epoch's anew.  An RDD is scheduled as it is; its rows are pickled, so it is for those that only say
where others are (ADR 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from sluice.spark.names import Batches, map_batches

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame

Step: TypeAlias = Callable[[Batches], Iterator[pa.RecordBatch]]
Row: TypeAlias = tuple[Any, ...]

NUMBERS = pa.schema([("id", pa.int64())])
_PARALLELISMS = 8  # Of the stages of a process, for each of which numbers are kept.


class Partitions(Protocol):
    """Rows in partitions; computed by a Spark job, when they are collected."""

    def mapped(self, step: Step, schema: pa.Schema) -> Partitions:
        """What *step* yields for each partition, batches of *schema*."""
        ...

    def placed(self, parallelism: int, column: str) -> Partitions:
        """The rows, shuffled: *column* has the number of a row's partition."""
        ...

    def collected(self) -> list[Row]: ...


@dataclass(frozen=True, slots=True)
class Frame:
    """The partitions of a DataFrame."""

    rows: DataFrame

    def mapped(self, step: Step, schema: pa.Schema) -> Frame:
        return Frame(map_batches(self.rows, step, schema))

    def placed(self, parallelism: int, column: str) -> Frame:
        return Frame(self.rows.repartitionById(parallelism, column))

    def is_empty(self) -> bool:
        return self.rows.isEmpty()

    def without_rows(self, count: int) -> Frame:
        """*count* partitions of the same columns that are all empty, which Spark cannot know."""
        numbers = self.rows.sparkSession.range(0, count, 1, count)
        return Frame(numbers.mapInArrow(_none_of, self.rows.schema))

    def collected(self) -> list[Row]:
        names = self.rows.columns
        return [tuple(row[name] for name in names) for row in self.rows.collect()]


@dataclass(frozen=True, slots=True)
class Objects:
    """The partitions of an RDD, whose elements are rows of ``schema``."""

    rows: RDD[Row]
    schema: pa.Schema

    def mapped(self, step: Step, schema: pa.Schema) -> Objects:
        given = self.schema

        def over_rows(rows: Iterable[Row]) -> Iterator[Row]:
            for batch in step(batch_of(row, given) for row in rows):
                yield from rows_of(batch)

        return Objects(self.rows.mapPartitions(over_rows), schema)

    def placed(self, parallelism: int, column: str) -> Objects:
        index = self.schema.get_field_index(column)
        keyed = self.rows.map(lambda row: (row[index], row))
        shuffled = keyed.partitionBy(parallelism, lambda subtask: subtask)
        return Objects(shuffled.values(), self.schema)

    def collected(self) -> list[Row]:
        return self.rows.collect()


@lru_cache(_PARALLELISMS)
def numbers(context: SparkContext, count: int) -> RDD[Row]:
    """The numbers below *count*, one in each partition: every epoch of a stage begins so."""
    return context.parallelize([(number,) for number in range(count)], count)


def batch_of(row: Row, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _none_of(batches: Batches) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield from ()
