"""Opens the store of a root's URI, and the layers that may lie over a store.

A ``StoreLocation`` is pickled for other processes; a store never is.  It is checked when it is
built, so that a misspelt root is reported where it was written.

Patience belongs to the place: every store that is opened there, below it or on its server repeats
what the network lost, for as long as the location says.  ``PatientStore`` does it, ``MeteredStore``
counts requests as S3 charges them, and ``ReadMemory`` answers a repeated question from what was
read before.  ``verify_store`` is asked wherever something begins in a store.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from threading import Event, Lock
from typing import Protocol, TypeVar, assert_never

from tenacity import (
    RetryCallState,
    Retrying,
    nap,
    retry_if_exception,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_exponential,
    wait_random,
)

from sluice.core.answers import StoreRequests
from sluice.errors import ConfigurationError, StoreFull, StoreUnavailable
from sluice.store.folder import FileStore
from sluice.store.memory import InMemoryStore, named_store
from sluice.store.object_store import (
    AlreadyExists,
    CreateResult,
    HasClock,
    Listed,
    ObjectStore,
    machine_clock_ms,
    verify_conditional_writes,
)
from sluice.store.s3 import S3Store

log = logging.getLogger(__name__)
T = TypeVar("T")

EXAMPLES = "s3://my-bucket/checkpoints, file:///var/lib/sluice or memory://test"

# AWS's rule; some servers answer a shorter name with an error that does not say so.
BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
MEMORY_NAME = re.compile(r"[A-Za-z0-9_.-]+")
DEFAULT_PATIENCE_S = 90.0  # Outlasts a minute's outage of the store.
PAGE = 1_000  # Keys that S3 lists, or deletes, in one request.


class StoreLayer(Protocol):
    """A layer over every store that is opened for one purpose."""

    def store_of(
        self, root: str, opened: Callable[[], ObjectStore], patience_s: float
    ) -> ObjectStore:
        """The layer's store of *root*, over the one that *opened* opens, which repeats nothing."""
        ...


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """The place of a root; ``endpoint_url`` names an S3 server other than AWS.

    A root is taken literally: ``%20`` in ``file:///a%20b`` is three letters of a folder's name.
    A store that is opened here, below or elsewhere repeats what fails for ``patience_s`` seconds; 0
    is for a caller who waits for the answer, or asks again anyway.  A ``layer`` is over every such
    store; it is not picklable.  Objects that others wrote are ``foreign``: in a bucket a key is any
    text, with empty parts, and so is the root's path; they are read as they are.

    Raises:
        ConfigurationError: the root or the endpoint is not one of the forms above.
    """

    root: str
    endpoint_url: str | None = None
    layer: StoreLayer | None = field(default=None, compare=False, repr=False)
    patience_s: float = DEFAULT_PATIENCE_S
    foreign: bool = False

    def below(self, key: str) -> StoreLocation:
        """The place of *key* as a root of its own."""
        return replace(self, root=f"{self.root.rstrip('/')}/{key}")

    def elsewhere(self, root: str) -> StoreLocation:
        """Another root, on the same server if it is one of S3."""
        return replace(self, root=root)

    @property
    def place(self) -> tuple[str, ...]:
        """The place part by part, in a canonical spelling: two roots are one place if their parts
        are equal, and one lies in the other if its parts begin with the other's.  Links of a file
        system are followed.
        """
        match _parse(self.root, foreign=self.foreign):
            case _S3Root(bucket, prefix):
                return ("s3://" + bucket, *filter(None, prefix.split("/")))
            case _FileRoot(folder):
                return ("file:///", *Path(os.path.realpath(folder)).parts[1:])
            case _MemoryRoot(name, prefix):
                return ("memory://" + name, *filter(None, prefix.split("/")))

    @property
    def name(self) -> str:
        """The ``place`` as one text, by which a journal says where it is.

        Without the endpoint: a server has another address from within its own network.
        """
        first, *parts = self.place
        return "/".join((first.rstrip("/"), *parts))

    def __post_init__(self) -> None:
        _parse(self.root, foreign=self.foreign)
        if self.endpoint_url is not None and not re.match(r"https?://[^/]", self.endpoint_url):
            raise ConfigurationError(
                f"the endpoint {self.endpoint_url!r} is not a URL; write http://host:port or "
                "https://host, or leave it out for AWS"
            )


@dataclass(frozen=True, slots=True)
class _S3Root:
    bucket: str
    prefix: str


@dataclass(frozen=True, slots=True)
class _FileRoot:
    folder: str


@dataclass(frozen=True, slots=True)
class _MemoryRoot:
    name: str
    prefix: str


def open_store(location: StoreLocation) -> ObjectStore:
    """Open the store, as patient as the location says; the first call that reaches it reports a
    store that is not there.
    """
    patience_s = location.patience_s
    if location.layer is not None:
        return location.layer.store_of(location.root, lambda: _opened(location), patience_s)
    return patient(_opened(location), patience_s)


def patient(store: ObjectStore, patience_s: float) -> ObjectStore:
    """*store*, which repeats what fails for so long; itself for no time."""
    return PatientStore(store, patience_s=patience_s) if patience_s > 0 else store


def _opened(location: StoreLocation) -> ObjectStore:
    root = _parse(location.root, foreign=location.foreign)
    match root:
        case _S3Root(bucket, prefix):
            return S3Store(
                bucket, prefix, endpoint_url=location.endpoint_url, foreign=location.foreign
            )
        case _FileRoot(folder):
            return FileStore(folder)
        case _MemoryRoot(name, prefix):
            return named_store(name, prefix, foreign=location.foreign)
        case _:
            assert_never(root)


def temporaries(location: StoreLocation, prefix: str) -> Sequence[Listed]:
    """The files of unfinished writes below *prefix*, if the store has any; no listing does."""
    store = _opened(location)
    return store.temporaries(prefix) if isinstance(store, FileStore) else []


def discard_temporaries(location: StoreLocation, keys: Iterable[str]) -> None:
    """Delete what ``temporaries`` listed."""
    store = _opened(location)
    if isinstance(store, FileStore):
        store.discard_temporaries(keys)


def verify_store(store: ObjectStore, probe_key: str) -> None:
    """``verify_conditional_writes``, where something begins in *store*.

    The reference store needs none: it is a dictionary of this process, behind a lock.  Of folders a
    process asks once for each file system, which is what keeps the promise, and syncs each write.

    Raises:
        ConfigurationError: two writers of one key may both win there.
        StoreUnavailable: it did not answer.
    """
    found = behind_layers(store)
    if type(found) is InMemoryStore:
        return
    if type(found) is not FileStore:
        verify_conditional_writes(store, probe_key, uuid.uuid4().bytes)
    elif found.file_system not in _probed:
        verify_conditional_writes(store, probe_key, uuid.uuid4().bytes)
        _probed.add(found.file_system)


_probed: set[int] = set()  # File systems, by their device numbers.


def now_ms(store: ObjectStore) -> int:
    """The clock of what keeps the objects, ms since 1970, by which listings say ``modified_ms``:
    one clock for all machines, to about a second.
    """
    found = behind_layers(store)
    return found.now_ms() if isinstance(found, HasClock) else machine_clock_ms()


def place_of(store: ObjectStore) -> str:
    """The store's place, in one line: its server, where that is not its root's, and its root."""
    found = behind_layers(store)
    server = found.server if isinstance(found, S3Store) else ""
    return f"{server} {store.root}".lstrip()


def is_below(store: ObjectStore, other: ObjectStore) -> bool:
    """Whether *store*'s root lies in that of *other*, on the same server."""
    return f"{place_of(store)}/".startswith(f"{place_of(other)}/")


def behind_layers(store: ObjectStore) -> ObjectStore:
    """The store behind the layers of this room."""
    while isinstance(store, PatientStore | MeteredStore | RememberingStore):
        store = store.behind
    return store


def _parse(root: str, *, foreign: bool = False) -> _S3Root | _FileRoot | _MemoryRoot:
    scheme, separator, rest = root.partition("://")
    if not separator:
        raise ConfigurationError(f"the root {root!r} is not a URI; write {EXAMPLES}")
    match scheme:
        case "s3":
            bucket, _, prefix = rest.partition("/")
            if not BUCKET_NAME.fullmatch(bucket):
                raise ConfigurationError(
                    f"{bucket!r} in the root {root!r} cannot be a bucket's name: that is 3 to 63 "
                    f"lower-case letters, digits, dots and hyphens; write {EXAMPLES}"
                )
            return _S3Root(bucket, _as_is(prefix) if foreign else _checked_path(root, prefix))
        case "file":
            if not rest.startswith("/"):
                raise ConfigurationError(
                    f"the root {root!r} needs three slashes and an absolute folder; "
                    f"write {EXAMPLES}"
                )
            return _FileRoot("/" + _checked_path(root, rest[1:]))
        case "memory":
            name, _, prefix = rest.partition("/")
            if not MEMORY_NAME.fullmatch(name):
                raise ConfigurationError(
                    f"the root {root!r} needs a name of letters, digits, '.', '_' and '-'; "
                    f"write {EXAMPLES}"
                )
            return _MemoryRoot(name, _as_is(prefix) if foreign else _checked_path(root, prefix))
        case _:
            raise ConfigurationError(
                f"the root {root!r} names no store that sluice knows; write {EXAMPLES}"
            )


def _as_is(path: str) -> str:
    """The beginning of the keys below *path*, which may leave out one slash at its end."""
    return path if not path or path.endswith("/") else f"{path}/"


def _checked_path(root: str, path: str) -> str:
    path = path.removesuffix("/")
    if path and {"", ".", ".."} & set(path.split("/")):
        raise ConfigurationError(
            f"the root {root!r} has an empty, '.' or '..' part; write {EXAMPLES}"
        )
    return path


class _Layer:
    """Stands before a store, and is of the same root."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def root(self) -> str:
        return self._store.root

    @property
    def behind(self) -> ObjectStore:
        return self._store


class PatientStore(_Layer):
    """Repeats a call that raised StoreUnavailable, but for a StoreFull, at once and with growing
    pauses, for a time.

    Safe for every verb: objects are immutable, and a repeated ``create`` finds its own bytes.
    Nothing is repeated once *given_up* is set.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        patience_s: float = DEFAULT_PATIENCE_S,
        given_up: Event | None = None,
    ) -> None:
        super().__init__(store)
        stop = stop_after_delay(patience_s)
        self._attempts = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop if given_up is None else stop | stop_when_event_set(given_up),
            sleep=nap.sleep if given_up is None else sleep_using_event(given_up),
            wait=wait_exponential(multiplier=0.1, max=4) + wait_random(0, 1),
            before_sleep=_log_repeat,
            reraise=True,
        )

    def get(self, key: str) -> bytes | None:
        return self.patiently(lambda: self._store.get(key))

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return self.patiently(lambda: self._store.get_range(key, start, end))

    def put(self, key: str, body: bytes) -> None:
        self.patiently(lambda: self._store.put(key, body))

    def create(self, key: str, body: bytes) -> CreateResult:
        return self.patiently(lambda: self._store.create(key, body))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        """See ``ObjectStore``; page by page, each as patiently as if it were the only one."""
        last = start_after
        listing: Iterator[Listed] | None = None

        def following() -> Listed | None:
            nonlocal listing
            if listing is None:
                listing = self._store.list(prefix, start_after=last)
            try:
                return next(listing, None)
            except StoreUnavailable:  # A generator that has raised is over.
                listing = None
                raise

        while (found := self.patiently(following)) is not None:
            last = found.key
            yield found

    def delete(self, keys: Iterable[str]) -> None:
        doomed = [*keys]
        self.patiently(lambda: self._store.delete(doomed))

    def patiently(self, call: Callable[[], T]) -> T:
        """The result of *call*, a request to the store that may be repeated."""
        try:
            return call()
        except StoreUnavailable as error:
            if not _may_pass(error):
                raise
            return self._attempts(call)


def _log_repeat(call: RetryCallState) -> None:
    error = None if call.outcome is None else call.outcome.exception()
    log.warning("%s; it is repeated in %.1f s", error, call.upcoming_sleep)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, StoreUnavailable) and not isinstance(error, StoreFull)


class RequestCounter:
    """The requests so far, to one store or more.  Threads may share it."""

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


class MeteredStore(_Layer):
    """An ``ObjectStore`` whose requests *counter* counts: listings by pages, deletions by batches.

    A request that a client repeats by itself counts once: this side does not see it.
    """

    def __init__(self, store: ObjectStore, counter: RequestCounter) -> None:
        super().__init__(store)
        self._counter = counter

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


@dataclass(frozen=True, slots=True)
class ReadMemory:
    """The stores of one answer, one for each root.  Threads may share it.

    For a request that reads the same journal, manifests and folders for each of many things.  No
    decision may rest on it: it is to be dropped with the answer.  A write through it forgets all.
    """

    _stores: dict[str, ObjectStore] = field(default_factory=dict[str, ObjectStore])

    def store_of(
        self,
        root: str,
        opened: Callable[[], ObjectStore],
        patience_s: float = DEFAULT_PATIENCE_S,
    ) -> ObjectStore:
        if root not in self._stores:
            self._stores.setdefault(root, RememberingStore(patient(opened(), patience_s)))
        return self._stores[root]


class RememberingStore(_Layer):
    """An ``ObjectStore`` that asks *store* once for each key, and once for each prefix."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._bodies: dict[str, bytes | None] = {}
        self._listings: dict[str, list[Listed]] = {}

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
