"""Runs attempts in processes of their own, forked from a server that has imported everything."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path

from tests.exactly_once.attempt import Attempt, drive

ENDS_WITHIN_S = 120.0
FREEZES_WITHIN_S = 60.0

_context = multiprocessing.get_context("forkserver")
# Under the trace of an attempt an import costs many times its own time.
_context.set_forkserver_preload(
    [
        *("tests.exactly_once.attempt", "pandas", "polars", "pyarrow.parquet", "pyarrow.compute"),
        *("confluent_kafka", "psycopg", "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow"),
        *("sluice.connectors.files.text", "sluice.connectors.files_table.table"),
        *("deltalake", "sluice.connectors.delta.sink", "sluice.connectors.delta.source"),
        *("sluice.connectors.iceberg.sink", "sluice.connectors.iceberg.source"),
        *("sluice.connectors.kafka.source", "sluice.connectors.kafka.sink"),
        "sluice.connectors.postgres.source",
    ]
)


def run(attempt: Attempt) -> int:
    """The exit code: 0, or minus the signal that ended it."""
    process = _begin(attempt)
    process.join(ENDS_WITHIN_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"a process did not end within {ENDS_WITHIN_S:.0f} s: {attempt}")
    return process.exitcode


def counted(attempt: Attempt) -> dict[str, int]:
    """Run to the end, and return how often each line of ours was run."""
    assert attempt.counts
    assert run(attempt) == 0
    counts: dict[str, int] = json.loads(Path(attempt.counts).read_text())
    return counts


class Frozen:
    """A process that stands still at a line, as one that lost its machine for a while."""

    def __init__(self, attempt: Attempt) -> None:
        assert attempt.strike == signal.SIGSTOP
        self._process = _begin(attempt)

    def wait_until_it_stands(self) -> bool:
        """False when it ended without coming to its line."""
        pid = self._process.pid
        assert pid is not None
        for _ in range(int(FREEZES_WITHIN_S / 0.02)):
            if self._process.exitcode is not None:
                return False
            if _state_of(pid) == "T":
                return True
            self._process.join(0.02)
        raise AssertionError("a process neither froze nor ended")

    def thaw(self) -> int:
        assert self._process.pid is not None
        if self._process.exitcode is None:
            os.kill(self._process.pid, signal.SIGCONT)
        self._process.join(ENDS_WITHIN_S)
        assert self._process.exitcode is not None, "a thawed process did not end"
        return self._process.exitcode


def _begin(attempt: Attempt) -> multiprocessing.process.BaseProcess:
    process = _context.Process(target=drive, args=(attempt,), daemon=True)
    process.start()
    return process


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""
