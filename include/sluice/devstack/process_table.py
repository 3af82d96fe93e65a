"""The running processes, read from Linux's ``/proc``.

Promises that a process is named by its pid *and* its start time, so a recycled pid is never taken
for the old process.  Zombies count as dead.  Refuses to run where there is no ``/proc``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import ConfigurationError

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One live process.  ``started_ticks`` counts clock ticks from boot to its start."""

    pid: int
    pgid: int
    session: int
    started_ticks: int


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
