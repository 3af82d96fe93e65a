"""``DueWatch``: says when a run of a checkpoint DAG is to be started, once for each checkpoint.

    poll --Due, and no run of the DAG is under way--> PollResult(event=...)

A run is asked for again when none came of it: the DAG was just paused, or the run failed before it
triggered anything.  An error of a poll is not raised.  One that lasts starts a run, whose note says
what it is; the next runs for it come ever more seldom, so that an outage does not fill the grid.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sluice.coordinator.outlook import Due, DueOrWaiting, NextCheckpoint, Waiting
from sluice.core.ids import CheckpointId
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import open_job
from sluice_airflow.settings import Settings
from sluice_airflow.stage_watch import shared_store

POLL_S = 1.0
ERROR_S = 3.0  # An error that is over sooner is not reported; Airflow starts a run in 2 to 5 s.
LONGEST_PATIENCE_S = 600.0  # Between two runs for the same error.
PATIENCE_S = 15.0  # An event is repeated after this, or the interval if that is longer.
FIRST_PATIENCE_S = 60.0  # The timetable has at least this long to start the first run.
LEAD_MS = 2_000  # What Airflow takes from the event to the request, at the least.
REST_FACTOR = 60  # A poll rests sixty times as long as it took: a second of CPU in a minute.
LONGEST_REST_S = 10.0  # However long a poll took: two that import in a row would rest for minutes.
OF_ALL = 0.25  # The part of one core that all polls of a process together may take.


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """With an ``event`` a run is to be started.  The next poll is in ``pause_s``."""

    message: str
    event: dict[str, str] | None
    pause_s: float


class DueWatch:
    """A watch of one pipeline.

    *declared* gives its declaration, *active_runs* the number of its DAG's runs that are queued or
    run, and *latest_tick_ms* the moment that a cron names last.
    """

    def __init__(
        self,
        *,
        declared: Callable[[], Pipeline],
        interval_s: float,
        max_concurrent: int,
        active_runs: Callable[[], int],
        latest_tick_ms: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._declared = declared
        self._interval_s = interval_s
        self._max_concurrent = max_concurrent
        self._active_runs = active_runs
        self._latest_tick_ms = latest_tick_ms
        self._clock = clock
        self._next_checkpoint: tuple[Pipeline, NextCheckpoint] | None = None
        self._failing_since: float | None = None
        self._error_events = 0
        self._cpu_s = 0.0
        # The timetable starts the run of a job's first checkpoint, unless it takes too long.
        ahead_s = max(0.0, FIRST_PATIENCE_S - max(PATIENCE_S, interval_s))
        self._event_for, self._event_at = CheckpointId(1), clock() + ahead_s

    def poll(self, *, watches: int = 1) -> PollResult:
        """*watches* is the number of watches that share this process."""
        began, began_at = time.thread_time(), self._clock()
        try:
            outlook: DueOrWaiting = self._open().look()
            self._failing_since, self._error_events = None, 0
        except Exception as error:  # noqa: BLE001 - a user's source may raise anything
            outlook = self._failed(error, began_at)
        event = self._event(outlook)
        last_s, self._cpu_s = self._cpu_s, time.thread_time() - began
        cpu_s = min(last_s, self._cpu_s)  # A poll that imports, or reads a parent, is an exception.
        rest_s = min(cpu_s * REST_FACTOR, LONGEST_REST_S)
        pause_s = max(POLL_S, rest_s, cpu_s * watches / OF_ALL)
        return PollResult(message=outlook.message, event=event, pause_s=pause_s)

    def _open(self) -> NextCheckpoint:
        """The next checkpoint of the job; a new one once the declaration has changed."""
        pipeline = self._declared()
        if self._next_checkpoint is None or self._next_checkpoint[0] is not pipeline:
            location = Settings.from_environment().location
            interval_ms = int(self._interval_s * 1_000)
            opened = NextCheckpoint(
                open_job(pipeline, location, store=shared_store(location)),
                interval_ms=interval_ms,
                lead_ms=min(LEAD_MS, interval_ms // 2),
                latest_tick_ms=self._latest_tick_ms,
            )
            self._next_checkpoint = pipeline, opened
        return self._next_checkpoint[1]

    def _failed(self, error: Exception, began_at: float) -> DueOrWaiting:
        """Due once the error has lasted for ``ERROR_S``.  That counts from the begin of its first
        poll, as a client that repeats what failed has waited for a while already.
        """
        if self._failing_since is None:
            self._failing_since = began_at
        message = f"{type(error).__name__}: {error}"
        if self._clock() - self._failing_since < ERROR_S:
            return Waiting(message=message)
        return Due(message=message, next_id=CheckpointId(0))

    def _event(self, outlook: DueOrWaiting) -> dict[str, str] | None:
        if not isinstance(outlook, Due):
            return None
        now, patience_s = self._clock(), max(PATIENCE_S, self._interval_s)
        if self._error_events:
            patience_s = max(
                patience_s, min(patience_s * 2**self._error_events, LONGEST_PATIENCE_S)
            )
        is_repeated = outlook.next_id == self._event_for and now - self._event_at < patience_s
        if is_repeated or self._active_runs() >= self._max_concurrent:
            return None
        self._event_for, self._event_at = outlook.next_id, now
        self._error_events += self._failing_since is not None
        return {"due": outlook.message}
