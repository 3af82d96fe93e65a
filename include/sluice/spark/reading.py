"""Readers of a stage's inputs: slices of a source, or segments of a stream, as a DataFrame.

Both are read by Python in ``mapInArrow``, spread over exactly *parallelism* Spark partitions, so
that no S3 jar is needed and partition i is subtask i of a stage that does not shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from sluice.connectors.contracts.announced import check_announced
from sluice.connectors.contracts.source import RECORD, Source
from sluice.connectors.files.parquet_source import ParquetSource
from sluice.core.handles import SegmentHandle
from sluice.core.plan import Slice
from sluice.storage.open import StoreLocation
from sluice.subtask.chunks import bounded
from sluice.subtask.side_rows import SOURCE
from sluice.subtask.state.cache import SegmentCache

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

SOURCE_TYPE = pa.struct([("partition", pa.string()), ("record", pa.int64())])
ORIGIN = pa.field(SOURCE, SOURCE_TYPE)


def read_slices(
    spark: SparkSession, source: Source, slices: Sequence[Slice], parallelism: int
) -> DataFrame:
    """The records of *slices*, each with ``_source``: its partition, and its number in that."""
    return _records(spark, source.read, source.schema(), slices, parallelism)


def read_columns(
    spark: SparkSession,
    source: ParquetSource,
    columns: Sequence[str],
    slices: Sequence[Slice],
    parallelism: int,
) -> DataFrame:
    """The records of *slices* with *columns* only; the others are not decoded."""
    whole = source.schema()
    kept = [name for name in whole.names if name in columns] or whole.names[:1]
    schema = pa.schema([whole.field(name) for name in kept])

    def read(piece: Slice) -> Iterator[pa.RecordBatch]:
        return source.read(piece, kept)

    return _records(spark, read, schema, slices, parallelism)


def _records(
    spark: SparkSession,
    read_slice: Callable[[Slice], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    slices: Sequence[Slice],
    parallelism: int,
) -> DataFrame:
    shares = share(slices, parallelism)
    whole = with_origin(schema)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for index in _partitions(batches):
            for piece in shares[index]:
                record = piece.first_record
                for batch in bounded(read_slice(piece)):
                    check_announced(batch.schema, schema, piece.partition)
                    yield rows_with_origin(batch, piece.partition, record, whole)
                    record += batch.num_rows

    return _read(spark, read, whole, parallelism)


def read_segments(
    spark: SparkSession,
    location: StoreLocation,
    segments: Sequence[SegmentHandle],
    schema: pa.Schema,
    parallelism: int,
) -> DataFrame:
    """The rows of a stream's segments of one epoch, verified as they are read."""
    shares = share(segments, parallelism)
    schema = pa.schema([field.with_type(_for_spark(field.type)) for field in schema])

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cache = SegmentCache(location)
        for index in _partitions(batches):
            for handle in shares[index]:
                yield from bounded(cache.open(handle).cast(schema).to_batches())

    return _read(spark, read, schema, parallelism)


def for_spark(table: pa.Table) -> pa.Table:
    """*table* with types that Spark accepts from Python."""
    fields = [field.with_type(_for_spark(field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))


def _for_spark(dtype: pa.DataType) -> pa.DataType:
    """*dtype* with plain lists, as Spark accepts no large ones, which segments have."""
    if pa.types.is_large_list(dtype) or pa.types.is_list(dtype):
        return pa.list_(dtype.value_field.with_type(_for_spark(dtype.value_type)))
    if pa.types.is_struct(dtype):
        return pa.struct([field.with_type(_for_spark(field.type)) for field in dtype])
    if pa.types.is_map(dtype):
        return pa.map_(_for_spark(dtype.key_type), _for_spark(dtype.item_type))
    return dtype


def share(items: Sequence[T], parallelism: int) -> tuple[tuple[T, ...], ...]:
    """*items* in *parallelism* shares of neighbours, whose sizes differ by at most one."""
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


def with_origin(schema: pa.Schema) -> pa.Schema:
    """The columns of a source's rows, with ``_source``."""
    names = [name for name in schema.names if name != RECORD]
    return pa.schema([schema.field(name) for name in names]).append(ORIGIN)


def rows_with_origin(
    batch: pa.RecordBatch, partition: str, first_record: int, schema: pa.Schema
) -> pa.RecordBatch:
    if RECORD in batch.schema.names:
        records = batch.column(RECORD)
        batch = batch.drop_columns([RECORD])
    else:
        records = pa.array(range(first_record, first_record + batch.num_rows), pa.int64())
    partitions = pa.repeat(pa.scalar(partition, pa.string()), batch.num_rows)
    origin = pa.StructArray.from_arrays([partitions, records], fields=list(SOURCE_TYPE))
    return pa.RecordBatch.from_arrays([*batch.columns, origin], schema=schema)
