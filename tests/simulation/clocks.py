"""Clocks that disagree, and what must not come of it.

Each machine's clock is minutes off, and set at times; a process keeps the one that it began with.
The bucket has a clock of its own.  ``Checked`` by ``Invariants`` on every entry, as invariant 14:

- every entry is stamped by the job's clock, whoever wrote it: it lies between the begin of its
  author's turn and now, but for what two clocks may differ that count as one (``_stamped``); a
  turn that began before there was such a clock has its machine's;
- the clock is drawn once, and kept until the job is submitted anew (``_drawn_once``);
- a plan's processing time is the job's clock, and not behind that of the checkpoint that it
  continues: neither an aborted plan nor one that a restore left behind moves it (``_processing``).

And as invariant 15 that a journal begins in a store that was probed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.core.events import CheckpointTriggered, Event, JobSubmitted
from sluice.core.plan import CheckpointPlan
from sluice.job.clock import TOLERANCE_MS
from sluice.protocol.records import JournalEntry
from tests.simulation.broken import Broken

if TYPE_CHECKING:
    from tests.simulation.invariants import Invariants

SLACK_MS = TOLERANCE_MS + 1  # Halves of milliseconds are rounded.
LATE = ("arrives", "settles")  # Turns in which a request of an earlier one takes effect.


class ClockChecks:
    """The job's clock, as far as the journal tells."""

    def __init__(self) -> None:
        self.offset_ms: int | None = None
        self.drawn_in = 0  # The number of the turn.
        self.is_probed = False

    def check(self, witness: Invariants, entry: JournalEntry) -> None:
        if not self.is_probed:
            raise Broken(17, "a journal begins in a store that was not probed", entry.place)
        self._drawn_once(entry)
        before, self.offset_ms = self.offset_ms, entry.clock_offset_ms
        turn = witness.world.turn_number
        if before is None:
            self.drawn_in = turn
        elif turn > self.drawn_in and not isinstance(entry.event, JobSubmitted):
            _stamped(witness, entry.event, before)
        if isinstance(entry.event, CheckpointTriggered):
            _processing(witness, entry.event.plan)

    def _drawn_once(self, entry: JournalEntry) -> None:
        if isinstance(entry.event, JobSubmitted):
            if entry.clock_offset_ms is not None:
                raise Broken(16, "a new job has the clock of another one", type(entry).__name__)
        elif self.offset_ms not in (None, entry.clock_offset_ms):
            changed = f"{self.offset_ms} -> {entry.clock_offset_ms}"
            raise Broken(16, "the job's clock was drawn again", changed)


def _stamped(witness: Invariants, event: Event, offset_ms: int) -> None:
    at_ms = event.plan.triggered_at_ms if isinstance(event, CheckpointTriggered) else _at_ms(event)
    if at_ms is None:
        return
    world = witness.world
    frame, now_ms = world.frame, world.time.now_ms + offset_ms
    is_late = frame is None or frame.turn.name in LATE
    began_ms = at_ms if frame is None or is_late else frame.began_ms + offset_ms
    if not began_ms - SLACK_MS <= at_ms <= now_ms + SLACK_MS:
        off_ms = at_ms - now_ms
        raise Broken(16, "a stamp is not of the job's clock", f"{type(event).__name__} {off_ms} ms")


def _at_ms(event: Event) -> int | None:
    return getattr(event, "at_ms", None)


def _processing(witness: Invariants, plan: CheckpointPlan) -> None:
    parent_ms = 0
    savepoint = None if plan.origin is None else plan.origin.own_savepoint
    if savepoint is not None:
        parent_ms = witness.savepoints[savepoint].processing_time_ms
    elif plan.origin is None and plan.parent is not None:
        parent_ms = witness.plans[plan.parent].processing_time_ms
    expected_ms = max(plan.triggered_at_ms, parent_ms)
    if plan.processing_time_ms != expected_ms:
        off_ms = plan.processing_time_ms - expected_ms
        what = "the processing time is not the checkpoint's"
        raise Broken(16, what, f"{plan.checkpoint_id}, by {off_ms} ms")
