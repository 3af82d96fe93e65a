"""The acts of people on the job and its places: submit, restore, lose and empty them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sluice.coordinator.failure import abort_checkpoint
from sluice.coordinator.requests import UserRequest, request_checkpoint
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.submission import TableConsent, configure, submit
from sluice.core.configuration import CheckpointType, ClaimMode, JobStatus
from sluice.core.ids import NO_GENERATION, CheckpointId
from sluice.core.restoring import FromCheckpoint, Latest, RestoreOptions, RestoreTarget
from sluice.core.timeline import Recovery, Writer
from sluice.errors import FencedError, TableMismatch
from tests.simulation.acts import act
from tests.simulation.noted import pointed_elsewhere
from tests.simulation.timing import ABORTS
from tests.simulation.world import World

COPY = "memory://copy/auctions/tables/noted"  # Where the sink of another job is.


@act(weight=lambda world: 8 if world.head.generation == NO_GENERATION else 0.5)
def submits(world: World) -> str:
    parallelism = world.random.choice([1, 2, 2, 3])
    consent = TableConsent(roll_back=world.chance(0.3), accept=world.chance(0.1))
    configuration = configure(world.job.pipeline, {}, parallelism=parallelism)
    submit(world.job, configuration, tables=consent)
    return f"with parallelism {parallelism}, {consent}"


@act(weight=lambda world: 0.6 if world.head.pending else 0.1)
def aborts_one(world: World) -> str:
    """Any pending one, or one that has ended by now."""
    ids = [pending.checkpoint_id for pending in world.head.pending]
    checkpoint_id = world.pick(ids, ids.index) if ids else CheckpointId(1)
    abort_checkpoint(world.job, checkpoint_id, by=f"{ABORTS} {checkpoint_id}")
    return f"{checkpoint_id}"


@act(weight=lambda world: 0.6 if world.head.status is JobStatus.RUNNING else 0.1)
def asks_for_one(world: World) -> str:
    """At the command line: whoever asks for a checkpoint next takes it up."""
    if world.chance(0.5):
        request_checkpoint(world.job, UserRequest(by="a person"))
        return "a checkpoint"
    name = f"p{len(world.savepoints) + 1}"
    request = UserRequest(by="a person", type=CheckpointType.SAVEPOINT, name=name)
    request_checkpoint(world.job, request)
    world.savepoints.append(name)
    return name


def _urge_to_restore(world: World) -> float:
    """Often again, at once, and beside one that has not come to an end."""
    if world.head.status is not JobStatus.RUNNING:
        return 8
    return 8 if world.witness.was_just_restored or world.at_the_place else 1


@act(weight=_urge_to_restore)
def restores(world: World) -> str:
    """Latest, or what is named; now and then with another parallelism."""
    target = _some_target(world)
    parallelism = world.random.choice([None, None, 1, 2, 3])
    configuration = (
        None if parallelism is None else configure(world.job.pipeline, {}, parallelism=parallelism)
    )
    only = world.head.generation if world.chance(0.5) else None
    claim_mode = world.random.choice([*ClaimMode])
    options = RestoreOptions(
        claim_mode=claim_mode,
        roll_back_tables=world.chance(0.3),
        accept_tables=world.chance(0.06),
    )
    world.sleeps_in_recover = world.chance(0.2)
    restored = restore(
        world.job, target, options, only_generation=only, configuration=configuration
    )
    name = restored.origin.savepoint if restored.origin is not None else None
    world.witness.was_told_restored(restored.checkpoint_id, name)
    if options.roll_back_tables:
        world.readers.was_told_rolled_back(restored.state)
    tables = "roll back" * options.roll_back_tables + "accept" * options.accept_tables
    what = f"{name or restored.checkpoint_id} {claim_mode.value} {tables}"
    return f"{type(target).__name__} -> {what}, parallelism {parallelism}"


def _some_target(world: World) -> RestoreTarget:
    retained = [c.checkpoint_id for c in reversed(world.head.completed)]
    return world.random.choice(
        [
            *[Latest()] * 2,
            FromCheckpoint(world.pick(retained, retained.index) if retained else CheckpointId(1)),
            savepoint_target(world.job, world.pick(world.savepoints))
            if world.savepoints
            else Latest(),
        ]
    )


@act(weight=lambda world: 0.4 if world.backups and world.frame is None else 0)
def puts_the_place_back(world: World) -> str:
    """A database's point-in-time recovery: its connections are gone, and what came after."""
    lives = ("", world.place.timeline.life)
    backups = [one for one in world.backups if one[0].timeline.life in lives]
    if not backups:
        return "to nothing"
    ago = world.random.choice([1, 1, 2, 3])
    world.place, seen = backups[-ago:][0]
    world.readers.was_put_back(seen)
    world.at_the_place.clear()
    return f"by {ago} changes to {world.place.timeline.published}"


def _is_disturbed(weight: float) -> Callable[[World], float]:
    """*weight* where other people have to do with the place, and nobody is at it now."""
    return lambda world: weight if world.settings.is_disturbed and world.frame is None else 0


@act(weight=_is_disturbed(0.4))
def cuts_the_place(world: World) -> str:
    """Somebody takes the newest rows away, and leaves the note: a branch that is rolled back."""
    ids = sorted(world.place.rows)
    kept = ids[: -world.random.choice([1, 1, 2])]
    if not ids:
        return "nothing is there"
    world.place = replace(world.place, rows={one: world.place.rows[one] for one in kept})
    world.readers.was_cut(kept)
    return f"to {kept} of {ids}"


@act(weight=_is_disturbed(0.3))
def points_the_sink_elsewhere(world: World) -> str:
    """The sink is declared for another table, or for the first one again."""
    (place, seen), left = world.elsewhere, world.readers.seen
    world.place, behind = pointed_elsewhere(world.place, place)
    world.elsewhere = (behind, left)
    world.readers.was_put_back(seen)
    world.at_the_place.clear()
    world.backups.clear()
    world.other = None
    return f"to {world.place.timeline.published}"


@act(weight=_is_disturbed(0.5))
def another_job_writes_the_place(world: World) -> str:
    """A person had it take the table over: a job of another life, or of a copy of the root."""
    place, shown = world.place, world.place.shown
    newest = max(shown.newest, shown.through, shown.lost)
    if world.other is None:
        if not any(place.rows.values()):
            return "nobody's"
        world.takeovers += 1
        life = world.random.choice([world.head.life or "theirs", "theirs"])
        other = Writer(life=life, generation=world.takeovers, sink=COPY)
        accepted = Recovery(
            version=shown.newest or None, through=newest, accepts=True, replaces=(shown.life,)
        )
        try:
            after = shown.recovered(other, accepted)
        except (TableMismatch, FencedError) as error:
            return str(error)
        world.other = other
        world.readers.was_taken_over(COPY)
    else:
        try:
            after = shown.publishing(world.other, newest + 1, shown.newest or None)
        except (TableMismatch, FencedError) as error:
            world.other = None
            return str(error)
        world.readers.published_by_another(COPY, newest + 1)
    assert after is not None
    world.place = place.noting(after, place.rows)
    return f"{after.published}"


def _urge_to_empty(world: World) -> float:
    if not world.settings.is_noted or world.frame is not None:
        return 0
    return 1 if world.running else 0.3  # Drivers are left, and will answer.


@act(weight=_urge_to_empty)
def empties_the_root(world: World) -> str:
    world.is_emptied()
    return f"the place shows {world.place.timeline.published}"
