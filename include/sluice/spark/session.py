"""Spark sessions: warm, named ones of pipelines on a Spark Connect server, or a local one.

A named session that is left stays on the server, which keeps its Python workers warm: the next
task's epoch costs well under a second beyond its work.  A ``sluice run`` has a session of its own:
a JVM that ends with the run, or a session on a Spark Connect server that goes on running.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit
from weakref import WeakKeyDictionary

from sluice.errors import ConfigurationError
from sluice.extras import SPARK, require_installed
from sluice.spark.jvm import LOCALES, archive_option, java_executable, temporary_option

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"

# Throughput counts, not pauses: this collector does the least work in total.  Spark's own classes
# take 60 MB and stay; by default the JVM collects in full three times until it has room for them.
_COLLECTED = "-XX:+UseParallelGC -XX:MetaspaceSize=128m"

# By JDBC, Spark reads and asks for times as they are in the JVM's time zone, not in the session's.
_IN_UTC = "-Duser.timezone=UTC"

# Rows pass mostly through Python, so the JVM's second compiler costs more than it saves until a
# method is really hot: its thresholds are ten times HotSpot's own.
JVM_OPTIONS = (
    f"{_IN_UTC} {_COLLECTED} -XX:Tier4InvocationThreshold=50000 "
    "-XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)

# Without rows nothing becomes hot: the first compiler alone takes a fifth less CPU for each epoch.
# Rows that do pass take it 2.5 times as long.
_JVM_OPTIONS_WITHOUT_ROWS = f"{_IN_UTC} {_COLLECTED} -XX:TieredStopAtLevel=1"

# The settings that results depend on, also set in sessions that exist already: otherwise a day
# would begin at midnight of the server's time zone, and an overflow be null on some clusters.
SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # A stage's partitions are its subtasks, so Spark must not merge them.
    "spark.sql.adaptive.enabled": "false",
    # For a Python worker at once: Spark's default is 2 GiB, and a row may be a large block.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024**2),
    # Nobody shows the progress of a query: each report is a request of the client's to release it.
    "spark.connect.progress.reportInterval": "-1",
}

# The settings among them that say how rows are computed, and not which.
_HOW = ("spark.sql.adaptive.", "spark.sql.execution.", "spark.connect.")

# What a Spark is started with, once, for Python workers that start fast and do not wait for TCP.
PYTHON_WORKERS = {
    "spark.python.daemon.module": "sluice.spark.worker_daemon",
    "spark.python.unix.domain.socket.enabled": "true",
}

DEFAULT_PORT = 15002
ANSWER_TIMEOUT_S = 10.0  # Enough for a server that is starting.
END_TIMEOUT_S = 5.0  # For the client's threads, which need milliseconds.
CONNECT_TIMEOUT_S = 3.0  # As the store's: across an ocean it takes 0.3 s.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_NO_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_LOCAL = re.compile(r"local\[(\d+)[,\]]")  # What `*` stands for, the JVM decides.
# Weakly: a client's threads end with its session.
_slots: WeakKeyDictionary[SparkSession, int | None] = WeakKeyDictionary()
LEAST_FILES = 1_024  # A JVM of Spark opens some 600 of its own: the jars.
_JVM_SAYS = re.compile(r"Error|Exception|OpenJDK .* warning|# There is insufficient memory")
_NAMESPACE = uuid.UUID("6f1d3f52-6a35-4c8e-9a6e-5a0d0b6f6b1e")  # Must never change.


@contextmanager
def local_session(
    *,
    cores: int | None = None,
    driver_memory: str = "4g",
    log_file: Path | None = None,
    archives: bool = False,
    compiles_for_rows: bool = True,
) -> Iterator[SparkSession]:
    """A local Spark session with its own JVM, which ends with the block.

    Its Python workers have the import path of this process.  Output that the JVM and the workers
    print goes to *log_file*, if given.  With *archives* the JVM starts with the archive of its
    classes, or writes it when it ends.  *compiles_for_rows* is False for a JVM that no rows pass,
    or few (``rows_pass_jvm``).
    """
    require_pyspark("a Spark of one's own")
    from pyspark.sql import SparkSession

    logging.getLogger("py4j").setLevel(logging.WARNING)  # It warns of every socket that it closes.
    if log_file is not None:
        _let_root_logger_print()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if (locale := os.environ.get("LC_ALL", "")) in LOCALES:
        os.environ["LC_ALL"] = LOCALES[locale]
    java_options = _java_options(archives=archives, rows=compiles_for_rows)
    builder = (
        SparkSession.builder.master(f"local[{cores or os.cpu_count() or 2},4]")
        .appName("sluice run")
        .config("spark.driver.memory", driver_memory)
        .config("spark.driver.extraJavaOptions", java_options)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", _import_path())
        # Its only executor is this JVM, which would end itself: after shuffle files were lost and
        # computed again its heartbeats fail for ever, as nothing registers a local executor anew.
        .config("spark.executor.heartbeat.maxFailures", str(2**31 - 1))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(cores or os.cpu_count() or 2))
        .config("spark.sql.codegen.wholeStage", str(compiles_for_rows).lower())
        .config(map={**SETTINGS, **PYTHON_WORKERS})
    )
    printed = 0 if log_file is None or not log_file.exists() else log_file.stat().st_size
    with _prints_to(log_file):  # A JVM keeps the settings that it was started with.
        spark = _started(builder, log_file, printed, driver_memory)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _started(
    builder: SparkSession.Builder, log_file: Path | None, printed: int, memory: str
) -> SparkSession:
    """Its session.

    Raises:
        ConfigurationError: the JVM ended before it was ready; with what it said behind *printed*.
    """
    from pyspark.errors import PySparkRuntimeError

    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getErrorClass() != "JAVA_GATEWAY_EXITED":
            raise
        output = "" if log_file is None else log_file.read_text(errors="replace")[printed:]
        said = next((f": {line}" for line in output.splitlines() if _JVM_SAYS.match(line)), "")
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        few = f"; {files} open files are too few" if 0 <= files < LEAST_FILES else ""
        raise ConfigurationError(
            f"Spark's JVM ended before it was ready{said}{few}; it needs {memory} of memory, "
            f"{LEAST_FILES:,} open files (ulimit -n), and a writable {tempfile.gettempdir()}"
        ) from error


def _java_options(*, archives: bool, rows: bool) -> str:
    import pyspark

    options = f"{_LOGGING} {JVM_OPTIONS if rows else _JVM_OPTIONS_WITHOUT_ROWS}"
    options = f"{options} {temporary_option(os.environ)}".rstrip()
    if not archives:
        return options
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    archive = archive_option(java_executable(os.environ), home, os.environ)
    return f"{options} {archive}".rstrip()


def _import_path() -> str:
    """The import path of this process, as absolute paths: a worker runs in another folder."""
    return os.pathsep.join(str(Path(place).resolve()) for place in sys.path)


@contextmanager
def _prints_to(log_file: Path | None) -> Iterator[None]:
    """Redirect the output of processes that are started within the block to *log_file*."""
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
    """Make PySpark's loggers log through the root logger.

    By default they print traces of the JVM as JSON, and do not propagate their records.
    """
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).handlers[:] = [_ToRoot()]


class _ToRoot(logging.Handler):
    """A handler that passes records to the root logger's handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger().handle(record)


@contextmanager
def named_session(remote: str, name: str | None) -> Iterator[SparkSession]:
    """The session *name* for the block, which stays on the server, warm, for other tasks; without
    a name a new one, which ends with the block.

    Raises:
        ConfigurationError: *remote* is no address, or the library or the server is not supported.
    """
    url = remote_of(remote, user_id="sluice") if name is None else session_url(remote, name)
    require_pyspark("the Spark Connect client")
    from pyspark.sql import SparkSession

    # ``getOrCreate`` would return this process's session, whatever the name of that is.
    spark: Any = SparkSession.builder.remote(url).create()
    spark.release_session_on_close = name is None
    try:
        SPARK.check(spark.version, f" at {remote}")
        yield spark
    finally:
        # One that is open when Python ends closes its channel where no thread runs any more, and
        # waits for one of gRPC's for ever.
        spark.stop()


def session_url(remote: str, name: str) -> str:
    """The address of the session *name* on the Spark Connect server at *remote*.

    Raises:
        ConfigurationError: *remote* is not of the form ``sc://host:port``.
    """
    session_id = uuid.uuid5(_NAMESPACE, name)
    return remote_of(remote, session_id=str(session_id), user_id="sluice")


def remote_of(remote: str, **options: str) -> str:
    """The address of a Spark Connect server, with *options* such as a token appended to its own.

    Raises:
        ConfigurationError: *remote* is not of the form ``sc://host:port``.
    """
    parts = urlsplit(remote)
    if parts.scheme != "sc" or not parts.hostname or _port(parts) == 0:
        raise ConfigurationError(f"the Spark remote is {remote!r}; write sc://host:port")
    given = "".join(f";{name}={value}" for name, value in options.items())
    has_options = "/;" in remote
    return f"{remote.rstrip('/;')}{'' if has_options or not given else '/'}{given}"


def _port(parts: SplitResult) -> int | None:
    """The port of an address; 0 if it is not a number."""
    try:
        return parts.port
    except ValueError:
        return 0


@contextmanager
def remote_session(remote: str) -> Iterator[SparkSession]:
    """A session on the Spark Connect server at *remote*, ``sc://host:port``, for the block.

    Unlike the sessions of Airflow's tasks it is not shared, so two runs of one pipeline do not
    affect each other.

    Raises:
        ConfigurationError: no server listens there, or one that is not a Spark Connect server, or
            one of another version than PySpark's here.
    """
    before = {*threading.enumerate()}
    check_listening(remote)
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(remote_of(remote, user_id="sluice")).create()
    try:
        check_version(remote, spark.version)
        yield spark
    finally:
        spark.stop()
        _wait_for_daemons(before)


def check_listening(remote: str, *, named_by: str = "--remote") -> None:
    """Check that a server listens at *remote*: Spark's own client would retry for ten minutes.

    *named_by* is the option or the variable that names it, for the message.

    Raises:
        ConfigurationError: see ``remote_session``.
    """
    parts = urlsplit(remote_of(remote))
    host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    try:
        socket.create_connection((host, port), timeout=ANSWER_TIMEOUT_S).close()
    except OSError as error:
        raise ConfigurationError(
            f"no server listens at {host}:{port}, where {named_by} {remote} names a Spark Connect "
            f"server ({error.strerror or error}); start one there, or correct the address"
        ) from error
    if not _uses_tls(parts) and not _speaks_grpc(f"{host}:{port}"):
        raise ConfigurationError(
            f"what listens at {host}:{port} is no Spark Connect server; name its gRPC port (by "
            f"default {DEFAULT_PORT}), which is neither that of its UI nor that of a master"
        )


def _uses_tls(parts: SplitResult) -> bool:
    return "use_ssl=true" in parts.path.lower()


def _speaks_grpc(address: str) -> bool:
    import grpc  # type: ignore[import-untyped]

    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWER_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            return False
    return True


def check_version(remote: str, server: str) -> None:
    """Raises ConfigurationError unless the *server*'s version has this client's first two parts."""
    from pyspark import __version__ as client

    if _release(server) != _release(client):
        raise ConfigurationError(
            f"the Spark Connect server at {remote} is Spark {server}, and PySpark is {client} "
            f"here; install pyspark=={_release(server)}.* here, or start a server of Spark "
            f"{_release(client)}"
        )


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _wait_for_daemons(before: set[threading.Thread]) -> None:
    """Wait until the threads have ended that gRPC began behind those of *before*.

    They are daemons, and end soon after their channel was closed.  One that is still at work when
    Python ends is unwound in the middle of gRPC's C++, which aborts the process: its exit code
    would say that a run has failed that had not.
    """
    deadline = time.monotonic() + END_TIMEOUT_S
    for thread in {*threading.enumerate()} - before:
        if thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))


def ask_spark(remote: str) -> None:
    """Return once the server at *remote*, ``sc://host:port``, has greeted.

    An HTTP/2 server greets with its settings.  The kernel alone would answer for the port of a
    driver that hangs.  Of a server behind TLS only the port is tried.  It needs neither a session
    nor the client library.

    Raises:
        OSError: nothing listens there, or what listens sent nothing within CONNECT_TIMEOUT_S.
    """
    parts = urlsplit(remote)
    address = parts.hostname or "localhost", parts.port or DEFAULT_PORT
    with socket.create_connection(address, timeout=CONNECT_TIMEOUT_S) as connection:
        if _uses_tls(parts) or "token=" in parts.path.lower():
            return
        connection.sendall(_PREFACE + _NO_SETTINGS)
        if not connection.recv(1):
            raise ConnectionError("it closed the connection without a greeting")


def require_pyspark(who: str) -> None:
    """Raises ConfigurationError, naming *who* needs it, unless a supported PySpark is installed."""
    require_installed("pyspark", "pandas", who=who)
    from pyspark import __version__

    SPARK.check(__version__, " (the library pyspark)")


def with_our_settings(spark: SparkSession) -> SparkSession:
    """The session *spark* with the settings that results depend on."""
    if _context_of(spark) is None:
        conf: Any = spark.conf
        conf._set_all(SETTINGS, silent=False)  # noqa: SLF001 - ``set`` is a request for each.
    else:
        for name, value in SETTINGS.items():
            spark.conf.set(name, str(value))
    return spark


def set_again(spark: SparkSession) -> dict[str, str]:
    """Give the session our settings again; returns those that it had, and that rows depend on."""
    there = spark.conf.getAll
    found = {name: there.get(name, "") for name in SETTINGS}
    others = {name: value for name, value in found.items() if value != str(SETTINGS[name])}
    if others:
        with_our_settings(spark)
    return {name: value for name, value in others.items() if not name.startswith(_HOW)}


def is_on_one_machine(spark: SparkSession) -> bool:
    """Whether all tasks of the session run on one machine, that of its JVM (``local[…]``)."""
    return _slots_of(spark) is not None


def task_slots(spark: SparkSession) -> int:
    """The number of tasks that certainly run at once, on one machine; 0 where it is not known."""
    return _slots_of(spark) or 0


def _slots_of(spark: SparkSession) -> int | None:
    """The slots of the one machine, 0 if they are not known; None if there are several.

    It is asked once: through Spark Connect each question is a request.
    """
    if spark not in _slots:
        _slots[spark] = _asked_slots(spark)
    return _slots[spark]


def _asked_slots(spark: SparkSession) -> int | None:
    master = _started_with(spark, "spark.master", "")
    cores = _LOCAL.match(master)
    if master == "local":
        count = 1
    elif cores is not None:
        count = int(cores[1])
    elif master.startswith("local["):
        count = _default_parallelism(spark)
    else:
        return None
    return count // int(_started_with(spark, "spark.task.cpus", "1"))


def _started_with(spark: SparkSession, name: str, default: str) -> str:
    """The setting that the session's Spark was started with: a session's own settings may say
    otherwise, but Spark Connect tells no others.
    """
    context = _context_of(spark)
    given = spark.conf.get(name, default) if context is None else context.getConf().get(name)
    return given or default


def is_remote(spark: SparkSession) -> bool:
    return _context_of(spark) is None


def _context_of(spark: SparkSession) -> SparkContext | None:
    """The context of a session with a JVM of its own; None of Spark Connect's."""
    from pyspark.sql import SparkSession

    return spark.sparkContext if isinstance(spark, SparkSession) else None


def _default_parallelism(spark: SparkSession) -> int:
    """The JVM's cores, where they are its default parallelism; 0 if a setting replaces that."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    for name in ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism"):
        if _started_with(spark, name, ""):
            return 0
    partitions = spark.range(1 << 20).select(F.spark_partition_id()).distinct()
    return partitions.count()


def stage_tag(pipeline: str, checkpoint_id: int, stage: str) -> str:
    """The tag of the Spark jobs of one stage in one epoch, by which they can be interrupted."""
    return f"{pipeline}-{checkpoint_id}-{stage}"


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Give *tag* to the Spark jobs that this thread starts in the block."""
    context = _context_of(spark)
    if context is None:
        add, remove = spark.addTag, spark.removeTag
    else:  # The tags of such a session are a thread's, and another one interrupts.
        add, remove = context.addJobTag, context.removeJobTag
    add(tag)
    try:
        yield
    finally:
        remove(tag)


def interrupt(spark: SparkSession, tag: str) -> None:
    """Interrupt the Spark jobs that are ``tagged`` with *tag*."""
    context = _context_of(spark)
    if context is None:
        spark.interruptTag(tag)
    else:
        context.cancelJobsWithTag(tag)


@contextmanager
def interrupted_with(spark: SparkSession, tag: str) -> Iterator[None]:
    """Give *tag* to the block's Spark jobs, and interrupt these if it is left by an exception; not
    those of another try of the same stage, which may have begun when this one had seemed dead.
    """
    own = f"{tag}-{uuid.uuid4().hex}"
    with tagged(spark, tag), tagged(spark, own):
        try:
            yield
        except BaseException:  # A task's timeout is no subclass of Exception.
            with suppress(Exception):
                interrupt(spark, own)
            raise
