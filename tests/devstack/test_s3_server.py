"""The real S3 server keeps what it acknowledged across kill -9, on loopback, in our folder."""

import os
import signal
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from threading import Event

import pytest

from sluice.devstack import processes, servers
from sluice.devstack.processes import ProcessRecord

pytestmark = pytest.mark.s3


Start = Callable[[Callable[[int], bool]], ProcessRecord]


@pytest.fixture
def port() -> int:
    return processes.free_ports(1)[0]


@pytest.fixture(name="start")
def _start(tmp_path: Path, port: int) -> Iterator[Start]:
    """Starts the server, and waits until it is ready."""
    started: list[ProcessRecord] = []

    def start(is_ready: Callable[[int], bool]) -> ProcessRecord:
        launch = servers.s3_launch(port=port, sluice_dir=tmp_path, env=dict(os.environ))
        record = processes.start(launch)
        started.append(record)
        timeout_s = servers.S3_START_TIMEOUT_S
        processes.wait_until_ready(
            record, lambda: is_ready(port), timeout_s=timeout_s, cancelled=Event()
        )
        return record

    yield start
    processes.stop_all(started, stack_id=None, grace_s=5)


def request(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    connection = HTTPConnection(processes.LOOPBACK, port, timeout=30)
    try:
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_objects_survive_kill_9_and_stay_create_only(port: int, start: Start) -> None:
    first = start(servers.bucket_exists_or_is_created)
    key = f"/{servers.BUCKET}/jobs/a/journal/0000000001"
    assert request(port, "PUT", key, b"entry", If_None_Match="*")[0] == 200

    os.kill(first.pid, signal.SIGKILL)
    processes.stop_all([first], stack_id=None, grace_s=5)
    assert not servers.serves_bucket(port)
    start(servers.bucket_exists_or_is_created)

    assert servers.serves_bucket(port)
    assert request(port, "GET", key) == (200, b"entry")
    assert request(port, "PUT", key, b"other", If_None_Match="*")[0] == 412
    assert request(port, "GET", key) == (200, b"entry")


def test_a_server_makes_its_bucket_itself(start: Start) -> None:
    start(servers.serves_bucket)


def test_the_data_lies_in_our_folder_and_nothing_listens_beyond_loopback(
    tmp_path: Path, port: int, start: Start
) -> None:
    record = start(servers.bucket_exists_or_is_created)

    assert request(port, "PUT", f"/{servers.BUCKET}/k", b"v")[0] == 200

    assert list((tmp_path / "s3" / "data").rglob("k"))
    assert listening_addresses(record.pid) == {"0100007F"}


def listening_addresses(pid: int) -> set[str]:
    """Return the local addresses (kernel's hex) on which the process listens."""
    links = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}
