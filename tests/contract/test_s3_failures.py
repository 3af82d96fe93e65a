"""The errors of the S3 store for servers that are away, answer wrongly, or lose answers.

The servers are real: ministack, a gateway before it that answers otherwise, and ``s3_stub``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.gateway import CUT, PAGE, Fate, running_gateway
from harness.s3_server import S3Server, free_port
from sluice.errors import ConfigurationError, StoreFull, StoreRefuses, StoreUnavailable
from sluice.store.object_store import AlreadyExists, Created, ObjectStore, verify_conditional_writes
from sluice.store.open import StoreLocation, open_store
from tests.contract.conftest import BUCKET, create_bucket
from tests.contract.s3_stub import s3_stub

pytestmark = [pytest.mark.s3, pytest.mark.usefixtures("aws_credentials")]


@pytest.fixture(scope="module")
def stub_endpoint() -> Iterator[str]:
    with s3_stub() as endpoint_url:
        yield endpoint_url


def a_store(endpoint_url: str, bucket: str = BUCKET) -> ObjectStore:
    """One that repeats nothing."""
    root = f"s3://{bucket}/failures"
    return open_store(StoreLocation(root=root, endpoint_url=endpoint_url, patience_s=0))


VERBS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("pages/1"),
    "get_range": lambda store: store.get_range("pages/1", 0, 1),
    "put": lambda store: store.put("pages/2", b"x"),
    "create": lambda store: store.create("pages/2", b"x"),
    "list": lambda store: [*store.list("pages/")],
    "delete": lambda store: store.delete(["pages/1"]),
}


def test_a_missing_bucket_is_named_with_its_endpoint(s3_endpoint: str) -> None:
    store = a_store(s3_endpoint, "no-such-bucket")
    message = f"bucket 'no-such-bucket' does not exist at {s3_endpoint}; create it or correct"

    for act in (
        lambda: store.get("a"),
        lambda: store.create("a", b"x"),
        lambda: list(store.list("")),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(ConfigurationError, match=message):
            act()


def test_an_unreachable_endpoint_may_be_reached_later() -> None:
    endpoint_url = f"http://127.0.0.1:{free_port()}"
    store = a_store(endpoint_url)

    with pytest.raises(StoreUnavailable, match=f"no S3 server answers for .* at {endpoint_url}"):
        store.get("a")
    with pytest.raises(StoreUnavailable, match="start it or correct --endpoint-url"):
        store.create("a", b"x")


def test_a_server_killed_and_started_again_keeps_its_objects(tmp_path: Path) -> None:
    server = S3Server(tmp_path)
    server.start()
    try:
        create_bucket(server.endpoint_url)
        store = a_store(server.endpoint_url)
        store.create("journal/1", b"entry")

        server.kill()
        with pytest.raises(StoreUnavailable):
            store.get("journal/1")
        server.start()

        assert store.get("journal/1") == b"entry"
        assert store.create("journal/1", b"other") == AlreadyExists(b"entry")
    finally:
        server.kill()


def test_a_create_whose_answer_was_lost_finds_its_own_bytes(s3_endpoint: str) -> None:
    direct = a_store(s3_endpoint)
    with running_gateway(s3_endpoint) as gateway:
        through_gateway = a_store(gateway.url)
        assert through_gateway.create("journal/before", b"x") == Created()

        gateway.fail(0, Fate(CUT, has_served=True), lasts=True)
        with pytest.raises(StoreUnavailable):
            through_gateway.create("journal/7", b"own token")
        assert len(gateway.requests) == 1  # botocore did not repeat it behind our back.
        gateway.heal()

        assert direct.get("journal/7") == b"own token"
        assert through_gateway.create("journal/7", b"own token") == AlreadyExists(b"own token")


@pytest.mark.parametrize("verb", [*VERBS])
def test_a_page_of_something_in_between_is_no_answer_of_s3(s3_endpoint: str, verb: str) -> None:
    """A page parses as an empty listing, and as the success of a write that nobody has done."""
    a_store(s3_endpoint).put("pages/1", b"x")
    with running_gateway(s3_endpoint) as gateway:
        store = a_store(gateway.url)
        gateway.fail(0, Fate(PAGE, has_served=False))

        with pytest.raises(
            StoreUnavailable, match=r"something between here and http://127\..*page"
        ):
            VERBS[verb](store)

    assert [one.key for one in a_store(s3_endpoint).list("pages/")] == ["pages/1"]


def test_a_store_that_ignores_conditions_is_refused(stub_endpoint: str) -> None:
    store = a_store(stub_endpoint)

    with pytest.raises(ConfigurationError, match="ignores conditional writes"):
        verify_conditional_writes(store, "probe", b"token")


def test_an_object_that_is_listed_without_an_etag_is_known_by_size_and_time(
    stub_endpoint: str,
) -> None:
    [found] = a_store(stub_endpoint).list("")

    assert (found.key, found.size_bytes) == ("plain", 5)
    assert found.version == f"5-{found.modified_ms / 1_000:.3f}"


def test_a_body_is_sent_with_its_request_and_does_not_wait_a_round_trip(stub_endpoint: str) -> None:
    store = a_store(stub_endpoint)

    store.put("headers", b"x")
    headers = store.get("headers")
    store.create("headers", b"x")

    assert headers is not None
    assert b"Content-Length: 1" in headers
    assert b"100-continue" not in headers + (store.get("headers") or b"")


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("answer-403-AccessDenied", StoreRefuses, "give these credentials s3:GetObject"),
        ("answer-501-NotImplemented", StoreRefuses, "does not implement PutObject"),
        ("answer-301-PermanentRedirect", StoreRefuses, "in another region; set AWS_REGION"),
        ("answer-400-EntityTooLarge", StoreRefuses, "correct --root or --endpoint-url"),
        ("answer-400-RequestTimeout", StoreUnavailable, "repeat the call"),
        ("answer-404-NoSuchKey", StoreUnavailable, "repeat the call"),
        ("answer-409-ConditionalRequestConflict", StoreUnavailable, "repeat the call"),
        ("answer-412-PreconditionFailed", StoreUnavailable, "existed and has vanished"),
        ("answer-500-InternalError", StoreUnavailable, "repeat the call"),
        ("answer-503-SlowDown", StoreUnavailable, "repeat the call"),
        ("answer-507-XMinioStorageFull", StoreFull, "free space there"),
    ],
)
def test_the_error_of_a_refused_create_is_whether_to_repeat_it(
    stub_endpoint: str, key: str, error: type[Exception], message: str
) -> None:
    store = a_store(stub_endpoint)

    with pytest.raises(error, match=message):
        store.create(key, b"x")
