"""The functions that the files of a ``dags/`` folder call.

    from sluice_airflow.dags import dags

    globals().update(dags())

A second file shows broken declarations, as Airflow schedules no DAG of a file with an import error.

    from sluice_airflow.dags import require_sound_pipelines

    require_sound_pipelines()
"""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.declaration.project import PipelinesPackage, find_pipelines
from sluice.extras import AIRFLOW, require

if TYPE_CHECKING:
    from types import FrameType

    from airflow.sdk import DAG


def dags(pipelines: str | None = None) -> dict[str, DAG]:
    """Every DAG of every declared pipeline, and the watchdog's, by id.

    *pipelines* is their folder or package, in the form of ``SLUICE_PIPELINES``; a relative folder
    is relative to the calling file.  The default is that of ``SLUICE_PIPELINES``, or of a
    pyproject.toml above the calling file.  A broken pipeline does not affect the others; one that
    ``SLUICE_DAGS``, or ``dags`` of pyproject.toml, does not select gets no DAGs.

    Raises:
        ConfigurationError: Airflow is not supported, or there is no such folder.
    """
    package = _package(pipelines, inspect.currentframe())
    from sluice_airflow.declarations import build_each, load_scheduled, load_watched
    from sluice_airflow.watchdog import build_watchdog

    built, _ = build_each(load_scheduled(package).pipelines)
    watchdog = build_watchdog(partial(load_watched, package))
    return {**built, watchdog.dag_id: watchdog}


def require_sound_pipelines(pipelines: str | None = None) -> None:
    """Raises ConfigurationError, which names each declaration that is broken or unfit for its job,
    and each pattern that selects no pipeline.

    *pipelines* is that of ``dags``.
    """
    package = _package(pipelines, inspect.currentframe())
    from sluice.declaration.discovery import load_declarations
    from sluice_airflow.declarations import require_patterns_that_fit, require_sound, scheduled

    declarations = load_declarations(package)
    require_sound(scheduled(declarations, package))
    require_patterns_that_fit(declarations, package)


def _package(said: str | None, frame: FrameType | None) -> PipelinesPackage:
    """The pipelines; checks Airflow's version first, as an older one has no ``airflow.sdk``."""
    require("airflow", who="sluice_airflow")
    from airflow import __version__

    AIRFLOW.check(__version__)
    caller = frame.f_back.f_globals.get("__file__") if frame is not None and frame.f_back else None
    starts = () if caller is None else (Path(caller).absolute().parent,)
    return find_pipelines(*starts, said=said)
