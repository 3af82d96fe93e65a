"""What the plugin registers: the app, built by the first request and in the API server alone.

Airflow imports plugins in every component, and in the process of every task, which need no FastAPI.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX, VERSION = "/sluice", "v1"


class DeferredApp:
    """An ASGI app that is imported when it is called."""

    @cached_property
    def app(self) -> ASGIApp:
        from sluice_airflow.rest.app import create_app

        return create_app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
