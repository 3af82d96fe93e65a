"""Spark sessions: one warm, named session per pipeline on a Spark Connect server, or a local one.

Attaching to a named session and leaving without ``stop()`` keeps its Python workers warm: the next
task's epoch costs well under a second beyond its work.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGING = Path(__file__).with_name("log4j2.properties")
# Nobody waits for a single row: this collector does the least work in all, whatever its pauses.
_JVM_OPTIONS = f"-Dlog4j2.configurationFile={_LOGGING} -XX:+UseParallelGC"

# What a result depends on.  A session that somebody else has set up is set to these, too: else a
# day would begin when it does where the server stands, and an overflow be a null on one cluster.
SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.legacy.timeParserPolicy": "EXCEPTION",
    # A stage's partitions are its subtasks: nobody may merge them behind our back.
    "spark.sql.adaptive.enabled": "false",
    # Of what goes to a Python worker at once; Spark's default is 2 GiB, and a row may be a large
    # block.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024**2),
}

_NAMESPACE = uuid.UUID("6f1d3f52-6a35-4c8e-9a6e-5a0d0b6f6b1e")  # Ours alone; never changes.


def session_url(remote: str, pipeline: str) -> str:
    """The address of *pipeline*'s own session on the Spark Connect server at *remote*.

    Raises:
        ConfigurationError: *remote* is not of the form ``sc://host:port``.
    """
    parts = urlsplit(remote)
    if parts.scheme != "sc" or not parts.hostname:
        raise ConfigurationError(f"the Spark remote is {remote!r}; write sc://host:port")
    session_id = uuid.uuid5(_NAMESPACE, pipeline)
    return f"{remote.rstrip('/')}/;session_id={session_id};user_id=sluice"


def connect(remote: str, pipeline: str) -> SparkSession:
    """Attach to the pipeline's session.  Never stop it: other tasks use it, too."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(session_url(remote, pipeline)).getOrCreate()


def with_our_settings(spark: SparkSession) -> SparkSession:
    """The session, set to what results depend on, wherever it comes from."""
    for name, value in SETTINGS.items():
        spark.conf.set(name, str(value))
    return spark


def stage_tag(pipeline: str, checkpoint_id: int, stage: str) -> str:
    """By which the Spark jobs of one stage in one epoch are found, and interrupted."""
    return f"{pipeline}-{checkpoint_id}-{stage}"


@contextlib.contextmanager
def interrupted_with(spark: SparkSession, tag: str) -> Iterator[None]:
    """Interrupt on Spark what this thread started within the block and did not see the end of."""
    spark.addTag(tag)
    try:
        yield
    except BaseException:  # A task's timeout is none of Exception's.
        with contextlib.suppress(Exception):
            spark.interruptTag(tag)
        raise
    finally:
        spark.removeTag(tag)


@contextlib.contextmanager
def local_session(
    *, cores: int | None = None, driver_memory: str = "4g", log_file: Path | None = None
) -> Iterator[SparkSession]:
    """A Spark of our own in this process and one JVM; it ends with the block.

    What the JVM, and the functions that its Python workers run, print goes to *log_file*, if there
    is one.
    """
    from pyspark.sql import SparkSession

    logging.getLogger("py4j").setLevel(logging.WARNING)  # It reports every socket it closes.
    if log_file is not None:
        _let_root_logger_print()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master(f"local[{cores or os.cpu_count() or 2},4]")
        .appName("sluice run")
        .config("spark.driver.memory", driver_memory)
        .config("spark.driver.extraJavaOptions", _JVM_OPTIONS)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.daemon.module", "sluice.spark.worker_daemon")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(cores or os.cpu_count() or 2))
        .config(map=SETTINGS)
    )
    with _prints_to(log_file):  # A process keeps what it is started with.
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def _prints_to(log_file: Path | None) -> Iterator[None]:
    """Have processes that are started within the block print to *log_file*."""
    if log_file is None:
        yield
        return
    kept = [(stream, os.dup(stream)) for stream in (1, 2)]
    try:
        with log_file.open("ab") as log:
            for stream, _ in kept:
                os.dup2(log.fileno(), stream)
        yield
    finally:
        for stream, before in kept:
            os.dup2(before, stream)
            os.close(before)


def _let_root_logger_print() -> None:
    """PySpark's own loggers print traces of the JVM, as JSON, beside whatever is configured, and
    keep their records from it.
    """
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).handlers[:] = [_ToRoot()]


class _ToRoot(logging.Handler):
    """Hands records on to the root logger's handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger().handle(record)
