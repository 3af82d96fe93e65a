"""A restart without a person: from the latest completed checkpoint, unless that is damaged.

The first restart from a checkpoint looks whether its files are there.  A job that fails again
before it completed another one has them read and compared, too: something that it needs is wrong,
and coming back to it for ever would not mend it.  Then the job stops, or goes on from the next
older checkpoint that is whole, as configured.  See docs/adr/0005-damage-and-equal-failures.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sluice.coordinator.commands import record
from sluice.coordinator.observation import damage_of_owed_rows
from sluice.coordinator.restore_plan import plan_restore
from sluice.core.configuration import JobConfiguration
from sluice.core.ids import CheckpointId
from sluice.core.messages import JobFailed, JobStopped
from sluice.core.properties import DamagedCheckpoint, JobStatus
from sluice.core.restoring import (
    FromCheckpoint,
    Latest,
    Restore,
    RestoreOptions,
    RestoreTarget,
    Stop,
)
from sluice.core.state import CoordinatorState
from sluice.core.transition import Verdict
from sluice.errors import FencedError, ProtocolViolation, RestoreError
from sluice.job.job import Job

log = logging.getLogger(__name__)

NAMED_PROBLEMS = 3  # The journal keeps so many; `sluice restore --dry-run` names all.


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """What to restore, and how; ``passed_over`` are damaged, and ``message`` says how."""

    target: RestoreTarget
    options: RestoreOptions
    decision: Restore | Stop
    passed_over: tuple[CheckpointId, ...] = ()
    message: str = ""


def plan_restart(
    job: Job,
    state: CoordinatorState,
    options: RestoreOptions,
    *,
    configuration: JobConfiguration | None = None,
) -> Restart:
    """What a restart of *state* would do.  Writes nothing.

    A ``Stop`` that is damaged is final: no restart will do better, and *message* says what to do.
    """
    compares = options.compare_checksums and state.restores_of_base > 0
    options = replace(options, compare_checksums=compares)
    decision = plan_restore(job, Latest(), options, configuration=configuration)
    latest = Restart(target=Latest(), options=options, decision=decision)
    if not isinstance(decision, Stop) or not decision.is_damaged:
        return latest
    goes_back = replace(options, compare_checksums=True, roll_back_tables=True)
    passed, said = [state.base], [_said(state.base, decision)]
    for checkpoint_id in _ancestors(state):
        target = FromCheckpoint(checkpoint_id)
        older = plan_restore(job, target, goes_back, configuration=configuration)
        if isinstance(older, Restore):
            if state.configuration.on_damaged_checkpoint is DamagedCheckpoint.STOP:
                said.append(_advice(job, checkpoint_id))
                break
            return Restart(
                target=target,
                options=goes_back,
                decision=older,
                passed_over=tuple(one for one in passed if one is not None),
                message="; ".join(said),
            )
        passed.append(checkpoint_id)
        said.append(_said(checkpoint_id, older))
    else:
        said.append("no older checkpoint can be restored: restore a savepoint")
    return replace(latest, message="; ".join(said))


def give_up(job: Job, state: CoordinatorState, message: str) -> None:
    """Stop the job for good, and have the journal say why.

    Raises:
        FencedError: it moved on to another generation.
    """
    stopped = JobStopped(
        at_ms=job.clock(), generation=state.generation, status=JobStatus.FAILED, message=message
    )
    transition = record(job, lambda _: stopped)
    if transition.verdict is Verdict.FENCED:
        raise FencedError(f"another coordinator restored job {job.pipeline.uid!r} first")
    log.error("job stopped pipeline=%s because=%s", job.pipeline.uid, message)


def fail_over_if_damaged(job: Job, state: CoordinatorState) -> bool:
    """Fail the job over if what it continues cannot be read, or what that owes the tables cannot
    be published: then no checkpoint will ever begin.

    False if both can, or the job went on meanwhile, for then something else was wrong.
    """
    damage = _damage_of_base(job, state)
    if not damage:
        return False
    now = job.state()
    if _continued(now) != _continued(state):
        return False  # It was subsumed, or committed, while we read it.
    failed = JobFailed(
        generation=state.generation,
        at_ms=job.clock(),
        message=f"checkpoint {state.base} is damaged: {_shortened(damage)}",
    )
    transition = record(job, lambda _: failed)
    return transition.verdict is Verdict.APPLIED


def _damage_of_base(job: Job, state: CoordinatorState) -> Sequence[str]:
    try:
        metadata = job.base_metadata(state)
        if metadata is None or state.origin is not None:
            return ()
        return damage_of_owed_rows(job, state, metadata, state.configuration)
    except (RestoreError, ProtocolViolation) as error:
        return (str(error),)


def _continued(state: CoordinatorState) -> tuple[object, ...]:
    latest = state.latest_completed
    return state.generation, state.base, state.origin, latest is not None and latest.is_committed


def _ancestors(state: CoordinatorState) -> Iterator[CheckpointId]:
    """What the base continues, and so on, as far as it is retained: not what was left behind."""
    latest = state.latest_completed
    while latest is not None and latest.parent is not None:
        latest = state.completed_checkpoint(latest.parent)
        if latest is not None:
            yield latest.checkpoint_id


def _said(checkpoint_id: CheckpointId | None, stop: Stop) -> str:
    return f"checkpoint {checkpoint_id} cannot be restored: {_shortened(stop.problems)}"


def _advice(job: Job, checkpoint_id: CheckpointId) -> str:
    return (
        f"checkpoint {checkpoint_id} is whole: 'sluice restore {job.pipeline.uid} --checkpoint "
        f"{checkpoint_id} --roll-back-tables' goes back to it"
    )


def _shortened(problems: Sequence[str]) -> str:
    rest = len(problems) - NAMED_PROBLEMS
    named = "; ".join(problems[:NAMED_PROBLEMS])
    return f"{named}; and {rest} more" if rest > 0 else named
