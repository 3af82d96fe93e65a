"""Checkpoint ids under contention: a compare-and-swap on any store hands each one out once.

The swap is the journal's: versions are numbered objects that can only be created, so of all who
read version n, one writes n+1, and the others read what it wrote.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from sluice.core.ids import CheckpointIdCounter
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import AlreadyExists, ObjectStore
from tests.conformance.flink_rules import get_and_increment

THREADS = 8
EACH = 128


class StoredCounter:
    """One coordinator's view of the counter: the newest version it knows."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._version = 0
        self._counter = CheckpointIdCounter()

    def get_and_increment(self) -> int:
        while True:
            taken, after = get_and_increment(self._counter)
            result = self._store.create(self._next_key, msgspec.json.encode(after))
            self._version += 1
            if not isinstance(result, AlreadyExists):
                self._counter = after
                return taken
            self._counter = msgspec.json.decode(result.body, type=CheckpointIdCounter)

    @property
    def _next_key(self) -> str:
        return f"counter/{self._version + 1:020d}"


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns every 10 microseconds, so that most swaps are contended."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("eager_threads")
def test_eight_coordinators_take_every_id_once() -> None:
    store = InMemoryStore()
    everybody_is_here = threading.Barrier(THREADS)

    def take_ids() -> list[int]:
        counter = StoredCounter(store)
        everybody_is_here.wait()
        return [counter.get_and_increment() for _ in range(EACH)]

    with ThreadPoolExecutor(THREADS) as executor:
        futures = [executor.submit(take_ids) for _ in range(THREADS)]
        taken = [future.result() for future in futures]

    assert all(ids == sorted(ids) for ids in taken)
    assert sorted(id_ for ids in taken for id_ in ids) == list(range(1, THREADS * EACH + 1))
    assert StoredCounter(store).get_and_increment() == THREADS * EACH + 1
