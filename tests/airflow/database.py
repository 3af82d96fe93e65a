"""The database of this folder's Airflow, migrated once for a process that asks for it."""

from __future__ import annotations

import functools
import subprocess
import sys


@functools.cache
def migrate() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "airflow", "db", "migrate"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
