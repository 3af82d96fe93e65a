"""Runs attempts in processes of their own, forked from a server that has imported everything."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.exactly_once.attempt import COMMIT, Attempt, Line, drive
from tests.exactly_once.pairs import SinkPlace, SourcePlace, check, declared

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
    assert run(attempt) == 0, _told(attempt)
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
    process = _context.Process(target=_drive, args=(attempt,), daemon=True)
    process.start()
    return process


def _drive(attempt: Attempt) -> None:
    """The server that forks has the standard error of the test that started it, which is closed."""
    try:
        drive(attempt)
    except Exception:
        with _errors_of(attempt).open("a") as file:
            traceback.print_exc(file=file)
        raise


def _errors_of(attempt: Attempt) -> Path:
    return Path(f"{attempt.root.removeprefix('file://')}.errors")


def _told(attempt: Attempt) -> str:
    """What the processes of a root have died of, but for the signals."""
    errors = _errors_of(attempt)
    return errors.read_text() if errors.exists() else "no process has told an error"


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


MAX_DEATHS = 3


@dataclass(frozen=True, slots=True)
class Schedule:
    """Each process dies at its line, and the next goes on; or the only one freezes at its line,
    while another runs the job to its end, and is then let go on.
    """

    seed: int
    lines: tuple[Line, ...]
    freezes: bool

    def __str__(self) -> str:
        how = "freezes" if self.freezes else "dies"
        return f"seed {self.seed}: {how} at {', '.join(map(str, self.lines))}"


def drawn(name: str, seed: int, counts: Mapping[str, int]) -> Schedule:
    """Half of the deaths are within a commit.

    Every line that is ever run is as likely as any other, and so is each time that it is run.
    """
    rng = random.Random(f"{name} {seed}")
    freezes = rng.random() < 1 / 3
    within = rng.random() < 1 / 2
    places = sorted(place for place in counts if place.startswith(COMMIT) == within)
    lines = tuple(
        Line(place, rng.randint(1, counts[place]))
        for place in rng.choices(places, k=1 if freezes else rng.randint(1, MAX_DEATHS))
    )
    return Schedule(seed, lines, freezes)


def lines_of(source: SourcePlace, sink: SinkPlace, folder: Path) -> dict[str, int]:
    """The number of times that each line runs without failures; the output is checked, too."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = counted(
        Attempt(
            pipeline=declared(source, sink),
            root=f"file://{folder / 'root'}",
            counts=str(folder / "counts.json"),
        )
    )
    check(source, sink)
    return counts


def play(schedule: Schedule, source: SourcePlace, sink: SinkPlace, folder: Path) -> None:
    """On a fresh root and a fresh table of *sink*."""
    attempt = Attempt(pipeline=declared(source, sink), root=f"file://{folder / 'root'}")
    if schedule.freezes:
        (line,) = schedule.lines
        frozen = Frozen(replace(attempt, line=line, strike=signal.SIGSTOP))
        frozen.wait_until_it_stands()
        assert run(attempt) == 0, (schedule, _told(attempt))
        check(source, sink)  # The job has ended, whatever the other one may still do.
        assert frozen.thaw() in (0, 1), schedule  # It is done, or was told that it is fenced.
    else:
        for line in schedule.lines:
            code = run(replace(attempt, line=line))
            assert code in (0, -signal.SIGKILL), (schedule, _told(attempt))
        assert run(attempt) == 0, (schedule, _told(attempt))
    check(source, sink)
