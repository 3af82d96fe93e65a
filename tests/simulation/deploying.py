"""The acts of those who run stages: deploy, work, die and run again, decline."""

from __future__ import annotations

from sluice.coordinator.failure import fail_checkpoint
from sluice.core.answers import Decline
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.pending import PendingCheckpoint
from sluice.errors import CorruptSegment
from tests.simulation.acts import act
from tests.simulation.bucket import Crash
from tests.simulation.spark_jobs import spark_job
from tests.simulation.submitted import submitted
from tests.simulation.world import EXPECTED, World

STEPS = 3


def _next_stage(world: World, pending: PendingCheckpoint) -> str | None:
    """The first stage that was not deployed in its attempt and whose input is complete."""
    for task in pending.tasks:
        uid, depth = task.uid, world.stages.index(task.uid)
        is_deployed = (pending.checkpoint_id, uid, pending.attempt_of(uid)) in world.deployed
        if is_deployed or uid in pending.overtaken:
            continue
        before = world.head.pending_checkpoint(pending.parent or 0)
        is_sealed = depth == 0 or task.is_unaligned or world.is_sealed(pending, depth - 1)
        is_continued = before is None or world.is_sealed(before, depth)
        return uid if is_sealed and is_continued else None
    return None


def _is_deployable(world: World) -> bool:
    return any(_next_stage(world, pending) is not None for pending in world.head.pending)


@act(weight=lambda world: 12 if _is_deployable(world) else 0.3 if world.head.pending else 0.1)
def deploys(world: World) -> str:
    """Start the next stage; now and then a stray of an earlier attempt, or of any stage.

    No subtask runs as an attempt before the journal has given its number.
    """
    pending = world.pending()
    stage = _next_stage(world, pending)
    if stage is None or world.chance(0.1):
        stage = world.pick([task.uid for task in pending.tasks])
    attempt = pending.attempt_of(stage)
    if world.chance(0.1):
        attempt = max(0, attempt - world.random.choice([1, 1, 2]))
    plan = world.job.plan(pending.checkpoint_id)
    if plan is None:
        return "no plan"
    started = spark_job(world, plan, stage, attempt)
    world.deployed.add((plan.checkpoint_id, stage, attempt))
    submitted(world, plan, stage, attempt)
    if started is None:
        return f"{stage} of {plan.checkpoint_id} ran chained"
    world.running.append(started)
    return f"{len(started.tasks)} subtasks of {plan.checkpoint_id} {stage}.{attempt}"


@act(weight=lambda world: 45 if world.running else 0)
def works(world: World) -> str:
    """Some tasks of one Spark job, which may run again, or die and perhaps be run again."""
    if not world.running:
        return "nobody"
    pending = {p.token for p in world.head.pending}
    useful = [one for one in world.running if one.plan.token in pending]
    workers = useful if useful and world.chance(0.9) else world.running
    one = world.pick(workers, lambda job: job.label)
    world.running.remove(one)  # It takes one step at a time.
    steps = world.random.randint(1, STEPS)
    token = f"t{world.random.randrange(10**6)}"
    is_retried, is_repeated = world.chance(0.8), world.chance(0.1)
    try:
        while not one.is_done and steps > 0:
            one.advance(world)
            steps -= 1
    except (Crash, *EXPECTED):
        if is_retried:
            world.running.append(one.again(token))
        raise
    except CorruptSegment as error:
        failure = Reason.TASK_FAILURE
        fail_checkpoint(
            world.job, one.plan.checkpoint_id, failure, str(error), is_task_failure=True
        )
        raise
    if not one.is_done:
        world.running.append(one)
    elif is_repeated:
        world.running.append(one.again(token))
    return f"{one.plan.checkpoint_id} {one.label} up to step {one.step}"


@act(weight=lambda world: 0.4 if world.head.pending else 0)
def declines(world: World) -> str:
    pending = world.pending()
    subtask = world.random.choice(pending.not_yet_acknowledged)
    attempt = world.random.choice([1, pending.attempt_of(subtask.stage)])
    world.job.answers.write_decline(
        Decline(
            checkpoint_id=pending.checkpoint_id,
            subtask=subtask,
            attempt=attempt,
            message="no",
            reason=Reason.CHECKPOINT_DECLINED,
            plan=pending.token,
        )
    )
    return f"{pending.checkpoint_id} {subtask}.{attempt}"
