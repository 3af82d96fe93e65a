"""A declaration imports no library of a connector, an engine or a store."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.contract.conftest import environment_with_sluice

PUBLIC = """
import sluice.sources, sluice.sinks
from sluice import Pipeline, aggregates
"""
ICEBERG = """
import sluice.connectors.iceberg.declared_sink, sluice.connectors.iceberg.declared_source
from sluice.connectors.iceberg import sink, source
"""
KAFKA = """
from sluice.connectors.kafka import declared_sink, declared_source
declared_source.Kafka("h:1", "t").params, declared_sink.KafkaTopic("h:1", "t").upsert_key
"""
HEAVY = {
    "boto3",
    "confluent_kafka",
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
    "declaration", [PUBLIC, ICEBERG, KAFKA], ids=["public", "iceberg", "kafka"]
)
def test_a_declaration_imports_nothing_heavy(declaration: str) -> None:
    code = f"{declaration}\nimport sys\nprint(sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env=environment_with_sluice(),
        capture_output=True,
        text=True,
    )

    assert done.stdout.strip() == "[]", done.stderr
