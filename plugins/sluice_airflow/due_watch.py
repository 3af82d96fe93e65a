"""``DueWatch``: says when a run of a checkpoint DAG is to be started, and never twice for one.

    look --Due, and no run of the DAG is under way--> Look(event=...)

A run is asked for again when none came of it: the DAG was just paused, or the run failed before it
triggered anything.  An error of a look is not raised: one that lasts starts a run, whose note says
what it is.
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
ERROR_S = 10.0  # An error that is over sooner is not reported.
PATIENCE_S = 15.0  # The shortest time in which a run comes of an event; else the interval.
LEAD_MS = 2_000  # What Airflow takes from the event to the request, at the least.
OF_ONE_S = 60  # A look rests sixty times as long as it took: a second of CPU in a minute.
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
    run.
    """

    def __init__(
        self,
        *,
        declared: Callable[[], Pipeline],
        interval_s: float,
        max_concurrent: int,
        active_runs: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._declared = declared
        self._interval_s = interval_s
        self._max_concurrent = max_concurrent
        self._active_runs = active_runs
        self._clock = clock
        self._seen: tuple[Pipeline, Outlook] | None = None
        self._failing_since: float | None = None
        self._cpu_s = 0.0
        # The first checkpoint of a job is the timetable's, until that had its time.
        self._told, self._told_at = CheckpointId(1), clock()

    def look(self, *, watches: int = 1) -> Look:
        """*watches* is the number of watches that share this process."""
        began = time.thread_time()
        try:
            sight: Sight = self._outlook().look()
            self._failing_since = None
        except Exception as error:  # noqa: BLE001 - a user's source may raise anything
            sight = self._failed(error)
        event = self._event(sight)
        last_s, self._cpu_s = self._cpu_s, time.thread_time() - began
        cpu_s = min(last_s, self._cpu_s)  # One that imports, or reads a parent, is an exception.
        pause_s = max(POLL_S, cpu_s * OF_ONE_S, cpu_s * watches / OF_ALL)
        return Look(message=sight.message, event=event, pause_s=pause_s)

    def _outlook(self) -> Outlook:
        pipeline = self._declared()
        if self._seen is None or self._seen[0] is not pipeline:
            location = Settings.from_environment().location
            job = open_job(pipeline, location, store=shared_store(location))
            interval_ms = int(self._interval_s * 1_000)
            lead_ms = min(LEAD_MS, interval_ms // 2)
            self._seen = pipeline, Outlook(job, interval_ms=interval_ms, lead_ms=lead_ms)
        return self._seen[1]

    def _failed(self, error: Exception) -> Sight:
        now = self._clock()
        self._failing_since = now if self._failing_since is None else self._failing_since
        message = f"{type(error).__name__}: {error}"
        if now - self._failing_since < ERROR_S:
            return Waiting(message=message)
        return Due(message=message, next_id=CheckpointId(0))

    def _event(self, sight: Sight) -> dict[str, str] | None:
        if not isinstance(sight, Due):
            return None
        now, patience_s = self._clock(), max(PATIENCE_S, self._interval_s)
        is_told = sight.next_id == self._told and now - self._told_at < patience_s
        if is_told or self._active_runs() >= self._max_concurrent:
            return None
        self._told, self._told_at = sight.next_id, now
        return {"due": sight.message}
