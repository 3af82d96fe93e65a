"""A store that repeats what the network lost, for a bounded time.

Safe for every verb: objects are immutable, and a repeated ``create`` finds its own bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from threading import Event
from typing import TypeVar

from tenacity import (
    Retrying,
    before_sleep_log,
    nap,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_exponential,
    wait_random,
)

from sluice.errors import StoreUnavailable
from sluice.storage.object_store import CreateResult, Listed, ObjectStore

log = logging.getLogger(__name__)
T = TypeVar("T")

DEFAULT_PATIENCE_S = 90.0  # Outlasts a minute's outage of the store.


class PatientStore:
    """Repeats a call that raised StoreUnavailable, at once and with growing pauses, for a time.

    Nothing is repeated once *given_up* is set.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        patience_s: float = DEFAULT_PATIENCE_S,
        given_up: Event | None = None,
    ) -> None:
        self._store = store
        stop = stop_after_delay(patience_s)
        self._attempts = Retrying(
            retry=retry_if_exception_type(StoreUnavailable),
            stop=stop if given_up is None else stop | stop_when_event_set(given_up),
            sleep=nap.sleep if given_up is None else sleep_using_event(given_up),
            wait=wait_exponential(multiplier=0.1, max=4) + wait_random(0, 1),
            before_sleep=before_sleep_log(log, logging.WARNING),
            reraise=True,
        )

    @property
    def root(self) -> str:
        return self._store.root

    @property
    def behind(self) -> ObjectStore:
        """The store that is asked."""
        return self._store

    def get(self, key: str) -> bytes | None:
        return self.patiently(lambda: self._store.get(key))

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return self.patiently(lambda: self._store.get_range(key, start, end))

    def put(self, key: str, body: bytes) -> None:
        self.patiently(lambda: self._store.put(key, body))

    def create(self, key: str, body: bytes) -> CreateResult:
        return self.patiently(lambda: self._store.create(key, body))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        return iter(self.patiently(lambda: [*self._store.list(prefix, start_after=start_after)]))

    def delete(self, keys: Iterable[str]) -> None:
        doomed = [*keys]
        self.patiently(lambda: self._store.delete(doomed))

    def patiently(self, call: Callable[[], T]) -> T:
        """The result of *call*, which asks the store, and may be repeated."""
        try:
            return call()
        except StoreUnavailable:
            return self._attempts(call)
