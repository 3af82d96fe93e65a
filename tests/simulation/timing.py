"""The acts of people on a running job's checkpointing, and what must come of them.

A person pauses, resumes, changes the times or resets them, from any machine, while others do; each
signs with a name of their own, so that the journal tells whose wish an entry is.  ``Checked`` by
``Invariants`` on every entry, as invariant 13:

- what a person changed is in force until a person changes it, or the job is submitted anew: no
  failover, no restore and no other coordinator touches it (``_kept``);
- an entry carries the wish of one person, and leaves those of others alone (``_one_wish``);
- a paused job takes no periodic checkpoint, and none comes before the interval in force is over
  (``_in_time``); a plan has the timeout in force since it was made;
- an abort ends the checkpoint that the person named and what continues it, and no other; the job
  goes on (``_aborted``).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from sluice.coordinator.requests import NewTimes, pause, resume, retime
from sluice.core.configuration import Timing
from sluice.core.events import (
    CheckpointFailed,
    CheckpointingChanged,
    CheckpointTriggered,
    Event,
    JobSubmitted,
)
from sluice.core.failures import CheckpointFailureReason
from sluice.core.state import CoordinatorState
from tests.simulation.acts import act
from tests.simulation.broken import Broken

if TYPE_CHECKING:
    from tests.simulation.world import World

PAUSES, RESUMES, RETIMES, ABORTS = "pauses", "resumes", "retimes", "aborts"
INTERVALS_MS = (1_000, 10_000, 300_000)
TIMEOUTS_MS = (1_000, 60_000, 600_000)
PAUSES_MS = (0, 500, 30_000)
DECLARED_TIMEOUT_MS = 60_000
EARLY = 0.9  # Of the interval; what comes a tenth early comes in time.


def _signed(world: World, wish: str) -> str:
    """By a person who asks once: two turns are never the same person's."""
    assert world.frame is not None
    return f"{wish} {world.frame.turn.number}"


@act(weight=lambda world: 0.1 if world.head.timing.is_paused else 0.6)
def pauses(world: World) -> str:
    state = pause(world.job, by=_signed(world, PAUSES))
    world.witness.timing.was_told(state, is_paused=True)
    return f"by {state.timing.changed_by}"


@act(weight=lambda world: 3 if world.head.timing.is_paused else 0.1)
def resumes(world: World) -> str:
    state = resume(world.job, by=_signed(world, RESUMES))
    world.witness.timing.was_told(state, is_paused=False)
    return f"by {state.timing.changed_by}"


@act(weight=0.6)
def retimes(world: World) -> str:
    """Some of the times; now and then what was changed before is taken back."""
    random, resets = world.random, world.chance(0.2)
    interval_ms = random.choice([None, *INTERVALS_MS])
    timeout_ms = random.choice([None, *TIMEOUTS_MS])
    min_pause_ms = random.choice([None, *PAUSES_MS])
    tolerable = random.choice([None, 0, 1, 3])
    times = NewTimes(
        interval=_period(interval_ms),
        timeout=_period(timeout_ms),
        min_pause=_period(min_pause_ms),
        tolerable_failed_checkpoints=tolerable,
        resets=resets,
    )
    state = retime(world.job, times, by=_signed(world, RETIMES))
    wanted = {
        "interval_ms": interval_ms,
        "timeout_ms": timeout_ms,
        "min_pause_ms": min_pause_ms,
        "tolerable_failed_checkpoints": tolerable,
    }
    given = {name: value for name, value in wanted.items() if resets or value is not None}
    world.witness.timing.was_told(state, **given)
    return f"{'resets, ' * resets}{given}"


def _period(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


class TimingChecks:
    """What people asked of the checkpointing, and whether the journal keeps to it."""

    def __init__(self) -> None:
        self.ever = [Timing()]  # That were in force in this bucket, one after the other.
        self.since: list[tuple[int, Timing]] = [(0, Timing())]  # By the number of their entry.

    def was_told(self, state: CoordinatorState, **wish: object) -> None:
        """A person was told that their *wish* is in force as *state* has it."""
        timing = state.timing
        if any(getattr(timing, name) != value for name, value in wish.items()):
            raise Broken(13, "a person was told of a change that is none", f"{wish} of {timing}")
        if timing not in self.ever:
            raise Broken(13, "a person was told of a change that is not journaled", f"{timing}")

    def check(
        self, seq: int, before: CoordinatorState, event: Event, after: CoordinatorState
    ) -> None:
        if after.timing != before.timing:
            _kept(before.timing, event, after.timing)
            self.ever.append(after.timing)
            self.since.append((seq, after.timing))
        if isinstance(event, CheckpointTriggered):
            _in_time(before, event)
            self._has_the_timeout(event)
        if isinstance(event, CheckpointFailed):
            _aborted(before, event, after)

    def _has_the_timeout(self, event: CheckpointTriggered) -> None:
        """One that was in force from the moment on at which the plan was made."""
        plan = event.plan
        newer = [timing for seq, timing in self.since if seq > plan.journal_seq]
        older = [timing for seq, timing in self.since if seq <= plan.journal_seq][-1:]
        allowed = {timing.timeout_ms or DECLARED_TIMEOUT_MS for timing in (*older, *newer)}
        given_ms = plan.expires_at_ms - plan.triggered_at_ms
        if given_ms not in allowed:
            raise Broken(13, "a plan has not the timeout in force", f"{given_ms}, {allowed}")


def _kept(before: Timing, event: Event, after: Timing) -> None:
    if isinstance(event, JobSubmitted):
        if after != Timing():
            raise Broken(13, "a new submission has the times of another one", f"{after}")
        return
    if not isinstance(event, CheckpointingChanged):
        raise Broken(13, "what a person changed was changed by another act", type(event).__name__)
    _one_wish(before, after)


def _one_wish(before: Timing, after: Timing) -> None:
    """A pause leaves the times as they are, and a change of the times leaves the pause."""
    wish = after.changed_by.partition(" ")[0]
    changed = {"changed_at_ms": None, "changed_by": ""}
    if wish in (PAUSES, RESUMES):
        expected = replace(before, is_paused=wish == PAUSES, **changed)  # type: ignore[arg-type]
        if replace(after, **changed) != expected:  # type: ignore[arg-type]
            raise Broken(13, "a pause changed the times", f"{before} -> {after}")
    elif after.is_paused != before.is_paused:
        raise Broken(13, "other times changed the pause", f"{before} -> {after}")


def _in_time(before: CoordinatorState, event: CheckpointTriggered) -> None:
    request, timing = event.request, before.timing
    is_forced = request.is_forced and not before.configuration.unaligned
    if not request.is_periodic or is_forced:
        return
    name = f"{event.plan.checkpoint_id}"
    if timing.is_paused:
        raise Broken(13, "a paused job takes a periodic checkpoint", name)
    last_ms, now_ms = before.last_triggered_at_ms, event.plan.triggered_at_ms
    if timing.interval_ms is None or last_ms is None or last_ms > now_ms:
        return
    if now_ms - last_ms < EARLY * timing.interval_ms - 1:
        raise Broken(13, "a checkpoint comes before the interval in force is over", name)


def _aborted(before: CoordinatorState, event: CheckpointFailed, after: CoordinatorState) -> None:
    if event.reason is not CheckpointFailureReason.CHECKPOINT_ABORTED_BY_USER:
        return
    wanted = int(event.message.rpartition(" ")[2])
    allowed = {wanted}
    for pending in before.pending:  # In the order of their ids: each after its parent.
        if pending.parent in allowed:
            allowed.add(pending.checkpoint_id)
    left = {pending.checkpoint_id for pending in after.pending}
    gone = {p.checkpoint_id for p in before.pending if p.checkpoint_id not in left}
    if gone - allowed:
        raise Broken(13, "an abort ended another checkpoint", f"{wanted}: {sorted(gone)}")
    if after.status is not before.status:
        raise Broken(13, "an abort of one checkpoint ended the job", f"{after.status}")
