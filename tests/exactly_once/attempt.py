"""One process that runs a job to its end, and dies or freezes at a given line of our code.

Everything that touches the bucket and the places outside is real, and so is the death: SIGKILL.
Rows go past Spark in Python (``harness.no_spark``), so that a process is up within a second.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import sluice
from harness.no_spark import stages_without_spark
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason
from sluice.core.restoring import Latest
from sluice.declaration.pipeline import Pipeline
from sluice.errors import FencedError, RestoreError, SluiceError, StageFailed
from sluice.job.job import Job, open_job
from sluice.spark.stage import run_stage
from sluice.store.open import StoreLocation

PACKAGE = Path(sluice.__file__).parent
WATCHED = (
    *("coordinator", "job", "connectors"),
    *("exchange/subtask.py", "exchange/output.py", "store/journal.py"),
)
RECORDS_PER_EPOCH = 10
COMMIT = "commit "  # The prefix of the places of lines that are run within a commit.


@dataclass(frozen=True, slots=True)
class Line:
    """The *occurrence*-th time that a process is about to run this line, within a commit or not."""

    place: str  # connectors/files_table/table.py:93
    occurrence: int

    def __str__(self) -> str:
        return f"{self.place}#{self.occurrence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """``strike`` is sent to the process itself at *line*.

    ``counts`` is a file into which is written how often each line was run.
    """

    pipeline: Callable[[], Pipeline]
    root: str
    line: Line | None = None
    strike: int = signal.SIGKILL
    counts: str = ""


def drive(attempt: Attempt) -> None:
    """Run the job until it has ended and published everything, in a process of its own."""
    watch = Watch(attempt)
    job = open_job(attempt.pipeline(), StoreLocation(root=attempt.root))
    with watch, stages_without_spark():
        while not _has_ended(job):
            try:
                _go_on(job)
            except (FencedError, RestoreError):
                continue  # Another coordinator was faster.
            except StageFailed as error:
                _give_up(job, error)
    if attempt.counts:
        Path(attempt.counts).write_text(json.dumps(watch.counts))
    os._exit(0)  # Without the exit handlers of libraries with threads.


def _has_ended(job: Job) -> bool:
    state = job.state()
    return state.status.is_globally_terminal and all(done.is_committed for done in state.completed)


def _go_on(job: Job) -> None:
    """Submit the job, or restore what a process that died left; then take one checkpoint."""
    state = job.state()
    if state.status is JobStatus.CREATED:
        configuration = configure(job.pipeline, {}, max_records_per_epoch=RECORDS_PER_EPOCH)
        submit(job, configuration, only_generation=state.generation)
    elif state.pending or state.status is not JobStatus.RUNNING:
        pause_s = max(0.0, ((state.restart_at_ms or 0) - job.now_ms()) / 1000)
        time.sleep(pause_s)
        restore(job, Latest(), only_generation=state.generation)
    outcome = trigger(job)
    if not isinstance(outcome, Triggered):
        time.sleep(0.05)
        return
    plan = outcome.plan
    for task in plan.tasks:
        run_stage(job, None, plan.checkpoint_id, task.uid, attempt=1)  # type: ignore[arg-type]
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)


def _give_up(job: Job, error: SluiceError) -> None:
    for pending in job.state().pending:
        reason = CheckpointFailureReason.TASK_FAILURE
        fail_checkpoint(job, pending.checkpoint_id, reason, str(error), is_task_failure=True)


class Watch:
    """Counts the lines of sluice that the process runs, and strikes at the attempt's."""

    def __init__(self, attempt: Attempt) -> None:
        self._counts: Counter[tuple[bool, str, int]] = Counter()
        self._attempt = attempt
        self._line_number = -1
        if attempt.line is not None:
            self._line_number = int(attempt.line.place.rpartition(":")[2])
        self._files: dict[str, str | None] = {}
        self._commits = 0  # The number of those under way.

    def __enter__(self) -> None:
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    @property
    def counts(self) -> dict[str, int]:
        return {
            f"{COMMIT if commits else ''}{name}:{line}": count
            for (commits, name, line), count in self._counts.items()
        }

    def _enter(self, frame: FrameType, event: str, _: object) -> Any:
        """Called for every function of every library: it has to be short."""
        code = frame.f_code
        name = self._files.get(code.co_filename, "")
        if name == "":
            name = self._files[code.co_filename] = _watched(code.co_filename)
        if name is None or code.co_name == "<module>":
            return None
        self._commits += code is commit.__code__
        return self._line

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "return":
            self._commits -= frame.f_code is commit.__code__
        if event == "line":
            name, number = self._files[frame.f_code.co_filename], frame.f_lineno
            assert name is not None
            place = (self._commits > 0, name, number)
            self._counts[place] += 1
            if number == self._line_number:
                self._strike_at(place)
        return self._line

    def _strike_at(self, place: tuple[bool, str, int]) -> None:
        commits, name, number = place
        line = Line(f"{COMMIT if commits else ''}{name}:{number}", self._counts[place])
        if line == self._attempt.line:
            os.kill(os.getpid(), self._attempt.strike)


def _watched(file: str) -> str | None:
    """The file's name in the package, if its lines count."""
    name = file.removeprefix(f"{PACKAGE}/")
    return name if name != file and name.startswith(WATCHED) else None
