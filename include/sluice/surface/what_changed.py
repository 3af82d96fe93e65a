"""The changes of a job on one time line: failures, restores, deploys, rescales, savepoints, records
that could not be decoded, and the acts of people.

Nothing is kept for it.  The history has a line of each checkpoint, with its generation, its number
of subtasks and a digest of the declaration that it was made of; the newest entries of the journal
say what happened between checkpoints, and who did it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import groupby, pairwise

import msgspec

from sluice.core.events import (
    CheckpointingChanged,
    Event,
    JobFailed,
    JobRestored,
    JobStopped,
    JobSubmitted,
    JournalRepaired,
    RootAdopted,
)
from sluice.core.failures import CheckpointFailureReason
from sluice.declaration.pipeline import MALFORMED, Pipeline, side_output
from sluice.figures.record import CheckpointStats, CheckpointStatus
from sluice.job.job import Job
from sluice.store.journal import Journal
from sluice.surface.checkpoints import overview

MAX_CHANGES = 200
JOURNAL_ENTRIES = 120  # About 30 checkpoints; each is a GET, sixteen at a time.
_PERIODIC = ("", "periodic")
_MANUAL = "/manual__"  # In the id of a run that a person started.


class JobChangeKind(StrEnum):
    """The kind of a change, as a chart marks it."""

    FAILURE = "failure"
    RESTORE = "restore"
    DEPLOY = "deploy"
    RESCALE = "rescale"
    SAVEPOINT = "savepoint"
    MALFORMED = "malformed"
    ACT = "act"  # Of a person.


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """``by`` is who asked for it: a person, or the run of a DAG; None where nobody is known.

    ``checkpoint`` is the one that it is about, or the first that was taken behind it.
    """

    kind: JobChangeKind
    timestamp: int
    says: str
    checkpoint: int | None = None
    reason: str | None = None
    by: str | None = None


class WhatChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first; ``since`` is how far back the history goes, None of an empty one."""

    changes: tuple[JobChange, ...]
    since: int | None


def what_changed(job: Job) -> WhatChanged:
    """The newest ``MAX_CHANGES``: two GETs, a LIST, and a GET for each entry of the journal."""
    lines = overview(job).history[::-1]
    told = [*_told(job.journal)]
    restored = [one.timestamp for one in told if one.kind is JobChangeKind.RESTORE]
    malformed = _malformed(job.pipeline, lines)
    found = [*told, *_of_lines(lines), *malformed, *_between(lines, restored)]
    newest = sorted(found, key=lambda one: one.timestamp)[-MAX_CHANGES:]
    since = min((line.trigger_timestamp for line in lines), default=None)
    return WhatChanged(changes=tuple(newest[::-1]), since=since)


def _of_lines(lines: Sequence[CheckpointStats]) -> Iterator[JobChange]:
    """The changes that a checkpoint itself is: a failure, a savepoint, an act of a person."""
    for line in lines:
        by = None if line.cause in _PERIODIC else line.cause
        if line.failure_timestamp is not None:
            is_act = line.failure_reason == CheckpointFailureReason.CHECKPOINT_ABORTED_BY_USER.value
            yield JobChange(
                kind=JobChangeKind.ACT if is_act else JobChangeKind.FAILURE,
                timestamp=line.failure_timestamp,
                says=f"checkpoint {line.id} failed: {line.failure_message or 'no reason is known'}",
                checkpoint=line.id,
                reason=line.failure_reason,
            )
        elif line.status is CheckpointStatus.COMPLETED and line.is_savepoint:
            yield JobChange(
                kind=JobChangeKind.SAVEPOINT,
                timestamp=line.completed_timestamp or line.trigger_timestamp,
                says=f"savepoint {line.savepoint or line.id} was taken",
                checkpoint=line.id,
                by=by,
            )
        elif by is not None and _MANUAL in by:
            yield JobChange(
                kind=JobChangeKind.ACT,
                timestamp=line.trigger_timestamp,
                says=f"checkpoint {line.id} was asked for",
                checkpoint=line.id,
                by=by,
            )


def _malformed(pipeline: Pipeline, lines: Sequence[CheckpointStats]) -> Iterator[JobChange]:
    """The records that could not be decoded: one change of all checkpoints in a row that had some,
    at the time of the newest.
    """
    reading = filter(pipeline.sources_of, pipeline.stages)
    commands = " or ".join(
        f"`sluice side-output {pipeline.uid} {side_output(uid, MALFORMED)}`" for uid in reading
    )
    done = (line for line in lines if line.status is CheckpointStatus.COMPLETED)
    for has_some, row in groupby(done, key=lambda line: bool(line.malformed_rows)):
        first, *others = row
        if not has_some:
            continue
        last = others[-1] if others else first
        count = sum(line.malformed_rows or 0 for line in (first, *others))
        what = "1 record" if count == 1 else f"{count:,} records"
        which = f"checkpoints {first.id} to {last.id}" if others else f"checkpoint {first.id}"
        yield JobChange(
            kind=JobChangeKind.MALFORMED,
            timestamp=last.completed_timestamp or last.trigger_timestamp,
            says=f"{what} of {which} could not be decoded; {commands} shows them",
            checkpoint=last.id,
        )


def _between(lines: Sequence[CheckpointStats], restored: Sequence[int]) -> Iterator[JobChange]:
    """The changes from one checkpoint to the next; a restore only if nobody has told of it."""
    known = [line for line in lines if line.generation is not None]
    for before, line in pairwise(known):
        at_ms, checkpoint = line.trigger_timestamp, line.id
        if line.declaration != before.declaration:
            yield JobChange(
                kind=JobChangeKind.DEPLOY,
                timestamp=at_ms,
                says=f"another declaration: checkpoint {checkpoint} is the first of it",
                checkpoint=checkpoint,
            )
        if None not in (before.num_subtasks, line.num_subtasks) and (
            before.num_subtasks != line.num_subtasks
        ):
            yield JobChange(
                kind=JobChangeKind.RESCALE,
                timestamp=at_ms,
                says=f"rescaled from {before.num_subtasks} to {line.num_subtasks} subtasks",
                checkpoint=checkpoint,
            )
        is_told = any(before.trigger_timestamp <= one <= at_ms for one in restored)
        if line.generation != before.generation and not is_told:
            yield JobChange(
                kind=JobChangeKind.RESTORE,
                timestamp=at_ms,
                says=f"restored, generation {line.generation}",
                checkpoint=checkpoint,
            )


def _told(journal: Journal) -> Iterator[JobChange]:
    for _, entry in journal.numbered(JOURNAL_ENTRIES):
        change = _of_event(entry.event, entry.state.generation)
        if change is not None:
            yield change


def _of_event(event: Event, generation: int) -> JobChange | None:
    match event:
        case JobRestored():
            place = f"checkpoint {event.checkpoint_id}" if event.checkpoint_id else "empty state"
            place = place if event.origin is None else str(event.origin)
            return JobChange(
                kind=JobChangeKind.RESTORE,
                timestamp=event.at_ms,
                says=f"restored from {place}, generation {generation}",
                checkpoint=event.checkpoint_id,
                by=event.cause or None,
            )
        case JobFailed():
            return JobChange(
                kind=JobChangeKind.FAILURE,
                timestamp=event.at_ms,
                says=f"it failed: {event.message}",
            )
        case CheckpointingChanged():
            timing = event.timing
            what = "paused" if timing.is_paused else "changed or resumed"
            return JobChange(
                kind=JobChangeKind.ACT,
                timestamp=event.at_ms,
                says=f"checkpointing was {what}",
                by=timing.changed_by or None,
            )
        case JobStopped():
            because = f": {event.message}" if event.message else ""
            says = f"it was stopped, {event.status.value}{because}"
        case JobSubmitted():
            says = "it was submitted"
        case RootAdopted():
            says = f"its root was adopted: {event.place}"
        case JournalRepaired():
            says = f"its journal was repaired: {event.message}"
        case _:
            return None
    return JobChange(kind=JobChangeKind.ACT, timestamp=event.at_ms, says=says)
