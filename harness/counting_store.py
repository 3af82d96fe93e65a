"""A store that counts what is asked of the one behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

from sluice.store.object_store import CreateResult, Listed, ObjectStore

PAGE = 1_000  # What S3 lists, or deletes, in one request.


class CountingStore:
    """Counts requests as S3 charges them: a listing by its pages, a deletion by its batches."""

    def __init__(self, store: ObjectStore, requests: Counter[str] | None = None) -> None:
        self._store = store
        self._lock = Lock()
        self.requests: Counter[str] = Counter() if requests is None else requests

    @property
    def root(self) -> str:
        return self._store.root

    def get(self, key: str) -> bytes | None:
        self._count("get")
        return self._store.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        self._count("get")
        return self._store.get_range(key, start, end)

    def put(self, key: str, body: bytes) -> None:
        self._count("put")
        self._store.put(key, body)

    def create(self, key: str, body: bytes) -> CreateResult:
        self._count("create")
        return self._store.create(key, body)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        listed = [*self._store.list(prefix, start_after=start_after)]
        self._count("list", 1 + len(listed) // PAGE)
        return iter(listed)

    def delete(self, keys: Iterable[str]) -> None:
        doomed = [*keys]
        self._count("delete", -(-len(doomed) // PAGE))
        self._store.delete(doomed)

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """What is asked of the store in the block; the counter is complete behind it."""
        before, asked = Counter(self.requests), Counter[str]()
        yield asked
        asked.update(self.requests - before)

    def _count(self, kind: str, requests: int = 1) -> None:
        with self._lock:
            self.requests[kind] += requests
