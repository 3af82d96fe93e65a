"""What every answer tells a browser, and how much a request may bring (OWASP's secure headers).

The pages and the REST API are each behind a ``Guard``.  It imports nothing, as Airflow loads the
plugin in each of its processes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 1024**2  # The longest body that an act needs has a few kB.

# Scripts and data from this server alone.  Styles too, but for bars and boxes, whose sizes are
# attributes.  Only Airflow may show a page of ours in a frame.
POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)
_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"content-security-policy": POLICY.encode(),
}
# FastAPI's page of the API loads its scripts from where FastAPI says.
_OPENAPI_PAGE = "/docs"


class Guard:
    """*app* behind these headers and the limit; a body above that is answered 413 unread."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(_HEADERS)
        if scope["path"].endswith(_OPENAPI_PAGE):
            headers[b"content-security-policy"] = b"frame-ancestors 'self'"
        if _announced(scope) > MAX_BODY_BYTES:
            await _refuse(scope, headers, send)
            return
        received, is_refused = 0, False

        async def limited() -> Message:
            nonlocal received, is_refused
            message = await receive()
            received += len(message.get("body", b""))
            if received <= MAX_BODY_BYTES:
                return message
            is_refused = True
            return {"type": "http.disconnect"}

        async def with_headers(message: Message) -> None:
            if is_refused:
                return  # What the app says of a request that broke off.
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                added = [pair for pair in headers.items() if pair[0] not in given]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            await self._app(scope, limited, with_headers)
        except Exception:  # Of a request that broke off.
            if not is_refused:
                raise
        if is_refused:
            await _refuse(scope, headers, send)


def _announced(scope: Scope) -> int:
    length = dict(scope["headers"]).get(b"content-length", b"")
    return int(length) if length.isdigit() else 0


async def _refuse(scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
    problem = {
        "type": "about:blank",
        "title": "Content Too Large",
        "status": 413,
        "detail": f"the body has more than {MAX_BODY_BYTES:,} bytes; an act needs a few thousand",
        "instance": scope["path"],
    }
    body = json.dumps(problem).encode()
    told = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
    start = {"type": "http.response.start", "status": 413, "headers": [*told, *headers.items()]}
    await send(start)
    await send({"type": "http.response.body", "body": body})
