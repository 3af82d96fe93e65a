"""Requests to stores, as S3 charges them: a listing by its pages, a deletion by its batches.

What a client repeats by itself counts once: only this side of it is seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from threading import Lock

from sluice.core.acks import StoreRequests
from sluice.storage.object_store import AlreadyExists, CreateResult, Listed, ObjectStore

PAGE = 1_000  # Keys that S3 lists, or deletes, in one request.


class RequestCounter:
    """What was asked so far, of one store or more.  Threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[str] = Counter()

    def add(self, **counts: int) -> None:
        """Add to fields of ``StoreRequests``, by their names."""
        with self._lock:
            self._counts.update(counts)

    def so_far(self) -> StoreRequests:
        with self._lock:
            return StoreRequests(**self._counts)


class MeteredStore:
    """An ``ObjectStore`` whose requests *counter* counts."""

    def __init__(self, store: ObjectStore, counter: RequestCounter) -> None:
        self._store = store
        self._counter = counter

    @property
    def root(self) -> str:
        return self._store.root

    def get(self, key: str) -> bytes | None:
        return self._read(self._store.get(key))

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return self._read(self._store.get_range(key, start, end))

    def put(self, key: str, body: bytes) -> None:
        self._counter.add(puts=1, bytes_written=len(body))
        self._store.put(key, body)

    def create(self, key: str, body: bytes) -> CreateResult:
        self._counter.add(puts=1, bytes_written=len(body))
        found = self._store.create(key, body)
        if isinstance(found, AlreadyExists):
            self._read(found.body)
        return found

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        self._counter.add(lists=1)
        for number, listed in enumerate(self._store.list(prefix, start_after=start_after)):
            if number and number % PAGE == 0:
                self._counter.add(lists=1)
            yield listed

    def delete(self, keys: Iterable[str]) -> None:
        doomed = [*keys]
        self._counter.add(deletes=-(-len(doomed) // PAGE))
        self._store.delete(doomed)

    def _read(self, body: bytes | None) -> bytes | None:
        self._counter.add(gets=1, bytes_read=len(body or b""))
        return body
