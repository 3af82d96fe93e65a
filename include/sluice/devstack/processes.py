"""Child processes that outlive their parent, started in sessions of their own, and their ports.

    start --> record --> is_alive ... stop_all: SIGTERM, wait, SIGKILL, verify

Only recorded processes are stopped, with all descendants: these stay in the child's session even if
they make process groups (as Airflow's task processes and Spark's Python daemon do), and those that
leave the session still have the stack's mark in their environment.

A process is named by its pid *and* its start time, so a recycled pid is never taken for the old
process.  Both are read from Linux's ``/proc``; without that it refuses to start anything.  Zombies
count as dead.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import randbelow
from threading import Event

from sluice.errors import ConfigurationError

log = logging.getLogger(__name__)

STACK_ID_VARIABLE = "SLUICE_STACK_ID"  # The mark, which every descendant inherits.
LOOPBACK = "127.0.0.1"

_POLL_S = 0.05
_KILL_WAIT_S = 10.0  # SIGKILL is fast, but a process in I/O may need seconds.
_PROC = Path("/proc")

# The kernel gives outgoing connections any port of its ephemeral range (32768 and up).  A server's
# port from there may be gone when the server restarts; worse, a client that polls such a port can
# be given that very port, and connects to itself.
_LOWEST_PORT = 20_000  # Above what well-known services use.
_HIGHEST_PORT = 32_000
_TRIES = 1_000  # Of 12,000 ports; after this many failures there is hardly a free one.
_CONNECT_TIMEOUT_S = 0.5  # Loopback answers at once, or not at all.

# A child is a zombie until it is waited for, which needs its Popen.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The start of one service.  ``env`` is the whole environment of the child."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path
    log_path: Path
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """The identity of a child, by which another process finds it and never a different one."""

    name: str
    pid: int
    pgid: int
    started_ticks: int
    port: int
    log_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One live process.  ``started_ticks`` counts clock ticks from boot to its start."""

    pid: int
    pgid: int
    session: int
    started_ticks: int


def start(launch: Launch) -> ProcessRecord:
    """Start the child and return its record; its output is appended to ``log_path``."""
    require_proc()
    launch.folder.mkdir(parents=True, exist_ok=True)
    launch.log_path.parent.mkdir(parents=True, exist_ok=True)
    with launch.log_path.open("ab") as output:
        child = subprocess.Popen(
            launch.command,
            cwd=launch.folder,
            env=dict(launch.env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children[child.pid] = child
    info = inspect(child.pid)
    # A child that died keeps its pid until it is waited for; no tick count matches 0.
    started_ticks = 0 if info is None else info.started_ticks
    log.info("process started name=%s pid=%d port=%d", launch.name, child.pid, launch.port)
    return ProcessRecord(
        name=launch.name,
        pid=child.pid,
        pgid=child.pid,
        started_ticks=started_ticks,
        port=launch.port,
        log_path=str(launch.log_path),
    )


def is_alive(record: ProcessRecord) -> bool:
    """Whether the recorded process itself still runs."""
    info = inspect(record.pid)
    _reap(record.pid)
    return info is not None and info.started_ticks == record.started_ticks


def wait_until_ready(
    record: ProcessRecord, is_ready: Callable[[], bool], *, timeout_s: float, cancelled: Event
) -> None:
    """Return when *is_ready* returns True.

    Raises:
        ConfigurationError: the process ended first, time ran out, or *cancelled* was set.
    """
    deadline = time.monotonic() + timeout_s
    while not is_ready():
        if cancelled.wait(_POLL_S):
            raise ConfigurationError(f"starting {record.name} was cancelled")
        if not is_alive(record):
            raise ConfigurationError(
                f"{record.name} exited while starting; the reason is at the end of"
                f" {record.log_path}"
            )
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"{record.name} did not answer on 127.0.0.1:{record.port} within {timeout_s:.0f} s;"
                f" see {record.log_path}"
            )


def stop_all(records: Iterable[ProcessRecord], *, stack_id: str | None, grace_s: float) -> int:
    """Stop the recorded processes with all descendants; return how many had to be killed.

    ``stack_id`` adds all processes with the stack's mark; with None the rest of the stack keeps
    running.  Idempotent.
    """
    to_stop = tuple(records)
    _signal_members(to_stop, stack_id, signal.SIGTERM)
    if _wait_until_gone(to_stop, stack_id, grace_s):
        return 0

    # SIGKILL may race with a fork: repeat until no process is left.
    killed: set[int] = set()
    deadline = time.monotonic() + _KILL_WAIT_S
    while time.monotonic() < deadline:
        killed |= _signal_members(to_stop, stack_id, signal.SIGKILL)
        if _wait_until_gone(to_stop, stack_id, _POLL_S * 4):
            log.info("processes killed count=%d", len(killed))
            return len(killed)
    left = sorted(info.pid for info in _members(to_stop, stack_id))
    raise ConfigurationError(f"processes {left} survived SIGKILL; stop them by hand")


def members(record: ProcessRecord) -> tuple[ProcessInfo, ...]:
    """The live processes of the record's session, also after its leader died."""
    return _members((record,), None)


def _members(records: tuple[ProcessRecord, ...], stack_id: str | None) -> tuple[ProcessInfo, ...]:
    alive = all_processes()
    for record in records:
        # After the list was read: a child that is not in it is dead, and must not keep its pid.
        _reap(record.pid)
    started = {info.pid: info.started_ticks for info in alive}
    # The kernel never reuses a pid while a session has its number.  Another process with our pid
    # therefore means that our session is empty, and the one of that number is the stranger's.
    sessions = {
        record.pid
        for record in records
        if started.get(record.pid, record.started_ticks) == record.started_ticks
    }
    mark = None if stack_id is None else f"{STACK_ID_VARIABLE}={stack_id}".encode()
    ourselves = {os.getpid(), os.getppid()}  # A command run inside the stack must not stop itself.
    return tuple(
        info
        for info in alive
        if info.session in sessions
        or (mark and info.pid not in ourselves and carries(info.pid, mark))
    )


def _signal_members(
    records: tuple[ProcessRecord, ...], stack_id: str | None, number: signal.Signals
) -> set[int]:
    found = {info.pid for info in _members(records, stack_id)}
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return found


def _wait_until_gone(
    records: tuple[ProcessRecord, ...], stack_id: str | None, timeout_s: float
) -> bool:
    deadline = time.monotonic() + timeout_s
    while _members(records, stack_id):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    for record in records:
        # A JVM's first thread is a zombie before the others have ended, and not waited for.
        if inspect(record.pid) is None:  # Else it is a stranger's: not even a zombie is left.
            _reap(record.pid, within_s=_KILL_WAIT_S)
    return True


def _reap(pid: int, *, within_s: float = 0) -> None:
    child = _children.get(pid)
    if child is not None:
        with suppress(subprocess.TimeoutExpired):
            child.wait(within_s)
            _children.pop(pid, None)


def kill_all_carrying(*assignments: str) -> int:
    """Kill all processes with all these marks, until none is left; return their number."""
    marks = [assignment.encode() for assignment in assignments]
    killed: set[int] = set()
    deadline = time.monotonic() + _KILL_WAIT_S
    while left := {
        info.pid
        for info in all_processes()
        if info.pid != os.getpid() and all(carries(info.pid, m) for m in marks)
    }:
        if time.monotonic() > deadline:
            raise ConfigurationError(f"processes {sorted(left)} survived SIGKILL")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= left
        time.sleep(_POLL_S)
    return len(killed)


def require_proc() -> None:
    """Raise ConfigurationError on a system where processes cannot be stopped reliably."""
    if not (_PROC / "self" / "stat").exists():
        raise ConfigurationError(
            "the machine-local stack needs Linux (/proc); on this system use `docker compose up`"
        )


def inspect(pid: int) -> ProcessInfo | None:
    """Return the process, or None when it is gone or a zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name, in parentheses, may itself contain spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    state, pgid, session, started_ticks = fields[0], fields[2], fields[3], fields[19]
    if state in {"Z", "X"}:
        return None
    return ProcessInfo(
        pid=pid, pgid=int(pgid), session=int(session), started_ticks=int(started_ticks)
    )


def all_processes() -> tuple[ProcessInfo, ...]:
    """Return every process of the machine that is alive now."""
    found = (inspect(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return tuple(info for info in found if info is not None)


def program_and_folder(pid: int) -> tuple[Path, Path] | None:
    """The program and the working folder of a process; None if it is gone or another user's."""
    folder = _PROC / str(pid)
    with suppress(OSError):
        return (folder / "exe").readlink(), (folder / "cwd").readlink()
    return None


def carries(pid: int, assignment: bytes) -> bool:
    """Whether the process was started with this ``NAME=value`` in its environment."""
    with suppress(OSError):
        return assignment in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return False  # Gone, or another user's.


def loopback() -> str:
    """The name of this host for Airflow, under which it asks its log servers."""
    return LOOPBACK


def free_ports(count: int) -> tuple[int, ...]:
    """Return distinct ports that were free a moment ago."""
    found: list[int] = []
    with ExitStack() as held:
        for _ in range(_TRIES):
            if len(found) == count:
                return tuple(found)
            candidate = held.enter_context(socket.socket())
            port = _LOWEST_PORT + randbelow(_HIGHEST_PORT - _LOWEST_PORT)
            try:
                candidate.bind((LOOPBACK, port))
            except OSError:
                continue
            found.append(port)
    raise ConfigurationError(
        f"no {count} free ports between {_LOWEST_PORT} and {_HIGHEST_PORT} on {LOOPBACK};"
        " stop some servers"
    )


def first_free(*preferred: int) -> int:
    """Return the first of *preferred* that is free, or else any free port."""
    for port in preferred:
        if is_free(port):
            return port
    return free_ports(1)[0]


def require_free(port: int, *, variable: str) -> int:
    """Return *port*, which a person asked for by setting *variable*.

    Raises:
        ConfigurationError: another process listens there.
    """
    if not is_free(port):
        raise ConfigurationError(
            f"port {port} on {LOOPBACK} is taken by another process; stop it or set {variable}"
            " to a free port"
        )
    return port


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        # As servers do, so that connections in TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def accepts_connections(port: int) -> bool:
    """Whether a process listens on this port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=_CONNECT_TIMEOUT_S) as connection:
            # Equal ends: the kernel connected the socket to itself, and no process listens.
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False
