"""The note of a run, and the listener that acts on what a run's tasks stored when the run ends:
it sets the note, and turns the switch of the checkpoint DAG.  A run that an event started says from
its beginning why; when the first run of such a DAG begins, Airflow is to start the trigger that
watches for the next ones.

It runs in the scheduler, or in the API server when a person ends a run, with their session, and
reads a row or two for each.  An error here must not affect either of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from sluice.core.pages import page_of
from sluice.core.reasons import CheckpointFailureReason
from sluice_airflow.dag_switch import stored, turn
from sluice_airflow.notes import MAX_NOTE, NOTE_KEY, SILENCE_KEY
from sluice_airflow.parse_request import request_parse

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

AUTHOR = "sluice"  # Of our notes, in the place of a user; a note of anything else is kept.
PAUSED = (
    "the DAG is paused, and so is this run: switch the DAG on before the checkpoint expires, see "
    f"{page_of(CheckpointFailureReason.CHECKPOINT_EXPIRED)}"
)


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
    """What the event said that started the run."""
    payloads = [(event.extra or {}).get("payload") for event in dag_run.consumed_asset_events]
    said = [one["due"] for one in payloads if isinstance(one, dict) and "due" in one]
    return f"a checkpoint is due: {said[-1] if said else 'an event came'}"[:MAX_NOTE]


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    _take_note(dag_run)
    _turn_switch(dag_run)


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    _take_note(dag_run)
    _turn_switch(dag_run)


def _turn_switch(dag_run: Any) -> None:  # noqa: ANN401 - Airflow's annotations are skipped
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return
    try:
        with session.no_autoflush:
            turn(dag_run, session)
    except Exception:  # A DAG that runs on in vain must not stop the scheduler.
        log.warning("switch not turned dag_id=%s run_id=%s", dag_run.dag_id, dag_run.run_id,
                    exc_info=True)  # fmt: skip


def _take_note(dag_run: Any) -> None:  # noqa: ANN401 - Airflow's annotations are skipped
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return
    try:
        with session.no_autoflush:
            take_note(dag_run, session)
    except Exception:  # An error of a note must not stop the scheduler.
        log.warning("run without a note dag_id=%s run_id=%s", dag_run.dag_id, dag_run.run_id,
                    exc_info=True)  # fmt: skip


def take_note(dag_run: Any, session: Session) -> None:  # noqa: ANN401 - as above
    """Write what the run's tasks have stored as its note, unless a person wrote one."""
    written = dag_run.dag_run_note
    if written is not None and written.content and written.user_id != AUTHOR:
        return
    said = told(dag_run, session)
    if not said or (written is not None and written.content == said):
        return
    if written is None:
        dag_run.note = (said, AUTHOR)
    else:
        written.content, written.user_id = said, AUTHOR


def told(dag_run: Any, session: Session) -> str:  # noqa: ANN401 - as above
    """The newest sentence of the run.  Before it, while the run lasts, comes what stands still."""
    parts = (standing_still(dag_run, session), _stored(dag_run, NOTE_KEY, session))
    return "; ".join(part for part in parts if part)[:MAX_NOTE]


def standing_still(dag_run: Any, session: Session) -> str:  # noqa: ANN401 - as above
    """What a run that has not ended waits for in vain; empty if there is nothing."""
    from airflow.models.dag import DagModel
    from airflow.utils.state import DagRunState
    from sqlalchemy import select

    if dag_run.state != DagRunState.RUNNING:
        return ""
    is_paused = select(DagModel.is_paused).where(DagModel.dag_id == dag_run.dag_id)
    paused = PAUSED if session.scalar(is_paused) else ""
    parts = (paused, _stored(dag_run, SILENCE_KEY, session))
    return "; ".join(part for part in parts if part)


def _stored(dag_run: Any, key: str, session: Session) -> str:  # noqa: ANN401 - as above
    from airflow.models.xcom import XComModel

    found = session.scalars(stored(dag_run, key)).first()
    return "" if found is None else str(XComModel.deserialize_value(found) or "")
