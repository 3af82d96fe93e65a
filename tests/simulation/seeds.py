"""Many seeds, on all the processors there are; the smallest one that fails is shrunk.

A worker is a fresh Python (``spawn``): it inherits nothing, whatever the tests around it did.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.simulation.play import Plant, simulate, simulated
from tests.simulation.script import keep
from tests.simulation.shrink import Shrinker, report

CHUNK = 25  # Below a second, so that little is played in vain once a seed has failed.


@dataclass(frozen=True, slots=True)
class Chunk:
    """The result of some seeds; ``failed`` is the first that failed, which is the last played."""

    seeds: int
    acts: Counter[str]
    failed: int | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """``acts``: how often each was played; ``failed``: the smallest seed that fails."""

    seeds: int
    acts: Counter[str]
    failed: int | None
    seconds: float
    processes: int

    def __str__(self) -> str:
        return (
            f"simulation: {self.seeds} seeds, {self.acts.total()} turns in {self.seconds:.0f} s on "
            f"{self.processes} processes: {self.seeds / self.seconds * 60:.0f} seeds a minute"
        )


def play_seeds(seeds: range, processes: int | None = None) -> Played:
    """Play all of *seeds*, or until one fails."""
    processes = processes or workers()
    begun, played, acts, failed = time.monotonic(), 0, Counter[str](), None
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with pool_of(processes) as pool:
        for chunk in pool.map(play_chunk, chunks):
            played += chunk.seeds
            acts += chunk.acts
            failed = chunk.failed
            if failed is not None:
                pool.shutdown(wait=True, cancel_futures=True)
                break
    return Played(played, acts, failed, time.monotonic() - begun, processes)


def play_chunk(seeds: range) -> Chunk:
    acts = Counter[str]()
    gc.freeze()  # What is imported stays, and need not be looked through again and again.
    with simulated():
        for played, seed in enumerate(seeds, start=1):
            run = simulate(seed)
            acts.update(line.name for line in run.history if not line.name.startswith("@"))
            if run.failure is not None:
                return Chunk(played, acts, seed)
    return Chunk(len(seeds), acts)


def explain(seed: int, plant: Plant | None = None, options: str = "") -> str:
    """Shrink a seed that fails, and say all that a person needs."""
    with simulated(plant):
        found = simulate(seed)
        return report(found, Shrinker(found).shrink(), options)


def replay(seed: int, kept: list[str], plant: Plant | None = None) -> tuple[str, bool]:
    """Replay only the turns *kept* of a seed (all if empty): the history, and whether it fails."""
    with simulated(plant):
        run = simulate(seed)
        if kept:
            run = simulate(seed, keep(run.script, {*kept}))
    verdict = run.failure.message if run.failure is not None else "every invariant holds"
    return "\n".join([*map(str, run.history), f"seed {seed}: {verdict}"]), run.failure is not None


def pool_of(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))


def workers() -> int:
    return len(os.sched_getaffinity(0))
