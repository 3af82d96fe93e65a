"""Neither a declaration nor the start of a command imports a library of a place or of an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.conftest import run_python

PUBLIC = """
import sluice.sources, sluice.sinks
from sluice import Pipeline, aggregates
"""
ICEBERG = """
import sluice.connectors.delta.declared_sink, sluice.connectors.delta.declared_source
import sluice.connectors.iceberg.declared_sink, sluice.connectors.iceberg.declared_source
from sluice.connectors.delta import sink, source
from sluice.connectors.iceberg import sink, source
"""
KAFKA = """
from sluice.connectors.kafka.declared import Kafka, KafkaTopic
Kafka("h:1", "t").params, KafkaTopic("h:1", "t").upsert_key
"""
# Most commands are GETs of a bucket, and a shell's completion none.
COMMAND_LINE = "import sluice.cli.main"
HEAVY = {
    "boto3",
    "confluent_kafka",
    "deltalake",
    "fastavro",
    "google.protobuf",
    "polars",
    "psycopg",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "sqlalchemy",
}


@pytest.mark.parametrize(
    "imports",
    [PUBLIC, ICEBERG, KAFKA, COMMAND_LINE],
    ids=["public", "iceberg", "kafka", "command_line"],
)
def test_what_is_read_by_every_process_imports_nothing_heavy(imports: str) -> None:
    done = run_python(f"{imports}\nimport sys\nprint(sorted({HEAVY} & set(sys.modules)))")

    assert done.stdout.strip() == "[]", done.stderr


CHECKED = """
import pyarrow as pa, pyarrow.parquet as pq
from sluice import Pipeline, aggregates as agg
from sluice.job.analysis import analyse
from sluice.sinks import FilesTable
from sluice.sources import Files
pq.write_table(pa.Table.from_batches([], pa.schema([("k", pa.string()), ("v", pa.int64())])), PATH)
pipeline = Pipeline("p")
rows = pipeline.source("rows", Files(PATH, format="parquet"))
rows.key_by("k").aggregate("a", s=agg.sum("v")).sink("out", FilesTable(upsert_key=("k",)))
import sluice.cli.check
assert analyse(pipeline, {}, None)["a"] is not None
"""


def test_what_needs_no_spark_is_checked_without_it_and_without_pandas(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.parquet")
    done = run_python(
        f"PATH = {path!r}{CHECKED}import sys\n"
        "print(sorted({'pandas', 'pyspark', 'sluice.spark.checking'} & set(sys.modules)))"
    )

    assert done.stdout.strip() == "[]", done.stderr
