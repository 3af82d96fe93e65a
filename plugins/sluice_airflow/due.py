"""The triggers that start the runs of a checkpoint DAG: a checkpoint is due, or files are new.

Each belongs to an asset that the DAG is scheduled on, so Airflow runs it in the triggerer while the
DAG is unpaused.  The module is light, as every DAG file imports it: what a trigger needs is
imported when it runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from sluice.errors import StoreUnavailable

if TYPE_CHECKING:
    from sluice.store.object_store import ObjectStore
    from sluice_airflow.declared import LatestDeclarations
    from sluice_airflow.polls import DueWatch

log = logging.getLogger(__name__)

# Threads of their own: a store that does not answer must not hold up triggers that await acks.
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
        from sluice_airflow.runs import redact_airflow_logs

        redact_airflow_logs()
        loop, logged = asyncio.get_running_loop(), ""
        watch = await loop.run_in_executor(_POLL_THREADS, self._watch)
        _watched.add(id(self))
        try:
            while True:
                result = await loop.run_in_executor(
                    _POLL_THREADS, lambda: watch.poll(watches=len(_watched))
                )
                if result.message != logged:
                    log.info("checkpoint of %s: %s", self.pipeline, result.message)
                    logged = result.message
                if result.event is not None:
                    yield TriggerEvent(result.event)
                await asyncio.sleep(result.pause_s)
        finally:
            _watched.discard(id(self))

    def _watch(self) -> DueWatch:
        from sluice_airflow.polls import DueWatch

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
    """A function that returns the latest tick of the cron *expression*, in ms since 1970."""
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.trigger import CronTriggerTimetable

    clock = CronTriggerTimetable(expression, timezone=timezone, run_immediately=True)
    any_time = TimeRestriction(earliest=None, latest=None, catchup=False)

    def latest() -> int:
        info = clock.next_dagrun_info(last_automated_data_interval=None, restriction=any_time)
        return 0 if info is None else int(info.run_after.timestamp() * 1_000)

    return latest


@cache
def _declarations(pipelines: str | None) -> LatestDeclarations:
    """The same for all triggers of a process, so that a package is imported once."""
    from sluice_airflow.declared import LatestDeclarations

    return LatestDeclarations(pipelines)


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
        from sluice.store.open import StoreLocation, open_store

        store = await asyncio.to_thread(
            open_store, StoreLocation(self.uri, self.endpoint_url, patience_s=0)
        )
        known: dict[str, int] | None = None
        while True:
            try:
                listing = await asyncio.to_thread(_listing, store)
            except StoreUnavailable as error:
                log.warning("no listing uri=%s: %s", self.uri, error)
            else:
                if listing != known:
                    changed = listing.items() - (known or {}).items()
                    known = listing
                    yield TriggerEvent({"files": len(listing), "changed": len(changed)})
            await asyncio.sleep(self.poll_s)


def _listing(store: ObjectStore) -> dict[str, int]:
    """The size of each file, as growing counts as a change, too."""
    return {listed.key: listed.size_bytes for listed in store.list("")}
