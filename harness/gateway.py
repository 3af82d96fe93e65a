"""A gateway before an HTTP server on this machine, which answers one request as the server would
not: with an error, a page of its own, or nothing; before the server has got it, or afterwards.

It counts requests over all connections, so a test goes on until nothing is left to fail.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Any

HOST = "127.0.0.1"
CUT, PAGE, TWICE = "cut", "page", "twice"
# Those that S3 has a word for; others come from something in between, which has a page.
CODES = {
    400: "InvalidRequest",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "SlowDown",
    500: "InternalError",
    503: "ServiceUnavailable",
}
ANSWERS: tuple[int | str, ...] = (CUT, PAGE, *CODES, 502, 504)
A_PAGE = b"<html><body>Please sign in to the network</body></html>"
_OF_A_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "expect"})


@dataclass(frozen=True, slots=True)
class Fate:
    """What a client gets for a request, which the server *has served* before, or never gets."""

    answer: int | str
    has_served: bool

    def __str__(self) -> str:
        return f"{self.answer} {'after' if self.has_served else 'before'} the effect"


FATES = (
    Fate(TWICE, has_served=True),
    *(Fate(one, has_served) for one in ANSWERS for has_served in (False, True)),
)


class Gateway:
    """The gateway at ``url``; it passes everything on until it is told otherwise."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[str] = []
        self._due: int | None = None
        self._fate = FATES[0]
        self._lasts = False
        self._failed = ""
        self._lock = threading.Lock()

    def fail(self, at: int, fate: Fate, *, lasts: bool = False) -> None:
        """The request number *at*, from 0, of those from now on has *fate*; with *lasts* each
        repetition of it has, too."""
        with self._lock:
            self._due, self._fate, self._lasts, self._failed = at, fate, lasts, ""
            self.requests.clear()

    def heal(self) -> str:
        """Fail nothing any more; the request that failed, empty if none did."""
        with self._lock:
            failed, self._due, self._failed = self._failed, None, ""
            return failed

    def fate_of(self, request: str) -> Fate | None:
        with self._lock:
            self.requests.append(request)
            if self._failed == request and self._lasts:
                return self._fate
            if self._due is None:
                return None
            self._due = self._due - 1 if self._due else None
            if self._due is not None:
                return None
            self._failed = request
            return self._fate


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # A client's idle connection must not hold a test up.
    request_queue_size = 256

    def __init__(self, gateway: Gateway, upstream_port: int) -> None:
        super().__init__((HOST, 0), _Handler)
        self.gateway, self.upstream_port = gateway, upstream_port

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is none of ours."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        assert "Transfer-Encoding" not in self.headers, "a body of unknown length"
        fate = self.server.gateway.fate_of(f"{self.command} {self.path}")
        if fate is None:
            self.tell(*self.served(body))
            return
        if fate.has_served:
            self.served(body)
        match fate.answer:
            case "cut":
                self.close_connection = True
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
            case "page":
                self.tell(200, [("Content-Type", "text/html")], A_PAGE)
            case "twice":
                self.tell(*self.served(body))
            case status:
                self.tell(int(status), *self.refusal(int(status)))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do  # noqa: N815 - of http.server

    def served(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        server = http.client.HTTPConnection(HOST, self.server.upstream_port)
        try:
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OF_A_HOP:
                    server.putheader(name, value)
            server.putheader("Content-Length", str(len(body)))
            server.endheaders(body)
            answer = server.getresponse()
            size = [("Content-Length", answer.headers["Content-Length"] or "0")]
            headers = [one for one in answer.getheaders() if one[0].lower() not in _OF_A_HOP]
            return answer.status, headers + size * (self.command == "HEAD"), answer.read()
        finally:
            server.close()

    def tell(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if status != http.client.NO_CONTENT and (self.command != "HEAD" or body):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refusal(self, status: int) -> tuple[list[tuple[str, str]], bytes]:
        if (code := CODES.get(status)) is None:
            return [("Content-Type", "text/html")], A_PAGE
        if self.headers.get("Authorization", "").startswith("AWS4"):
            text = f"<Error><Code>{code}</Code><Message>of the gateway</Message></Error>"
            return [("Content-Type", "application/xml")], text.encode()
        error = {"message": "of the gateway", "type": code, "code": status}
        return [("Content-Type", "application/json")], json.dumps({"error": error}).encode()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@contextmanager
def running_gateway(upstream_url: str) -> Iterator[Gateway]:
    """A gateway before the server at *upstream_url*, within the block."""
    gateway = Gateway()
    server = _Server(gateway, int(upstream_url.rpartition(":")[2]))
    gateway.url = f"http://{HOST}:{server.server_port}"
    with serving(server):
        yield gateway


@contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """Have *server* answer, in a thread of its own, within the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
