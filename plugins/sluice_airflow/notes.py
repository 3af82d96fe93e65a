"""The orders that a task leaves to Airflow: the run's note, and the switch of the checkpoint DAG.

A task can neither set a note nor pause a DAG (Airflow's execution API has no call for them), so it
stores them as XComs.  The API server makes a sentence the note at once, and a listener in the
scheduler acts on both when the run ends (both in ``run_notes``).  Notes are for people: sluice does
not read them.

While a task waits for a server that does not answer, the note says so:

    asks, every 3 s --no answer within 4 s--> "the store s3://… does not answer since …"
                    --an error----------------> "the store s3://… fails since …: 503 SlowDown …"
                    <--answers again----------  the sentence goes

An error that was answered is said until another one, or a good answer, comes: the next question may
take longer to be answered, and says nothing new by that.

The checkpoint DAG is paused once its job has ended, and unpaused once a restore resumes it:

    run of {pipeline} ends; its job is FINISHED, FAILED, CANCELED or SUSPENDED   --> paused
    run of {pipeline}__restore ends; it resumed a job that had ended             --> unpaused

Airflow pauses a DAG after too many failures in the same way.  It happens when the run ends, as
tasks of a paused DAG do not start.  A restore after a failure does not unpause: its job had not
ended, so only a person can have paused the DAG.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict

from sluice.core.configuration import JobStatus
from sluice.core.failures import Page
from sluice.store.redaction import redacted
from sluice.surface.acts import RESTORE

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import Context
    from sqlalchemy import Table
    from sqlalchemy.orm import Session

    from sluice.declaration.pipeline import Pipeline

log = logging.getLogger(__name__)

NOTE_KEY = "sluice_note"
SILENCE_KEY = "sluice_silence"
SWITCH_KEY = "sluice_switch"

MAX_NOTE = 1_000  # Characters that Airflow's column of notes holds.
MAX_PROBLEM = 200  # Characters of an error; the task's log has all of it.
# With PATIENCE_S a silence is reported within 7 s, and shown by Airflow within ten.
PROBE_INTERVAL_S = 3.0
PATIENCE_S = 4.0  # A server that works answers in milliseconds, on a busy machine within a second.


def note(context: Context, sentence: str) -> None:
    """Set the run's note; a later task of the run replaces it."""
    public = redacted(sentence)  # Before it is cut, as half of a secret is secret, too.
    log.info("%s", public)
    context["ti"].xcom_push(key=NOTE_KEY, value=public[:MAX_NOTE])


def note_silence(context: Context, sentence: str) -> None:
    """Put *sentence* before the run's note while the run lasts; an empty one takes it away."""
    public = redacted(sentence)
    if public:
        log.warning("%s", public)
    context["ti"].xcom_push(key=SILENCE_KEY, value=public[:MAX_NOTE])


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """A server that a task needs; ``ask`` returns once it answers, and raises what is wrong.

    ``first_s`` is the time after which it is asked first: many tasks are over by then.
    """

    name: str
    ask: Callable[[], object]
    page: Page
    first_s: float = PROBE_INTERVAL_S


@contextmanager
def report_unanswered(say: Callable[[str], None], needed: Sequence[Needed]) -> Iterator[None]:
    """Within the block *say* is called, from a thread, with what does not answer; "" when all do.

    The task itself waits as ever: its client repeats what failed, and decides whether that is an
    error.  This tells people after seconds what the client tells when its patience is over.  An
    error of *say* is logged: it must not fail the task.
    """
    report = _UnansweredReport(say)
    over = threading.Event()
    for server in needed:
        threading.Thread(target=_watch, args=(server, report, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()
        report.end()


@dataclass(slots=True)
class _UnansweredReport:
    """One sentence of all servers that are silent; empty, for good, once the block has ended."""

    say: Callable[[str], None]
    silent: dict[str, str] = field(default_factory=dict[str, str])
    last: str = ""
    is_over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def set(self, name: str, sentence: str) -> None:
        with self.lock:
            self.silent[name] = sentence
            if not self.is_over:
                self._report("; ".join(filter(None, self.silent.values())))

    def end(self) -> None:
        with self.lock:
            self.is_over = True
            self._report("")

    def _report(self, sentence: str) -> None:
        if sentence == self.last:
            return
        try:
            self.say(sentence)
            self.last = sentence
        except Exception:  # A note is for people; the task has work to do.
            log.warning("a silence was not said: %s", sentence, exc_info=True)


def _watch(needed: Needed, report: _UnansweredReport, over: threading.Event) -> None:
    pause_s, since, answered = needed.first_s, "", ""
    question: _Question | None = None
    while not over.wait(pause_s):
        pause_s = PROBE_INTERVAL_S
        question = _Question(needed.ask) if question is None or question.is_answered else question
        error = question.wait()
        if error != "":
            since = since or f"{datetime.now(UTC):%H:%M:%S} UTC"
            answered = error or answered
            said = (
                f"fails since {since}: {answered}"
                if answered
                else f"does not answer since {since} (no answer within {PATIENCE_S:.0f} s)"
            )
            report.set(needed.name, f"{needed.name} {said}; see {needed.page}")
        elif since:
            log.info("%s answers again", needed.name)
            since = answered = ""
            report.set(needed.name, "")


class _Question:
    """One call of *ask*, in a thread, as a server may keep it for minutes."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._error = ""
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    @property
    def is_answered(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> str | None:
        """The error that was answered, empty where there is none; None where PATIENCE_S was over
        before any answer.
        """
        self._thread.join(PATIENCE_S)
        return self._error if self.is_answered else None

    def _call(self) -> None:
        try:
            self._ask()
        except Exception as error:  # noqa: BLE001 - whatever a client raises
            self._error = f"{type(error).__name__}: {error}"[:MAX_PROBLEM]


class Switch(TypedDict):
    """The XCom: a DAG, and whether it is paused from then on."""

    dag_id: str
    is_paused: bool


def switch_off_if_ended(context: Context, pipeline: Pipeline, status: JobStatus) -> None:
    """Pause the checkpoint DAG at the end of this run, if it is a run of that DAG.

    A savepoint's run leaves it on, as a run of the checkpoint DAG may still need its tasks.  The
    DAG of a job that was stopped from outside stays on, too; no event starts its runs.
    """
    if status.is_terminal and context["ti"].dag_id == pipeline.uid:
        _store(context, Switch(dag_id=pipeline.uid, is_paused=True))


def switch_on(context: Context, pipeline: Pipeline) -> None:
    """Unpause the checkpoint DAG at the end of this run."""
    _store(context, Switch(dag_id=pipeline.uid, is_paused=False))


def _store(context: Context, switch: Switch) -> None:
    context["ti"].xcom_push(key=SWITCH_KEY, value=dict(switch))


def apply_switch(dag_run: DagRun, session: Session) -> None:
    """Pause or unpause as a task of the ended run has stored, unless it is so already."""
    from airflow.models.dag import DagModel
    from airflow.models.log import Log
    from airflow.models.xcom import XComModel
    from sqlalchemy import select

    found = session.scalars(query_stored(dag_run, SWITCH_KEY)).first()
    if found is None:
        return
    switch: Switch = XComModel.deserialize_value(found)
    is_paused, dag_id = switch["is_paused"], switch["dag_id"]
    dag = session.scalars(select(DagModel).where(DagModel.dag_id == dag_id)).first()
    if dag is None or dag.is_paused == is_paused:
        return
    if is_paused and _is_outdated(dag_run, found.timestamp, session):
        return
    dag.is_paused = is_paused
    if not is_paused:
        request_parse(dag_id, session)
    session.add(
        Log(
            event="paused" if is_paused else "unpaused",
            dag_id=dag_id,
            owner="sluice",
            extra=f"[('dag_id', '{dag_id}'), ('is_paused', {is_paused})]",
        )
    )


# The events of Airflow's audit log: on the page or over REST, and on the command line.
_TURNED_BY_HAND = ("patch_dag", "cli_dag_unpause")


def _is_outdated(dag_run: DagRun, stored_at: Any, session: Session) -> bool:  # noqa: ANN401
    """Whether the job was restored later, a person has turned the switch since, as Airflow's audit
    log says, or another run of the DAG still needs its tasks.
    """
    from airflow.models.dagrun import DagRun as Runs
    from airflow.models.log import Log
    from airflow.utils.state import DagRunState
    from sqlalchemy import or_, select

    restored = (Runs.dag_id == RESTORE.dag_id(dag_run.dag_id)) & (Runs.end_date > stored_at)
    running = (
        (Runs.dag_id == dag_run.dag_id)
        & (Runs.run_id != dag_run.run_id)
        & (Runs.state == DagRunState.RUNNING)
    )
    newer = session.scalars(select(Runs.id).where(or_(restored, running)).limit(1)).first()
    turned = select(Log.id).where(
        Log.dag_id == dag_run.dag_id, Log.event.in_(_TURNED_BY_HAND), Log.dttm > stored_at
    )
    return newer is not None or session.scalars(turned.limit(1)).first() is not None


def query_stored(dag_run: DagRun, key: str) -> Any:  # noqa: ANN401 - SQLAlchemy's select
    """The query for what the run's tasks stored last under *key*."""
    from airflow.models.xcom import XComModel
    from sqlalchemy import select

    return (
        select(XComModel)
        .where(
            XComModel.dag_id == dag_run.dag_id,
            XComModel.run_id == dag_run.run_id,
            XComModel.key == key,
        )
        .order_by(XComModel.timestamp.desc())
        .limit(1)
    )


def request_parse(dag_id: str, session: Session) -> None:
    """Have Airflow parse the DAG's file next; nothing changes if that was requested before.

    It runs the trigger of an asset only while a DAG on it is unpaused, and notices that when it
    parses the DAG's file: twice a minute by default.  The request is one statement in the
    transaction of *session*, which is the scheduler's: Airflow allows no commit there but its own,
    not of a savepoint either.
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagbag import DagPriorityParsingRequest
    from sqlalchemy import select

    dag = session.scalars(select(DagModel).where(DagModel.dag_id == dag_id)).first()
    if dag is None or dag.bundle_name is None or dag.relative_fileloc is None:
        return
    table = DagPriorityParsingRequest.__table__
    row = {"bundle_name": dag.bundle_name, "relative_fileloc": dag.relative_fileloc}
    session.execute(_insert_if_absent(table, session.get_bind().dialect.name).values(row))


def _insert_if_absent(table: Table, dialect: str) -> Any:  # noqa: ANN401 - each dialect has its own
    from sqlalchemy.dialects import mysql, postgresql, sqlite

    match dialect:
        case "postgresql":
            return postgresql.insert(table).on_conflict_do_nothing()
        case "sqlite":
            return sqlite.insert(table).on_conflict_do_nothing()
        case _:
            return mysql.insert(table).prefix_with("IGNORE")
