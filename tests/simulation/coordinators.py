"""The acts of coordinators, a restorer, a watchdog, a person, time and the bucket."""

from __future__ import annotations

from string import digits
from typing import Any

from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, overtake, start_attempt, watch
from sluice.coordinator.garbage import collect_garbage
from sluice.coordinator.publication import commit, publish_early
from sluice.coordinator.record import carry_out
from sluice.coordinator.restore import stop
from sluice.coordinator.trigger import Queued, Triggered, trigger
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.events import DiscardPending, Transition
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.surface.checkpoints import history
from tests.simulation.acts import act
from tests.simulation.tables import published_rows
from tests.simulation.world import World

REASONS = (Reason.CHECKPOINT_EXPIRED, Reason.TASK_FAILURE, Reason.FINALIZE_CHECKPOINT_FAILURE)
STOPS = (JobStatus.SUSPENDED, JobStatus.CANCELED, JobStatus.FAILED)
WITHOUT_DIGITS = str.maketrans("", "", digits)  # Ids differ when an earlier turn is left out.
SAVEPOINTS = (
    *[CheckpointType.SAVEPOINT] * 10,
    CheckpointType.SAVEPOINT_SUSPEND,
    CheckpointType.SAVEPOINT_TERMINATE,
)


def _is_idle(world: World) -> bool:
    head = world.head
    has_room = len(head.pending) < head.configuration.max_concurrent
    return head.status is JobStatus.RUNNING and has_room


def _is_acknowledged(world: World) -> bool:
    return any(
        all(world.is_sealed(pending, depth) for depth in range(len(world.stages)))
        for pending in world.head.pending[:1]
    )


def _is_unpublished(world: World) -> bool:
    latest = world.head.latest_completed
    return latest is not None and not latest.is_committed


def _some_id(world: World) -> CheckpointId:
    """Most often the one that is next; now and then one whose actor was asleep, or too early."""
    if world.head.pending and world.chance(0.7):
        return world.head.pending[0].checkpoint_id
    newest = world.head.next_checkpoint_id - 1
    return CheckpointId(max(1, newest - world.random.choice([0, 0, 0, 0, 1, 2])))


def _urge_to_save(world: World) -> float:
    """Where names are taken anew: at once, and rarely one that is taken."""
    if not world.settings.is_disposing:
        return world.settings.savepoints
    _, pointer = world.witness.pointers.get("s1", (0, None))
    return 0.6 if pointer is None or pointer.is_gone else 0.1


@act(weight=lambda world: 25 if _is_idle(world) else 1)
def triggers(world: World) -> str:
    type_, name = CheckpointType.CHECKPOINT, None
    if world.chance(_urge_to_save(world)):
        type_ = world.random.choice(SAVEPOINTS)
        is_taken = world.chance(0.3) and world.savepoints
        name = world.savepoints[-1] if is_taken else f"s{len(world.savepoints) + 1}"
        if world.settings.is_disposing:  # One name, mostly, which is taken anew.
            name = "s1" if world.chance(0.9) else "s2"
        world.savepoints.append(name)
    request = {
        "type": type_,
        "savepoint_name": name,
        "is_periodic": world.chance(0.2),
        "is_forced": world.chance(0.1),
        "request_id": f"r{world.random.getrandbits(32)}",
    }
    return _asks(world, request)


@act(weight=lambda world: 6 if world.queued else 0)
def asks_again(world: World) -> str:
    """The owner of a queued request looks after it; some never do."""
    if not world.queued:
        return "nobody"
    request = world.queued.pop(world.random.randrange(len(world.queued)))
    return _asks(world, request)


def _asks(world: World, request: dict[str, Any]) -> str:
    outcome = trigger(world.job, **request)
    if isinstance(outcome, Queued):
        world.queued.append(request)
    if not isinstance(outcome, Triggered):
        return str(outcome)
    plan = outcome.plan
    world.witness.was_told_triggered(plan)
    return f"{plan.checkpoint_id} {plan.type.value} {plan.records} records after {plan.parent}"


def _urge_to_finalize(world: World) -> float:
    """Less when others follow: they may be done before it is completed."""
    if not _is_acknowledged(world):
        return 1 if world.head.pending else 0.3
    return 5 if len(world.head.pending) > 1 else 30


@act(weight=_urge_to_finalize)
def finalizes(world: World) -> str:
    checkpoint_id = _some_id(world)
    finalize(world.job, checkpoint_id)
    world.witness.was_told_completed(checkpoint_id)
    return f"{checkpoint_id}"


@act(weight=lambda world: 15 if _is_unpublished(world) else 0.5)
def commits(world: World) -> str:
    checkpoint_id = _some_id(world)
    commit(world.job, checkpoint_id)
    world.witness.was_told_committed(checkpoint_id)
    return f"{checkpoint_id}"


def _is_to_be_shown(world: World) -> bool:
    return any(
        world.is_sealed(pending, len(world.stages) - 1)
        and pending.checkpoint_id not in world.witness.manifests
        for pending in world.head.pending
    )


@act(weight=lambda world: 40 * _is_to_be_shown(world) if world.settings.is_early else 0)
def shows_early(world: World) -> str:
    """The driver of the last stage, when all its subtasks have acknowledged."""
    checkpoint_id = world.pending().checkpoint_id
    publish_early(world.job, checkpoint_id, world.stages[-1])
    return f"{checkpoint_id}"


def _urge_to_fail(world: World) -> float:
    """Rarely; more often while rows are being shown, which is soon done."""
    frame = world.frame
    return 60 if frame is not None and frame.turn.name == shows_early.__name__ else 0.6


@act(weight=_urge_to_fail)
def fails(world: World) -> str:
    checkpoint_id, reason = _some_id(world), world.random.choice(REASONS)
    is_task_failure = reason is Reason.TASK_FAILURE
    fail_checkpoint(world.job, checkpoint_id, reason, "x", is_task_failure=is_task_failure)
    return f"{checkpoint_id} {reason.value}"


def _aborted(late: Transition) -> list[CheckpointId]:
    return [one.checkpoint_id for one in late.commands if isinstance(one, DiscardPending)]


def _stages_beside(world: World) -> bool:
    """Whether a checkpoint that has the number of one that was aborted is being written."""
    ids = [one for _, late in world.aborts for one in _aborted(late)]
    return any(
        pending.checkpoint_id in ids and world.is_sealed(pending, len(world.stages) - 1)
        for pending in world.head.pending
    )


@act(weight=lambda world: 20 if world.aborts and _stages_beside(world) else 0)
def oversleeps_an_abort(world: World) -> str:
    """Journaled in time, and carried out when the root was emptied, and the job has begun anew."""
    if not world.aborts:
        return "nobody"
    job, late = world.aborts.pop()
    carry_out(job, late)
    return f"{_aborted(late)}"


def _urge_to_retry(world: World) -> float:
    """More often while a checkpoint is being completed: it may complete as no other attempt."""
    frame = world.frame
    if frame is not None and frame.turn.name == finalizes.__name__:
        return 12
    return 0.8 if world.head.pending else 0.1


@act(weight=_urge_to_retry)
def retries(world: World) -> str:
    """A stage runs again, as a retried Airflow task would."""
    pending, stage = world.pending(), world.random.choice(world.stages)
    attempt = start_attempt(world.job, pending.checkpoint_id, stage)
    return f"{stage} of {pending.checkpoint_id}: attempt {attempt}"


@act(weight=lambda world: 2 if world.head.configuration.unaligned and world.head.pending else 0)
def overtakes(world: World) -> str:
    """The aligned checkpoint timeout has passed, by some machine's clock."""
    pending, stages = world.pending(), world.random.sample(world.stages, len(world.stages))
    behind = stages[: world.random.randint(1, len(stages))]
    state = overtake(world.job, pending.checkpoint_id, behind)
    after = state.pending_checkpoint(pending.checkpoint_id)
    return f"{after.overtaken if after is not None else 'nothing'} of {pending.checkpoint_id}"


@act(weight=0.5)
def truncates(world: World) -> str:
    """Truncate the journal to far less than in production, so that sleepers notice it."""
    return f"{world.job.journal.truncate(keep=world.random.choice([1, 2, 4]))} entries"


@act(weight=0.5)
def collects(world: World) -> str:
    return f"{len(collect_garbage(world.job, grace_ms=0).files)} files"


@act(weight=0.15)
def stops(world: World) -> str:
    return stop(world.job, world.random.choice(STOPS)).status.value


@act(weight=2)
def watches(world: World) -> str:
    grace_ms = world.random.choice([0, 60_000])
    kept = world.random.choice([1, 3, 8])
    return "; ".join(watch(world.job, commit_grace_ms=grace_ms, kept_entries=kept).actions)


@act(weight=0.5)
def looks(world: World) -> str:
    """Read the results, or the history."""
    if world.chance(0.3):
        return f"{len(history(world.job))} checkpoints"
    return f"{len(published_rows(world))} rows"


@act(weight=2)
def waits(world: World) -> str:
    jump_ms = world.random.choice([1, 500, 2_000, 61_000])
    world.time.advance(jump_ms)
    return f"{jump_ms} ms"


@act(weight=0.5)
def sets_its_clock(world: World) -> str:
    """Forward or back; at most ten minutes off."""
    clock = world.me.clock
    jump_ms = world.random.choice([-300_000, -61_000, -1_000, 1_000, 61_000, 300_000])
    clock.skew_ms = max(-600_000, min(600_000, clock.skew_ms + jump_ms))
    return f"by {jump_ms} ms"


@act(weight=lambda world: 6 if world.bucket.under_way or world.at_the_place else 0)
def arrives(world: World) -> str:
    """A request that was given up long ago."""
    under_way = (
        world.at_the_place if world.at_the_place and world.chance(0.5) else world.bucket.under_way
    )
    if not under_way:
        return "nothing"
    one = world.pick(under_way, lambda request: request.label.translate(WITHOUT_DIGITS))
    under_way.remove(one)
    one.apply()
    return one.label


@act(weight=0.3)
def restarts_the_bucket(world: World) -> str:
    world.bucket.down_for = world.random.choice([1, 4, 15, 40])
    return f"for {world.bucket.down_for} calls"
