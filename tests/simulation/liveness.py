"""Invariant 0: when the faults end, the job comes to itself and takes checkpoints."""

from __future__ import annotations

from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import watch
from sluice.coordinator.planning import NothingToDo
from sluice.coordinator.publication import commit
from sluice.coordinator.requests import resume
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import TableConsent, configure, submit
from sluice.coordinator.trigger import NotDue, Triggered, trigger
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import NO_GENERATION
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import Latest, RestoreOptions
from sluice.errors import FencedError, RestoreError, SluiceError, TableMismatch
from tests.simulation.broken import Broken
from tests.simulation.damage import LONG_MS, meets_the_damage
from tests.simulation.noted import Place
from tests.simulation.people import COPY
from tests.simulation.readers import Seen
from tests.simulation.snapshots import NAMES
from tests.simulation.spark_jobs import run_stages
from tests.simulation.world import World

MAX_ROUNDS = 6
PAUSED = NotDue(reason=CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN, message="")


def settle(world: World) -> None:
    """Check that the job recovers without failures, and that every coordinator can continue it."""
    try:
        with world.in_peace(0):
            for request in world.bucket.under_way[::2]:  # The others come when all is over.
                request.apply()
            if world.bucket.damaged:
                meets_the_damage(world)
                world.bucket.is_mended()
        for actor in range(len(world.coordinators)):
            with world.in_peace(actor):
                _comes_to_itself(world)
                try:
                    _takes_what_is_asked_for(world)
                except (TableMismatch, FencedError):  # An act found what restores do not ask.
                    _accepts(world)
                    _comes_to_itself(world)
                    _takes_what_is_asked_for(world)
        with world.in_peace(0):
            _goes_on_when_resumed(world)
            for request in world.bucket.under_way[1::2]:
                request.apply()
    except SluiceError as error:
        raise Broken(
            0, "an act fails without a fault", f"{type(error).__name__}: {error}"
        ) from error


def _comes_to_itself(world: World) -> None:
    """The watchdog restarts what can restart; a person restores what ended, and finds it."""
    job = world.job
    _deletes_what_a_sleeper_left(world)
    for _ in range(MAX_ROUNDS):
        world.time.advance(LONG_MS)
        _watches(world)
        state = job.state()
        latest = state.latest_completed
        is_committed = latest is None or latest.is_committed
        if state.generation == NO_GENERATION:
            _submits(world)
        elif state.status is JobStatus.RUNNING and not state.pending and is_committed:
            return
        elif state.status in (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FAILING):
            continue
        elif state.base is None:  # Its checkpoints went with its end.
            _submits(world)
        else:
            _restores(world)
    raise Broken(0, "the job does not come to itself", str(job.state().status))


def _deletes_what_a_sleeper_left(world: World) -> None:
    """As a person is told: who completed a checkpoint while the root was emptied, and before a job
    began anew, has left what looks like a journal whose pointer alone is lost.
    """
    if world.emptied and NAMES.begun() not in world.bucket.objects:
        for key in [*world.bucket.keys(NAMES.journals())]:
            world.bucket.delete(key)


def _watches(world: World) -> None:
    try:
        watch(world.job)
    except (TableMismatch, FencedError):
        _accepts(world)


def _restores(world: World) -> None:
    try:
        restore(world.job, Latest())
    except (RestoreError, TableMismatch, FencedError):
        _accepts(world)


def _accepts(world: World) -> None:
    """The place lacks what the job continues, or is of an earlier life: a person takes it as it is.

    Only rows that went away explain that, by a roll back or with a database that was put back, and
    rows of an earlier life that came when the job had looked already.
    """
    line = world.place.timeline
    is_foreign = line.life not in ("", world.head.life) or line.sink == COPY
    if not (world.readers.has_lost_rows or is_foreign):
        raise  # noqa: PLE0704 - the caller has caught it
    try:
        restore(world.job, Latest(), RestoreOptions(accept_tables=True))
    except RestoreError:  # Its ids may be those of the other life: give the job a table of its own.
        if not is_foreign:
            raise
        world.place, world.other = Place(), None
        world.readers.was_put_back(Seen())
        restore(world.job, Latest(), RestoreOptions(accept_tables=True))


def _submits(world: World) -> None:
    """Over the rows of an earlier life, if there are any, which a person accepts."""
    configuration = configure(world.job.pipeline, {})
    submit(world.job, configuration, tables=TableConsent(accept=world.settings.is_noted))


def _takes_a_checkpoint(world: World) -> None:
    job = world.job
    outcome = trigger(job, is_periodic=False)
    if not isinstance(outcome, Triggered):
        raise Broken(0, "no checkpoint can be triggered", str(outcome))
    _carries_out(world, outcome.plan)


def _takes_what_is_asked_for(world: World) -> None:
    """A checkpoint, also while the job is paused; a periodic one is none then."""
    outcome = trigger(world.job) if world.head.timing.is_paused else PAUSED
    if not (isinstance(outcome, NotDue) and outcome.reason is PAUSED.reason):
        raise Broken(0, "a paused job takes a periodic checkpoint", str(outcome))
    _takes_a_checkpoint(world)


def _goes_on_when_resumed(world: World) -> None:
    """Unless its sources have ended, so that there is nothing to do, or the job has with them."""
    if not world.head.timing.is_paused or world.head.status is not JobStatus.RUNNING:
        return
    resume(world.job, by="resumes at the end")
    world.time.advance(LONG_MS)
    outcome = trigger(world.job)
    if isinstance(outcome, Triggered):
        _carries_out(world, outcome.plan)
    elif not isinstance(outcome, NothingToDo):
        raise Broken(0, "a resumed job takes no periodic checkpoint", str(outcome))


def _carries_out(world: World, plan: CheckpointPlan) -> None:
    job = world.job
    if not run_stages(world, plan):
        raise Broken(0, "a checkpoint ends without a reason", f"{plan.checkpoint_id}")
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)
    if plan.checkpoint_id not in world.witness.committed:
        raise Broken(0, "a checkpoint cannot be committed", f"{plan.checkpoint_id}")
