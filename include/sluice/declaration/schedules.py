"""Schedules of checkpoints other than a fixed interval, and where their tasks run in Airflow.

Plain data that ``sluice_airflow.dag_factory`` turns into DAGs; ``sluice run`` ignores all of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, TypeAlias
from zoneinfo import ZoneInfo, available_timezones

from sluice.declaration.arguments import NumberLimits, checked_initializer
from sluice.declaration.durations import PositiveDuration, in_words
from sluice.errors import ConfigurationError

LEAST_TASK_TIMEOUT = timedelta(minutes=1)  # A task process alone takes seconds to start.
MAX_PRIORITY_WEIGHT = 1_000_000  # Airflow stores the sum of it and those of downstream tasks.
_PRESETS = ("@quarterly",)  # Of Airflow's, the one that croniter has not.
_CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


@checked_initializer
@dataclass(frozen=True, slots=True)
class Continuous:
    """The next checkpoint as soon as the one before has ended and there are new records."""


@checked_initializer
@dataclass(frozen=True, slots=True)
class Cron:
    """A schedule by the clock: ``Cron("*/5 * * * *")``, in *timezone*, of the IANA database.

    Airflow reads it by croniter, which therefore checks it here, where it is installed.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if not self.expression.strip():
            raise ConfigurationError("Cron has an empty expression; write e.g. '*/5 * * * *'")
        with suppress(ImportError):
            croniter = import_module("croniter").croniter
            if self.expression not in _PRESETS and not croniter.is_valid(self.expression):
                raise ConfigurationError(
                    f"Cron has {self.expression!r}, which is no cron expression; write minute, "
                    "hour, day, month and day of the week, e.g. '*/5 * * * *', or '@daily'"
                )
        try:
            ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError):
            zones = available_timezones()
            near = get_close_matches(self.timezone, zones, n=1)
            if zones:  # Not on a machine that has no such database.
                raise ConfigurationError(
                    f"Cron has timezone {self.timezone!r}, which is none; write one as "
                    f"{(near or ['Europe/Berlin'])[0]!r}"
                ) from None


@checked_initializer
@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """A ``BaseEventTrigger``, by its class path, that turns outside events into asset events."""

    trigger: str
    arguments: Mapping[str, str | int | float | bool] = field(
        default_factory=dict[str, str | int | float | bool]
    )

    def __post_init__(self) -> None:
        if not _CLASS_PATH.fullmatch(self.trigger):
            raise ConfigurationError(
                f"Watcher trigger is {self.trigger!r}; write the class path of a BaseEventTrigger, "
                "e.g. sluice_airflow.due.NewFilesTrigger"
            )


@checked_initializer
@dataclass(frozen=True, slots=True, kw_only=True)
class OnAsset:
    """A schedule by the events of an Airflow asset, which another DAG or a *watcher* creates.

    An event whose ``extra`` (or a watcher's payload) has ``barriers``, an end offset per source and
    partition, decides the cut of the sources declared with ``induced=True`` (Flink's
    ExternallyInducedSource).
    """

    uri: str
    watcher: Watcher | None = None

    def __post_init__(self) -> None:
        if not self.uri.strip():
            raise ConfigurationError("OnAsset has an empty uri; write e.g. 'sluice://up/tables/x'")


Schedule: TypeAlias = Continuous | Cron | OnAsset


@checked_initializer
@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A Spark application for each stage of each epoch (``spark-submit``), instead of a job in a
    warm session: for YARN or Kubernetes, and epochs long enough to pay for a start.

    *connection* is an Airflow connection of type Spark; *conf* are Spark properties.  A retry finds
    a running application by its name, on clusters that can be asked for it.

    *application* is the script that ``spark-submit`` is given, where the driver's machine has it;
    by default the one that is installed in Airflow's worker.
    """

    connection: str = "spark_default"
    application: str | None = None
    driver_memory: str = "1g"
    executor_memory: str | None = None
    executor_cores: Annotated[int, NumberLimits(1)] | None = None
    num_executors: Annotated[int, NumberLimits(1)] | None = None
    conf: Mapping[str, str] = field(default_factory=dict[str, str])


@checked_initializer
@dataclass(frozen=True, slots=True, kw_only=True)
class Orchestration:
    """The slots of a pipeline's tasks: Airflow's pool, priority weight and queue.

    ``pool`` is that of the snapshot tasks, in which Spark works; the other tasks are short.
    Without ``submit``, Spark Connect at ``SLUICE_SPARK_REMOTE`` runs the stages.

    ``task_timeout`` limits each try of the tasks for which no checkpoint waits: commit, export,
    verify, restore, cancel.  The others have the checkpoint's own timeout.
    """

    pool: str = "default_pool"
    priority_weight: Annotated[int, NumberLimits(1, MAX_PRIORITY_WEIGHT)] = 1
    queue: str | None = None
    submit: Submit | None = None
    tags: tuple[str, ...] = ()
    task_timeout: PositiveDuration = timedelta(hours=1)

    def __post_init__(self) -> None:
        if not self.pool:
            raise ConfigurationError("orchestration pool is empty; name a pool of your Airflow")
        if self.task_timeout < LEAST_TASK_TIMEOUT:
            raise ConfigurationError(
                f"orchestration task_timeout is {in_words(self.task_timeout)}; use "
                f"{in_words(LEAST_TASK_TIMEOUT)} or more, as a task that is killed begins again"
            )
