"""The daemon that forks Spark's Python workers: PySpark's own, started faster.

Spark puts ``pyspark.zip`` first on the path of its Python processes, and Python keeps no bytecode
of a zip: every new daemon, one per session, compiled PySpark again (1.9 s against 0.4 s, measured).
We take the zips off the path, so the same PySpark comes from the installed package; and we import
before the fork what every Arrow worker would import after it.

Its workers keep memory that they freed.  They allocate the same large buffers for every chunk and
every epoch, and by default give each back at once: to get it anew, zeroed, was a fifth of their CPU
time.  Polars gives back what was unused for ten seconds.

They collect garbage behind every task, and each time went through all objects of all imported
modules for 50 ms, a third of the CPU time of a small epoch.  What is alive behind a worker's first
tasks is left out of later collections (``gc.freeze``), and still freed with its last reference.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Safe to import before a fork: none starts a thread that it needs.  Polars stays out, and with it
# Sluice's own modules that compute: its threads do not survive.
_EVERY_WORKER_IMPORTS = (
    "pyarrow",
    "pyarrow.compute",
    "pandas",
    "pyspark.worker",
    "pyspark.sql.conversion",
    "pyspark.sql.pandas.serializers",
    "sluice.declaration.nodes",
    "sluice.protocol.records",
    "sluice.storage.answers",
    "sluice.storage.uploads",
)

# PySpark, Py4J, and Spark's own classes.  Each task invalidates what is cached of the path, and the
# directory of each is read anew.
_ARCHIVES = ("pyspark.zip", "-src.zip", ".jar")

# Read by the libraries when they are loaded: Polars' jemalloc, and Arrow, which then uses malloc.
_ALLOCATORS = {
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:-1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # Parameters of glibc's mallopt(3).
_KEPT_BYTES = 1024**3

# Behind so many tasks a worker has sent and received rows, and imported what it needs for both.
_WARM_UP_TASKS = 4


def main() -> None:
    """Run PySpark's daemon in this process."""
    keep_freed_memory()
    for entry in [entry for entry in sys.path if entry.endswith(_ARCHIVES)]:
        sys.path.remove(entry)
        sys.path_importer_cache.pop(entry, None)
    import_before_forks()
    daemon = importlib.import_module("pyspark.daemon")
    vars(daemon)["gc"] = SimpleNamespace(collect=collections_behind_tasks())
    daemon.manager()


def import_before_forks() -> None:
    """Import what every worker imports, and leave it out of their collections."""
    gc.disable()  # There is no garbage yet, and imports would collect it a hundred times.
    for name in _EVERY_WORKER_IMPORTS:
        with suppress(ImportError):  # The worker will name the missing module, and what needs it.
            importlib.import_module(name)
    gc.freeze()
    gc.enable()


def collections_behind_tasks() -> Callable[[], int]:
    """``gc.collect`` for a worker, which leaves what outlives its first tasks out of later ones."""
    tasks = count(1)

    def collect() -> int:
        found = gc.collect()
        if next(tasks) <= _WARM_UP_TASKS:
            gc.freeze()
        return found

    return collect


def keep_freed_memory() -> None:
    """Have the allocators of this process, and of its children, keep what is freed for reuse."""
    os.environ |= _ALLOCATORS  # A driver that imported Polars hands down what Polars set there.
    with suppress(AttributeError):  # Another C library than glibc.
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)


if __name__ == "__main__":
    main()
