"""The check of a whole pipeline's types and columns before its first epoch; no row is read.

Spark's analyzer and the operators' constructors check every stage, in topological order: so a
misspelt column of the last stage is found now, and not in epoch 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from sluice.analysis.stage_results import Result
from sluice.connectors.contracts.source import MALFORMED_COLUMN, RAW
from sluice.declaration.changelog import Append, Read, analysed, check_columns, check_sink
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import Transform
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.spark.decoding import decoded
from sluice.spark.keying import polars_schema, prepared
from sluice.spark.reading import with_origin
from sluice.spark.row_wise import check_row_wise_plan
from sluice.spark.rows import (
    looked_up,
    lookup_of,
    projected,
    renamed,
    transformed,
)
from sluice.spark.session import with_our_settings
from sluice.spark.stage_failure import cause_of
from sluice.subtask.operators.build import build_operator
from sluice.subtask.operators.operator import WEIGHT
from sluice.subtask.output import narrowed
from sluice.subtask.side_rows import SOURCE
from sluice.subtask.state.schema import StateSchema
from sluice.subtask.state.segments import to_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def check_pipeline(
    pipeline: Pipeline, spark: SparkSession, params: Mapping[str, str], endpoint_url: str | None
) -> dict[str, Result]:
    """The result of each stage by its uid: columns and types.

    Raises:
        ConfigurationError: a stage cannot compute what it declares, or a sink cannot write what
            it reads; the message names it, and ends with the cause.
    """
    with_our_settings(spark)
    rows: dict[str, DataFrame] = {}
    for uid, node in pipeline.sources.items():
        source = node.spec.open(params, endpoint_url)
        empty = _empty(spark, with_origin(source.schema()).empty_table())
        rows[uid] = empty if source.decoding is None else decoded(empty, source.decoding)
    yields: dict[str, Result] = {}
    for uid, declared in pipeline.stages.items():
        stage = _reading(declared, yields)
        kind = stage.kind  # A stage over the wrong kind of stream is refused.
        try:
            frame, tables = _result(pipeline, stage, rows, params)
        except ConfigurationError:
            raise
        except Exception as error:  # Spark's analyzer and the user's function may raise anything.
            raise ConfigurationError(f"stage {uid!r} cannot be run: {cause_of(error)}") from error
        yields[uid] = Result(frame.schema, analysed(kind, frame.columns), tables)
        _check_sinks(pipeline, uid, yields[uid])
        if kind != Append():
            frame = frame.with_columns(pl.lit(1, pl.Int8).alias(WEIGHT))
        rows[uid] = _empty(spark, to_table(frame))
    return yields


def _reading(stage: StageNode, yields: Mapping[str, Result]) -> StageNode:
    """*stage* with inputs of the kinds that *yields* found: a function may drop a key."""
    inputs = [
        replace(given, kind=yields[given.producer].kind) if given.producer in yields else given
        for given in stage.inputs
    ]
    return replace(stage, inputs=tuple(inputs))


def _check_sinks(pipeline: Pipeline, uid: str, result: Result) -> None:
    for sink in pipeline.sinks_of(uid):
        check_sink(sink.uid, sink.spec, Read(uid, result.kind))
        check_columns(sink.uid, sink.spec, uid, result.columns)


def _result(
    pipeline: Pipeline, stage: StageNode, rows: Mapping[str, DataFrame], params: Mapping[str, str]
) -> tuple[pl.DataFrame, Mapping[str, StateSchema]]:
    inputs = [
        projected(rows[given.producer], given)
        if given.producer in pipeline.sources
        else renamed(rows[given.producer], given)
        for given in stage.inputs
    ]
    lookup = lookup_of(stage)
    table = rows[lookup.table] if lookup is not None else None
    if stage.is_stateful:
        sides = [
            prepared(side, stage, given)
            for side, given in zip(looked_up(stage, inputs, table), stage.inputs, strict=True)
            if not given.is_broadcast
        ]
        operator = build_operator(stage, [polars_schema(side) for side in sides])
        return narrowed(stage, operator.output_schema.to_frame()), operator.tables
    result = transformed(stage, inputs, table, params)
    if isinstance(stage.operation, Transform):
        check_row_wise_plan(stage.uid, result)
    frame = polars_schema(result).to_frame()
    return narrowed(stage, frame.drop(SOURCE, MALFORMED_COLUMN, RAW, WEIGHT, strict=False)), {}


def _empty(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A DataFrame without rows; its schema is given, as Spark Connect infers none from no rows."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame([], from_arrow_schema(table.schema))
