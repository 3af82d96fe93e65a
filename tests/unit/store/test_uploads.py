"""Uploads in the background: parallel, bounded, seen by every reader, durable at the barrier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier, Event

import pytest

from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import AlreadyExists, ObjectStore
from sluice.store.uploads import THREADS, BackgroundStore, Uploads

PROMPT_S = 60.0  # What is to happen, happens long before.


class GatedStore(InMemoryStore):
    """Puts wait at a gate; ``begun`` has the keys of those that came to it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Event()
        self.begun: list[str] = []

    def put(self, key: str, body: bytes) -> None:
        self.begun.append(key)
        assert self.gate.wait(PROMPT_S)
        super().put(key, body)


class FailingStore(InMemoryStore):
    """Puts of ``bad`` fail; ``tries`` counts the puts."""

    def __init__(self, error: Exception, *, failures: int = 1_000) -> None:
        super().__init__()
        self.error, self.failures = error, failures
        self.tries = 0
        self.has_failed = Event()

    def put(self, key: str, body: bytes) -> None:
        self.tries += 1
        if key == "bad" and self.tries <= self.failures:
            self.has_failed.set()
            raise self.error
        super().put(key, body)


@pytest.fixture
def gated() -> Iterator[GatedStore]:
    store = GatedStore()
    yield store
    store.gate.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as found:
        yield found


def over(store: ObjectStore, uploads: Uploads, patience_s: float = 9.0) -> BackgroundStore:
    return uploads.store_of(store.root, lambda: store, patience_s)


def test_a_put_returns_at_once_and_the_barrier_waits_for_it(
    gated: GatedStore, pool: ThreadPoolExecutor
) -> None:
    uploads = Uploads()
    over(gated, uploads).put("a", b"it")
    settled = pool.submit(uploads.settle)

    assert not wait([settled], timeout=0.05).done
    assert gated.get("a") is None
    gated.gate.set()
    settled.result(PROMPT_S)
    assert gated.get("a") == b"it"


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda store: store.get("a"), b"it"),
        (lambda store: store.get_range("a", 1, 2), b"t"),
        (lambda store: [one.key for one in store.list("")], ["a"]),
        (lambda store: store.create("a", b"other"), AlreadyExists(b"it")),
        (lambda store: (store.delete(["a"]), store.get("a"))[1], None),
    ],
)
def test_every_other_verb_sees_what_was_put_before_it(
    gated: GatedStore,
    pool: ThreadPoolExecutor,
    ask: Callable[[ObjectStore], object],
    expected: object,
) -> None:
    store = over(gated, Uploads())
    store.put("a", b"it")
    asked = pool.submit(ask, store)

    assert not wait([asked], timeout=0.05).done
    gated.gate.set()
    assert asked.result(PROMPT_S) == expected


def test_an_object_is_read_while_another_one_is_uploaded(gated: GatedStore) -> None:
    InMemoryStore.put(gated, "there", b"before")
    store = over(gated, Uploads())
    store.put("a", b"it")

    assert store.get("there") == b"before"


def test_small_bodies_are_uploaded_side_by_side() -> None:
    together = Barrier(THREADS)

    class Meeting(InMemoryStore):
        def put(self, key: str, body: bytes) -> None:
            together.wait(PROMPT_S)
            super().put(key, body)

    uploads, store = Uploads(), Meeting()
    for number in range(THREADS):
        over(store, uploads).put(str(number), b"it")
    uploads.settle()

    assert len([*store.list("")]) == THREADS


def test_a_body_waits_for_room_unless_it_is_alone(
    gated: GatedStore, pool: ThreadPoolExecutor
) -> None:
    uploads = Uploads(max_pending_bytes=10)
    store = over(gated, uploads)
    store.put("larger than the room", b"x" * 20)
    second = pool.submit(store.put, "second", b"x")

    assert not wait([second], timeout=0.05).done
    gated.gate.set()
    second.result(PROMPT_S)
    uploads.settle()
    assert gated.begun == ["larger than the room", "second"]


def test_the_first_failure_is_raised_at_the_barrier_and_by_what_is_put_later() -> None:
    error = ConfigurationError("the bucket is read-only")
    uploads, store = Uploads(), FailingStore(error)
    over(store, uploads).put("bad", b"it")

    with pytest.raises(ConfigurationError, match="read-only"):
        uploads.settle()
    with pytest.raises(ConfigurationError, match="read-only"):
        over(store, uploads).put("good", b"it")
    assert (uploads.failure, store.tries) == (error, 1)


def test_what_waits_for_room_hears_of_a_failure(pool: ThreadPoolExecutor) -> None:
    uploads = Uploads(max_pending_bytes=1)
    store = FailingStore(ConfigurationError("the bucket is read-only"))
    over(store, uploads).put("bad", b"it")

    with pytest.raises(ConfigurationError, match="read-only"):
        pool.submit(over(store, uploads).put, "good", b"it").result(PROMPT_S)
    assert store.get("good") is None


def test_what_the_network_lost_is_repeated() -> None:
    uploads, store = Uploads(), FailingStore(StoreUnavailable("lost"), failures=1)
    over(store, uploads).put("bad", b"it")
    uploads.settle()

    assert (store.get("bad"), store.tries) == (b"it", 2)


def test_an_upload_that_the_store_refuses_for_long_is_given_up() -> None:
    uploads, store = Uploads(), FailingStore(StoreUnavailable("lost"))
    over(store, uploads, patience_s=0).put("bad", b"it")

    with pytest.raises(StoreUnavailable, match="lost"):
        uploads.settle()


def test_a_cancelled_upload_is_neither_begun_nor_repeated(gated: GatedStore) -> None:
    uploads, away = Uploads(), FailingStore(StoreUnavailable("lost"))
    for number in range(THREADS):
        over(gated, uploads).put(str(number), b"it")
    over(gated, uploads).put("waits", b"it")
    uploads.cancel()
    gated.gate.set()

    repeating = Uploads()
    over(away, repeating).put("bad", b"it")
    assert away.has_failed.wait(PROMPT_S)
    repeating.cancel()

    for cancelled in (uploads, repeating):
        with pytest.raises((RuntimeError, StoreUnavailable)):
            cancelled.settle()
        cancelled._pool.shutdown()  # noqa: SLF001 - to see what the threads did at last
    assert "waits" not in gated.begun
    assert away.tries <= 3
