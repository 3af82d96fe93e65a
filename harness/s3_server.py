"""A real S3 server for tests: ministack, on a free loopback port, in a process group of its own.

It keeps its objects in a folder, so that a server killed and started again still has them.  The
kernel kills it when the thread that started it ends, so that not even a killed test run leaves one.
"""

from __future__ import annotations

import http
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sluice.devstack.servers import bucket_exists_or_is_created

START_TIMEOUT_S = 60.0  # It takes about 2 s on an idle machine.
PORT_ATTEMPTS = 5  # Another process may take the free port before the server does.

# PR_SET_PDEATHSIG is 1.  ministack's command line is its ``main``.
COMMAND = """
import ctypes, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
from ministack.app import main
main()
"""


class S3Server:
    """One server over *data_dir*.  ``start`` after ``kill`` keeps the port and the objects."""

    health = "/_ministack/health"

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint_url(self) -> str:
        assert self._port, "not started yet"
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        assert self._process is None
        self._data_dir.mkdir(parents=True, exist_ok=True)
        may_move = self._port == 0
        for _ in range(PORT_ATTEMPTS):
            if may_move:
                self._port = free_port()
            self._launch()
            if self._is_ready():
                return
            self.kill()
        log = (self._data_dir / "server.log").read_text(errors="replace")
        raise RuntimeError(f"the S3 server did not start on port {self._port}:\n{log[-4000:]}")

    def kill(self) -> None:
        """Kill the whole process group, as ``kill -9`` does: nothing is written any more."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # It ended by itself.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within the block it accepts connections, and answers nothing."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def command(self) -> list[str]:
        return [sys.executable, "-c", COMMAND]

    def environment(self) -> dict[str, str]:
        return {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self._port),
            "LOG_LEVEL": "WARNING",
            "S3_DATA_DIR": str(self._data_dir / "s3"),
            "S3_PERSIST": "1",
            "SERVICES": "s3",
            "TMPDIR": str(self._data_dir),  # Its PID file.
        }

    def _launch(self) -> None:
        environment = os.environ | self.environment()
        environment.pop("PYTHONWARNINGS", None)
        with (self._data_dir / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _is_ready(self) -> bool:
        """Wait until the server answers; False when its process has ended."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
            try:
                connection.request("GET", self.health)
                return connection.getresponse().status == http.HTTPStatus.OK
            except OSError:
                time.sleep(0.05)
            finally:
                connection.close()
        return False


@contextmanager
def running_s3_server(data_dir: Path, kind: type[S3Server] = S3Server) -> Iterator[str]:
    """Run a server over *data_dir* and yield its endpoint, which takes ``variables``."""
    server = kind(data_dir)
    server.start()
    try:
        yield server.endpoint_url
    finally:
        server.kill()


@contextmanager
def own_bucket(data_dir: Path) -> Iterator[dict[str, str]]:
    """Run a server with the bucket of the development stack, and yield the variables of clients."""
    with running_s3_server(data_dir) as endpoint:
        assert bucket_exists_or_is_created(int(endpoint.rpartition(":")[2]))
        yield variables(endpoint)


@contextmanager
def as_environment(server: S3Server, bucket: str) -> Iterator[None]:
    """Have this process's clients be those of *server*, which gets *bucket*.

    A process keeps its clients by the endpoint that it is given, not by the one that its
    environment names, so none stays from before, nor for who comes next.
    """
    import boto3
    import pytest

    from sluice.store.s3 import clients

    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables(server.endpoint_url).items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket=bucket)
        clients.cache_clear()
        try:
            yield
        finally:
            clients.cache_clear()


def variables(endpoint_url: str) -> dict[str, str]:
    """Those of a client of the server at *endpoint_url*."""
    return {
        "AWS_ENDPOINT_URL_S3": endpoint_url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
