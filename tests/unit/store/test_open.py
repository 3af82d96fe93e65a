"""The URIs of roots, and the layers over their stores.

A misspelt root is refused.  Requests are counted as S3 charges them, whatever they find.  A store
that is away is asked again, for a bounded time.  A store that remembers asks once, answers as the
store behind it does, and forgets at a write.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from harness.counting_store import CountingStore
from sluice.core.answers import StoreRequests
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import ObjectStore
from sluice.store.open import (
    PAGE,
    MeteredStore,
    PatientStore,
    ReadMemory,
    RememberingStore,
    RequestCounter,
    StoreLocation,
    open_store,
)
from sluice.store.uploads import Uploads
from tests.patching import replace_in


def test_one_name_is_one_store_in_memory() -> None:
    open_store(StoreLocation(root="memory://shared-name")).put("a", b"x")
    below = open_store(StoreLocation(root="memory://shared-name/b"))
    below.put("c", b"y")

    assert open_store(StoreLocation(root="memory://shared-name")).get("b/c") == b"y"
    assert [listed.key for listed in below.list("")] == ["c"]
    assert below.root == "memory://shared-name/b"

    assert open_store(StoreLocation(root="memory://shared-name")).get("a") == b"x"
    assert open_store(StoreLocation(root="memory://another-name")).get("a") is None


@pytest.mark.parametrize(
    "root",
    [
        *("", "/tmp/x", "s3:/b/x", "s3://", "s3://ab/x", "s3://Abc", "s3://abc//x"),
        *("s3://abc/../x", "file://folder", "file:///a/../b"),
        *("memory://", "memory:///a", "memory://a/../b", "gs://bucket/x"),
    ],
)
def test_a_misspelt_root_is_refused_with_examples(root: str) -> None:
    with pytest.raises(ConfigurationError, match="s3://my-bucket/checkpoints"):
        StoreLocation(root=root)


def test_a_root_is_normalised() -> None:
    def root_of(root: str) -> str:
        return open_store(StoreLocation(root=root)).root

    assert root_of("file:///a b/c/") == "file:///a b/c"
    assert root_of("s3://abc") == "s3://abc"
    assert root_of("s3://abc/") == "s3://abc"
    assert root_of("s3://abc/x/y/") == "s3://abc/x/y"
    assert root_of("memory://m") == "memory://m"


def test_an_endpoint_without_a_scheme_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"http://host:port"):
        StoreLocation(root="s3://abc", endpoint_url="localhost:9000")


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda store: store.get("a"), StoreRequests(gets=1, bytes_read=3)),
        (lambda store: store.get("absent"), StoreRequests(gets=1)),
        (lambda store: store.get_range("a", 1, 9), StoreRequests(gets=1, bytes_read=2)),
        (lambda store: store.put("b", b"1234"), StoreRequests(puts=1, bytes_written=4)),
        (lambda store: store.create("b", b"1234"), StoreRequests(puts=1, bytes_written=4)),
        (
            lambda store: store.create("a", b"1234"),  # It reads what is there.
            StoreRequests(puts=1, gets=1, bytes_written=4, bytes_read=3),
        ),
        (lambda store: [*store.list("nothing")], StoreRequests(lists=1)),
        (lambda store: [*store.list("")], StoreRequests(lists=1)),
        (lambda store: store.delete([]), StoreRequests()),
        (lambda store: store.delete(map(str, range(PAGE + 1))), StoreRequests(deletes=2)),
    ],
)
def test_a_verb_is_the_requests_that_s3_charges(
    ask: Callable[[ObjectStore], object], expected: StoreRequests
) -> None:
    behind, counter = InMemoryStore(), RequestCounter()
    behind.put("a", b"123")

    ask(MeteredStore(behind, counter))

    assert counter.so_far() == expected


@pytest.mark.parametrize(("keys", "pages"), [(PAGE, 1), (PAGE + 1, 2), (2 * PAGE + 1, 3)])
def test_a_listing_is_counted_by_its_pages(keys: int, pages: int) -> None:
    behind, counter = InMemoryStore(), RequestCounter()
    for number in range(keys):
        behind.put(str(number), b"")
    store = MeteredStore(behind, counter)

    assert len([*store.list("")]) == keys
    assert (counter.so_far().lists, store.root) == (pages, behind.root)


def test_what_a_subtask_uploads_is_counted_in_all_its_stores() -> None:
    uploads = Uploads()
    for name in ("root", "table"):
        store = InMemoryStore(name)
        uploads.store_of(store.root, lambda store=store: store).put("a", b"123")  # type: ignore[misc]
    uploads.settle()

    assert uploads.requests.so_far() == StoreRequests(puts=2, bytes_written=6)


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
        listings = [[listed.key for listed in store.list("a/")] for _ in range(2)]

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


class AwayStore(InMemoryStore):
    """Answers nothing for the first *failures* requests."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.requests = 0

    def get(self, key: str) -> bytes | None:
        self.requests += 1
        if self.requests <= self.failures:
            raise StoreUnavailable(f"request {self.requests} is lost")
        return super().get(key)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    replace_in(monkeypatch, "tenacity.nap", "time", sleep=found.append)
    return found


@pytest.mark.parametrize(("failures", "paused"), [(0, 0), (1, 0), (2, 1), (5, 4)])
def test_the_first_repetition_is_at_once_and_the_others_after_a_pause(
    failures: int, paused: int, pauses: list[float]
) -> None:
    store = AwayStore(failures)
    store.put("journal/1", b"it")

    assert PatientStore(store).get("journal/1") == b"it"
    assert (store.requests, len(pauses)) == (failures + 1, paused)


def test_what_is_repeated_is_logged_as_the_store_said_it(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    PatientStore(AwayStore(2)).get("journal/1")

    [line] = [one.getMessage() for one in caplog.records if one.name == "sluice.store.open"]
    assert re.fullmatch(r".*request 2 is lost.*; it is repeated in \d\.\d s", line)


def test_a_store_that_stays_away_is_given_up_with_its_last_error(pauses: list[float]) -> None:
    store = AwayStore(9)

    with pytest.raises(StoreUnavailable, match="request 2 is lost"):
        PatientStore(store, patience_s=0).get("journal/1")
