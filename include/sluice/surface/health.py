"""The first questions of a person on call about a job: what it does and since when, how old its
newest completed checkpoint is, and what to do next.

It is read off the journal's state, so it is true whoever drives the job, and also while nobody
does: who that is only Airflow knows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum

import msgspec

from sluice.coordinator.next_checkpoint import Due, NextCheckpoint
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import JobStatus
from sluice.core.restoring import Choice
from sluice.core.state import CoordinatorState, FailedCheckpoint, UnsuccessfulTrigger
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.durations import in_words, milliseconds
from sluice.declaration.schedules import OnAsset
from sluice.errors import SluiceError, fresh_run
from sluice.job.job import Job
from sluice.store.redaction import redacted

_INTERVALS = 3  # The age that is usual to tolerate: a checkpoint that fails is followed by another.


class Tone(StrEnum):
    """The urgency, the worst first."""

    BAD = "bad"  # The job does not get on, and will not by itself.
    WARN = "warn"  # It does not get on, and may yet; or a person has stopped it.
    GOOD = "good"
    CALM = "calm"  # Nothing is to come.


class NextStep(msgspec.Struct, frozen=True, kw_only=True):
    """The next step, and its command if there is one; ``page`` is the one that shows or does it."""

    says: str
    command: str = ""
    page: tuple[str, ...] = ()


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """``since``: when the job took its status, or was restored; ms since 1970.  ``age_ms`` is since
    the newest completed checkpoint completed, retained or not, and ``target_age_ms`` how old that
    may become: it ``is_late`` above that, which is no fault where there is nothing to read.
    """

    tone: Tone
    says: str
    since: int | None
    age_ms: int | None
    target_age_ms: int | None
    is_late: bool
    next_step: NextStep | None


class NextTrigger(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a checkpoint is due, and what the next one waits for otherwise."""

    is_due: bool
    says: str


def health(job: Job, state: CoordinatorState, done: CompletedCheckpoint | None) -> Health:
    """*done* is the newest completed checkpoint.  No request is made."""
    now_ms, checkpointing = job.now_ms(), job.pipeline.checkpointing
    completed_ms = state.last_completed_at_ms if done is None else done.completed_at_ms
    age_ms = None if completed_ms is None else max(0, now_ms - completed_ms)
    target_ms = _target_age_ms(checkpointing, state)
    is_running = state.status is JobStatus.RUNNING
    begun_ms = max(state.status_since_ms or 0, 0 if done is None else done.completed_at_ms)
    is_late = is_running and target_ms is not None and now_ms - begun_ms > target_ms
    tone, says, step = _of_status(job, state, done, is_late=is_late, target_ms=target_ms)
    return Health(
        tone=tone,
        says=redacted(says),
        since=state.status_since_ms,
        age_ms=age_ms,
        target_age_ms=target_ms,
        is_late=is_late,
        next_step=step,
    )


def next_trigger(job: Job, *, latest_tick_ms: Callable[[], int] | None = None) -> NextTrigger:
    """The wait of the next periodic checkpoint; the sources are asked whether they have more.

    The job's host asks the same, so if a checkpoint ``is_due`` and does not start, no host runs.
    *latest_tick_ms* is that of a ``NextCheckpoint``, for a job whose schedule is a ``Cron``.  A job
    that an asset's events start is never due by itself.
    """
    state, checkpointing = job.state(), job.pipeline.checkpointing
    interval_ms = state.timing.interval_ms
    if interval_ms is None:
        interval = checkpointing.interval if checkpointing.schedule is None else None
        interval_ms = 0 if interval is None else milliseconds(interval)
    try:
        found = NextCheckpoint(job, interval_ms=interval_ms, latest_tick_ms=latest_tick_ms).poll()
    except SluiceError as error:
        return NextTrigger(is_due=False, says=redacted(str(error)))
    is_due, says = isinstance(found, Due), found.message
    if isinstance(checkpointing.schedule, OnAsset) and is_due:
        is_due = False
        says = f"an event of asset {checkpointing.schedule.uri!r} starts it; there is: {says}"
    return NextTrigger(is_due=is_due, says=redacted(says))


def _target_age_ms(checkpointing: Checkpointing, state: CoordinatorState) -> int | None:
    """The age in force; None where nothing is periodic, and nothing is declared."""
    if checkpointing.target_age is not None:
        return milliseconds(checkpointing.target_age)
    if state.timing.interval_ms is not None:
        return _INTERVALS * state.timing.interval_ms
    if checkpointing.schedule is not None or checkpointing.interval is None:
        return None
    return _INTERVALS * milliseconds(checkpointing.interval)


def _of_status(
    job: Job,
    state: CoordinatorState,
    done: CompletedCheckpoint | None,
    *,
    is_late: bool,
    target_ms: int | None,
) -> tuple[Tone, str, NextStep | None]:
    uid = job.pipeline.uid
    first = NextStep(
        says="A submission begins, from empty state: unpause the DAG, or run it.",
        command=f"sluice run {uid}",
    )
    base = Choice(state.base, state.origin)
    has_state = done is not None or state.base is not None
    onwards = _restore(uid, base) if has_state else _fresh(uid, "Begin")
    match state.status:
        case JobStatus.CREATED:
            return Tone.WARN, "It was never submitted.", first
        case JobStatus.RUNNING:
            return _of_running(job, state, done, is_late=is_late, target_ms=target_ms)
        case JobStatus.RESTARTING:
            rest_ms = max(0, (state.restart_at_ms or 0) - job.now_ms())
            rest = in_words(timedelta(milliseconds=rest_ms // 1_000 * 1_000))
            return (
                Tone.WARN,
                f"It failed, and restarts in {rest} from {base}.{_last_failure(state)}",
                NextStep(says="Nothing: its restart strategy does it.", page=("history",)),
            )
        case JobStatus.FAILING:
            return (
                Tone.BAD,
                "It failed for good; its last completed checkpoint is still to be committed."
                + _last_failure(state),
                NextStep(
                    says="See that its sinks answer: once that is committed a restore goes on.",
                    command=f"sluice doctor {uid}",
                ),
            )
        case JobStatus.FAILED:
            return Tone.BAD, f"It failed.{_last_failure(state)}", onwards
        case JobStatus.SUSPENDED:
            because = _sentence(state.stopped_because or "a person suspended it, and it can go on")
            return Tone.WARN, because, onwards
        case JobStatus.CANCELED:
            return Tone.CALM, _sentence(state.stopped_because or "a person cancelled it"), onwards
        case JobStatus.FINISHED:
            return Tone.CALM, "It has read its sources to their end, and published all.", None


def _of_running(
    job: Job,
    state: CoordinatorState,
    done: CompletedCheckpoint | None,
    *,
    is_late: bool,
    target_ms: int | None,
) -> tuple[Tone, str, NextStep | None]:
    uid, timing = job.pipeline.uid, state.timing
    if timing.is_paused:
        by = f" by {timing.changed_by}" if timing.changed_by else ""
        step = NextStep(says="Resume its checkpointing.", command=f"sluice resume {uid}")
        return Tone.WARN, f"Its checkpointing is paused{by}: it reads nothing.", step
    if state.num_unsuccessful_triggers:
        refused = state.unsuccessful_triggers[-1]
        in_a_row = f" ({state.num_unsuccessful_triggers} times in a row)"
        return Tone.BAD, f"{_sentence(str(refused))}{in_a_row}", _mends(uid, refused)
    newest = 0 if done is None else done.checkpoint_id
    if state.failed and state.failed[-1].checkpoint_id > newest:
        failed = state.failed[-1]
        return Tone.WARN, _sentence(str(failed)), _mends(uid, failed)
    if is_late and target_ms is not None:
        target = in_words(timedelta(milliseconds=target_ms))
        what = "No checkpoint completed" if done is None else "None completed since checkpoint "
        what += "" if done is None else str(done.checkpoint_id)
        step = NextStep(says="See what the next one waits for, and who drives the job.")
        return Tone.WARN, f"{what} for longer than {target}, its target.", step
    if state.pending:
        oldest = state.pending[0].checkpoint_id
        return Tone.GOOD, f"It runs: checkpoint {oldest} is in progress.", None
    return Tone.GOOD, "It runs.", None


def _restore(uid: str, base: Choice) -> NextStep:
    return NextStep(
        says=f"Mend what is named, then restore it: from {base} if no other is chosen, and what "
        "was read since is read again. A dry run says what changes.",
        command=f"sluice restore {uid}",
        page=("snapshots",),
    )


def _fresh(uid: str, begin: str) -> NextStep:
    return NextStep(
        says=f"{begin} anew, from empty state: all input that is there is read again.",
        command=fresh_run(uid),
    )


def _mends(uid: str, failed: FailedCheckpoint | UnsuccessfulTrigger) -> NextStep:
    if fresh_run(uid) in failed.message:
        return _fresh(uid, "Do what the sentence names, or begin")
    return NextStep(
        says="See what the reason means, and what mends it.", page=("reasons", failed.reason.name)
    )


def _last_failure(state: CoordinatorState) -> str:
    because = state.stopped_because or (str(state.failed[-1]) if state.failed else "")
    return f" {_sentence(because)}" if because else ""


def _sentence(clause: str) -> str:
    text = clause[:1].upper() + clause[1:]
    return text if text.endswith((".", "?")) else f"{text}."
