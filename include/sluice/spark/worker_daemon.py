"""The daemon that forks Spark's Python workers: PySpark's own, started faster.

Spark puts ``pyspark.zip`` first on the path of its Python processes, and Python keeps no bytecode
of a zip: every new daemon, one per session, compiled PySpark again (1.9 s against 0.4 s, measured).
We take the zips off the path, so the same PySpark comes from the installed package; and we import
before the fork what every worker of a stage would import after it.

Behind each task PySpark's worker collects garbage among all its objects, most of which are imported
modules: that took more CPU than the tasks of small epochs.  So we freeze these.

The workers keep memory that they freed.  They allocate the same large buffers for every chunk and
every epoch, and by default give each back at once: to get it anew, zeroed, was a fifth of their CPU
time.  Polars gives back what was unused for ten seconds.

A row's instant reaches a Python function as the time in UTC, whatever the zone of the machine: a
stage's result may not depend on where it runs.

A task has the threads that Spark grants it, one by default, in Polars, too.  There are as many
workers at a time as processors; a thread for each processor in each worker costs a tenth more CPU.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import runpy
import sys
import time
from contextlib import suppress

# Safe to import before a fork.  Polars, and what imports it, stays out: its import starts a thread,
# which a fork would not have.
_EVERY_WORKER_IMPORTS = (
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pandas",
    "pyspark.worker",
    "pyspark.sql.conversion",
    "pyspark.sql.pandas.serializers",
    "sluice.declaration.places",
    "sluice.connectors.files.parquet",
    "sluice.connectors.files.text",
    "sluice.declaration.declared_states",
    "sluice.job.places",
    "sluice.spark.tasks",
    "sluice.store.uploads",
)

# PySpark, Py4J, and the jar of Spark's own classes.  Each task invalidates Python's cache of the
# path, and would read the directory of each archive anew: 12 ms for the jar.
_ARCHIVES = ("pyspark.zip", "-src.zip", ".jar")

# Read by the libraries when they are loaded: Polars' jemalloc, and Arrow, which then uses malloc.
_ALLOCATORS = {
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:-1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}

_GRANTED_THREADS = "OMP_NUM_THREADS"  # Set by Spark in its Python workers: spark.task.cpus.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # Parameters of glibc's mallopt(3).
_KEPT_BYTES = 1024**3
_OLDEST = 2  # The generation that a full collection collects.


def main() -> None:
    """Run PySpark's daemon in this process."""
    keep_freed_memory()
    tell_time_in_utc()
    os.environ.setdefault("POLARS_MAX_THREADS", os.environ.get(_GRANTED_THREADS, "1"))
    for entry in [entry for entry in sys.path if entry.endswith(_ARCHIVES)]:
        sys.path.remove(entry)
        sys.path_importer_cache.pop(entry, None)
    import_before_the_fork()
    freeze_what_is_imported()
    runpy.run_module("pyspark.daemon", run_name="__main__")


def import_before_the_fork() -> None:
    """Import what every worker needs, but for what does not survive a fork."""
    gc.disable()  # There is no garbage yet, and imports would start a hundred collections.
    for name in _EVERY_WORKER_IMPORTS:
        with suppress(ImportError):  # The worker will name the missing module, and what needs it.
            importlib.import_module(name)
    gc.enable()


def freeze_what_is_imported() -> None:
    """Spare full collections, here and in the children, the objects of imported modules.

    A worker goes on importing in its first tasks, so the first full collection behind an import
    freezes the objects that there are.  As later ones do not, cyclic garbage is found as ever.
    """
    frozen = 0  # How many modules.

    def freeze_once(phase: str, details: dict[str, int]) -> None:
        nonlocal frozen
        if phase == "stop" and details["generation"] == _OLDEST and len(sys.modules) != frozen:
            frozen = len(sys.modules)
            gc.freeze()

    gc.callbacks.append(freeze_once)
    gc.collect()


def keep_freed_memory() -> None:
    """Have the allocators of this process, and of its children, keep what is freed for reuse."""
    os.environ |= _ALLOCATORS  # A driver that imported Polars hands down what Polars set there.
    with suppress(AttributeError):  # Another C library than glibc.
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)


def tell_time_in_utc() -> None:
    """Make UTC the local zone, in which PySpark gives times to Python, and takes them from it."""
    os.environ["TZ"] = "UTC"
    time.tzset()


if __name__ == "__main__":
    main()
