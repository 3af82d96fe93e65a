"""A store that remembers asks once, answers as the store behind it does, and forgets at a write."""

from __future__ import annotations

import pytest

from harness.counting_store import CountingStore
from sluice.store.memory import InMemoryStore
from sluice.store.open import ReadMemory, RememberingStore, StoreLocation, open_store


@pytest.fixture(name="behind")
def _behind() -> CountingStore:
    store = CountingStore(InMemoryStore())
    for name in ("a/1", "a/2", "a/3", "b"):
        store.put(name, name.encode())
    return store


def test_what_was_read_is_not_read_again(behind: CountingStore) -> None:
    store = RememberingStore(behind)

    with behind.counted() as asked:
        bodies = [store.get(key) for key in ("a/1", "a/1", "none", "none")]
        listings = [[one.key for one in store.list("a/")] for _ in range(2)]

    assert bodies == [b"a/1", b"a/1", None, None]
    assert listings == [["a/1", "a/2", "a/3"]] * 2
    assert asked == {"get": 2, "list": 1}


@pytest.mark.parametrize("start_after", ["", "a/", "a/1", "a/2x", "a/3", "z"])
def test_a_listing_begins_where_it_is_asked_to(behind: CountingStore, start_after: str) -> None:
    store = RememberingStore(behind)

    assert [*store.list("a/", start_after=start_after)] == [
        *behind.list("a/", start_after=start_after)
    ]


def test_a_write_forgets_everything(behind: CountingStore) -> None:
    store = RememberingStore(behind)
    seen = [len([*store.list("")]), store.get("c")]

    store.create("c", b"new")
    created = [len([*store.list("")]), store.get("c")]
    store.put("c", b"newer")
    put = store.get("c")
    store.delete(["c"])

    assert (seen, created, put) == ([4, None], [5, b"new"], b"newer")
    assert [len([*store.list("")]), store.get("c")] == [4, None]


def test_places_of_one_memory_share_what_they_read() -> None:
    open_store(StoreLocation("memory://shared-memory")).put("jobs/x", b"1")
    root = StoreLocation("memory://shared-memory", layer=ReadMemory())

    first, second = open_store(root.below("jobs")), open_store(root.below("jobs"))
    before = first.get("x")
    open_store(StoreLocation("memory://shared-memory")).put("jobs/x", b"2")

    assert first is second
    assert (before, second.get("x")) == (b"1", b"1")
    assert open_store(root.elsewhere("memory://shared-memory/jobs").below("y")).get("x") is None
    assert root == StoreLocation("memory://shared-memory")
