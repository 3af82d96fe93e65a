"""Broken and changed declarations in Airflow: an import error of a separate DAG file.

The DAGs of all other pipelines are kept, and so are those of a pipeline whose declaration does not
fit its job: its restore DAG is the way to mend it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from airflow.sdk import DAG, get_parsing_context

from sluice.declaration.discovery import Declarations, load_declarations
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import PipelinesPackage, find_pipelines
from sluice.declaration.selection import idle_patterns, is_selected
from sluice.errors import ConfigurationError
from sluice_airflow.dag_factory import build_dags
from sluice_airflow.settings import Settings

log = logging.getLogger(__name__)

PATIENCE_S = 5.0  # For all jobs together; Airflow allows 30 s for a file, and 50 s for a cycle.

Build = Callable[[Mapping[str, Pipeline]], Mapping[str, DAG]]


def build_each(
    pipelines: Mapping[str, Pipeline], build: Build = build_dags
) -> tuple[dict[str, DAG], dict[str, str]]:
    """The DAGs that can be built, by id, and the errors of other pipelines, by uid.

    In a task, only the task's own DAG is built.
    """
    dags: dict[str, DAG] = {}
    problems: dict[str, str] = {}
    wanted = get_parsing_context().dag_id
    for uid, pipeline in pipelines.items():
        if wanted is not None and wanted != uid and not wanted.startswith(f"{uid}__"):
            continue
        try:
            built = build({uid: pipeline})
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


def require_sound(declarations: Declarations, *, patience_s: float = PATIENCE_S) -> None:
    """Raises ConfigurationError, which names every module and pipeline that a person has to mend.

    Only where DAG files are parsed for the scheduler; in a task it does nothing.
    """
    if get_parsing_context().dag_id is not None:
        return
    problems = {
        **declarations.problems,
        **build_each(declarations.pipelines)[1],
        **_changes(declarations.pipelines, patience_s),
    }
    if problems:
        listed = "".join(f"\n  {name}: {problem}" for name, problem in problems.items())
        raise ConfigurationError(f"these declarations need a person; all others go on:{listed}")


def scheduled(declarations: Declarations, package: PipelinesPackage) -> Declarations:
    """Those that become DAGs; every problem is kept, as a broken module's uids are not known."""
    chosen = {
        uid: pipeline
        for uid, pipeline in declarations.pipelines.items()
        if is_selected(uid, package.dags)
    }
    return replace(declarations, pipelines=chosen)


def load_scheduled(package: PipelinesPackage | None = None) -> Declarations:
    """What this Airflow runs, of what the project declares."""
    package = package or find_pipelines()
    return scheduled(load_declarations(package), package)


def require_patterns_that_fit(declarations: Declarations, package: PipelinesPackage) -> None:
    """Raises ConfigurationError for a pattern that fits no pipeline, once all can be loaded."""
    idle = () if declarations.problems else idle_patterns(package.dags, declarations.pipelines)
    if idle:
        raise ConfigurationError(
            f"{', '.join(map(repr, idle))} in dags, or in SLUICE_DAGS, fits no pipeline; declared "
            f"are {', '.join(declarations.pipelines) or 'none'}"
        )


def load_watched(package: PipelinesPackage | None = None) -> dict[str, Pipeline]:
    """The pipelines for the watchdog, with a ``_Broken`` one for each broken module."""
    declarations = load_scheduled(package)
    broken = {
        name: cast("Pipeline", _Broken(problem)) for name, problem in declarations.problems.items()
    }
    return {**declarations.pipelines, **broken}


def _drop_copies_of_params(dag: DAG) -> None:
    """Remove the copies of the DAG's params from its tasks.

    Airflow validates each copy when it serializes the DAG, which is nine tenths of the time of
    parsing.  A run merges the DAG's params with the task's anyway.
    """
    for task in dag.tasks:
        task.params = {name: task.params[name] for name in task.params if name not in dag.params}


class _Broken:
    """The stand-in for a pipeline of a broken module: any use of it raises the module's error."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def __getattr__(self, name: str) -> object:
        raise ConfigurationError(self._problem)


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
