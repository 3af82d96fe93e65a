"""A session's zone, ANSI mode and Python are ours; its server is asked whether it answers."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import polars as pl
import pyarrow as pa
import pytest

from harness.spark_archive import java_options
from sluice.declaration import aggregates as agg
from sluice.devstack.processes import LOOPBACK, free_ports
from sluice.sinks import FilesTable
from sluice.spark import session
from sluice.spark.session import SETTINGS, ask_spark, is_on_one_machine, task_slots
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


FOREIGN = {
    "spark.sql.session.timeZone": "Europe/Berlin",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
}


@pytest.fixture(name="foreign")
def _foreign(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with the defaults of a Spark server."""
    for name, value in FOREIGN.items():
        spark.conf.set(name, value)
    yield spark
    for name, setting in SETTINGS.items():
        spark.conf.set(name, str(setting))


def test_a_day_begins_in_utc_and_an_overflow_is_an_error_in_anybodys_session(
    foreign: SparkSession, tmp_path: Path
) -> None:
    job = FolderJob(foreign, tmp_path)
    source = job.rows()
    days = source.select("date(at) AS day", "cast(n AS tinyint) AS n").key_by("day")
    days.aggregate("days", n=agg.sum("n")).sink("out", FilesTable(upsert_key=("day",)))
    at = pl.Series([datetime(2026, 7, 1, 22, 30, tzinfo=UTC)] * 2, dtype=pl.Datetime("us", "UTC"))
    job.write("1.parquet", pl.DataFrame({"at": at, "n": [100, 20]}))
    job.epoch()

    assert job.table("out").rows() == [(date(2026, 7, 1), 120)]

    job.write("2.parquet", pl.DataFrame({"at": at, "n": [100, 200]}))

    assert "CAST_OVERFLOW" in job.failure()


def test_python_workers_keep_memory_and_look_for_modules_in_no_zip(spark: SparkSession) -> None:
    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        zips = [path for path in sys.path_importer_cache if path.endswith(".zip")]
        zips = [path for path in zips if Path(path).exists()]
        for _ in batches:
            yield pa.RecordBatch.from_pydict(
                {
                    "pool": [pa.default_memory_pool().backend_name],
                    "jemalloc": [os.environ["_RJEM_MALLOC_CONF"]],
                    "zips": [",".join(zips)],
                }
            )

    rows = spark.range(1).mapInArrow(look, "pool string, jemalloc string, zips string").collect()

    assert [(row.pool, row.zips) for row in rows] == [("system", "")]
    assert rows[0].jemalloc.endswith("dirty_decay_ms:10000,muzzy_decay_ms:-1")


def test_a_worker_has_the_threads_that_spark_grants_its_task(spark: SparkSession) -> None:
    def threads(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (pa.record_batch({"threads": [pl.thread_pool_size()]}) for _ in batches)

    [row] = spark.range(0, 1, 1, 1).mapInArrow(threads, "threads bigint").collect()

    assert "POLARS_MAX_THREADS" not in os.environ  # It would go first.
    assert row["threads"] == int(spark.conf.get("spark.task.cpus", "1") or "1")


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({"spark.master": "local[4]"}, 4),
        ({"spark.master": "local[8,4]"}, 8),
        ({"spark.master": "local[8,4]", "spark.task.cpus": "3"}, 2),
        ({"spark.master": "local[2]", "spark.task.cpus": "3"}, 0),
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[*]", "spark.default.parallelism": "8"}, 0),
        ({"spark.master": "local[*,4]", "spark.default.parallelism": "8"}, 0),
        ({"spark.master": "local-cluster[2,1,1024]"}, 0),
        ({"spark.master": "spark://localhost:7077"}, 0),
    ],
)
def test_slots_are_those_that_the_master_says(settings: dict[str, str], slots: int) -> None:
    """One too many, and tasks would wait for one that never starts."""
    spark: Any = Mock()
    spark.conf.get = settings.get

    assert task_slots(spark) == slots


def test_slots_that_the_master_leaves_to_the_jvm_are_asked_of_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"spark.master": "local[*]", "spark.task.cpus": "1"}
    monkeypatch.setattr("sluice.spark.session._started_with", lambda _, name, d: said.get(name, d))

    assert task_slots(spark.newSession()) == spark.sparkContext.defaultParallelism


def test_slots_are_those_of_the_context_whatever_a_session_is_given(spark: SparkSession) -> None:
    given = spark.newSession()
    given.conf.set("spark.master", "local[999]")

    assert task_slots(given) == task_slots(spark) < 999
    assert is_on_one_machine(given)


def test_python_workers_are_asked_over_unix_sockets(spark: SparkSession) -> None:
    def families(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        links = [link.name for link in Path("/proc/self/fd").iterdir()]
        found = [socket.socket(fileno=os.dup(int(n))) for n in links if _is_socket(int(n))]
        names = {one.family.name for one in found}
        for one in found:
            one.close()
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"families": [",".join(sorted(names))]})

    assert spark.range(1).mapInArrow(families, "families string").collect()[0][0] == "AF_UNIX"


def _is_socket(number: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:  # The folder itself, which was open while it was listed.
        return False


LOSES_ITS_SHUFFLE = """
import pathlib, sys, time
from sluice.spark.session import local_session

with local_session(cores=1, driver_memory="1g") as spark:
    pairs = spark.sparkContext.parallelize(range(100), 2).map(lambda n: (n % 3, n)).groupByKey(2)
    assert pairs.count() == 3
    for file in pathlib.Path(sys.argv[1]).rglob("shuffle_*"):
        file.unlink()
    assert pairs.count() == 3
    time.sleep(5)
    print(pairs.count())
"""


def test_a_spark_that_has_lost_its_shuffle_files_lives_on(tmp_path: Path) -> None:
    """With heartbeats each 10 s it ended itself ten minutes later, with exit code 56.

    In its locale a JVM reads ASCII, so that in this folder Hadoop's classes failed to initialize.
    """
    (here := tmp_path / "straße").mkdir()
    beats = "--conf spark.executor.heartbeatInterval=50ms pyspark-shell"
    surroundings = {"SPARK_LOCAL_DIRS": str(here), "PYSPARK_SUBMIT_ARGS": beats, "LC_ALL": "C"}
    run = subprocess.run(
        [sys.executable, "-c", LOSES_ITS_SHUFFLE, str(here)],
        cwd=here,
        env=os.environ | surroundings | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "3\n"), run.stderr
    assert "Cannot find endpoint" in run.stderr  # Heartbeats do fail.
    assert "unable to send heartbeats" not in run.stderr  # It would end within seconds.


LOSES_ITS_JVM = """
import pathlib, tempfile
from sluice.spark.session import local_session
from sluice.spark.stage import failure_cause

session = local_session(cores=1, driver_memory="1g")
spark = session.__enter__()
jvm = spark.sparkContext._gateway.proc
[folder] = pathlib.Path(tempfile.gettempdir()).glob("sluice-spark-*")
assert any(one.name.startswith("blockmgr-") for one in folder.iterdir())
jvm.kill()
jvm.wait()
try:
    spark.range(1).count()
except Exception as error:
    print(failure_cause(error))
"""
FINDS_NO_JVM = """
import resource
from sluice.errors import ConfigurationError
from sluice.spark.session import local_session

resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
try:
    local_session(cores=1, driver_memory="1g").__enter__()
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (LOSES_ITS_JVM, "Spark's JVM has ended: it was killed"),
        (FINDS_NO_JVM, "; 100 open files are too few; it needs 1g of memory, 1,024 open files"),
    ],
)
def test_a_jvm_that_is_not_there_is_named_with_what_it_needs(script: str, words: str) -> None:
    with tempfile.TemporaryDirectory() as short:  # A socket's path has to fit into 108 bytes.
        run = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": short},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        left = [path.name for path in Path(short).glob("sluice-*")]

    assert words in run.stdout, run.stderr
    assert left == []


@pytest.fixture(name="mute")
def _mute() -> Iterator[int]:
    """A port that the kernel answers, and no program."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server.getsockname()[1]


def test_a_port_without_a_server_and_a_server_that_hangs_are_errors(
    mute: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CONNECT_TIMEOUT_S", 0.2)
    (closed,) = free_ports(1)

    with pytest.raises(ConnectionRefusedError):
        ask_spark(f"sc://{LOOPBACK}:{closed}")
    with pytest.raises(TimeoutError):
        ask_spark(f"sc://{LOOPBACK}:{mute}")


def test_of_a_server_behind_tls_the_port_is_enough(mute: int) -> None:
    ask_spark(f"sc://{LOOPBACK}:{mute}/;use_ssl=true")
    ask_spark(f"sc://{LOOPBACK}:{mute}/;token=secret")


def test_the_jvm_has_one_compiler_and_the_archive(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - There is no other way to what it was given.
    assert jvm is not None

    bean = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()

    assert {*java_options().split()} <= {*bean.getInputArguments()}
