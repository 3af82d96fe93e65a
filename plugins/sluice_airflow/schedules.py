"""Airflow's schedule of a pipeline: a timetable, a cron expression or assets."""

from __future__ import annotations

import importlib
from typing import Any, assert_never

from airflow.sdk import Asset, AssetWatcher, CronTriggerTimetable

from sluice.declaration.pipeline import Pipeline
from sluice.declaration.schedules import Continuous, Cron, OnAsset, Watcher
from sluice.errors import ConfigurationError
from sluice_airflow.timetable import CheckpointTimetable


def airflow_schedule(pipeline: Pipeline) -> Any:  # noqa: ANN401 - whatever a DAG takes
    """The ``schedule`` of the checkpoint DAG; None means by hand only.

    Raises:
        ConfigurationError: a watcher's trigger cannot be built.
    """
    checkpointing = pipeline.checkpointing
    match checkpointing.schedule:
        case None:
            interval = checkpointing.interval
            return None if interval is None else CheckpointTimetable.of(pipeline.uid, interval)
        case Continuous():
            return "@continuous"
        case Cron(expression, timezone):
            return CronTriggerTimetable(expression, timezone=timezone)
        case OnAsset() as on:
            name = f"{pipeline.uid}_barriers"
            watchers = [] if on.watcher is None else [AssetWatcher(name, _trigger(on.watcher))]
            return [Asset(on.uri, watchers=watchers)]
        case _:
            assert_never(checkpointing.schedule)


def _trigger(watcher: Watcher) -> Any:  # noqa: ANN401 - any BaseEventTrigger
    module, _, name = watcher.trigger.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)(**watcher.arguments)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"the watcher {watcher.trigger!r} cannot be built: {error}"
        ) from error
