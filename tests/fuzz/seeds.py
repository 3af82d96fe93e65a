"""Many plans, on some processors; the smallest seed that fails is shrunk.

A worker is a fresh Python (``spawn``), with one thread for Polars: a plan has few rows.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

CHUNK = 20  # Some seconds.
THREADS = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Chunk:
    """What some seeds came to; ``failed``: those that failed, with their messages."""

    plans: int
    stages: Counter[str]
    failed: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Played:
    plans: int
    stages: Counter[str]
    failed: dict[int, str]
    seconds: float
    processes: int

    def __str__(self) -> str:
        return (
            f"fuzz: {self.plans} plans, {self.stages.total()} stages in {self.seconds:.0f} s on "
            f"{self.processes} processes: {self.plans / self.seconds * 60:.0f} plans a minute"
        )


def play_seeds(
    seeds: Sequence[int],
    processes: int | None = None,
    *,
    keep_going: bool = False,
    report: Callable[[str], None] | None = None,
) -> Played:
    """Play all of *seeds*, or until one fails."""
    processes = processes or workers()
    begun, plans, stages = time.monotonic(), 0, Counter[str]()
    failed: dict[int, str] = {}
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with pool_of(processes) as pool:
        for chunk in pool.map(play_chunk, chunks):
            plans += chunk.plans
            stages += chunk.stages
            failed |= chunk.failed
            played = Played(plans, stages, failed, time.monotonic() - begun, processes)
            if report is not None:
                report(f"{played}; failed: {sorted(failed) or 'none'}")
            if failed and not keep_going:
                pool.shutdown(wait=True, cancel_futures=True)
                break
    return Played(plans, stages, failed, time.monotonic() - begun, processes)


def play_chunk(seeds: range) -> Chunk:
    from tests.fuzz.drawing import draw
    from tests.fuzz.play import play, playing

    stages, failed = Counter[str](), {}
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # Little of a plan is garbage before its end.
    with playing():
        for seed in seeds:
            plan = draw(seed)
            stages.update(stage.op for stage in plan.stages)
            failure = play(plan)
            if failure is not None:
                failed[seed] = failure.message
    return Chunk(len(seeds), stages, failed)


def check_refusals(seeds: range, processes: int | None = None) -> list[str]:
    """Which mistakes were not refused by name."""
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with pool_of(processes or workers()) as pool:
        return [text for found in pool.map(refused_chunk, chunks) for text in found]


def refused_chunk(seeds: range) -> list[str]:
    from tests.fuzz.play import playing
    from tests.fuzz.refusals import refused

    with playing():
        found = [refused(seed) for seed in seeds]
    return [text for text in found if text is not None]


@contextmanager
def pool_of(processes: int) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")  # A fork would share DuckDB's threads.
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=quiet)
    with patch.dict(os.environ, THREADS), pool:  # A worker reads them as it starts.
        yield pool


def quiet() -> None:
    """What a coordinator warns of is what a play is about."""
    logging.disable(logging.ERROR)


def workers() -> int:
    return len(os.sched_getaffinity(0))
