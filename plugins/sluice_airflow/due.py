"""The trigger by which records start the runs of a checkpoint DAG, in the triggerer.

It belongs to an asset that the DAG is scheduled on, so Airflow runs it while the DAG is unpaused.
The module is light, as the triggerer imports it.

``DueWatch``: says when a run of a checkpoint DAG is to be started, and never twice for one.

    look --Due, and no run of the DAG is under way--> Look(event=...)

A run is asked for again when none came of it: the DAG was just paused, or the run failed before it
triggered anything.  An error of a look is not raised: one that lasts starts a run, whose note says
what it is, and another ever more seldom, so that an outage does not fill the grid.

The trigger for new files, by which a pipeline's checkpoints follow its input (``OnAsset``).

The module is light, as the triggerer imports it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from sluice.coordinator.outlook import Due, DueOrWaiting, NextCheckpoint, Waiting
from sluice.core.ids import CheckpointId
from sluice.declaration.pipeline import Pipeline
from sluice.errors import StoreUnavailable
from sluice.job.job import open_job
from sluice.store.open import StoreLocation, open_store
from sluice_airflow.answers import shared_store
from sluice_airflow.settings import Settings

if TYPE_CHECKING:
    from sluice.store.object_store import ObjectStore
    from sluice_airflow.declared import LatestDeclarations

log = logging.getLogger(__name__)

# Threads of their own: a store that does not answer must not hold up who waits for acks.
_POLL_THREADS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="sluice-due")
_watched: set[int] = set()  # The triggers that run in this process.


class CheckpointDueTrigger(BaseEventTrigger):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """Fires when the next periodic checkpoint of *pipeline* is due and has something to do.

    *pipelines* is the package that declares it, in the form of ``SLUICE_PIPELINES``; *cron* is
    an expression and its time zone.  The class path and the keyword names are stored in Airflow's
    database: rename neither.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        interval_s: float,
        max_concurrent: int = 1,
        pipelines: str | None = None,
        cron: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.interval_s = interval_s
        self.max_concurrent = max_concurrent
        self.pipelines = pipelines
        self.cron = cron

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs: dict[str, Any] = {
            "pipeline": self.pipeline,
            "interval_s": self.interval_s,
            "max_concurrent": self.max_concurrent,
            "pipelines": self.pipelines,
        }
        if self.cron is not None:  # A trigger without one is that of before, and is not replaced.
            kwargs["cron"] = [*self.cron]
        return "sluice_airflow.due.CheckpointDueTrigger", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        loop, said = asyncio.get_running_loop(), ""
        watch = await loop.run_in_executor(_POLL_THREADS, self._watch)
        _watched.add(id(self))
        try:
            while True:
                look = await loop.run_in_executor(
                    _POLL_THREADS, lambda: watch.look(watches=len(_watched))
                )
                if look.message != said:
                    log.info("checkpoint of %s: %s", self.pipeline, look.message)
                    said = look.message
                if look.event is not None:
                    yield TriggerEvent(look.event)
                await asyncio.sleep(look.pause_s)
        finally:
            _watched.discard(id(self))

    def _watch(self) -> DueWatch:

        declarations = _declarations(self.pipelines)
        return DueWatch(
            declared=lambda: declarations.pipeline(self.pipeline),
            interval_s=self.interval_s,
            max_concurrent=self.max_concurrent,
            active_runs=self._active_runs,
            latest_tick_ms=None if self.cron is None else latest_ticks(*self.cron),
        )

    def _active_runs(self) -> int:
        """The runs of the DAG that are queued or run; 0 if Airflow does not say."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        try:
            states = ["queued", "running"]
            return int(RuntimeTaskInstance.get_dr_count(dag_id=self.pipeline, states=states))
        except Exception:  # The worst that comes of it is a run that finds nothing to do.
            log.warning("airflow does not tell of runs dag_id=%s", self.pipeline, exc_info=True)
            return 0


def latest_ticks(expression: str, timezone: str) -> Callable[[], int]:
    """What tells the latest moment, in ms since 1970, that the cron *expression* names."""
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.trigger import CronTriggerTimetable

    clock = CronTriggerTimetable(expression, timezone=timezone, run_immediately=True)
    any_time = TimeRestriction(earliest=None, latest=None, catchup=False)

    def latest() -> int:
        info = clock.next_dagrun_info(last_automated_data_interval=None, restriction=any_time)
        return 0 if info is None else int(info.run_after.timestamp() * 1_000)

    return latest


@cache
def _declarations(said: str | None) -> LatestDeclarations:
    """One for all triggers of a process, so that a package is imported once."""
    from sluice_airflow.declared import LatestDeclarations

    return LatestDeclarations(said)


POLL_S = 1.0
ERROR_S = 3.0  # An error that is over sooner is not reported; Airflow starts a run in 2 to 5 s.
LONGEST_PATIENCE_S = 600.0  # Between two runs that say the same error.
PATIENCE_S = 15.0  # The shortest time in which a run comes of an event; else the interval.
FIRST_PATIENCE_S = 60.0  # As long at the least the timetable has to start the first run.
LEAD_MS = 2_000  # What Airflow takes from the event to the request, at the least.
REST_FACTOR = 60  # A look rests sixty times as long as it took: a second of CPU in a minute.
LONGEST_REST_S = 10.0  # However long one took: two that import in a row would rest for minutes.
OF_ALL = 0.25  # The part of one core that all looks of a process together may take.


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
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
        self._seen: tuple[Pipeline, NextCheckpoint] | None = None
        self._failing_since: float | None = None
        self._told_errors = 0
        self._cpu_s = 0.0
        # The first checkpoint of a job is the timetable's, until that had its time.
        ahead_s = max(0.0, FIRST_PATIENCE_S - max(PATIENCE_S, interval_s))
        self._told, self._told_at = CheckpointId(1), clock() + ahead_s

    def look(self, *, watches: int = 1) -> PollResult:
        """*watches* is the number of watches that share this process."""
        began, began_at = time.thread_time(), self._clock()
        try:
            sight: DueOrWaiting = self._outlook().look()
            self._failing_since, self._told_errors = None, 0
        except Exception as error:  # noqa: BLE001 - a user's source may raise anything
            sight = self._failed(error, began_at)
        event = self._event(sight)
        last_s, self._cpu_s = self._cpu_s, time.thread_time() - began
        cpu_s = min(last_s, self._cpu_s)  # One that imports, or reads a parent, is an exception.
        rest_s = min(cpu_s * REST_FACTOR, LONGEST_REST_S)
        pause_s = max(POLL_S, rest_s, cpu_s * watches / OF_ALL)
        return PollResult(message=sight.message, event=event, pause_s=pause_s)

    def _outlook(self) -> NextCheckpoint:
        pipeline = self._declared()
        if self._seen is None or self._seen[0] is not pipeline:
            location = Settings.from_environment().location
            job = open_job(pipeline, location, store=shared_store(location))
            interval_ms = int(self._interval_s * 1_000)
            lead_ms = min(LEAD_MS, interval_ms // 2)
            outlook = NextCheckpoint(
                job,
                interval_ms=interval_ms,
                lead_ms=lead_ms,
                latest_tick_ms=self._latest_tick_ms,
            )
            self._seen = pipeline, outlook
        return self._seen[1]

    def _failed(self, error: Exception, began_at: float) -> DueOrWaiting:
        """A client that repeats what failed has waited for a while already."""
        if self._failing_since is None:
            self._failing_since = began_at
        message = f"{type(error).__name__}: {error}"
        if self._clock() - self._failing_since < ERROR_S:
            return Waiting(message=message)
        return Due(message=message, next_id=CheckpointId(0))

    def _event(self, sight: DueOrWaiting) -> dict[str, str] | None:
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


class NewFilesTrigger(BaseEventTrigger):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """Fires whenever the listing of *uri* (s3://bucket/prefix or file:///folder) has changed.

    One LIST per poll.  Files may have arrived while no triggerer ran, so the first poll fires, too;
    a checkpoint without new input is skipped.  The class path and the keyword names are
    stored in Airflow's database: rename neither.
    """

    def __init__(self, *, uri: str, poll_s: float = 5.0, endpoint_url: str | None = None) -> None:
        super().__init__()
        self.uri = uri
        self.poll_s = poll_s
        self.endpoint_url = endpoint_url

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "sluice_airflow.due.NewFilesTrigger",
            {"uri": self.uri, "poll_s": self.poll_s, "endpoint_url": self.endpoint_url},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        store = await asyncio.to_thread(
            open_store, StoreLocation(root=self.uri, endpoint_url=self.endpoint_url)
        )
        seen: dict[str, int] | None = None
        while True:
            try:
                found = await asyncio.to_thread(_listing, store)
            except StoreUnavailable as error:
                log.warning("no listing uri=%s: %s", self.uri, error)
            else:
                if found != seen:
                    changed = found.items() - (seen or {}).items()
                    seen = found
                    yield TriggerEvent({"files": len(found), "changed": len(changed)})
            await asyncio.sleep(self.poll_s)


def _listing(store: ObjectStore) -> dict[str, int]:
    """The size of each file: growing counts as a change, too."""
    return {listed.key: listed.size_bytes for listed in store.list("")}
