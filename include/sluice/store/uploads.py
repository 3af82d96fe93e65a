"""Uploads in the background: what a subtask writes becomes durable while it goes on.

The async part of a snapshot (Flink's AsyncCheckpointRunnable).  A ``put`` returns as soon as there
is room for its bytes; ``settle`` is the barrier behind which everything is durable, or an error is
raised.  Every other verb sees what was put before it, as if each put had been waited for.  After
the first upload that failed, or ``cancel``, nothing more is begun.

``copy_object`` copies from one store to another, by the S3 server itself where both are there.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Condition, Event
from typing import TypeAlias

from sluice.errors import ConfigurationError
from sluice.store.object_store import CreateResult, Listed, ObjectStore
from sluice.store.open import DEFAULT_PATIENCE_S, MeteredStore, PatientStore, RequestCounter
from sluice.store.s3 import S3Store

log = logging.getLogger(__name__)

# A subtask writes a file of its state, of its stream and of each sink at the same time; partitions
# of a sink's rows are more.
THREADS = 16

# Of bodies that wait: several small files, or one large file while the next one is made.
MAX_PENDING_BYTES = 64 * 1024**2

Check: TypeAlias = Callable[[Iterable[bytes]], None]


class Uploads:
    """The uploads of one pass over an epoch, of all its stores.  Threads may share it."""

    def __init__(self, *, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
        self._max_pending_bytes = max_pending_bytes
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="upload")
        self._changed = Condition()
        self._pending: Counter[str] = Counter()  # By root and key.
        self._pending_bytes = 0
        self._ended = Event()
        self.failure: BaseException | None = None
        self.requests = RequestCounter()
        self.start_delay_ms = 0  # The longest that an upload had to wait for a thread.

    def store_of(
        self,
        root: str,  # noqa: ARG002 - of ``StoreLayer``
        opened: Callable[[], ObjectStore],
        patience_s: float = DEFAULT_PATIENCE_S,
    ) -> BackgroundStore:
        """The store that *opened* opens, counted and patient, with its puts in the background."""
        counted = MeteredStore(opened(), self.requests)
        store = PatientStore(counted, patience_s=patience_s, given_up=self._ended)
        return BackgroundStore(store, self)

    def submit(self, store: ObjectStore, key: str, body: bytes) -> None:
        """Have *body* uploaded; wait while too many bytes wait already.

        Raises the error of an upload that has failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended.is_set() or self._has_room(len(body)))
            self._require_going_on()
            self._pending[_name(store, key)] += 1
            self._pending_bytes += len(body)
            self._pool.submit(self._upload, store, key, body, time.monotonic())

    def settle(self, *names: str) -> None:
        """Wait until all that was put is durable, or only the objects *names*.

        Raises the error of the first upload that failed.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._ended.is_set()
                    or not any(self._pending[name] for name in names or [*self._pending])
                )
            )
            self._require_going_on()

    def cancel(self) -> None:
        """Begin no upload any more, and repeat none.  What has begun may still end."""
        with self._changed:
            self._ended.set()
            self._changed.notify_all()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _has_room(self, size_bytes: int) -> bool:
        after = self._pending_bytes + size_bytes
        return not self._pending_bytes or after <= self._max_pending_bytes

    def _require_going_on(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._ended.is_set():
            raise RuntimeError("the uploads of this pass were cancelled")

    def _upload(self, store: ObjectStore, key: str, body: bytes, submitted: float) -> None:
        delay_ms = round((time.monotonic() - submitted) * 1000)
        try:
            if not self._ended.is_set():
                store.put(key, body)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            with self._changed:
                self.failure = self.failure or error
                self._ended.set()
        finally:
            with self._changed:
                self._pending[_name(store, key)] -= 1
                self._pending_bytes -= len(body)
                self.start_delay_ms = max(self.start_delay_ms, delay_ms)
                self._changed.notify_all()


class BackgroundStore:
    """An ``ObjectStore`` whose puts *uploads* does."""

    def __init__(self, store: ObjectStore, uploads: Uploads) -> None:
        self._store = store
        self._uploads = uploads

    @property
    def root(self) -> str:
        return self._store.root

    def get(self, key: str) -> bytes | None:
        self._uploads.settle(_name(self._store, key))
        return self._store.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        self._uploads.settle(_name(self._store, key))
        return self._store.get_range(key, start, end)

    def put(self, key: str, body: bytes) -> None:
        """See ``ObjectStore``; durable behind the next ``settle`` only."""
        self._uploads.submit(self._store, key, body)

    def create(self, key: str, body: bytes) -> CreateResult:
        self._uploads.settle()
        return self._store.create(key, body)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        self._uploads.settle()
        return self._store.list(prefix, start_after=start_after)

    def delete(self, keys: Iterable[str]) -> None:
        self._uploads.settle()
        self._store.delete(keys)


def _name(store: ObjectStore, key: str) -> str:
    return f"{store.root}/{key}"


def copy_object(
    source: ObjectStore, source_key: str, target: ObjectStore, key: str, check: Check
) -> bool:
    """Write the object of *source* to *key* of *target*; False when there is none.  Idempotent.

    Its bytes are read and given to *check* before a copy exists; the S3 server only spares sending
    them back.
    """
    here, there = _in_s3(source), _in_s3(target)
    if here is not None and there is not None and there.shares_server_with(here):

        def copy() -> bool:
            return there.copy_from(here, source_key, key, check)

        try:
            return target.patiently(copy) if isinstance(target, PatientStore) else copy()
        except ConfigurationError as error:
            # Rights to copy may be others than those to read and to write, which the job has.
            log.info("object is copied by hand key=%s: %s", source_key, error)
    body = source.get(source_key)
    if body is None:
        return False
    check([body])
    target.put(key, body)
    return True


def _in_s3(store: ObjectStore) -> S3Store | None:
    behind = store.behind if isinstance(store, PatientStore) else store
    return behind if isinstance(behind, S3Store) else None
