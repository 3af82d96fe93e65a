"""Stages that are submitted as applications, which a reaper ends when no attempt awaits them.

The root may be copied: the copy's reaper sees the same cluster, and a journal that stands still.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sluice.core.plan import CheckpointPlan
from sluice.core.state import CoordinatorState
from sluice.job.applications import ApplicationName, is_to_be_ended, short_life
from sluice.store.open import StoreLocation
from tests.simulation.acts import act
from tests.simulation.broken import Broken
from tests.simulation.settings import ROOT

if TYPE_CHECKING:
    from tests.simulation.world import World

COPY = StoreLocation(root=f"{ROOT}-copy")


@dataclass(frozen=True, slots=True)
class Submitted:
    """An application that runs: ``plan`` is the token of the plan whose stage it is to answer."""

    name: ApplicationName
    plan: str

    def is_awaited(self, head: CoordinatorState) -> bool:
        """Whether it may still answer, by what it was given and not by its name."""
        pending = head.pending_checkpoint(self.name.checkpoint_id)
        if pending is None or pending.token != self.plan:
            return False
        is_overtaken = self.name.stage in pending.overtaken
        return self.name.attempt == pending.attempt_of(self.name.stage) and not is_overtaken


def submitted(world: World, plan: CheckpointPlan, stage: str, attempt: int) -> None:
    name = ApplicationName(
        pipeline=world.job.pipeline.uid,
        checkpoint_id=plan.checkpoint_id,
        stage=stage,
        attempt=attempt,
        life=short_life(world.job, world.head.life),
    )
    world.applications.append(Submitted(name, plan.token))


@act(weight=lambda world: 1 if world.applications else 0)
def reaps(world: World) -> str:
    """As the watchdog does: what runs is listed first, and the journal is read then."""
    running = [*world.applications]
    state, ended = world.job.state(), []
    for one in running:
        if is_to_be_ended(str(one.name), world.job, state):
            if one.is_awaited(world.head):
                raise Broken(15, "an application is ended that an attempt awaits", f"{one.name}")
            ended.append(one)
    world.applications = [one for one in world.applications if one not in ended]
    return f"{len(ended)} applications"


@act(weight=lambda world: 0.5 if world.head.pending else 0.1)
def copies_the_root(world: World) -> str:
    world.copied = world.head
    return f"generation {world.copied.generation}"


@act(weight=lambda world: 0.5 if world.copied is not None and world.applications else 0)
def reaps_in_the_copy(world: World) -> str:
    """The watchdog of the copy, of which nothing runs."""
    if world.copied is None:
        return "no copy"
    job = replace(world.job, location=COPY)
    for one in world.applications:
        if is_to_be_ended(str(one.name), job, world.copied):
            raise Broken(15, "a copy of the root ends what runs for the original", f"{one.name}")
    return "nothing"
