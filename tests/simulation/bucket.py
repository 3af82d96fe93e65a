"""A bucket that loses requests and answers, applies them late, and lets others go first.

``Bucket`` is what is stored, and tells a witness of every change.  ``LossyStore`` is what an actor
holds: each call to it may be struck by a fate.  Without faults it keeps the contract of every
``ObjectStore``.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

from sluice.errors import StoreUnavailable
from sluice.protocol.keys import check_key
from sluice.store.object_store import AlreadyExists, Created, CreateResult, Listed
from sluice.store.open import PatientStore
from tests.simulation.script import Fate

T = TypeVar("T")
LAST = "\U0010ffff"  # Sorts behind every key.


class Crash(BaseException):
    """The actor is dead: no handler of its own runs, as after SIGKILL."""


class Witness(Protocol):
    """A witness that is called with every change at the moment when it takes effect."""

    def wrote(self, key: str, body: bytes, before: bytes | None) -> None: ...
    def deletes(self, key: str) -> None: ...


class Network(Protocol):
    """Decides what becomes of a request, and remembers it."""

    def befalls(self, *, is_write: bool) -> Fate | None:
        """The fate of the next request; raises StoreUnavailable while the bucket is down."""
        ...

    def note(self, text: str) -> None: ...


@dataclass(slots=True)
class UnderWay:
    """A request whose sender has given up, and which may still take effect."""

    label: str
    apply: Callable[[], object]


@dataclass(slots=True)
class Bucket:
    witness: Witness
    now_ms: Callable[[], int]  # Its own clock, by which it says when an object was written.
    objects: dict[str, bytes] = field(default_factory=dict)
    under_way: list[UnderWay] = field(default_factory=list)
    down_for: int = 0  # So many calls more.
    damaged: dict[str, bytes] = field(default_factory=dict)  # What was written, where it is not.
    ever_damaged: set[str] = field(default_factory=set)
    _listed: dict[str, Listed] = field(default_factory=dict)
    _keys: list[str] = field(default_factory=list)

    def put(self, key: str, body: bytes) -> None:
        before = self.damaged.pop(key, None) or self.objects.get(key)
        self._store(key, body)
        self.witness.wrote(key, body, before)

    def _store(self, key: str, body: bytes) -> None:
        if key not in self.objects:
            insort(self._keys, key)
        self.objects[key] = body
        version = hashlib.blake2b(body, digest_size=16).hexdigest()
        self._listed[key] = Listed(
            key=key, size_bytes=len(body), modified_ms=self.now_ms(), version=version
        )

    def create(self, key: str, body: bytes) -> CreateResult:
        found = self.objects.get(key)
        if found is not None:
            return AlreadyExists(found)
        self.put(key, body)
        return Created()

    def delete(self, key: str) -> None:
        self.witness.deletes(key)
        self.damaged.pop(key, None)
        self._remove(key)

    def is_damaged(self, key: str, body: bytes | None) -> None:
        """It has these bytes now, or none; nobody did it."""
        self.damaged[key] = self.objects[key]
        self.ever_damaged.add(key)
        if body is None:
            self._remove(key)
        else:
            self._store(key, body)

    def is_mended(self) -> None:
        for key, body in self.damaged.items():
            self._store(key, body)
        self.damaged.clear()

    def written(self, key: str) -> bytes | None:
        """What was written, whatever there is now."""
        return self.damaged.get(key) or self.objects.get(key)

    def _remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]
            del self._listed[key]

    def is_emptied(self, late: Callable[[str], bool]) -> None:
        """Empty the bucket; of the requests under way arrive those whose label *late* takes."""
        self.objects.clear()
        self._keys.clear()
        self._listed.clear()
        self.under_way = [one for one in self.under_way if late(one.label)]
        self.damaged.clear()

    def keys(self, prefix: str, start_after: str = "") -> list[str]:
        first = bisect_left(self._keys, prefix)
        if start_after:
            first = max(first, bisect_right(self._keys, start_after))
        return self._keys[first : bisect_right(self._keys, prefix + LAST)]

    def listed(self, prefix: str, start_after: str) -> list[Listed]:
        return [*map(self._listed.__getitem__, self.keys(prefix, start_after))]


class LossyStore:
    """One actor's view of the bucket, below *prefix*."""

    def __init__(self, bucket: Bucket, network: Network, root: str, prefix: str = "") -> None:
        self._bucket = bucket
        self._network = network
        self._root = root
        self._prefix = f"{prefix}/" if prefix else ""

    @property
    def root(self) -> str:
        return f"{self._root}/{self._prefix}".rstrip("/")

    def now_ms(self) -> int:
        """No request: a store tells the time with each answer."""
        return self._bucket.now_ms()

    def get(self, key: str) -> bytes | None:
        key = self._full_key(key)
        self._read("get", key)
        return self._bucket.objects.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        body = self.get(key)
        return None if body is None else body[start:end]

    def put(self, key: str, body: bytes) -> None:
        key = self._full_key(key)
        self._write("put", key, lambda: self._bucket.put(key, body))

    def create(self, key: str, body: bytes) -> CreateResult:
        key = self._full_key(key)
        return self._write("create", key, lambda: self._bucket.create(key, body))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        self._read("list", self._prefix + prefix)
        after = self._prefix + start_after if start_after else ""
        found = self._bucket.listed(self._prefix + prefix, after)
        return map(self._relative, found) if self._prefix else iter(found)

    def delete(self, keys: Iterable[str]) -> None:
        for key in [self._full_key(key) for key in keys]:
            self._write("delete", key, lambda key=key: self._bucket.delete(key))  # type: ignore[misc]

    def _read(self, verb: str, key: str) -> None:
        fate = self._network.befalls(is_write=False)
        if fate is not None:
            self._network.note(f"{verb} {key}: {fate.value}")
            raise mishap(fate)

    def _write(self, verb: str, key: str, apply: Callable[[], T]) -> T:
        fate = self._network.befalls(is_write=True)
        if fate is None:
            return apply()
        self._network.note(f"{verb} {key}: {fate.value}")
        if fate in (Fate.UNDER_WAY, Fate.DIES_UNDER_WAY):
            self._bucket.under_way.append(UnderWay(f"{verb} {key}", apply))
        elif fate in (Fate.ANSWER_LOST, Fate.DIES_AFTER):
            apply()
        raise mishap(fate)

    def _relative(self, found: Listed) -> Listed:
        return Listed(
            key=found.key.removeprefix(self._prefix),
            size_bytes=found.size_bytes,
            modified_ms=found.modified_ms,
            version=found.version,
        )

    def _full_key(self, key: str) -> str:
        key = self._prefix + key
        if key not in self._bucket.objects:
            check_key(key)
        return key


class RepeatingStore(PatientStore):
    """Patience without pauses; *tries* is told what it is about to write."""

    def __init__(self, store: LossyStore, tries: Callable[[str, bytes], None]) -> None:
        super().__init__(store)
        self._tries = tries

    def create(self, key: str, body: bytes) -> CreateResult:
        self._tries(key, body)
        return super().create(key, body)

    def put(self, key: str, body: bytes) -> None:
        self._tries(key, body)
        super().put(key, body)

    def patiently(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except StoreUnavailable:
            return call()


class InlinePool:
    """A ThreadPoolExecutor of no threads, so that a seed decides everything."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, function: Callable[..., T], *items: Iterable[Any]) -> Iterable[T]:
        return [function(*item) for item in zip(*items, strict=False)]


def mishap(fate: Fate) -> Crash | StoreUnavailable:
    if fate in (Fate.DIES_BEFORE, Fate.DIES_AFTER, Fate.DIES_UNDER_WAY):
        return Crash()
    return StoreUnavailable(fate.value)
