"""Airflow's schedule of a pipeline: the event that a checkpoint is due, a cron, or assets.

sluice://{pipeline}/due    an event: the interval is over, or the cron's moment has come, and there
                           is something to checkpoint
"""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any, assert_never

from airflow.sdk import Asset, AssetOrTimeSchedule, AssetWatcher
from airflow.timetables.base import Timetable

from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import loaded_package
from sluice.declaration.schedules import Continuous, Cron, OnAsset, Watcher
from sluice.errors import ConfigurationError
from sluice_airflow.due_trigger import CheckpointDueTrigger
from sluice_airflow.timetable import CheckpointTimetable, FirstTickTimetable

_SHORTEST = timedelta(seconds=1)


def airflow_schedule(pipeline: Pipeline) -> Any:  # noqa: ANN401 - whatever a DAG takes
    """The ``schedule`` of the checkpoint DAG; None means by hand only.

    Raises:
        ConfigurationError: a watcher's trigger cannot be built.
    """
    checkpointing = pipeline.checkpointing
    match checkpointing.schedule:
        case None:
            interval = checkpointing.interval
            return None if interval is None else _when_due(pipeline, interval)
        case Continuous():
            return _when_due(pipeline, timedelta(0))
        case Cron(expression, timezone):
            first = FirstTickTimetable(expression, timezone=timezone)
            cron = (expression, timezone)
            return _when_due(pipeline, timedelta(0), first=first, cron=cron)
        case OnAsset() as on:
            name = f"{pipeline.uid}_barriers"
            watchers = [] if on.watcher is None else [AssetWatcher(name, _trigger(on.watcher))]
            return [Asset(on.uri, watchers=watchers)]
        case _:
            assert_never(checkpointing.schedule)


def _when_due(
    pipeline: Pipeline,
    interval: timedelta,
    *,
    first: Timetable | None = None,
    cron: tuple[str, str] | None = None,
) -> AssetOrTimeSchedule:
    """The first run by the clock, which submits the job; then one for each checkpoint."""
    package = loaded_package()
    trigger = CheckpointDueTrigger(
        pipeline=pipeline.uid,
        interval_s=interval.total_seconds(),
        max_concurrent=pipeline.checkpointing.max_concurrent_checkpoints,
        pipelines=None if package is None else package.said,
        cron=cron,
    )
    due = Asset(
        f"sluice://{pipeline.uid}/due",
        watchers=[AssetWatcher(f"{pipeline.uid}_due", trigger)],
    )
    begin = first or CheckpointTimetable.of(pipeline.uid, max(interval, _SHORTEST))
    return AssetOrTimeSchedule(timetable=begin, assets=[due])


def _trigger(watcher: Watcher) -> Any:  # noqa: ANN401 - any BaseEventTrigger
    module, _, name = watcher.trigger.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)(**watcher.arguments)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"the watcher {watcher.trigger!r} cannot be built: {error}"
        ) from error
