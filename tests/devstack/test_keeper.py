"""A server that dies is started anew, and one that cannot start is reported, not repeated."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from sluice.devstack import processes
from sluice.devstack.child import keep, keeper_command
from sluice.devstack.processes import Launch, ProcessRecord

SERVER = "import time; time.sleep(600)"
KEEPING = (
    "import sys; from sluice.devstack.child import keep; "
    f"keep([sys.executable, '-c', {SERVER!r}], runs_after_s=0.2)"
)


def servers_of(record: ProcessRecord) -> list[int]:
    return [info.pid for info in processes.members(record) if info.pid != record.pid]


def wait_for_a_server(record: ProcessRecord, *, other_than: int = 0) -> int:
    deadline = time.monotonic() + 60
    while not (found := [pid for pid in servers_of(record) if pid != other_than]):
        assert time.monotonic() < deadline, Path(record.log_path).read_text()
        time.sleep(0.05)
    return found[0]


def test_a_killed_server_comes_back_and_a_stop_leaves_nothing(tmp_path: Path) -> None:
    launch = Launch(
        name="server",
        command=(sys.executable, "-c", KEEPING),
        env=dict(os.environ),
        folder=tmp_path,
        log_path=tmp_path / "log",
        port=1,
    )
    record = processes.start(launch)
    try:
        first = wait_for_a_server(record)
        time.sleep(0.5)
        os.kill(first, signal.SIGKILL)
        second = wait_for_a_server(record, other_than=first)
    finally:
        processes.stop_all([record], stack_id=None, grace_s=5)

    assert "ended with -9; starting it anew" in (tmp_path / "log").read_text()
    assert processes.inspect(second) is None
    assert processes.members(record) == ()


def test_a_server_that_cannot_start_ends_its_keeper_with_its_code() -> None:
    assert keep([sys.executable, "-c", "raise SystemExit(3)"]) == 3
    module = "sluice.devstack.child"
    assert keeper_command(("a", "b")) == (sys.executable, "-m", module, "keep", "a", "b")
