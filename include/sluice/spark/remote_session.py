"""The session of a ``sluice run`` on a Spark Connect server that is running already.

Unlike the sessions of Airflow's tasks it is not shared, so two runs of one pipeline do not affect
each other.  It ends with the run; the server keeps running.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sluice.errors import ConfigurationError
from sluice.spark.session import remote_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_PORT = 15002
ANSWER_TIMEOUT_S = 10.0  # Enough for a server that is starting.
END_TIMEOUT_S = 5.0  # For the client's threads, which need milliseconds.


@contextmanager
def remote_session(remote: str) -> Iterator[SparkSession]:
    """A session on the Spark Connect server at *remote*, ``sc://host:port``, for the block.

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


def check_listening(remote: str, *, said_by: str = "--remote") -> None:
    """Check that a server listens at *remote*: Spark's own client would retry for ten minutes.

    *said_by* is the option or the variable that names it, for the message.

    Raises:
        ConfigurationError: see ``remote_session``.
    """
    parts = urlsplit(remote_of(remote))
    host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    try:
        socket.create_connection((host, port), timeout=ANSWER_TIMEOUT_S).close()
    except OSError as error:
        raise ConfigurationError(
            f"no server listens at {host}:{port}, where {said_by} {remote} names a Spark Connect "
            f"server ({error.strerror or error}); start one there, or correct the address"
        ) from error
    if "use_ssl=true" not in parts.path.lower() and not _speaks_grpc(f"{host}:{port}"):
        raise ConfigurationError(
            f"what listens at {host}:{port} is no Spark Connect server; name its gRPC port (by "
            f"default {DEFAULT_PORT}), which is neither that of its UI nor that of a master"
        )


def check_version(remote: str, server: str) -> None:
    """Raises ConfigurationError unless the *server*'s version has this client's first two parts."""
    from pyspark import __version__ as client

    if _release(server) != _release(client):
        raise ConfigurationError(
            f"the Spark Connect server at {remote} is Spark {server}, and PySpark is {client} "
            f"here; install pyspark=={_release(server)}.* here, or start a server of Spark "
            f"{_release(client)}"
        )


def _speaks_grpc(address: str) -> bool:
    import grpc  # type: ignore[import-untyped]

    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWER_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            return False
    return True


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])
