"""The acts of people on the job and its places: submit, restore, lose and empty them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from sluice.coordinator.failure import abort_checkpoint
from sluice.coordinator.requests import UserRequest, request_checkpoint
from sluice.coordinator.restore import foreign_target, restore, savepoint_target
from sluice.coordinator.savepoints import dispose
from sluice.coordinator.submission import TableConsent, configure, submit
from sluice.core.configuration import CheckpointType, ClaimMode, JobStatus
from sluice.core.ids import NO_GENERATION, CheckpointId, SavepointId
from sluice.core.plan import SnapshotOrigin
from sluice.core.restoring import Choice, Latest, RestoreOptions, RestoreTarget
from sluice.core.timeline import Recovery, Writer
from sluice.errors import FencedError, TableMismatch
from sluice.protocol.records import checksum
from tests.simulation.acts import act
from tests.simulation.broken import Broken
from tests.simulation.noted import NOTED, pointed_elsewhere
from tests.simulation.settings import ROOT
from tests.simulation.timing import ABORTS
from tests.simulation.world import Asked, World

COPY = "memory://copy/auctions/tables/noted"  # Where the sink of another job is.


@act(weight=lambda world: 8 if world.head.generation == NO_GENERATION else 0.5)
def submits(world: World) -> str:
    parallelism = world.random.choice([1, 2, 2, 3])
    consent = TableConsent(roll_back=world.chance(0.3), accept=world.chance(0.1))
    is_silent = not (consent.roll_back or consent.accept)
    if is_silent and any(world.place.rows.values()) and world.chance(0.3):
        consent = _taking_over(world, TableConsent(take_over=(NOTED,)))
    configuration = configure(world.job.pipeline, {}, parallelism=parallelism)
    submit(world.job, configuration, tables=consent)
    return f"with parallelism {parallelism}, {consent}"


T = TypeVar("T")


def _taking_over(world: World, consent: T) -> T:
    assert world.frame is not None
    world.frame.takes_over = world.has_consented = True
    return consent


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
    cause = ""
    if world.settings.is_disposing and only is None:
        cause = f"q{len(world.asked) + 1}"
        world.asked.append(Asked(cause, target, options))
    restored = restore(
        world.job,
        target,
        options,
        only_generation=only,
        configuration=configuration,
        cause=cause,
    )
    name = restored.origin.savepoint if restored.origin is not None else None
    world.witness.was_told_restored(restored)
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
            Choice(world.pick(retained, retained.index) if retained else CheckpointId(1)),
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
            after = shown.publishing(world.other, newest + 1, world.others_newest)
        except (TableMismatch, FencedError) as error:
            world.other = None
            return str(error)
        world.readers.published_by_another(COPY, newest + 1)
    assert after is not None
    world.others_newest = after.newest or None
    world.place = place.noting(after, place.rows)
    return f"{after.published}"


def _urge_to_take_over(world: World) -> float:
    """Where there is something to take: an empty table is anybody's."""
    if not world.readers.seen.other or world.frame is not None:
        return 0
    return 10 if any(world.place.rows.values()) else 0.5


@act(weight=_urge_to_take_over)
def takes_the_place_over(world: World) -> str:
    """Back from the other job, whose rows stay (``sluice tables take-over``)."""
    options = _taking_over(world, RestoreOptions(take_over=(NOTED,)))
    restored = restore(world.job, Latest(), options)
    world.witness.was_told_restored(restored)
    return f"from {restored.checkpoint_id}, generation {restored.generation}"


# They write and delete below the journal, and what a sink has staged, which has its token.  A
# savepoint and a table have a name, and their own record of who wrote them.
OVERSLEEPING = (
    *("triggers", "finalizes", "retries", "overtakes", "truncates", "collects"),
    *("aborts_one", "fails"),
)


def _may_oversleep(world: World) -> bool:
    """Whether the one coordinator that is asleep may find another journal when it wakes up."""
    frame, head = world.frame, world.head
    is_named = head.savepoints_under_way or head.claimed_savepoints or head.releasing_savepoints
    latest = head.latest_completed
    # Who has not seen that a savepoint is committed commits it again, and writes its record.
    is_owed = latest is not None and not (latest.is_committed and latest.savepoint is None)
    is_one = frame is not None and frame.turn.name in OVERSLEEPING and world.depth == 1
    return is_one and not (is_named or is_owed or world.is_orphaned or world.settings.is_early)


def _urge_to_empty(world: World) -> float:
    if world.frame is not None:
        return 25 if world.settings.is_overslept and _may_oversleep(world) else 0
    if not world.settings.is_noted:
        return 0
    return 1 if world.running else 0.3  # Drivers are left, and will answer.


@act(weight=_urge_to_empty)
def empties_the_root(world: World) -> str:
    world.is_emptied()
    return f"the place shows {world.place.timeline.published}"


def _complete(world: World) -> list[SavepointId]:
    pointers = world.witness.pointers.items()
    return [SavepointId(name, one.token) for name, (_, one) in pointers if one.is_complete]


@act(weight=lambda world: 8 if world.settings.is_disposing and _complete(world) else 0.1)
def disposes(world: World) -> str:
    """Of what a name means now: it may be claimed, being taken, or gone."""
    if not (world.settings.is_disposing and world.savepoints):
        return "nothing"
    name = world.pick([one.name for one in _complete(world)] or world.savepoints)
    return f"{name}: {dispose(world.job, name)}"


@act(weight=lambda world: 4 if world.asked and world.frame is None else 0)
def asks_to_restore_again(world: World) -> str:
    """The task of a restore is tried again: the first try may have done its work, or be at it."""
    if not world.asked:
        return "nobody"
    asked = world.pick(world.asked, lambda one: one.cause)
    restored = restore(world.job, asked.target, asked.options, cause=asked.cause)
    if not restored.has_moved_on:
        world.witness.was_told_restored(restored)
    return f"{asked.cause} -> {restored.named}, generation {restored.generation}"


def _numbers(world: World) -> list[CheckpointId]:
    """Of checkpoints that have a ``_metadata``, completed or not."""
    objects, head = world.bucket.objects, world.head
    ids = [one.checkpoint_id for one in head.completed]
    ids += [one.checkpoint_id for one in head.pending]
    return [one for one in ids if world.witness.paths.metadata(one) in objects]


def _urge_to_begin_elsewhere(world: World) -> float:
    if not world.settings.is_disposing:
        return 0
    paths, objects = world.witness.paths, world.bucket.objects
    if any(paths.metadata(one.checkpoint_id) in objects for one in world.head.pending):
        return 15
    return 3 if _complete(world) else 0.5


@act(weight=_urge_to_begin_elsewhere)
def begins_elsewhere(world: World) -> str:
    """A job of another root is restored from a snapshot of this one, by its number or its name."""
    numbers, savepoints = _numbers(world), _complete(world)
    name = world.pick(savepoints).name if savepoints and world.chance(0.6) else None
    if name is None and not numbers:
        return "nothing"
    number = None if name is not None else numbers[-1]
    with world.in_peace(world.actor):
        target = foreign_target(world.job, ROOT, checkpoint_id=number, savepoint=name)
        assert target.origin is not None
        found = world.job.origin_metadata(target.origin)
    world.witness.was_found_elsewhere(target.origin)
    world.visitors.append((target.origin, found))
    return str(target.origin)


def _is_another(world: World, origin: SnapshotOrigin) -> bool:
    """Whether its name or its number is that of something else by now."""
    if origin.savepoint is not None:
        return origin.incarnation not in _complete(world)
    body = world.bucket.objects.get(world.witness.paths.metadata(origin.checkpoint_id))
    return body is not None and checksum(body) != origin.digest


@act(
    weight=lambda world: 8 if any(_is_another(world, origin) for origin, _ in world.visitors) else 0
)
def goes_on_elsewhere(world: World) -> str:
    """That job fails before its first checkpoint, and begins again from what it was restored."""
    others = [one for one in world.visitors if _is_another(world, one[0])] or world.visitors
    if not others:
        return "nobody"
    origin, found = others[world.random.randrange(len(others))]
    with world.in_peace(world.actor):
        now = world.job.origin_metadata(origin)
    if now != found:
        raise Broken(3, "a job of another root continues another snapshot", str(origin))
    return str(origin)
