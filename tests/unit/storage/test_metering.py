"""Requests are counted as S3 charges them, whatever they find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.core.answers import StoreRequests
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import ObjectStore
from sluice.store.open import PAGE, MeteredStore, RequestCounter
from sluice.store.uploads import Uploads


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
