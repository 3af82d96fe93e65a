"""CPU time of a process and of all its descendants, including ended ones, and of the machine.

Linux only: read from ``/proc``, so that it needs no package and can be asked in any engine.
"""

from __future__ import annotations

import ctypes
import os
from collections import defaultdict
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PROC_STAT = Path("/proc/stat")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def adopt_orphans() -> None:
    """Make this process the parent of orphans among its descendants, so that they still count."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def machine_cpu_s() -> float:
    """CPU seconds that all processors were busy since the start of the machine.

    Interrupts are among them, and what a hypervisor gave to another machine (*steal*): the time was
    not there for the engine.  Idle time and waits for a disk are not.
    """
    [total] = [line for line in PROC_STAT.read_text().splitlines() if line.startswith("cpu ")]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, total.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


def tree_cpu_s(root: int | None = None) -> float:
    """User and system seconds of *root* (this process) and its descendants, to 10 ms each."""
    children = defaultdict(list)
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # It has just ended; its parent has its time.
        fields = text.rpartition(")")[2].split()
        pid = int(stat.parent.name)
        children[int(fields[1])].append(pid)
        # Own user and system time, and that of the children it has waited for.
        ticks[pid] = sum(int(field) for field in fields[11:15])
    total = 0
    pending = [root or os.getpid()]
    while pending:
        pid = pending.pop()
        total += ticks.get(pid, 0)
        pending += children[pid]
    return total / TICKS_PER_SECOND
