"""Repair: a journal whose newest entries are damaged goes on from the last one that can be read.

The content of a damaged entry is unknown, so its effects are undone: the repaired journal takes a
generation, and ids, above every one that a lost entry may have used.  Pending checkpoints are
aborted, except those that are known to have completed, by something that only follows a
completion: statistics, a table that shows the checkpoint, or the end of what it subsumed.  A
running job restarts, and rolls its tables back from lost checkpoints.

A repair is an append behind the damaged entries.  So it may race with live coordinators, and be
repeated: one of them wins, and the others reload.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sluice.coordinator.record import carry_out
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import CheckpointingMode
from sluice.core.events import CheckpointCompleted, JournalRepaired
from sluice.core.ids import CheckpointId, Generation
from sluice.core.pending import PendingCheckpoint
from sluice.core.state import CoordinatorState
from sluice.errors import ProtocolViolation, RestoreError
from sluice.figures.record import CheckpointStatistics, CheckpointStatus
from sluice.job.job import Job
from sluice.job.places import open_sinks
from sluice.store.checkpoints import StatisticsStore
from sluice.store.journal import JournalDamage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """The plan of a repair, and what is lost by it.

    ``completed`` is completed again; ``aborted`` were pending before the damage, and of those in
    ``unproven`` the ``_metadata`` is there, so that they may have been completed; ``untold`` were
    triggered by a lost entry, as their plans say.
    """

    damage: JournalDamage
    completed: CheckpointCompleted | None
    aborted: tuple[CheckpointId, ...]
    unproven: tuple[CheckpointId, ...]
    untold: tuple[CheckpointId, ...]
    generation: Generation
    next_checkpoint_id: CheckpointId

    @property
    def state(self) -> CoordinatorState:
        """The state before the damage."""
        return self.damage.before.state

    @property
    def base(self) -> CheckpointId | None:
        """The checkpoint that the job goes on from."""
        return self.state.base if self.completed is None else self.completed.checkpoint_id

    @property
    def owed(self) -> CompletedCheckpoint | None:
        """The checkpoint whose commit is repeated, as far as the state before the damage knows."""
        return self.state.owed


def plan_repair(job: Job) -> RepairPlan | None:
    """The plan that ``repair`` would carry out; None where the newest entry can be read.

    Raises:
        ProtocolViolation: no entry that can be read adjoins the damaged ones.
    """
    damage = job.journal.damage()
    if damage is None:
        return None
    state, lost = damage.before.state, len(damage.entries)
    completed = _completed(job, state)
    aborted = tuple(
        pending.checkpoint_id
        for pending in state.pending
        if completed is None or pending.checkpoint_id != completed.checkpoint_id
    )
    known = _ids(job)
    newest = max([*known, state.next_checkpoint_id - 1])
    return RepairPlan(
        damage=damage,
        completed=completed,
        aborted=aborted,
        unproven=tuple(
            one for one in aborted if job.store.get(job.paths.metadata(one)) is not None
        ),
        untold=tuple(sorted(one for one in known if one >= state.next_checkpoint_id)),
        # Each lost entry may have begun one generation, and given one id.
        generation=Generation(state.generation + lost + 1),
        next_checkpoint_id=CheckpointId(newest + lost + 1),
    )


def repair(job: Job, planned: RepairPlan, *, by: str) -> CoordinatorState | None:
    """Append what was *planned*, and do what it asks for; *by* says who asked.

    None where the journal's end is not what it was any more: plan again.
    """
    first, last = planned.damage.entries[0].seq, planned.damage.entries[-1].seq
    event = JournalRepaired(
        at_ms=job.now_ms(),
        generation=planned.generation,
        first=first,
        last=last,
        next_checkpoint_id=planned.next_checkpoint_id,
        completed=planned.completed,
        message=(
            f"{planned.damage.which} could not be read, so it goes on from {first - 1}; "
            f"asked for by {by}"
        ),
    )
    transition = job.journal.repair(planned.damage, lambda _: event)
    if transition is None:
        return None
    carry_out(job, transition)
    return transition.state


def _completed(job: Job, state: CoordinatorState) -> CheckpointCompleted | None:
    """The completion of the oldest pending checkpoint, if a lost entry is known to have had it."""
    if not state.pending or state.owed is not None:
        return None
    pending = state.pending[0]
    if not _has_metadata(job, state, pending):
        return None
    kept = StatisticsStore(job.store, job.paths).read(pending.checkpoint_id)
    line = None if kept is None or not _is_of(kept, pending) else kept.checkpoint
    is_told = line is not None and line.status is CheckpointStatus.COMPLETED
    if not (is_told or (line is None and _had_effect(job, state, pending))):
        return None
    return CheckpointCompleted(
        generation=state.generation,
        at_ms=(line and line.completed_timestamp) or job.now_ms(),
        checkpoint_id=pending.checkpoint_id,
        attempts=pending.current_attempts,
        checkpointed_bytes=(line and line.checkpointed_size) or 0,
        full_bytes=(line and line.state_size) or 0,
    )


def _is_of(kept: CheckpointStatistics, pending: PendingCheckpoint) -> bool:
    line = kept.checkpoint
    return (line.trigger_timestamp, line.cause) == (pending.triggered_at_ms, pending.cause)


def _had_effect(job: Job, state: CoordinatorState, pending: PendingCheckpoint) -> bool:
    """Whether a sink shows the checkpoint, or the one that it subsumes is gone: that comes after
    its completion only.  Statistics are best effort, so none may be there.
    """
    if state.configuration.mode is CheckpointingMode.AT_LEAST_ONCE:
        return False
    sinks = open_sinks(job, state.configuration.params).values()
    if any(sink.is_published(pending.checkpoint_id) for sink in sinks):
        return True
    is_own = state.base is not None and state.origin is None
    return is_own and job.store.get(job.paths.metadata(state.base or 0)) is None


def _has_metadata(job: Job, state: CoordinatorState, pending: PendingCheckpoint) -> bool:
    """Whether the ``_metadata`` of this very checkpoint is there, and whole."""
    try:
        found = job.metadata(pending.checkpoint_id)
    except (ProtocolViolation, RestoreError):
        return False
    own = (state.life, state.generation, pending.parent, pending.current_attempts)
    return (found.life, found.generation, found.parent, found.attempts) == own


def _ids(job: Job) -> set[CheckpointId]:
    """The ids in the names of plans, acks and statistics."""
    folders = (job.store.list(job.paths.checkpoints()), job.store.list(job.paths.all_statistics()))
    found = {job.paths.checkpoint_of(listed.key) for listed in folders[0]}
    found |= {
        job.paths.statistics_of(listed.key)
        for listed in folders[1]
        if job.paths.is_statistics(listed.key)
    }
    return {one for one in found if one is not None}
