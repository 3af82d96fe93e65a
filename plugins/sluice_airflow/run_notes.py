"""Writes the notes of runs, and turns the switch of a checkpoint DAG, as their tasks have stored.

**A listener** acts when a run ends.  It also gives a run that an event started its first note, and
has Airflow start the trigger that watches for the next ones when the first run of such a DAG
begins.  It runs in the scheduler, or in the API server when a person ends a run, with their
session, and reads a row or two for each run.  An error here must not affect either of them.

**A middleware** of the API server writes the notes of runs under way, once Airflow itself has
accepted a request that changes them:

    POST  /execution/xcoms/{dag}/{run}/{task}/sluice_note     a task has stored a sentence
    POST  /execution/xcoms/{dag}/{run}/{task}/sluice_silence  what it waits for does not answer
    PATCH /api/v2/dags...                                     a DAG was paused, or switched on

The request has been answered by then, so a note that cannot be written is left to the listener.
Notes of one run are written one after another, as each writer locks the run's row: otherwise what
was true while the run lasted might be written behind what the listener writes at its end.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from airflow.listeners import hookimpl

from sluice.core.failures import CheckpointFailureReason, page_of
from sluice_airflow.notes import (
    MAX_NOTE,
    NOTE_KEY,
    SILENCE_KEY,
    apply_switch,
    query_stored,
    request_parse,
)

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

AUTHOR = "sluice"  # Of our notes, in the place of a user; a note of any other author is kept.
PAUSED = (
    "the DAG is paused, and so is this run: switch the DAG on before the checkpoint expires, see "
    f"{page_of(CheckpointFailureReason.CHECKPOINT_EXPIRED)}"
)

_STORED = re.compile(rf"/execution/xcoms/([^/]+)/([^/]+)/[^/]+/(?:{NOTE_KEY}|{SILENCE_KEY})$")
_SWITCHED = re.compile(r"/api/v2/dags(?:/[^/]+)?$")

Act: TypeAlias = Callable[[], None]


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    from airflow.timetables.assets import AssetOrTimeSchedule
    from airflow.utils.types import DagRunType
    from sqlalchemy.orm import object_session

    from sluice_airflow.timetable import FIRST_RUNS

    schedule = getattr(dag_run.dag, "timetable", None)
    is_ours = isinstance(schedule, AssetOrTimeSchedule) and isinstance(
        schedule.timetable, FIRST_RUNS
    )
    session = object_session(dag_run)
    if session is None or not is_ours:
        return
    try:
        if dag_run.run_type == DagRunType.SCHEDULED:
            request_parse(dag_run.dag_id, session)
        elif dag_run.run_type == DagRunType.ASSET_TRIGGERED and not dag_run.note:
            dag_run.note = (_why(dag_run), AUTHOR)
    except Exception:  # Airflow parses the file anyway, later; a task's note follows.
        log.warning("run begins without us dag_id=%s", dag_run.dag_id, exc_info=True)


def _why(dag_run: Any) -> str:  # noqa: ANN401 - Airflow's annotations are skipped
    """The reason in the event that started the run."""
    payloads = [(event.extra or {}).get("payload") for event in dag_run.consumed_asset_events]
    reasons = [p["due"] for p in payloads if isinstance(p, dict) and "due" in p]
    return f"a checkpoint is due: {reasons[-1] if reasons else 'an event came'}"[:MAX_NOTE]


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    _end(dag_run)


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    _end(dag_run)


def _end(dag_run: Any) -> None:  # noqa: ANN401 - Airflow's annotations are skipped
    """End the run: no missing note, and no DAG that runs on in vain, may stop the scheduler."""
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return
    for act, problem in ((take_note, "run without a note"), (apply_switch, "switch not turned")):
        try:
            with session.no_autoflush:
                act(dag_run, session)
        except Exception:
            log.warning("%s dag_id=%s run_id=%s", problem, dag_run.dag_id, dag_run.run_id,
                        exc_info=True)  # fmt: skip


def take_note(dag_run: Any, session: Session) -> None:  # noqa: ANN401 - as above
    """Write what the run's tasks have stored as its note, unless a person wrote one."""
    written = dag_run.dag_run_note
    if written is not None and written.content and written.user_id != AUTHOR:
        return
    content = note_of_run(dag_run, session)
    if not content or (written is not None and written.content == content):
        return
    if written is None:
        dag_run.note = (content, AUTHOR)
    else:
        written.content, written.user_id = content, AUTHOR


def note_of_run(dag_run: Any, session: Session) -> str:  # noqa: ANN401 - as above
    """The newest sentence of the run; before it, what blocks the run."""
    parts = (why_run_is_blocked(dag_run, session), _stored(dag_run, NOTE_KEY, session))
    return "; ".join(filter(None, parts))[:MAX_NOTE]


def why_run_is_blocked(dag_run: Any, session: Session) -> str:  # noqa: ANN401 - as above
    """The reason why a run under way waits in vain; empty if there is none, or it has ended."""
    from airflow.models.dag import DagModel
    from airflow.utils.state import DagRunState
    from sqlalchemy import select

    if dag_run.state != DagRunState.RUNNING:
        return ""
    is_paused = select(DagModel.is_paused).where(DagModel.dag_id == dag_run.dag_id)
    paused = PAUSED if session.scalar(is_paused) else ""
    parts = (paused, _stored(dag_run, SILENCE_KEY, session))
    return "; ".join(filter(None, parts))


def _stored(dag_run: Any, key: str, session: Session) -> str:  # noqa: ANN401 - as above
    from airflow.models.xcom import XComModel

    found = session.scalars(query_stored(dag_run, key)).first()
    return "" if found is None else str(XComModel.deserialize_value(found) or "")


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
            try:
                await asyncio.to_thread(act)
            except Exception:  # The listener writes the note when the run ends.
                log.warning("run without a live note", exc_info=True)


def act_of(scope: Scope) -> Act | None:
    """The act that is due once the request of *scope* has succeeded; None for most."""
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

    query = select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    query = query.with_for_update(of=DagRun)
    with create_session() as session:
        run = session.scalars(query).one_or_none()
        if run is not None:
            take_note(run, session)


def write_notes() -> None:
    """Write the notes of all runs under way: any of their DAGs may be the one that was switched."""
    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from sqlalchemy import exists, select

    has_one = exists().where(XComModel.dag_run_id == DagRun.id, XComModel.key == NOTE_KEY)
    query = select(DagRun).where(DagRun.state == DagRunState.RUNNING, has_one)
    query = query.order_by(DagRun.id).with_for_update(of=DagRun)
    with create_session() as session:
        for run in session.scalars(query).all():
            take_note(run, session)
