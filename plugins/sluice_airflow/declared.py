"""Declarations at run time: the latest ones, and their check before a job begins.

The triggerer lives long, so it imports them again once a file of their package has changed.
Airflow parses DAG files in processes of their own, so everywhere else one import is enough.
"""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock

from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import PipelinesPackage, find_pipelines, load_declarations
from sluice.errors import ConfigurationError
from sluice_airflow.settings import Settings

log = logging.getLogger(__name__)

STAMP_S = 5.0  # Between two reads of the files' times, for all pipelines of a process together.

_Stamp = tuple[tuple[str, int], ...]


class LatestDeclarations:
    """The pipelines of the package *pipelines*, in the form of ``SLUICE_PIPELINES``; None is the
    package that this process's own environment names.  Safe for threads.
    """

    def __init__(self, pipelines: str | None, *, stamp_s: float = STAMP_S) -> None:
        self._package = pipelines
        self._stamp_s = stamp_s
        self._lock = Lock()
        self._stamp: _Stamp | None = None
        self._stamped_at = 0.0
        self._pipelines: Mapping[str, Pipeline] = {}

    def pipeline(self, uid: str) -> Pipeline:
        """The pipeline *uid* as its files declare it now; the same object until they change.

        Raises:
            ConfigurationError: it cannot be loaded here.
        """
        with self._lock:
            self._renew()
            found = self._pipelines.get(uid)
        if found is None:
            raise ConfigurationError(f"pipeline {uid!r} cannot be loaded in this process")
        return found

    def _renew(self) -> None:
        now = time.monotonic()
        if self._stamp is not None and now - self._stamped_at < self._stamp_s:
            return
        package = find_pipelines(setting=self._package)
        stamp = tuple(_stamp_of(package))
        self._stamped_at = now
        if stamp == self._stamp:
            return
        if self._stamp is not None:
            _forget(package)
        declarations = load_declarations(package)
        for name, problem in declarations.problems.items():
            log.warning("pipelines not loaded module=%s: %s", name, problem)
        self._stamp, self._pipelines = tuple(_stamp_of(package)), declarations.pipelines


def _stamp_of(package: PipelinesPackage) -> Iterator[tuple[str, int]]:
    """Every file of the package with the time of its last change."""
    loaded = sys.modules.get(package.name)
    folders = [package.folder] if package.folder else getattr(loaded, "__path__", [])
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            yield str(path), path.stat().st_mtime_ns


def _forget(package: PipelinesPackage) -> None:
    """Make the next import load the package anew; pipelines of the old one stay as they are."""
    for name in [*sys.modules]:
        if f"{name}.".startswith(f"{package.name}."):
            del sys.modules[name]
    importlib.invalidate_caches()


def check_declaration(pipeline: Pipeline, params: Mapping[str, str]) -> None:
    """Analyse every stage with Spark and the operators; no row is read.

    A run of a person does it before it submits or restores a job, so that a misspelt column of the
    last stage fails the first task, and not a later epoch.

    Raises:
        ConfigurationError: a stage cannot compute what it declares; the message names it.
    """
    from sluice.spark.checking import check_pipeline
    from sluice.spark.session import named_session

    settings = Settings.from_environment()
    # Of its own: functions that are called here, without rows, make views of the names of others'.
    with named_session(settings.spark_remote, None) as spark:
        check_pipeline(pipeline, spark, params, settings.location.endpoint_url)
