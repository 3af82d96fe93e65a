"""The daemon that forks Spark's Python workers: what it imports, and what its workers collect."""

from __future__ import annotations

import subprocess
import sys

FORKED = """
import os, sys, threading
from sluice.spark.worker_daemon import import_before_forks

import_before_forks()
print("pandas" in sys.modules, "sluice.storage.uploads" in sys.modules, "polars" in sys.modules)
print(threading.active_count())
"""

COLLECTED = """
import gc
from sluice.spark.worker_daemon import collections_behind_tasks

class Cycle:
    def __init__(self):
        self.itself = self

collect, kept, frozen = collections_behind_tasks(), [], []
for task in range(6):
    Cycle()
    kept.append(Cycle())
    print(collect() > 0, end=" ")
    frozen.append(gc.get_freeze_count())
print([later > before for before, later in zip([0, *frozen], frozen)])
"""


def printed(script: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    return ended.stdout.splitlines()


def test_it_imports_what_workers_need_and_nothing_whose_threads_a_fork_would_lose() -> None:
    assert printed(FORKED) == ["True True False", "1"]


def test_what_outlives_the_first_tasks_is_left_out_and_garbage_never_is() -> None:
    assert printed(COLLECTED) == ["True " * 6 + "[True, True, True, True, False, False]"]
