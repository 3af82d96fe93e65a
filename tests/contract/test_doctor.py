"""``sluice doctor`` on real stores: good ones are good, and those that break a promise are named.

The bad S3 is ministack behind a proxy that drops a header, or refuses a verb.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from harness.s3_server import free_port
from harness.versitygw import IS_CHOSEN
from sluice.cli.doctor import Status, root_findings, store_findings
from sluice.errors import ConfigurationError
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import (
    RACERS,
    AlreadyExists,
    Created,
    CreateResult,
    ObjectStore,
    verify_one_winner,
)
from sluice.store.open import StoreLocation, open_store
from tests.contract.conftest import BUCKET
from tests.contract.s3_stub import served

CHECKS = [
    "root",
    "write",
    "list",
    "clock",
    "conditional writes",
    "delete",
    "list under deletes",
]


def test_a_sound_store_passes_every_check_and_is_left_as_it_was(
    store: ObjectStore, location: StoreLocation
) -> None:
    store.put("auctions/journal/000000000001", b"a job's")

    findings = [*store_findings(store)]

    assert [(one.check, one.status) for one in findings] == [(c, Status.OK) for c in CHECKS]
    assert [one.key for one in store.list("")] == ["auctions/journal/000000000001"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    findings = [*root_findings(StoreLocation(root=f"file://{tmp_path}/file/root"))]

    assert [(one.check, one.status) for one in findings] == [
        ("root", Status.OK),
        ("write", Status.PROBLEM),
    ]
    assert "cannot use the folder" in findings[-1].message


class TwoSteps(InMemoryStore):
    """A store that looks first and writes then: one after the other its writers are refused.

    Those that come at once have all looked before the first of them writes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._has_looked = threading.Barrier(RACERS)

    def create(self, key: str, body: bytes) -> CreateResult:
        there = self.get(key)
        if "race" in key:
            self._has_looked.wait()
        if there is not None:
            return AlreadyExists(there)
        self.put(key, body)
        return Created()


def test_a_store_that_looks_and_writes_in_two_steps_is_found_out() -> None:
    store = TwoSteps()

    with pytest.raises(
        ConfigurationError, match="lets concurrent writers of one key replace one another"
    ):
        verify_one_winner(store, "race")

    bad = [one for one in store_findings(store) if one.status is not Status.OK]
    assert [(one.check, one.status) for one in bad] == [("conditional writes", Status.PROBLEM)]


@pytest.mark.s3
@pytest.mark.skipif(IS_CHOSEN, reason="without a header that it signs, a request is refused")
def test_a_server_that_ignores_the_condition_is_found_out(s3_endpoint: str) -> None:
    with proxy(s3_endpoint, drops_header="If-None-Match") as endpoint_url:
        bad = problems_at(endpoint_url)

    assert list(bad) == ["conditional writes"]
    assert "ignores conditional writes (If-None-Match: *)" in bad["conditional writes"]


@pytest.mark.s3
@pytest.mark.parametrize(
    ("method", "bad"),
    [("GET", ["root"]), ("PUT", ["write"]), ("POST", ["conditional writes", "delete"])],
)
def test_a_refused_permission_is_one_sentence_that_names_what_to_allow(
    s3_endpoint: str, method: str, bad: list[str]
) -> None:
    with proxy(s3_endpoint, refuses=method) as endpoint_url:
        found = problems_at(endpoint_url)

    assert list(found) == bad
    assert all("s3:DeleteObject" in message for message in found.values())


@pytest.mark.s3
def test_missing_credentials_are_one_sentence(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with proxy(s3_endpoint) as endpoint_url:  # Its address is new, so no client of it is cached.
        found = problems_at(endpoint_url)

    assert list(found) == ["root"]
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in found["root"]


@pytest.mark.usefixtures("aws_credentials")
def test_a_profile_that_is_not_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "elsewhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    found = problems_at(f"http://127.0.0.1:{free_port()}")

    assert list(found) == ["root"]
    assert "(elsewhere) could not be found; correct AWS_PROFILE" in found["root"]


@pytest.mark.usefixtures("aws_credentials")
def test_a_server_that_is_away_is_one_sentence() -> None:
    found = problems_at(f"http://127.0.0.1:{free_port()}")

    assert list(found) == ["root"]
    assert "no S3 server answers" in found["root"]


@pytest.mark.s3
def test_what_is_left_after_a_refused_delete_is_named(s3_endpoint: str) -> None:
    place = StoreLocation(root=f"s3://{BUCKET}/left", endpoint_url=s3_endpoint)
    with proxy(s3_endpoint, refuses="POST") as endpoint_url:
        message = problems_at(endpoint_url, root=place.root)["delete"]

    left = {one.key.rpartition("/")[0] for one in open_store(place).list("")}
    (folder,) = left
    assert f"then delete {place.root}/{folder}/ by hand" in message


def problems_at(endpoint_url: str, root: str = f"s3://{BUCKET}/doctor") -> dict[str, str]:
    findings = root_findings(StoreLocation(root=root, endpoint_url=endpoint_url))
    return {one.check: one.message for one in findings if one.status is Status.PROBLEM}


@contextmanager
def proxy(upstream_url: str, *, drops_header: str = "", refuses: str = "") -> Iterator[str]:
    """The server at *upstream_url*, but for one header, and for one verb that it answers 403."""
    upstream = urlsplit(upstream_url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.relay()

        def do_PUT(self) -> None:
            self.relay()

        def do_POST(self) -> None:
            self.relay()

        def relay(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.command == refuses:
                self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
                return
            skipped = {drops_header.lower(), "expect", "connection"}
            headers = {n: v for n, v in self.headers.items() if n.lower() not in skipped}
            connection = http.client.HTTPConnection(upstream.hostname or "", upstream.port)
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            etag = answer.getheader("ETag")
            self.answer(answer.status, answer.read(), {} if etag is None else {"ETag": etag})
            connection.close()

        def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with served(Handler) as url:
        yield url
