"""The jobs that requests are about: one handle on each pipeline that this Airflow runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, TypeVar

from airflow.configuration import conf
from fastapi import Depends

from sluice.declaration.discovery import Declarations
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import find_pipelines
from sluice.errors import ConfigurationError, SluiceError
from sluice.job.job import Job, open_job
from sluice.storage.open import StoreLocation, open_store
from sluice_airflow.declarations import load_scheduled
from sluice_airflow.rest.access import Uid
from sluice_airflow.rest.problems import Refused
from sluice_airflow.settings import Settings

LOADED_FOR_S = 30.0  # A broken module is imported anew so often; a sound one never.
READERS = 8
PATIENCE_S = 5.0  # An S3 server that is not there is reported within 4 s.

Read = TypeVar("Read")


class DeclaredPipelines:
    """What this Airflow runs, loaded by the first request.  A module that was changed is seen by
    the next API server, as a changed plugin is.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: tuple[float, Declarations] | None = None

    def load(self) -> Declarations:
        """Raises ConfigurationError: it cannot be told where the pipelines are."""
        with self._lock:
            now = time.monotonic()
            if self._loaded is None or now - self._loaded[0] > LOADED_FOR_S:
                folder = Path(conf.get("core", "dags_folder"))
                self._loaded = (now, load_scheduled(find_pipelines(folder)))
            return self._loaded[1]


DECLARED = DeclaredPipelines()
_pool = ThreadPoolExecutor(READERS, thread_name_prefix="sluice-rest")


def declared() -> Declarations:
    """The declarations, or 503 where this Airflow is not told where they are."""
    try:
        return DECLARED.load()
    except ConfigurationError as error:
        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error


DeclaredDep = Annotated[Declarations, Depends(declared)]


def job_of(uid: Uid, declarations: DeclaredDep) -> Job:
    """The job of the pipeline in the path, which names one that is declared, or nothing."""
    pipeline = declarations.pipelines.get(uid)
    if pipeline is None:
        raise Refused(
            HTTPStatus.NOT_FOUND,
            f"no pipeline {uid!r} is declared here, or its module is broken; GET "
            "/sluice/api/v1/pipelines lists those that are",
        )
    return open_readable(pipeline)


JobDep = Annotated[Job, Depends(job_of)]


def open_readable(pipeline: Pipeline) -> Job:
    """A handle whose requests are not repeated for a minute: a person waits for the answer."""
    try:
        location = Settings.from_environment().location
    except ConfigurationError as error:
        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
    return _handle(_Declared(pipeline), location)


def read_each(
    pipelines: Sequence[Pipeline],
    read: Callable[[Job], Read],
    unread: Callable[[Pipeline, str], Read],
) -> list[Read]:
    """*read* of every job at once; *unread* of one that fails, or that does not answer in time."""
    tasks = [_pool.submit(lambda one: read(open_readable(one)), pipeline) for pipeline in pipelines]
    wait(tasks, timeout=PATIENCE_S)
    found: list[Read] = []
    for pipeline, task in zip(pipelines, tasks, strict=True):
        if not task.done():
            task.cancel()
            found.append(unread(pipeline, f"its bucket did not answer within {PATIENCE_S:.0f} s"))
        elif (error := task.exception()) is not None:
            found.append(unread(pipeline, _told(error)))
        else:
            found.append(task.result())
    return found


def _told(error: BaseException) -> str:
    is_ours = isinstance(error, SluiceError | Refused)
    return str(error) if is_ours else f"{type(error).__name__}: {error}"


class _Declared:
    """A pipeline as a key: it is what it is, however equal another one looks."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def __hash__(self) -> int:
        return id(self.pipeline)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Declared) and other.pipeline is self.pipeline


@lru_cache(maxsize=1_000)
def _handle(declared: _Declared, location: StoreLocation) -> Job:
    return open_job(declared.pipeline, location, store=open_store(location))
