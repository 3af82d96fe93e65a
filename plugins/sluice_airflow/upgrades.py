"""What a declaration that is broken, or that changed under its job, looks like in Airflow.

It is an import error of a DAG file of its own.  The DAGs of all others stay, and so do those of a
pipeline that changed: its restore DAG is what mends it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import cast

from airflow.sdk import DAG, get_parsing_context

from sluice.declarations import Declarations, load_declarations
from sluice.errors import ConfigurationError
from sluice.pipeline import Pipeline
from sluice_airflow.dag_factory import build_dags
from sluice_airflow.settings import Settings

log = logging.getLogger(__name__)

PATIENCE_S = 5.0  # For all jobs together; Airflow gives a file 30 s by default, and 50 to a cycle.

Build = Callable[[Mapping[str, Pipeline]], Mapping[str, DAG]]


def build_each(
    pipelines: Mapping[str, Pipeline], build: Build = build_dags
) -> tuple[dict[str, DAG], dict[str, str]]:
    """The DAGs of every pipeline whose DAGs can be built, and what is wrong with the others.

    A task asks for its own DAG, and pays for no other pipeline's.
    """
    dags: dict[str, DAG] = {}
    problems: dict[str, str] = {}
    wanted = get_parsing_context().dag_id
    for uid, pipeline in pipelines.items():
        if wanted is not None and wanted != uid and not wanted.startswith(f"{uid}__"):
            continue
        try:
            built = build({uid: pipeline})
        except Exception as error:  # Ours, or whatever Airflow says of an id or a parameter.
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
    """Raises ConfigurationError that names every module and pipeline that needs a person.

    Only where DAG files are parsed for the scheduler: a task reads neither this nor the bucket.
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


def load_watched() -> dict[str, Pipeline]:
    """For the watchdog: every pipeline, and for a broken module one that cannot be watched."""
    declarations = load_declarations()
    broken = {
        name: cast("Pipeline", _Broken(problem)) for name, problem in declarations.problems.items()
    }
    return {**declarations.pipelines, **broken}


def _drop_copies_of_params(dag: DAG) -> None:
    """Each task has a copy of its DAG's params, and Airflow validates every one when it serializes
    the DAG: nine tenths of the time of parsing.  A run merges the DAG's with the task's anyway.
    """
    for task in dag.tasks:
        task.params = {name: task.params[name] for name in task.params if name not in dag.params}


class _Broken:
    """In the place of a pipeline: whoever asks it for anything is told what is wrong with it."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def __getattr__(self, name: str) -> object:
        raise ConfigurationError(self._problem)


def _changes(pipelines: Mapping[str, Pipeline], patience_s: float) -> dict[str, str]:
    """A bucket that is not there says nothing about a declaration: that is a line in the log."""
    from sluice.runner.upgrades import find_changes

    try:
        location = Settings.from_environment().location
        found = find_changes(pipelines.values(), location, timeout_s=patience_s)
    except Exception:
        log.warning("declarations not compared with their jobs", exc_info=True)
        return {}
    return {f"pipeline {uid}": change for uid, change in found.items()}
