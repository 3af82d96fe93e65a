"""A small S3 server that leaves out what some do: conditions, copies, ETags of a listing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from harness.gateway import serving

LISTING = b"""<ListBucketResult><IsTruncated>false</IsTruncated><Contents>
<Key>failures/plain</Key><LastModified>2026-11-26T10:00:00.000Z</LastModified><Size>5</Size>
</Contents></ListBucketResult>"""  # An entry without an ETag.


@contextmanager
def s3_stub() -> Iterator[str]:
    """The server's URL.  A put of a key like ``answer-500-Code`` fails as the key asks.

    It ignores ``If-None-Match``, and takes a copy for a put of no bytes.  A get never fails; a key
    that was not stored is absent, and ``headers`` holds those of its put.
    """
    objects: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            name = self.path.rpartition("/")[2]
            if name.startswith("answer-"):
                _, status, code = name.split("-")
                self.answer(int(status), error_body(code))
            else:
                objects[self.path] = bytes(self.headers) if name == "headers" else body
                self.answer(200, b"")

        def do_GET(self) -> None:
            if "list-type=2" in self.path:
                self.answer(200, LISTING)
            elif self.path in objects:
                self.answer(200, objects[self.path])
            else:
                self.answer(404, error_body("NoSuchKey"))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200, b"<DeleteResult/>")

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"it"')
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with served(Handler) as url:
        yield url


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL at which *handler* answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True  # A client's idle connection must not hold the test up.
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}"


def error_body(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>stub</Message></Error>".encode()
