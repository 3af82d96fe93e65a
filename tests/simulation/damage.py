"""Damage in the bucket: a file of a completed checkpoint has other bytes, or is gone.

``_metadata``, state, what is in flight, and rows that a place outside has still to be given; one
file at a time, until a person puts it back.  The invariants see the bytes that were written, so
whatever is computed from others breaks them.
"""

from __future__ import annotations

from random import Random

from sluice.coordinator.failure import fail_checkpoint, watch
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.errors import FencedError, SluiceError, TableMismatch
from tests.simulation.acts import act
from tests.simulation.broken import Broken
from tests.simulation.noted import NOTED
from tests.simulation.snapshots import NAMES
from tests.simulation.spark_jobs import run_stages
from tests.simulation.world import World

# Two restarts find any damage, and each may wait for more failed checkpoints than are tolerated.
MAX_ROUNDS = 16
LONG_MS = 10_000_000  # Longer than any timeout, pause or skew.


@act(weight=lambda world: 3 if world.settings.is_damaged and world.head.completed else 0)
def damages(world: World) -> str:
    """One digit is another one, so that the object still decodes; or it is gone."""
    if world.bucket.damaged or not world.head.completed:
        return "nothing more"
    retained = world.pick([one.checkpoint_id for one in world.head.completed])
    metadata = world.witness.metadata[retained]
    keys = [one for one in _keys(world, metadata) if one in world.bucket.objects]
    if not keys:
        return "nothing"
    key = world.pick(keys)
    owed = [one for one in _owed(world, metadata) if one in world.bucket.objects]
    key = Random(key).choice([key, *owed])  # A draw of the world's would change all worlds.
    if world.chance(0.3):
        world.bucket.is_damaged(key, None)
        return f"{key} is gone"
    body = world.bucket.objects[key]
    digits = [place for place, byte in enumerate(body) if byte in b"12345678"]
    if not digits:
        return "nothing"
    place = world.random.choice(digits)
    world.bucket.is_damaged(key, body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :])
    return f"{key} at {place}"


@act(weight=lambda world: 0.5 if world.bucket.damaged else 0)
def puts_it_back(world: World) -> str:
    """A person finds the bytes elsewhere."""
    damaged = [*world.bucket.damaged]
    world.bucket.is_mended()
    return ", ".join(damaged)


def meets_the_damage(world: World) -> None:
    """A job that continues what is damaged does not come back to it for ever: it goes on from
    another checkpoint, or stops and says which file it is.
    """
    for _ in range(MAX_ROUNDS):
        world.time.advance(LONG_MS)
        state = world.job.state()
        if not _is_met(world):
            return
        if state.status not in (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FAILING):
            return
        for act_of_its_own in (lambda: watch(world.job), lambda: _tries(world)):
            try:
                act_of_its_own()
            except (TableMismatch, FencedError):  # Of a place that was put back: a person decides.
                return
            except SluiceError:
                pass  # Whoever meets the damage fails the job over, or waits for who does.
    raise Broken(0, "a job comes back to what is damaged", str(world.job.state().restores_of_base))


def check_passed_over(world: World, passed_over: tuple[int, ...]) -> None:
    """Only what was damaged is passed over by a restart of its own."""
    for one in passed_over:
        metadata = world.witness.metadata[one]
        if not {*_keys(world, metadata), *_staged(metadata)} & world.bucket.ever_damaged:
            raise Broken(3, "a whole checkpoint was passed over", f"{one}")


def _is_met(world: World) -> bool:
    state = world.job.state()
    base = state.base
    if base is None or state.origin is not None:
        return False
    metadata = world.witness.metadata[base]
    return bool({*_keys(world, metadata), *_owed(world, metadata)} & world.bucket.damaged.keys())


def _tries(world: World) -> None:
    """An epoch, whose subtasks read all that they continue."""
    job = world.job
    outcome = trigger(job, is_periodic=False)
    if not isinstance(outcome, Triggered):
        return
    plan = outcome.plan
    try:
        if not run_stages(world, plan):
            return
    except SluiceError as error:
        fail_checkpoint(
            job, plan.checkpoint_id, Reason.TASK_FAILURE, str(error), is_task_failure=True
        )
    else:
        fail_checkpoint(job, plan.checkpoint_id, Reason.CHECKPOINT_EXPIRED, "nobody was hurt")


def _owed(world: World, metadata: CheckpointMetadata) -> list[str]:
    """What the commit reads that is owed; none where it is made."""
    own = world.head.completed_checkpoint(metadata.checkpoint_id)
    return [] if own is None or own.is_committed else _staged(metadata)


def _staged(metadata: CheckpointMetadata) -> list[str]:
    """For the place outside: a table in the bucket shows the files themselves."""
    folder = NAMES.table(NOTED)
    return [f"{folder}/{one.file}" for one in metadata.committables if one.sink == NOTED]


def _keys(world: World, metadata: CheckpointMetadata) -> list[str]:
    """What a restart from the checkpoint reads, of the job's own."""
    savepoints = NAMES.savepoints()
    files = [one.key for one in metadata.files if not one.key.startswith(savepoints)]
    return [world.witness.paths.metadata(metadata.checkpoint_id), *files]
