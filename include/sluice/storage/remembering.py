"""Stores that answer a repeated question from what was read before.

For one request that looks at the same journal, manifests and folders for each of many
things.  What decides anything reads anew: a memory lives as long as the answer is made, and a
write through it forgets everything.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from sluice.storage.object_store import CreateResult, Listed, ObjectStore


@dataclass(frozen=True, slots=True)
class ReadMemory:
    """The stores of one answer, one for each root.  Threads may share it."""

    _stores: dict[str, ObjectStore] = field(default_factory=dict[str, ObjectStore])

    def store_of(self, root: str, opened: Callable[[], ObjectStore]) -> ObjectStore:
        if root not in self._stores:
            self._stores.setdefault(root, RememberingStore(opened()))
        return self._stores[root]


class RememberingStore:
    """An ``ObjectStore`` that asks *store* once for each key, and once for each prefix."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._bodies: dict[str, bytes | None] = {}
        self._listings: dict[str, list[Listed]] = {}

    @property
    def root(self) -> str:
        return self._store.root

    def get(self, key: str) -> bytes | None:
        if key not in self._bodies:
            self._bodies[key] = self._store.get(key)
        return self._bodies[key]

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return self._store.get_range(key, start, end)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        if prefix not in self._listings:
            self._listings[prefix] = [*self._store.list(prefix)]
        listing = self._listings[prefix]
        first = bisect_right(listing, start_after, key=attrgetter("key")) if start_after else 0
        return iter(listing[first:])

    def put(self, key: str, body: bytes) -> None:
        self._forget()
        self._store.put(key, body)

    def create(self, key: str, body: bytes) -> CreateResult:
        self._forget()
        return self._store.create(key, body)

    def delete(self, keys: Iterable[str]) -> None:
        self._forget()
        self._store.delete(keys)

    def _forget(self) -> None:
        self._bodies = {}
        self._listings = {}
