"""``sluice journal``: the coordinator's log, as people read it."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from sluice.cli.options import AsJson, EndpointUrl, PipelineName, Root, declared_job
from sluice.cli.printing import print_json
from sluice.core.messages import (
    AcksReceived,
    AlignmentTimedOut,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointTriggered,
    DeclineReceived,
    Event,
    HooksRestored,
    JobRestored,
    SavepointsReleased,
    SnapshotsDiscarded,
    TablesRecovered,
)
from sluice.protocol.records import JournalEntry
from sluice.views.units import moment

DEFAULT_LAST = 20


class JournalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One entry.  ``generation`` and ``status`` are the job's after it; ``at_ms`` is None for an
    event that does not say when it happened.
    """

    seq: int
    event: str
    generation: int
    status: str
    checkpoint: int | None
    at_ms: int | None


def journal(
    pipeline: PipelineName,
    last: Annotated[int, typer.Option(min=1, help="How many entries.")] = DEFAULT_LAST,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print the newest entries of a job's journal, oldest first."""
    job = declared_job(pipeline, root, endpoint_url)
    records = [_record(seq, entry) for seq, entry in job.journal.numbered(last)]
    if as_json:
        print_json(records)
        return
    table = Table(
        *("seq", "event", "generation", "status", "checkpoint", "at (UTC)"),
        box=None,
        padding=(0, 1, 0, 0),
    )
    for record in records:
        table.add_row(
            str(record.seq),
            record.event,
            str(record.generation),
            record.status,
            "" if record.checkpoint is None else str(record.checkpoint),
            "" if record.at_ms is None else moment(record.at_ms)[5:],  # Without the year.
        )
    Console().print(table)


def _record(seq: int, entry: JournalEntry) -> JournalRecord:
    event = entry.event
    return JournalRecord(
        seq=seq,
        event=type(event).__name__,
        generation=entry.state.generation,
        status=entry.state.status.value,
        checkpoint=_checkpoint_of(event),
        at_ms=_time_of(event),
    )


def _checkpoint_of(event: Event) -> int | None:
    match event:
        case CheckpointTriggered():
            return event.plan.checkpoint_id
        case DeclineReceived():
            return event.decline.checkpoint_id
        case (
            AttemptStarted() | AlignmentTimedOut() | CheckpointCompleted() | CheckpointCommitted()
            | CheckpointFailed() | JobRestored()
        ):  # fmt: skip
            return event.checkpoint_id
        case _:
            return None


def _time_of(event: Event) -> int | None:
    match event:
        case CheckpointTriggered():
            return event.plan.triggered_at_ms
        case (
            AttemptStarted() | AcksReceived() | SavepointsReleased() | SnapshotsDiscarded()
            | HooksRestored() | TablesRecovered()
        ):  # fmt: skip
            return None
        case _:
            return event.at_ms
