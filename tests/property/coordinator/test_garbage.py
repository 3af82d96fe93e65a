"""Collecting garbage, at any time and however slowly, loses nothing that can be restored.

Method: a job under random weather (``garbage_world``).  Its garbage is collected with no grace at
all, and the job goes on between any two requests of the collector.  Then every retained checkpoint
and savepoint is read to the last row, and the job has to go on from what it had.

SIM_SEEDS=500 plays more; a failure names its seed.
"""

from __future__ import annotations

import os

import pytest

from harness.hooked import hooked
from sluice.coordinator.garbage import Orphans, collect_garbage, find_orphans
from tests.property.coordinator.garbage_world import World

SEEDS = int(os.environ.get("SIM_SEEDS", "3"))
STEPS = 80


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_can_be_restored_survives_a_collection_at_any_time(seed: int) -> None:
    world = World(seed)

    for _ in range(STEPS):
        world.step()
        if world.random.random() < 0.3:
            before = world.snapshots()
            collect_garbage(world.job, grace_ms=0)
            assert world.snapshots() == before

    world.settle()
    world.snapshots()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_goes_on_between_the_requests_of_a_slow_collector(seed: int) -> None:
    world = World(seed)

    def meanwhile(verb: str, key: str) -> None:
        if verb != "get":  # Those come from many threads at once.
            for _ in range(world.random.choice((0, 0, 1, 10))):
                world.step()

    for _ in range(STEPS // 10):
        world.step()
        collect_garbage(hooked(world.job, meanwhile), grace_ms=0)
        world.snapshots()

    world.settle()
    world.snapshots()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_second_collection_of_a_quiet_job_finds_nothing(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.settle()

    collect_garbage(world.job, grace_ms=0)

    assert find_orphans(world.job, grace_ms=0) == Orphans()
    assert collect_garbage(world.job, grace_ms=0) == Orphans()
