"""What acks say of requests adds up."""

from __future__ import annotations

from sluice.core.answers import StoreRequests


def test_requests_add_up_by_kind_and_in_all() -> None:
    one = StoreRequests(gets=1, puts=2, lists=3, deletes=4, bytes_read=50, bytes_written=60)

    assert one + one == StoreRequests(
        gets=2, puts=4, lists=6, deletes=8, bytes_read=100, bytes_written=120
    )
    assert (one.total, (one + one).total) == (10, 20)
