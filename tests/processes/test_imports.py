"""Neither a declaration nor the start of a command imports a library of a place or of an engine."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

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


CHILD = """
import os, sys
from botocore.loaders import JSONFileLoader
from sluice.errors import StoreUnavailable
from sluice.store.s3 import S3Store, preload_descriptions

if "scheduler" in sys.argv:
    from sluice_airflow.stage import preload
    preload("scheduler")
if "preloads" in sys.argv:
    preload_descriptions()
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))

parse, parsed = JSONFileLoader.load_file, []
def counted(self, path):
    found = parse(self, path)
    parsed.extend([path] if found is not None else [])
    return found
JSONFileLoader.load_file = counted

try:
    [*S3Store("bucket", "prefix", "http://127.0.0.1:1").list("")]
except StoreUnavailable:
    print("parsed", len(parsed), flush=True)
"""

PARSES = """
import os, sys
if "dag-processor" in sys.argv:
    from sluice_airflow.stage import preload
    preload("dag-processor")
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))

before = set(sys.modules)
from sluice_airflow.dags import dags
assert any(name.startswith("auctions") for name in dags("pipelines"))
ours = {"sluice", "sluice_airflow", "sqlglot"}
loaded = {name for name in set(sys.modules) - before if name.partition(".")[0] in ours}
print("loaded", *sorted(loaded), flush=True)
"""


def run_child(*arguments: str, **environment: str) -> CompletedProcess[str]:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    return run_python(CHILD, *arguments, **keys, **environment)


def files_parsed(*arguments: str, **environment: str) -> int:
    done = run_child(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    assert (
        "preload skipped" not in done.stdout + done.stderr
    )  # A module that is not there any more.
    return int(done.stdout.rpartition("parsed ")[2])


def test_a_task_parses_nothing_that_the_scheduler_has_preloaded(tmp_path: Path) -> None:
    assert files_parsed() > 3
    assert files_parsed("scheduler", AIRFLOW_HOME=str(tmp_path)) == 0


def test_an_environment_that_is_wrong_is_left_to_the_first_request() -> None:
    done = run_child("preloads", AWS_PROFILE="nobody")

    assert done.returncode != 0
    assert "(nobody) could not be found; correct AWS_PROFILE" in done.stderr


def test_a_file_of_dags_is_parsed_without_importing_sluice_again(tmp_path: Path) -> None:
    def loaded(*arguments: str) -> list[str]:
        environment = {"AIRFLOW_HOME": str(tmp_path), "SLUICE_ROOT": str(tmp_path / "root")}
        done = run_python(PARSES, *arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.rpartition("loaded")[2].split()

    assert "sqlglot.parser" in loaded()
    assert loaded("dag-processor") == []
