"""A race of writers for one key: the promise of ``create``, tried out on a real store.

A store may refuse a second writer that comes later and still let two win that come at once, when
it looks and writes in two steps.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from sluice.core.pages import STORES
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.storage.object_store import Created, CreateResult, ObjectStore

RACERS = 8
ROUNDS = 3  # A window of a millisecond is rarely missed three times.
ATTEMPTS = 5  # AWS answers 409 to a writer that meets another; it is to ask again.


def verify_one_winner(store: ObjectStore, key: str) -> None:
    """Let many writers create *key* at once, some times over; delete it afterwards.

    Raises:
        ConfigurationError: two of them won, or the winner's bytes are not what is there.
        StoreUnavailable: the store did not answer one of them.
    """
    for number in range(ROUNDS):
        round_key = f"{key}-{number}"
        try:
            _race(store, round_key)
        finally:
            store.delete([round_key])


def _race(store: ObjectStore, key: str) -> None:
    start = Barrier(RACERS)

    def write(racer: int) -> bytes:
        """The bytes that this writer believes to be the object's."""
        own = str(racer).encode()
        start.wait()
        result = _create(store, key, own)
        return own if isinstance(result, Created) else result.body

    with ThreadPoolExecutor(RACERS) as pool:
        believed = {*pool.map(write, range(RACERS))}
    if believed != {store.get(key)}:
        raise ConfigurationError(
            f"the store at {store.root} lets writers of one key that come at once replace one "
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
