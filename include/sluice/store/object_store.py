"""``ObjectStore``: the interface of a store, with conditional creation.

A store keeps immutable objects under keys relative to its root.  Its one strong promise is
``create``: of any number of racing callers exactly one gets ``Created``, and everybody else reads
the winner's bytes.  Reads see every write that was acknowledged before them, listings included.

Any call may raise ``StoreUnavailable``: the request or only its answer was lost, and the caller
may repeat it.  A repeated ``create`` may therefore find its own bytes.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from threading import Barrier
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, runtime_checkable

from sluice.core.failures import STORES
from sluice.errors import ConfigurationError, ProtocolViolation, StoreUnavailable

if TYPE_CHECKING:
    from typing_extensions import Buffer

log = logging.getLogger(__name__)

RACERS = (
    16  # Of fewer, a store that lets two of sixteen win refused all but one in two races of three.
)
ROUNDS = 4  # A window of a millisecond is rarely missed four times.
# As large as a journal entry: a store that looks before it receives the body has so long a window.
RACED_BYTES = 16_384
ATTEMPTS = 5  # AWS answers 409 to a writer that meets another, which is to ask again.
SET_BACK_MS = 60_000  # An answer may be late, but not by so much: no request waits that long.
NAMED_ONCE = 1_000  # Names of foreign objects that a process has warned of.

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Created:
    """The object did not exist, and does now, with our bytes."""


@dataclass(frozen=True, slots=True)
class AlreadyExists:
    """The key was written before, perhaps by an earlier call whose answer was lost."""

    body: bytes


CreateResult: TypeAlias = Created | AlreadyExists


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One object in a listing.  ``modified_ms`` is the store's clock, fit for display and grace."""

    key: str
    size_bytes: int
    modified_ms: int
    version: str  # Changes whenever the bytes do: ETag, or size and mtime of a file.
    # A file's id on a disk, which it keeps when it is renamed; another may get it when it is gone.
    # Empty where objects have none.
    file_id: str = ""


def machine_clock_ms() -> int:
    """The clock of this machine, ms since 1970.

    As it was when the process began, and steady from then on: a clock that is set back or forward
    while something waits must not end the wait.
    """
    return _BEGAN_MS + time.monotonic_ns() // 1_000_000


_BEGAN_MS = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000


class StoreClock:
    """A store's clock, as read off its answers, and steady between them.  Threads may share it.

    An answer's time is at most the time at which it arrives; so of all answers the one that says
    the latest is the nearest to the truth.
    """

    def __init__(self) -> None:
        self._ahead_ms: int | None = None  # Of the monotonic clock.

    def was_told(self, at_ms: int) -> None:
        """The store says that it is *at_ms*, or was a moment ago."""
        ahead_ms, known_ms = at_ms - time.monotonic_ns() // 1_000_000, self._ahead_ms
        was_set_back = known_ms is not None and ahead_ms < known_ms - SET_BACK_MS
        if known_ms is None or ahead_ms > known_ms or was_set_back:
            self._ahead_ms = ahead_ms

    def now_ms(self) -> int | None:
        """The store's clock, ms since 1970; None before the first answer."""
        ahead_ms = self._ahead_ms
        return None if ahead_ms is None else ahead_ms + time.monotonic_ns() // 1_000_000


@runtime_checkable
class HasClock(Protocol):
    """A store that knows its own clock."""

    def now_ms(self) -> int: ...


class ObjectStore(Protocol):
    """Keys are relative, ``/``-separated, without ``.`` or ``..`` parts; any other one raises
    ProtocolViolation.
    """

    @property
    def root(self) -> str:
        """The root's URI, for messages and for handing to another process."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return the object's bytes, or None when there is no such object."""
        ...

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return bytes ``start`` to ``end`` (exclusive, cut at the end), or None when absent."""
        ...

    def put(self, key: str, body: bytes) -> None:
        """Write the object, replacing what was there.  Only for keys whose bytes never differ."""
        ...

    def create(self, key: str, body: bytes) -> CreateResult:
        """Write the object if, and only if, there is none."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        """Objects whose key starts with *prefix*, in key order, after *start_after*."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects; an absent one is not an error."""
        ...


def check_range(start: int, end: int) -> None:
    """Raises ProtocolViolation for a range that ends before it starts, or starts before 0."""
    if not 0 <= start <= end:
        raise ProtocolViolation(f"bytes {start} to {end} are no range of an object")


def verify_conditional_writes(store: ObjectStore, probe_key: str, token: bytes) -> None:
    """Refuse a store in which two writers of one key both win: one after the other, or at once.

    It is asked wherever something begins that rests on ``create``: a journal, a table, a copy; and
    again where the store is not the one that was asked (``place_of``).  Costs 133 requests to S3,
    in the time of about a dozen; *probe_key*, and keys that begin with it, are deleted afterwards.

    Raises:
        ConfigurationError: the store let a second create replace the first.
        StoreUnavailable: it did not answer.
    """
    try:
        store.create(probe_key, token)
        second = store.create(probe_key, token + b"-second")
        if isinstance(second, Created) or second.body != token:
            raise ConfigurationError(
                f"the store at {store.root} ignores conditional writes (If-None-Match: *); sluice "
                f"cannot keep a journal there: use AWS S3, or another store listed in {STORES}"
            )
    finally:
        store.delete([probe_key])
    verify_one_winner(store, f"{probe_key}-race")


def verify_one_winner(store: ObjectStore, key: str) -> None:
    """Let many writers create *key* at once, some times over; delete it afterwards.

    A store may refuse a second writer that comes later and still let two win that come at once, if
    it looks and writes in two steps.

    Raises:
        ConfigurationError: two of them won, or the winner's bytes are not what is there.
        StoreUnavailable: the store did not answer one of them.
    """
    keys = [f"{key}-{number}" for number in range(ROUNDS)]
    try:
        with ThreadPoolExecutor(RACERS, thread_name_prefix="racer") as pool:
            for round_key in keys:
                _race(store, round_key, pool)
    finally:
        store.delete(keys)


def _race(store: ObjectStore, key: str, pool: ThreadPoolExecutor) -> None:
    start = Barrier(RACERS)

    def write(racer: int) -> bytes:
        """The bytes that this writer believes to be the object's."""
        own = f"{racer} ".encode().ljust(RACED_BYTES, b".")
        start.wait()
        result = _create(store, key, own)
        return own if isinstance(result, Created) else result.body

    believed = {*pool.map(write, range(RACERS))}
    if believed != {store.get(key)}:
        raise ConfigurationError(
            f"the store at {store.root} lets concurrent writers of one key replace one "
            "another (If-None-Match: * is not atomic); sluice cannot keep a journal there: use AWS "
            f"S3, or another store listed in {STORES}"
        )


def _create(store: ObjectStore, key: str, body: bytes, attempts: int = ATTEMPTS) -> CreateResult:
    try:
        return store.create(key, body)
    except StoreUnavailable:
        if attempts == 1:
            raise
    return _create(store, key, body, attempts - 1)


def without_foreign(
    listed: Iterable[Listed], is_ours: Callable[[str], bool], root: str
) -> Iterator[Listed]:
    """The objects of *listed* whose key *is_ours*; each foreign one below *root* is logged once.

    A person may have put it there by hand, or a copy went to the wrong place.  It must not stop a
    job, so every listing of a job's folders checks the names.
    """
    for found in listed:
        if is_ours(found.key):
            yield found
        else:
            _warn(f"{root}/{found.key}")


@lru_cache(maxsize=NAMED_ONCE)
def _warn(place: str) -> None:
    log.warning(
        "foreign object passed by key=%s: sluice does not write such a name; delete it, or move it "
        "out of the job's prefix",
        place,
    )


def in_parallel(call: Callable[[A], B], items: Iterable[A], threads: int) -> list[B]:
    """The results of *call*, in the order of *items*; at most *threads* calls at a time.

    Calls wait for the network, so threads are enough.  A single item, as most small jobs have,
    costs none.  The first error is raised once the calls that had begun are over.
    """
    wanted = [*items]
    if len(wanted) < 2:
        return [call(item) for item in wanted]
    with ThreadPoolExecutor(min(threads, len(wanted))) as pool:
        return [*pool.map(call, wanted)]


class RangeReader(io.RawIOBase):
    """An object as a file that can be read and sought; each read is a ranged request."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size_bytes if size < 0 else min(self._at + size, self._size_bytes)
        if end <= self._at:
            return b""
        body = self._store.get_range(self._key, self._at, end)
        if body is None or len(body) < end - self._at:
            raise StoreUnavailable(f"{self._key} became shorter than {end} bytes while it was read")
        self._at = end
        return body

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        body = self.read(len(view))
        view[: len(body)] = body
        return len(body)
