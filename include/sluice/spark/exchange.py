"""The way of a keyed stage's rows past the JVM: read, hashed and sent in columns by Python.

Spark still schedules, shuffles and retries; what it moves are blocks.  Measured with 5 million rows
of Parquet on two cores: 2.8 CPU seconds to the subtasks, not 5.7 (ADR 14).
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from sluice.connectors.parquet import ParquetSource
from sluice.nodes import Input
from sluice.operations import KeyedLookup, WindowTopN
from sluice.runtime.exchange import BLOCK_SCHEMA, SUBTASK, ExchangeSpec, send
from sluice.runtime.feed import Feed, ParquetRows, StreamRows
from sluice.runtime.operators.build import build_operator
from sluice.runtime.operators.computed import wanted
from sluice.runtime.operators.operator import EpochTime, Operator
from sluice.runtime.state.segments import to_table
from sluice.spark.keying import KeyedRows, is_pre_aggregated, needed_columns
from sluice.spark.reading import share
from sluice.spark.stage_run import StageRun
from sluice.windows import Attached


@dataclass(frozen=True, slots=True)
class Exchange:
    """A feed for each input of a keyed stage, and what the stage computes of them."""

    feeds: tuple[Feed, ...]
    operator: Operator


def exchange_of(run: StageRun) -> Exchange | None:
    """None if Spark has to read an input, or to sort what the subtasks get.

    Raises:
        ConfigurationError: the stage cannot compute what it declares of these columns.
    """
    if not run.node.is_stateful or isinstance(run.node.operation, KeyedLookup):
        return None
    feeds = [_feed(run, given) for given in run.node.inputs]
    possible = [feed for feed in feeds if feed is not None and feed.is_possible()]
    if len(possible) < len(feeds) or not all(map(_is_known_to_spark, possible)):
        return None
    operator = build_operator(run.node, [feed.prepared_schema for feed in possible])
    if operator.is_order_sensitive:
        return None
    narrowed = (
        feed.narrowed(needed_columns(feed.prepared_schema.names(), feed.given, operator))
        for feed in possible
    )
    return Exchange(feeds=tuple(narrowed), operator=operator)


def exchanged_rows(run: StageRun, exchange: Exchange, epoch_time: EpochTime) -> KeyedRows:
    """Every row in a block for the subtask that owns its key group."""
    from pyspark.sql.pandas.types import from_arrow_schema

    node, task = run.node, run.task
    spec = ExchangeSpec(
        stage=node,
        task=task,
        feeds=exchange.feeds,
        epoch_time=epoch_time,
        pre_aggregates=run.before is not None and is_pre_aggregated(run.before.rows_per_group),
    )
    shares = run.spark.range(0, task.parallelism, 1, task.parallelism)
    block_type = from_arrow_schema(BLOCK_SCHEMA)  # As DDL, Spark would have to parse it.
    blocks = shares.mapInArrow(lambda batches: send(spec, batches), block_type)
    if task.parallelism > 1:
        blocks = blocks.repartitionById(task.parallelism, SUBTASK)
    return KeyedRows(
        rows=blocks,
        schemas=tuple(_serialized(feed) for feed in exchange.feeds),
        is_exchanged=True,
        tables=exchange.operator.tables,
    )


def _feed(run: StageRun, given: Input) -> Feed | None:
    node = run.node
    if node.operation.__class__ is WindowTopN and not given.keys:
        assert isinstance(node.operation, WindowTopN)
        if not isinstance(node.operation.window, Attached):
            return None  # The window is computed from the row, by Spark.
        hashed: tuple[str, ...] = ("window_start",)
    else:
        hashed = given.keys
    found = _rows(run, given)
    if found is None:
        return None
    rows, schema = found
    return Feed(rows=rows, schema=schema, given=given, hashed=hashed, wanted=wanted(node.operation))


def _rows(run: StageRun, given: Input) -> tuple[ParquetRows | StreamRows, bytes] | None:
    parallelism = run.task.parallelism
    if given.producer not in run.job.pipeline.sources:
        stream = run.given.streams[given.producer]
        shares = share(stream.segments, parallelism)
        location = run.job.location
        return StreamRows(location, shares, stream.schema), stream.schema
    source = run.job.source(given.producer, run.configuration.params)
    if not isinstance(source, ParquetSource):
        return None
    slices = run.plan.source(given.producer).slices
    schema: bytes = source.schema().serialize().to_pybytes()
    return ParquetRows(source, share(slices, parallelism)), schema


def _is_known_to_spark(feed: Feed) -> bool:
    """Whether Spark would give every column the type that it has: only then the way is free."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    schema = to_table(feed.prepared_schema.to_frame()).schema
    try:
        of_spark = to_arrow_schema(from_arrow_schema(schema), timezone="UTC")
    except PySparkException:
        return False
    frame = pl.from_arrow(of_spark.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame.schema == feed.prepared_schema


def _serialized(feed: Feed) -> bytes:
    columns = {name: feed.prepared_schema[name] for name in feed.columns or ()}
    body: bytes = to_table(pl.DataFrame(schema=columns)).schema.serialize().to_pybytes()
    return body
