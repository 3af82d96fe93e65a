"""Children are started, found, kept alive and stopped with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from uuid import uuid4

import pytest

from sluice.devstack import processes
from sluice.devstack.airflow import AirflowApi
from sluice.devstack.child import keep, keeper_command
from sluice.devstack.processes import Launch, ProcessRecord
from sluice.devstack.stack import Ports, StackOptions, plan_services
from sluice.errors import ConfigurationError

SLEEPER = "import time; time.sleep(600)"
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
# A child in a process group of its own, as Airflow's task processes are.
OWN_GROUP = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print("up", flush=True)
time.sleep(600)
"""
# A child in a session of its own, as BashOperator's are.
OWN_SESSION = OWN_GROUP.replace("process_group=0", "start_new_session=True")


@pytest.fixture
def stack_id() -> Iterator[str]:
    chosen = uuid4().hex
    yield chosen
    processes.stop_all((), stack_id=chosen, grace_s=0)


def a_launch(folder: Path, code: str, stack_id: str) -> Launch:
    return Launch(
        name="child",
        command=(sys.executable, "-c", code),
        env={**os.environ, processes.STACK_ID_VARIABLE: stack_id},
        folder=folder,
        log_path=folder / "child.log",
        port=1,
    )


def started(folder: Path, code: str, stack_id: str) -> ProcessRecord:
    """Return a child that has printed ``up``: its handlers are set, its own children exist."""
    record = processes.start(a_launch(folder, code, stack_id))
    wait_until(lambda: "up" in Path(record.log_path).read_text())
    return record


def wait_until(is_true: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def marked(stack_id: str) -> list[int]:
    mark = f"{processes.STACK_ID_VARIABLE}={stack_id}".encode()
    return [i.pid for i in processes.all_processes() if processes.carries(i.pid, mark)]


def test_a_child_leads_its_own_session_and_is_stopped(tmp_path: Path, stack_id: str) -> None:
    record = processes.start(a_launch(tmp_path, SLEEPER, stack_id))
    info = processes.inspect(record.pid)
    assert info is not None
    assert (info.session, info.pgid) == (record.pid, record.pgid)
    assert processes.is_alive(record)

    killed = processes.stop_all([record], stack_id=None, grace_s=10)

    assert killed == 0
    assert not processes.is_alive(record)


def test_stopping_twice_and_stopping_the_dead_is_harmless(tmp_path: Path, stack_id: str) -> None:
    record = processes.start(a_launch(tmp_path, SLEEPER, stack_id))
    os.kill(record.pid, signal.SIGKILL)
    wait_until(lambda: not processes.is_alive(record))

    assert processes.stop_all([record], stack_id=stack_id, grace_s=0.1) == 0
    assert processes.stop_all([record], stack_id=stack_id, grace_s=0.1) == 0


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, stack_id: str) -> None:
    record = started(tmp_path, STUBBORN, stack_id)

    killed = processes.stop_all([record], stack_id=None, grace_s=0.3)

    assert killed == 1
    assert not processes.is_alive(record)


def test_descendants_in_other_process_groups_are_stopped_after_their_leader_died(
    tmp_path: Path, stack_id: str
) -> None:
    record = started(tmp_path, OWN_GROUP, stack_id)
    os.kill(record.pid, signal.SIGKILL)
    wait_until(lambda: not processes.is_alive(record))
    assert len(processes.members(record)) == 1

    processes.stop_all([record], stack_id=None, grace_s=10)

    assert marked(stack_id) == []


def test_descendants_that_left_the_session_are_found_by_their_mark(
    tmp_path: Path, stack_id: str
) -> None:
    record = started(tmp_path, OWN_SESSION, stack_id)
    assert len(marked(stack_id)) == 2

    processes.stop_all([record], stack_id=stack_id, grace_s=10)

    assert marked(stack_id) == []


def test_a_recycled_pid_is_never_stopped(tmp_path: Path, stack_id: str) -> None:
    stranger = processes.start(a_launch(tmp_path, SLEEPER, stack_id))
    stale = replace(stranger, started_ticks=stranger.started_ticks - 1)

    processes.stop_all([stale], stack_id=None, grace_s=0.1)

    assert not processes.is_alive(stale)
    assert processes.is_alive(stranger)


def test_another_stack_is_left_alone(tmp_path: Path, stack_id: str) -> None:
    theirs = processes.start(a_launch(tmp_path, SLEEPER, stack_id))
    ours = processes.start(a_launch(tmp_path, SLEEPER, other := uuid4().hex))

    processes.stop_all([ours], stack_id=other, grace_s=10)

    assert processes.is_alive(theirs)


def test_a_record_is_valid_in_another_process(tmp_path: Path, stack_id: str) -> None:
    record = processes.start(a_launch(tmp_path, SLEEPER, stack_id))
    script = (
        "from sluice.devstack import processes\n"
        f"record = processes.{record!r}\n"
        "assert processes.is_alive(record)\n"
        "assert processes.stop_all([record], stack_id=None, grace_s=10) == 0\n"
    )

    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=env)

    assert not processes.is_alive(record)


def test_waiting_for_a_child_that_exits_names_its_log(tmp_path: Path, stack_id: str) -> None:
    record = processes.start(a_launch(tmp_path, "raise SystemExit(3)", stack_id))

    with pytest.raises(ConfigurationError, match=r"child exited while starting.*child\.log"):
        processes.wait_until_ready(record, lambda: False, timeout_s=60, cancelled=Event())


def test_waiting_ends_when_time_is_up_or_when_cancelled(tmp_path: Path, stack_id: str) -> None:
    record = processes.start(a_launch(tmp_path, SLEEPER, stack_id))
    cancelled = Event()
    cancelled.set()

    with pytest.raises(ConfigurationError, match="did not answer"):
        processes.wait_until_ready(record, lambda: False, timeout_s=0.1, cancelled=Event())
    with pytest.raises(ConfigurationError, match="cancelled"):
        processes.wait_until_ready(record, lambda: False, timeout_s=60, cancelled=cancelled)


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


def test_what_a_killed_spark_left_is_deleted_before_the_next_one_starts(tmp_path: Path) -> None:
    ports = Ports(**dict(zip(Ports.__dataclass_fields__, processes.free_ports(7), strict=True)))
    with AirflowApi(f"http://127.0.0.1:{ports.airflow}") as api:
        services = plan_services(tmp_path, ports, StackOptions(), {}, api)
    [spark] = [one for one in services if one.launch.name == "spark"]
    [setting] = [word for word in spark.launch.command if word.startswith("spark.local.dir=")]
    (left := Path(setting.partition("=")[2]) / "blockmgr-1").mkdir(parents=True)

    spark.prepare()

    assert not left.exists()
