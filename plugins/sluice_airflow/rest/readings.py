"""The time that a request waits for a store: as long as it prefers, while the reading goes on.

    GET, Prefer: wait=4 --> reading, in a thread --4 s--> 503, Retry-After: 2
    GET, Prefer: wait=4 --> the same reading -----------> its view

``Prefer: wait`` is RFC 7240's; a request without it waits for its view.  What somebody was not
answered in time is read once, however many ask and however often: a page that asks again every few
seconds costs a slow store no more.  Such a view is as of when its reading began.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Generic, ParamSpec, TypeVar

from fastapi import Depends, Header

from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job
from sluice_airflow.rest.answers import RequestRefused

THREADS = 32  # A store that hangs keeps each of them for up to three minutes.
KEPT_S = 30.0  # A view that nobody has taken for so long is read anew.
AGAIN_S = 2  # A client asks again after that time.

View = TypeVar("View")
Given = ParamSpec("Given")

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*(\d{1,3})(?=$|[,;\s])")


class NotReadYet(Exception):
    """A reading takes longer than somebody waits; the message goes on behind the store's name."""


@dataclass(slots=True, eq=False)
class ViewReading(Generic[View]):
    """A view that is being read.  ``about`` is kept alive, as the key has the ids of some of it."""

    about: tuple[Any, ...]
    key: tuple[Any, ...]
    task: Future[View]
    began_s: float
    ended_s: float | None = None

    def end(self, _: Future[View]) -> None:
        self.ended_s = time.monotonic()


class ViewReadings:
    """The readings that somebody was not answered in time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="sluice-rest")
        self._lock = threading.Lock()
        self._slow: dict[tuple[Any, ...], ViewReading[Any]] = {}

    def begin(
        self, view: Callable[Given, View], *given: Given.args, **named: Given.kwargs
    ) -> ViewReading[View]:
        """The slow one of the same question, or a new one."""
        about = (view, *given, *sorted(named.items()))
        key = tuple(id(one) if isinstance(one, Job | Pipeline) else one for one in about)
        with self._lock:
            now_s = time.monotonic()
            for old, slow in [*self._slow.items()]:
                if slow.ended_s is not None and now_s - slow.ended_s > KEPT_S:
                    del self._slow[old]
            if key in self._slow:
                return self._slow[key]
        task = self._pool.submit(view, *given, **named)
        reading = ViewReading(about=about, key=key, task=task, began_s=now_s)
        task.add_done_callback(reading.end)
        return reading

    def take(self, reading: ViewReading[View]) -> View:
        """Its view; raises what the reading raised.

        Raises:
            NotReadYet: it goes on, and is the slow one of its question from now on.
        """
        with self._lock:
            if not reading.task.done():
                self._slow.setdefault(reading.key, reading)
                since_s = time.monotonic() - reading.began_s
                raise NotReadYet(
                    f"has not answered all of what was asked {since_s:.0f} s ago; it is waited for"
                )
            if self._slow.get(reading.key) is reading:
                del self._slow[reading.key]
        return reading.task.result()


READINGS = ViewReadings()


@dataclass(frozen=True, slots=True)
class ViewReader:
    """Reads views for a request that waits for ``wait_s`` seconds; None: for its view."""

    wait_s: float | None

    def __call__(
        self, view: Callable[Given, View], *given: Given.args, **named: Given.kwargs
    ) -> View:
        if self.wait_s is None:
            return view(*given, **named)
        reading = READINGS.begin(view, *given, **named)
        wait((reading.task,), timeout=self.wait_s)
        try:
            return READINGS.take(reading)
        except NotReadYet as error:
            roots = [one.store.root for one in given if isinstance(one, Job)]
            detail = f"the store {''.join(roots)} {error}"
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, detail, again_s=AGAIN_S) from error


def _reader(
    prefer: Annotated[
        str, Header(description="`wait=SECONDS` (RFC 7240): 503 and `Retry-After` behind them")
    ] = "",
) -> ViewReader:
    found = _WAIT.search(prefer)
    return ViewReader(None if found is None else float(found[1]))


ReaderDep = Annotated[ViewReader, Depends(_reader)]
