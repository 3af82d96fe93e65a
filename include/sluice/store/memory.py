"""The reference store: a dictionary, and its keys in order, behind a lock.

Promises everything ``ObjectStore`` does, to the threads of one process, and never raises
``StoreUnavailable``.  ``named_store`` opens the same objects for the same name, so that
``memory://name/prefix`` behaves like a place rather than like a value.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from typing import NamedTuple

from sluice.protocol.keys import check_key, check_prefix
from sluice.store.object_store import (
    AlreadyExists,
    Created,
    CreateResult,
    Listed,
    check_range,
    machine_clock_ms,
)


class _Object(NamedTuple):
    body: bytes
    modified_ms: int
    version: str


class _Objects:
    """The objects of one name; stores with different prefixes share them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.written: dict[str, _Object] = {}
        self.keys: list[str] = []  # Of `written`, sorted: a listing takes few of many.

    def write(self, full_key: str, body: bytes) -> None:
        if full_key not in self.written:
            insort(self.keys, full_key)
        version = hashlib.blake2b(body, digest_size=16).hexdigest()
        self.written[full_key] = _Object(bytes(body), machine_clock_ms(), version)

    def below(self, prefix: str, start_after: str) -> Iterator[str]:
        first = bisect_left(self.keys, prefix)
        if start_after >= prefix:
            first = bisect_right(self.keys, start_after)
        return takewhile(lambda key: key.startswith(prefix), islice(self.keys, first, None))

    def delete(self, full_key: str) -> None:
        if self.written.pop(full_key, None) is not None:
            del self.keys[bisect_left(self.keys, full_key)]


class InMemoryStore:
    """An ``ObjectStore`` that lives as long as the process; *foreign* as in ``S3Store``."""

    def __init__(
        self,
        name: str = "unnamed",
        prefix: str = "",
        *,
        objects: _Objects | None = None,
        foreign: bool = False,
    ) -> None:
        self._name = name
        self._foreign = foreign
        self._prefix = f"{prefix}/" if prefix and not foreign else prefix
        self._objects = objects if objects is not None else _Objects()

    @property
    def root(self) -> str:
        return f"memory://{self._name}/{self._prefix}".rstrip("/")

    def now_ms(self) -> int:
        return machine_clock_ms()

    def get(self, key: str) -> bytes | None:
        full_key = self._prefix + key if self._foreign else self._full_key(key)
        with self._objects.lock:
            found = self._objects.written.get(full_key)
        return None if found is None else found.body

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        check_range(start, end)
        body = self.get(key)
        return None if body is None else body[start:end]

    def put(self, key: str, body: bytes) -> None:
        with self._objects.lock:
            self._objects.write(self._full_key(key), body)

    def create(self, key: str, body: bytes) -> CreateResult:
        full_key = self._full_key(key)
        with self._objects.lock:
            found = self._objects.written.get(full_key)
            if found is not None:
                return AlreadyExists(found.body)
            self._objects.write(full_key, body)
            return Created()

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        """See ``ObjectStore``; this one shows the moment of the first ``next``."""
        if not self._foreign:
            check_prefix(prefix)
        with self._objects.lock:
            below = [
                (full_key.removeprefix(self._prefix), self._objects.written[full_key])
                for full_key in self._objects.below(
                    self._prefix + prefix, self._prefix + start_after
                )
            ]
        for key, found in below:
            yield Listed(
                key=key,
                size_bytes=len(found.body),
                modified_ms=found.modified_ms,
                version=found.version,
            )

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            full_key = self._full_key(key)
            with self._objects.lock:
                self._objects.delete(full_key)

    def _full_key(self, key: str) -> str:
        check_key(key)
        return self._prefix + key


_named: dict[str, _Objects] = {}
_named_lock = threading.Lock()


def named_store(name: str, prefix: str = "", *, foreign: bool = False) -> InMemoryStore:
    """Open the one place of this process called *name*, empty if it is new, below *prefix*."""
    with _named_lock:
        objects = _named.setdefault(name, _Objects())
    return InMemoryStore(name, prefix, objects=objects, foreign=foreign)
