"""``DueWatch``: says when a run of a checkpoint DAG is to be started, and never twice for one.

    look --Due, and no run of the DAG is under way--> Look(event=...)

A run is asked for again when none came of it: the DAG was just paused, or the run failed before it
triggered anything.  An error of a look is not raised: one that lasts starts a run, whose note says
what it is, and another ever more seldom, so that an outage does not fill the grid.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from sluice.coordinator.outlook import Due, Outlook, Sight, Waiting
from sluice.core.ids import CheckpointId
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import open_job
from sluice_airflow.settings import Settings
from sluice_airflow.stage_watch import shared_store

log = logging.getLogger(__name__)

POLL_S = 1.0
ERROR_S = 3.0  # An error that is over sooner is not reported; Airflow starts a run in 2 to 5 s.
LONGEST_PATIENCE_S = 600.0  # Between two runs that say the same error.
PATIENCE_S = 15.0  # The shortest time in which a run comes of an event; else the interval.
FIRST_PATIENCE_S = 60.0  # As long at the least the timetable has to start the first run.
LEAD_MS = 2_000  # What Airflow takes from the event to the request, at the least.
OF_ONE_S = 60  # A look rests sixty times as long as it took: a second of CPU in a minute.
LONGEST_REST_S = 10.0  # However long one took: two that import in a row would rest for minutes.
OF_ALL = 0.25  # The part of one core that all looks of a process together may take.


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen; with an ``event`` a run is to be started.  The next look is in ``pause_s``."""

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
        self._seen: tuple[Pipeline, Outlook] | None = None
        self._failing_since: float | None = None
        self._told_errors = 0
        self._cpu_s = 0.0
        # The first checkpoint of a job is the timetable's, until that had its time.
        ahead_s = max(0.0, FIRST_PATIENCE_S - max(PATIENCE_S, interval_s))
        self._told, self._told_at = CheckpointId(1), clock() + ahead_s

    def look(self, *, watches: int = 1) -> Look:
        """*watches* is the number of watches that share this process."""
        began, began_at = time.thread_time(), self._clock()
        try:
            sight: Sight = self._outlook().look()
            self._failing_since, self._told_errors = None, 0
        except Exception as error:  # noqa: BLE001 - a user's source may raise anything
            sight = self._failed(error, began_at)
        event = self._event(sight)
        last_s, self._cpu_s = self._cpu_s, time.thread_time() - began
        cpu_s = min(last_s, self._cpu_s)  # One that imports, or reads a parent, is an exception.
        rest_s = min(cpu_s * OF_ONE_S, LONGEST_REST_S)
        pause_s = max(POLL_S, rest_s, cpu_s * watches / OF_ALL)
        return Look(message=sight.message, event=event, pause_s=pause_s)

    def _outlook(self) -> Outlook:
        pipeline = self._declared()
        if self._seen is None or self._seen[0] is not pipeline:
            location = Settings.from_environment().location
            job = open_job(pipeline, location, store=shared_store(location))
            interval_ms = int(self._interval_s * 1_000)
            lead_ms = min(LEAD_MS, interval_ms // 2)
            outlook = Outlook(
                job,
                interval_ms=interval_ms,
                lead_ms=lead_ms,
                latest_tick_ms=self._latest_tick_ms,
            )
            self._seen = pipeline, outlook
        return self._seen[1]

    def _failed(self, error: Exception, began_at: float) -> Sight:
        """A client that repeats what failed has waited for a while already."""
        if self._failing_since is None:
            self._failing_since = began_at
        message = f"{type(error).__name__}: {error}"
        if self._clock() - self._failing_since < ERROR_S:
            return Waiting(message=message)
        return Due(message=message, next_id=CheckpointId(0))

    def _event(self, sight: Sight) -> dict[str, str] | None:
        if not isinstance(sight, Due):
            return None
        now, patience_s = self._clock(), max(PATIENCE_S, self._interval_s)
        if self._told_errors:
            patience_s = max(patience_s, min(patience_s * 2**self._told_errors, LONGEST_PATIENCE_S))
        is_told = sight.next_id == self._told and now - self._told_at < patience_s
        if is_told or self._active_runs() >= self._max_concurrent:
            return None
        self._told, self._told_at = sight.next_id, now
        self._told_errors += self._failing_since is not None
        return {"due": sight.message}
