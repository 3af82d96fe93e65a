"""What a stage reads: slices of a source, or the segments of a stream, as a DataFrame.

Both are read by Python in ``mapInArrow``, spread over exactly *parallelism* Spark partitions, so
that no S3 jar is needed and partition i is subtask i of a stage that does not shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from sluice.connectors.source import Source
from sluice.core.handles import SegmentHandle
from sluice.core.plan import Slice
from sluice.runtime.output import SOURCE
from sluice.runtime.state.cache import SegmentCache
from sluice.storage.open import StoreLocation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

BATCH_ROWS = 50_000  # As spark.sql.execution.arrow.maxRecordsPerBatch: bounds what the JVM holds.

SOURCE_TYPE = pa.struct([("partition", pa.string()), ("record", pa.int64())])


def read_slices(
    spark: SparkSession, source: Source, slices: Sequence[Slice], parallelism: int
) -> DataFrame:
    """The records of *slices*, each with ``_source``: its partition and number there."""
    shares = share(slices, parallelism)
    schema = source.schema().append(pa.field(SOURCE, SOURCE_TYPE))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for index in _partitions(batches):
            for piece in shares[index]:
                record = piece.first_record
                for batch in source.read(piece):
                    yield _with_origin(batch, piece.partition, record, schema)
                    record += batch.num_rows

    return _read(spark, read, schema, parallelism)


def read_segments(
    spark: SparkSession,
    location: StoreLocation,
    segments: Sequence[SegmentHandle],
    schema: pa.Schema,
    parallelism: int,
) -> DataFrame:
    """The rows of a stream's segments of one epoch, verified as they are read."""
    shares = share(segments, parallelism)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cache = SegmentCache(location)
        for index in _partitions(batches):
            for handle in shares[index]:
                yield from cache.open(handle).cast(schema).to_batches(max_chunksize=BATCH_ROWS)

    return _read(spark, read, schema, parallelism)


def share(items: Sequence[T], parallelism: int) -> tuple[tuple[T, ...], ...]:
    """Neighbours stay together; shares differ by at most one item."""
    bounds = [len(items) * index // parallelism for index in range(parallelism + 1)]
    return tuple(tuple(items[start:end]) for start, end in pairwise(bounds))


def _read(
    spark: SparkSession,
    read: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    parallelism: int,
) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    partitions = spark.range(0, parallelism, 1, parallelism)
    return partitions.mapInArrow(read, from_arrow_schema(schema))


def _partitions(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _with_origin(
    batch: pa.RecordBatch, partition: str, first_record: int, schema: pa.Schema
) -> pa.RecordBatch:
    records = pa.array(range(first_record, first_record + batch.num_rows), pa.int64())
    partitions = pa.repeat(pa.scalar(partition, pa.string()), batch.num_rows)
    origin = pa.StructArray.from_arrays([partitions, records], fields=list(SOURCE_TYPE))
    return pa.RecordBatch.from_arrays([*batch.columns, origin], schema=schema)
