"""Whether a pipeline's rows pass Spark's JVM at all, told before a Spark is started.

A JVM that only schedules tasks, and moves references to rows, has no code that is worth compiling
twice: its second compiler would take a sixth of the CPU of every epoch (``spark/session.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.connectors.files.parquet_source import ParquetSource
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.spark.deployment import stream_schema
from sluice.spark.exchange import FileRows, exchange_over
from sluice.storage.open import StoreLocation
from sluice.subtask.feed import ParquetRows, StreamRows

_NOWHERE = StoreLocation("memory://nowhere")


def rows_pass_jvm(pipeline: Pipeline, params: Mapping[str, str], endpoint_url: str | None) -> bool:
    """Whether Spark may have to read, transform or sort rows of some stage.

    No only if all sources are Parquet files, some of which are there, and each stage has an
    exchange of its own: of JSON one line may be left to Spark.
    """
    rows: dict[str, FileRows] = {}
    try:
        for uid, declared in pipeline.sources.items():
            source = declared.spec.open(params, endpoint_url)
            if declared.is_table or not isinstance(source, ParquetSource):
                return True
            rows[uid] = ParquetRows(source, (), source.schema().serialize().to_pybytes())
        for uid, stage in pipeline.stages.items():
            exchange = exchange_over(stage, [rows[given.producer] for given in stage.shuffled])
            if exchange is None:
                return True
            yields = stream_schema(stage, exchange.operator.output_schema)
            rows[uid] = StreamRows(_NOWHERE, (), yields)
    except ConfigurationError:  # The check of the pipeline says so, or the first epoch.
        return True
    return False
