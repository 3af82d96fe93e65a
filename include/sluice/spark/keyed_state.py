"""The keyed state of a stage as a Spark DataFrame, read by the executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.spark.user_code import take_along
from sluice.subtask.state.segments import to_table
from sluice.views.keyed_state import StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def state_dataframe(spark: SparkSession, state: StateTable) -> DataFrame:
    """The live rows of *state*, a partition per subtask that wrote it."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for subtask in batch.column(0).to_pylist():
                for piece in state.pieces(subtask):
                    yield from to_table(piece).cast(schema).to_batches()

    if state.migrating is not None:
        take_along(state.migrating)
    schema = to_table(state.schema().columns.to_frame()).schema
    count = len(state.subtasks)
    return spark.range(0, count, 1, count).mapInArrow(read, from_arrow_schema(schema))
