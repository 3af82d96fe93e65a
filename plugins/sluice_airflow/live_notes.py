"""Notes of runs that still run: the API server writes them as soon as what they say has changed.

    POST  /execution/xcoms/{dag}/{run}/{task}/sluice_note     a task has stored a sentence
    POST  /execution/xcoms/{dag}/{run}/{task}/sluice_silence  what it waits for does not answer
    PATCH /api/v2/dags...                                     a DAG was paused, or switched on

Airflow's execution API cannot set a note, but every sentence passes this process, so a middleware
acts once Airflow itself has accepted the request.  A note that cannot be written is written when
the run ends (``run_notes``); the request has been answered by then.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

from sluice_airflow.notes import NOTE_KEY, SILENCE_KEY

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

_STORED = re.compile(rf"/execution/xcoms/([^/]+)/([^/]+)/[^/]+/(?:{NOTE_KEY}|{SILENCE_KEY})$")
_SWITCHED = re.compile(r"/api/v2/dags(?:/[^/]+)?$")

Act: TypeAlias = Callable[[], None]


class LiveNotes:
    """An ASGI middleware of the API server; all but the requests above pass untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        act = act_of(scope)
        if act is None:
            await self._app(scope, receive, send)
            return
        statuses: list[int] = []

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        await self._app(scope, receive, watched)
        if any(200 <= status < 300 for status in statuses):
            await asyncio.to_thread(_carefully, act)


def act_of(scope: Scope) -> Act | None:
    """What is to be done once the request of *scope* has succeeded; None for most."""
    if scope["type"] != "http":
        return None
    raw: bytes = scope.get("raw_path") or b""
    path = raw.decode("ascii", "replace") if raw else str(scope["path"])
    if scope["method"] == "POST" and (stored := _STORED.search(path)) is not None:
        dag_id, run_id = map(unquote, stored.groups())
        return lambda: write_note(dag_id, run_id)
    if scope["method"] == "PATCH" and _SWITCHED.search(path) is not None:
        return write_notes
    return None


def write_note(dag_id: str, run_id: str) -> None:
    """Write the note of one run."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from sluice_airflow.run_notes import take_note

    mine = select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    with create_session() as session:
        found = session.scalars(mine).one_or_none()
        if found is not None:
            take_note(found, session)


def write_notes() -> None:
    """Write the notes of all runs under way: any of their DAGs may be the one that was switched."""
    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from sqlalchemy import select

    from sluice_airflow.run_notes import take_note

    ours = (
        select(DagRun)
        .join(XComModel, XComModel.dag_run_id == DagRun.id)
        .where(DagRun.state == DagRunState.RUNNING, XComModel.key == NOTE_KEY)
        .distinct()
    )
    with create_session() as session:
        for run in session.scalars(ours).all():
            take_note(run, session)


def _carefully(act: Act) -> None:
    try:
        act()
    except Exception:  # The request has been answered; the note comes when the run ends.
        log.warning("run without a live note", exc_info=True)
