"""The rules for every store, on memory, on a folder, and on a real S3 server."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sluice.store.object_store import (
    AlreadyExists,
    Created,
    CreateResult,
    ObjectStore,
    verify_conditional_writes,
)
from sluice.store.open import StoreLocation, now_ms, open_store
from tests.contract.racing import printed_by_racers

RACING_THREADS = 16
RACING_PROCESSES = 3
RACE_ROUNDS = 10
MORE_THAN_A_PAGE = 1_050  # S3 lists, and deletes, at most 1,000 keys per request.


def keys_of(store: ObjectStore, prefix: str = "", *, start_after: str = "") -> list[str]:
    return [listed.key for listed in store.list(prefix, start_after=start_after)]


def test_what_was_written_is_read(store: ObjectStore) -> None:
    store.put("a/b", b"first")
    store.put("a/b", b"second")

    assert store.get("a/b") == b"second"
    assert open_again(store).get("a/b") == b"second"


def test_an_absent_object_is_none(store: ObjectStore) -> None:
    assert store.get("absent") is None
    assert store.get("absent/below") is None
    assert store.get_range("absent", 0, 1) is None
    assert store.get_range("absent", 0, 0) is None
    assert keys_of(store) == []


def test_neither_a_part_of_a_key_nor_something_below_it_is_an_object(store: ObjectStore) -> None:
    store.put("a/b", b"x")

    assert store.get("a") is None
    assert store.get("a/b/c") is None


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 5, b"01234"), (3, 4, b"3"), (8, 99, b"89"), (10, 12, b""), (50, 60, b""), (4, 4, b"")],
)
def test_a_range_is_cut_at_the_end(
    store: ObjectStore, start: int, end: int, expected: bytes
) -> None:
    store.put("digits", b"0123456789")

    assert store.get_range("digits", start, end) == expected


def test_an_empty_object_exists(store: ObjectStore) -> None:
    assert store.create("empty", b"") == Created()

    assert store.get("empty") == b""
    assert store.get_range("empty", 0, 10) == b""
    assert store.create("empty", b"late") == AlreadyExists(b"")


def test_a_second_create_reads_the_first_ones_bytes(store: ObjectStore) -> None:
    assert store.create("journal/1", b"first") == Created()
    assert store.create("journal/1", b"second") == AlreadyExists(b"first")
    assert store.create("journal/1", b"first") == AlreadyExists(b"first")
    assert store.get("journal/1") == b"first"


def test_what_was_deleted_can_be_created_again(store: ObjectStore) -> None:
    store.create("probe/a", b"first")
    store.delete(["probe/a"])

    assert store.get("probe/a") is None
    assert store.create("probe/a", b"second") == Created()


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns every 10 microseconds, so that most creations are contended."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("eager_threads")
def test_of_many_racing_threads_exactly_one_creates(store: ObjectStore) -> None:
    for round_number in range(RACE_ROUNDS):
        start = threading.Barrier(RACING_THREADS)

        def contend(racer: int, key: str, start: threading.Barrier) -> CreateResult:
            start.wait()
            return store.create(key, b"racer %d" % racer)

        with ThreadPoolExecutor(RACING_THREADS) as pool:
            futures = [
                pool.submit(contend, racer, f"races/{round_number}", start)
                for racer in range(RACING_THREADS)
            ]
            results = [future.result() for future in futures]

        winner = results.index(Created())
        expected: list[CreateResult] = [AlreadyExists(b"racer %d" % winner)] * RACING_THREADS
        expected[winner] = Created()
        assert results == expected


RACE_SCRIPT = """
racer, rounds = arguments
for round_number in range(int(rounds)):
    print(store.create(f"races/{round_number}", racer.encode()))
"""


def test_of_many_racing_processes_exactly_one_creates(location: StoreLocation) -> None:
    if location.root.startswith("memory:"):
        pytest.skip("memory belongs to one process")

    racers = [[str(racer), str(RACE_ROUNDS)] for racer in range(RACING_PROCESSES)]
    printed = printed_by_racers(location, RACE_SCRIPT, *racers)

    outcomes = [lines.splitlines() for lines in printed]
    store = open_store(location)
    for round_number in range(RACE_ROUNDS):
        in_round = [outcome[round_number] for outcome in outcomes]
        winner = in_round.index("Created()")
        assert store.get(f"races/{round_number}") == str(winner).encode()
        losers = in_round[:winner] + in_round[winner + 1 :]
        assert losers == [f"AlreadyExists(body=b'{winner}')"] * (RACING_PROCESSES - 1)


def test_a_listing_is_in_key_order_and_tells_size_time_and_version(store: ObjectStore) -> None:
    for key in ["b", "a/b", "a-b", "a/B/c", "a0", "a/ü", "a/b.c", "aa/x"]:
        store.put(key, key.encode())

    listed = list(store.list(""))

    assert [found.key for found in listed] == sorted(
        ["b", "a/b", "a-b", "a/B/c", "a0", "a/ü", "a/b.c", "aa/x"]
    )
    assert [found.size_bytes for found in listed] == [len(f.key.encode()) for f in listed]
    assert all(found.modified_ms > 1_600_000_000_000 for found in listed)
    assert keys_of(store, "a/") == ["a/B/c", "a/b", "a/b.c", "a/ü"]
    assert keys_of(store, "a/b") == ["a/b", "a/b.c"]
    assert keys_of(store, "a/b", start_after="a/b") == ["a/b.c"]
    assert keys_of(store, start_after="a/b.c") == ["a/ü", "a0", "aa/x", "b"]
    assert keys_of(store, start_after="a/C") == ["a/b", "a/b.c", "a/ü", "a0", "aa/x", "b"]
    assert keys_of(store, "a/b/") == []


def test_other_bytes_have_another_version(store: ObjectStore) -> None:
    store.put("table", b"one")
    [before] = store.list("table")
    store.put("table", b"two")
    [after] = store.list("table")

    assert before.version != after.version


def test_more_keys_than_a_page_are_listed_and_deleted(store: ObjectStore) -> None:
    keys = [f"many/{number:05d}" for number in range(MORE_THAN_A_PAGE)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"x"), keys))
    store.put("other/1", b"kept")

    assert keys_of(store, "many/") == keys
    assert keys_of(store, "many/", start_after=keys[20]) == keys[21:]
    assert keys_of(store, "many/", start_after=keys[-1]) == []

    store.delete(key for key in [*keys, "many/absent", "absent/one"])

    assert keys_of(store) == ["other/1"]


def test_a_store_tells_the_time_by_which_it_lists(store: ObjectStore) -> None:
    store.put("a", b"x")

    [listed] = store.list("a")

    assert abs(now_ms(store) - listed.modified_ms) < 3_000


def test_a_store_that_keeps_its_promise_is_accepted(store: ObjectStore) -> None:
    verify_conditional_writes(store, "probe", b"token")

    assert keys_of(store) == []


def open_again(store: ObjectStore) -> ObjectStore:
    """The same root in a new store; only S3 needs to be told more than the root."""
    if store.root.startswith("s3:"):
        return store
    return open_store(StoreLocation(root=store.root))
