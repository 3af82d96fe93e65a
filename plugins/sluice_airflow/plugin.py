"""Registers timetables, run notes, REST API and pages, by the entry point ``airflow.plugins``.

Airflow imports plugins in every component, and in the process of every task, which need no FastAPI:
both apps are built by their first request, in the API server alone.

The pages are an entry of Airflow's navigation, and a tab on each DAG: files of the package, served
as they are, plain ES modules that Airflow's UI imports (``react_apps``).  They hold no data, so
they ask for no login; what they show comes from the REST API, which does.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.plugins_manager import AirflowPlugin

from airflow import __version__
from sluice.extras import AIRFLOW
from sluice_airflow import run_notes
from sluice_airflow.run_notes import LiveNotes
from sluice_airflow.settings import PREFIX
from sluice_airflow.timetable import CheckpointTimetable, FirstTickTimetable

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER: Final = Path(__file__).parent / "pages"
PAGES_PREFIX: Final = "/sluice/pages"
FOREVER: Final = "public, max-age=31536000, immutable"


def digest_of(folder: Path) -> str:
    """Changes with any file of the *folder*."""
    contents = hashlib.blake2b(digest_size=8)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        contents.update(path.read_bytes())
    return contents.hexdigest()


DIGEST: Final = digest_of(FOLDER)  # Of 300 kB: about a millisecond.
# Relative, as the base of Airflow's UI may be a path.
_BELOW_BASE: Final = f"{PAGES_PREFIX.lstrip('/')}/{DIGEST}"

# Airflow looks for the component under the global that has the entry's name: both have one name.
_ENTRY: Final = {
    "name": "Checkpoints",
    "bundle_url": f"{_BELOW_BASE}/airflow.js",
    "icon": f"{_BELOW_BASE}/icon.svg",
    "icon_dark_mode": f"{_BELOW_BASE}/icon-dark.svg",
}
_MODULE: Final = "standalone.js"
VIEWS: Final = (
    {**_ENTRY, "destination": "nav", "url_route": "checkpoints", "nav_top_level": True},
    {**_ENTRY, "destination": "dag", "url_route": "pipeline"},
)


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


class PagesApp:
    """An ASGI app of static files.

    Below the digest of this installation's files a browser keeps them; elsewhere it asks each time,
    so the page without Airflow's frame names the modules below the digest.
    """

    @cached_property
    def app(self) -> ASGIApp:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import HTMLResponse, Response
        from starlette.routing import Mount, Route
        from starlette.staticfiles import StaticFiles

        class Files(StaticFiles):
            def __init__(self, cached: str) -> None:
                super().__init__(directory=FOLDER, html=True)
                self.cached = cached

            def file_response(self, *args: Any, **kwargs: Any) -> Response:  # noqa: ANN401 - Starlette's
                response = super().file_response(*args, **kwargs)
                response.headers["Cache-Control"] = self.cached
                return response

        alone = (FOLDER / "index.html").read_text().replace(_MODULE, f"./{DIGEST}/{_MODULE}")

        def page(_: Request) -> Response:
            return HTMLResponse(alone, headers={"Cache-Control": "no-cache"})

        return Starlette(
            routes=[
                Route("/", page),
                Mount(f"/{DIGEST}", Files(FOREVER)),
                Mount("/", Files("no-cache")),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class DeferredApp:
    """The REST API as an ASGI app that is imported when it is called."""

    @cached_property
    def app(self) -> ASGIApp:
        from sluice_airflow.rest.app import create_app

        return create_app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class Guard:
    """*app* behind what every answer tells a browser (OWASP's secure headers), and a limit of what
    a request may bring; a body above that is answered 413 unread.
    """

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


class SluicePlugin(AirflowPlugin):  # type: ignore[misc]  # Airflow's annotations are skipped.
    name = "sluice"
    timetables: ClassVar = [CheckpointTimetable, FirstTickTimetable]
    listeners: ClassVar = [run_notes]
    fastapi_apps: ClassVar = [  # The first whose prefix fits gets the request.
        {"app": Guard(PagesApp()), "url_prefix": PAGES_PREFIX, "name": "sluice pages"},
        {"app": Guard(DeferredApp()), "url_prefix": PREFIX, "name": "sluice"},
    ]
    fastapi_root_middlewares: ClassVar = [{"middleware": LiveNotes, "name": "sluice live notes"}]
    react_apps: ClassVar = [dict(view) for view in VIEWS]

    @classmethod
    def on_load(cls, *_: object, **__: object) -> None:
        """Raises ConfigurationError unless this Airflow is supported; shown as an import error."""
        AIRFLOW.check(__version__)
