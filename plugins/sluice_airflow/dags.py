"""The functions that the files of a ``dags/`` folder call.

    from sluice_airflow.dags import dags

    globals().update(dags())

A second file shows broken and changed declarations as its import error, as Airflow schedules no DAG
of a file with one.

    from sluice_airflow.dags import require_sound_pipelines

    require_sound_pipelines()

So the DAGs of all other pipelines are kept, and so are those of a pipeline whose declaration does
not fit its job: its restore DAG is the way to mend it.

Nothing of Airflow is imported before its version is checked: a missing one is named with the extra
to install, and an older one has no ``airflow.sdk``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import (
    Declarations,
    PipelinesPackage,
    find_pipelines,
    idle_patterns,
    is_selected,
    load_declarations,
)
from sluice.errors import ConfigurationError
from sluice.extras import AIRFLOW, require_installed
from sluice_airflow.settings import Settings

if TYPE_CHECKING:
    from types import FrameType

    from airflow.sdk import DAG

log = logging.getLogger(__name__)

_LINE = "\n  {}: "  # Of an import error: what it is about, and behind it the problem.
PATIENCE_S = 5.0  # For all jobs together; Airflow allows 30 s for a file, and 50 s for a cycle.


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
    declarations = load_declarations(package)
    require_sound(scheduled(declarations, package))
    # Only once all can be loaded: a broken module may have the pipeline.
    idle = () if declarations.problems else idle_patterns(package.dags, declarations.pipelines)
    if idle:
        raise ConfigurationError(
            f"{', '.join(map(repr, idle))} in dags, or in SLUICE_DAGS, fits no pipeline; declared "
            f"are {', '.join(declarations.pipelines) or 'none'}"
        )


def _package(pipelines: str | None, frame: FrameType | None) -> PipelinesPackage:
    """The package of the pipelines, once Airflow is known to be supported."""
    require_installed("airflow", who="sluice_airflow")
    from airflow import __version__

    AIRFLOW.check(__version__)
    caller = frame.f_back.f_globals.get("__file__") if frame is not None and frame.f_back else None
    starts = () if caller is None else (Path(caller).absolute().parent,)
    return find_pipelines(*starts, setting=pipelines)


def load_scheduled(package: PipelinesPackage | None = None) -> Declarations:
    """The declarations of which this Airflow makes DAGs."""
    package = package or find_pipelines()
    return scheduled(load_declarations(package), package)


def scheduled(declarations: Declarations, package: PipelinesPackage) -> Declarations:
    """The selected declarations; every problem is kept, as a broken module's uids are not known."""
    selected = {
        uid: pipeline
        for uid, pipeline in declarations.pipelines.items()
        if is_selected(uid, package.dags)
    }
    return replace(declarations, pipelines=selected)


def load_watched(package: PipelinesPackage | None = None) -> dict[str, Pipeline]:
    """The pipelines for the watchdog, with a ``_Broken`` one for each broken module."""
    declarations = load_scheduled(package)
    broken = {
        name: cast("Pipeline", _Broken(problem)) for name, problem in declarations.problems.items()
    }
    return {**declarations.pipelines, **broken}


class _Broken:
    """The stand-in for a pipeline of a broken module: any use of it raises the module's error."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def __getattr__(self, name: str) -> object:
        raise ConfigurationError(self._problem)


def build_each(pipelines: Mapping[str, Pipeline]) -> tuple[dict[str, DAG], dict[str, str]]:
    """The DAGs that can be built, by id, and the errors of other pipelines, by uid.

    In a task, only the task's own DAG is built.
    """
    from airflow.sdk import get_parsing_context

    from sluice_airflow.dag_factory import build_dags

    dags: dict[str, DAG] = {}
    problems: dict[str, str] = {}
    wanted = get_parsing_context().dag_id
    for uid, pipeline in pipelines.items():
        if wanted is not None and wanted != uid and not wanted.startswith(f"{uid}__"):
            continue
        try:
            built = build_dags({uid: pipeline})
        except Exception as error:  # Our errors, or Airflow's about an id or a parameter.
            log.warning("DAGs not built pipeline=%s", uid, exc_info=True)
            problems[f"pipeline {uid}"] = str(error)
            continue
        taken = [dag_id for dag_id in built if dag_id in dags]
        if taken:
            problems[f"pipeline {uid}"] = f"two pipelines make a DAG {taken[0]!r}; rename {uid!r}"
            continue
        for dag in built.values():
            _drop_copies_of_params(dag)
        dags |= built
    return dags, problems


def _drop_copies_of_params(dag: DAG) -> None:
    """Remove the copies of the DAG's params from its tasks.

    Airflow validates each copy when it serializes the DAG, which is nine tenths of the time of
    parsing.  A run merges the DAG's params with the task's anyway.
    """
    for task in dag.tasks:
        task.params = {name: task.params[name] for name in task.params if name not in dag.params}


def require_sound(declarations: Declarations, *, patience_s: float = PATIENCE_S) -> None:
    """Raises ConfigurationError, which names every module and pipeline that a person has to mend.

    Only where DAG files are parsed for the scheduler; in a task it does nothing.
    """
    from airflow.sdk import get_parsing_context

    if get_parsing_context().dag_id is not None:
        return
    problems = {
        **declarations.problems,
        **build_each(declarations.pipelines)[1],
        **_changes(declarations.pipelines, patience_s),
    }
    if problems:
        listed = "".join(f"{_LINE.format(name)}{problem}" for name, problem in problems.items())
        raise ConfigurationError(f"these declarations need a person; all others go on:{listed}")


def problem_in(import_error: str, uid: str) -> str:
    """What an import error by ``require_sound`` says of the pipeline; empty if nothing."""
    _, _, told = import_error.partition(_LINE.format(f"pipeline {uid}"))
    return told.partition("\n")[0]


def _changes(pipelines: Mapping[str, Pipeline], patience_s: float) -> dict[str, str]:
    """The problem of each changed pipeline, by uid; an unreachable bucket is only logged."""
    from sluice.coordinator.compatibility import find_changes

    try:
        location = Settings.from_environment().location
        found = find_changes(pipelines.values(), location, timeout_s=patience_s)
    except Exception:
        log.warning("declarations not compared with their jobs", exc_info=True)
        return {}
    return {f"pipeline {uid}": change for uid, change in found.items()}
