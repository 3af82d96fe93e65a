"""CPU time and memory of a process and its descendants, and CPU time of the machine.

Linux only: read from ``/proc``, so that it needs no package and can be asked in any engine.
"""

from __future__ import annotations

import ctypes
import os
import re
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
    # Own user and system time, and that of the children it has waited for.
    return sum(sum(map(int, one[11:15])) for one in _tree(root).values()) / TICKS_PER_SECOND


def peak_memory_bytes(command: str) -> int:
    """The most memory that one of this process's descendants has had whose command line has
    *command* in it: ``VmHWM``, with the libraries and the files that it maps; 0 without such.
    """
    peaks = [0]
    for pid in _tree(None):
        try:
            is_one = command in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        if is_one:
            peaks += [int(kb) * 1024 for kb in re.findall(r"VmHWM:\s*(\d+) kB", status)]
    return max(peaks)


def _tree(root: int | None) -> dict[int, list[str]]:
    """The fields of ``/proc/PID/stat`` behind the name, of *root* and all its descendants."""
    children = defaultdict(list)
    fields: dict[int, list[str]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # It has just ended; its parent has its time.
        pid = int(stat.parent.name)
        fields[pid] = text.rpartition(")")[2].split()
        children[int(fields[pid][1])].append(pid)
    found: dict[int, list[str]] = {}
    pending = [root or os.getpid()]
    while pending:
        pid = pending.pop()
        if pid in fields:
            found[pid] = fields[pid]
        pending += children[pid]
    return found
