"""A job in another process, of which a test sees every request, and which it may kill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from sluice.runner.job import Job
from sluice.storage.answers import AnswerStore
from sluice.storage.journal import Journal
from sluice.storage.object_store import CreateResult, Listed, ObjectStore


class Crash(BaseException):
    """The process is gone."""


class HookedStore:
    """Calls *before* with the verb and the key, or prefix, of every request."""

    def __init__(self, store: ObjectStore, before: Callable[[str, str], None]) -> None:
        self._store = store
        self._before = before
        self.root = store.root

    def get(self, key: str) -> bytes | None:
        self._before("get", key)
        return self._store.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return self._store.get_range(key, start, end)

    def put(self, key: str, body: bytes) -> None:
        self._before("put", key)
        self._store.put(key, body)

    def create(self, key: str, body: bytes) -> CreateResult:
        self._before("create", key)
        return self._store.create(key, body)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        self._before("list", prefix)
        return self._store.list(prefix, start_after=start_after)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:  # One by one: a batch may be carried out in part.
            self._before("delete", key)
            self._store.delete([key])


def hooked(job: Job, before: Callable[[str, str], None]) -> Job:
    """The same job in another process."""
    store = HookedStore(job.store, before)
    return replace(
        job,
        store=store,
        journal=Journal(store, job.paths),
        answers=AnswerStore(store, job.paths),
    )


def crashing(job: Job, writes: int) -> Job:
    """A process that dies before its next write after so many *writes*."""
    left = writes

    def before(verb: str, key: str) -> None:
        nonlocal left
        if verb in ("get", "list"):
            return
        if not left:
            raise Crash
        left -= 1

    return hooked(job, before)
