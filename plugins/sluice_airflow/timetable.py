"""The timetables of a checkpoint DAG: its first run, at a moment of the pipeline's own.

Flink's first periodic trigger comes after a random delay between ``min_pause`` and the interval
(``CheckpointCoordinator.getRandomInitDelay``), so that jobs that start together do not checkpoint
together.  A timetable has to give the same answer each time, so the delay is derived from the
pipeline's uid: the first run starts at the next moment at *phase* within the interval.  Every later
one is started by an event, once there is something to checkpoint (``due``).
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable
from airflow.timetables.trigger import CronTriggerTimetable
from pendulum import DateTime, instance

from sluice.errors import require

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class CheckpointTimetable(Timetable):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """Its class path and ``serialize`` are stored in Airflow's database: rename neither."""

    def __init__(self, interval: timedelta, *, phase: timedelta = timedelta(0)) -> None:
        require(interval > timedelta(0), "an interval is longer than nothing")
        self._interval = interval
        self._phase = phase % interval
        seconds = f"{interval.total_seconds():g}"
        self.description = f"once, within {seconds} s, to begin with"

    @classmethod
    def of(cls, uid: str, interval: timedelta) -> Self:
        """The timetable of the pipeline *uid*, with a pseudo-random phase that never changes."""
        drawn = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big")
        return cls(interval, phase=timedelta(microseconds=drawn % (interval // _MICROSECOND)))

    @property
    def summary(self) -> str:
        return str(self._interval)

    def serialize(self) -> dict[str, Any]:
        return {
            "interval_us": self._interval // _MICROSECOND,
            "phase_us": self._phase // _MICROSECOND,
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(
            timedelta(microseconds=data["interval_us"]),
            phase=timedelta(microseconds=data["phase_us"]),
        )

    def infer_manual_data_interval(self, *, run_after: DateTime) -> DataInterval:
        return DataInterval.exact(run_after)

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        if last_automated_data_interval is not None:
            return None
        now = datetime.now(UTC)
        at = self._next_phase(max(now, restriction.earliest or now))
        if restriction.latest is not None and at > restriction.latest:
            return None
        return DagRunInfo.exact(instance(at))

    def _next_phase(self, moment: datetime) -> datetime:
        """The first moment from *moment* on that lies at the phase."""
        plain = datetime.fromtimestamp(moment.timestamp(), UTC)  # Pendulum's have no remainder.
        return plain + (self._phase - (plain - _EPOCH)) % self._interval


class FirstTickTimetable(CronTriggerTimetable):  # type: ignore[misc]  # As above.
    """The first run of a pipeline with a cron, at a tick; ``due`` starts the others.

    Its class path is stored in Airflow's database: do not rename it.
    """

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        if last_automated_data_interval is not None:
            return None
        return super().next_dagrun_info(last_automated_data_interval=None, restriction=restriction)


FIRST_RUNS = (CheckpointTimetable, FirstTickTimetable)
