"""Faults planted in operators, state and output one at a time: proof that the fuzz would see them.

To add one, name a function, a piece of its text, and what stands there instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import as_completed
from dataclasses import dataclass

from tests.fuzz.planted_operators import OPERATORS
from tests.fuzz.planted_paths import PATHS
from tests.fuzz.planting import Mutation

MUTATIONS: dict[str, Mutation] = {**OPERATORS, **PATHS}
MAX_PLANS = 400  # Those that have nothing of what is concerned are not played, nor counted.
MOST_STAGES = 3  # More hide no fault, and take longer.


@dataclass(frozen=True, slots=True)
class Caught:
    name: str
    seed: int
    plans: int
    message: str


def hunt(name: str, seeds: range = range(10**6, 10**7)) -> Caught | None:
    """Play plans with the fault planted, until one fails."""
    from tests.fuzz.drawing import draw
    from tests.fuzz.play import play, playing

    mutation, plans = MUTATIONS[name], 0
    with playing(), mutation.planted():
        for seed in seeds:
            if plans == MAX_PLANS:
                return None
            plan = draw(seed)
            if not mutation.may_show_in(plan) or len(plan.stages) > MOST_STAGES:
                continue
            plans += 1
            failure = play(plan)
            if failure is not None:
                return Caught(name, seed, plans, failure.message.splitlines()[0])
    return None


def hunt_all(
    names: Iterable[str] = (),
    processes: int | None = None,
    report: Callable[[str], None] | None = None,
) -> dict[str, Caught | None]:
    from tests.fuzz.seeds import pool_of, workers

    wanted = [*names] or [*MUTATIONS]
    with pool_of(processes or workers()) as pool:
        hunts = {pool.submit(hunt, name): name for name in wanted}
        for done in as_completed(hunts):
            if report is not None:
                caught = done.result()
                plans = "none" if caught is None else f"{caught.plans} plans"
                report(f"{hunts[done]}: {plans}")
    return {name: done.result() for done, name in hunts.items()}


def table(hunted: dict[str, Caught | None]) -> str:
    lines = ["| mutation | what is wrong | plans | seen as |", "|---|---|---|---|"]
    for name, caught in hunted.items():
        plans = f"none of {MAX_PLANS}" if caught is None else caught.plans
        seen = "**nothing**" if caught is None else caught.message[:60].replace("|", "/")
        lines.append(f"| {name} | {MUTATIONS[name].wrong} | {plans} | {seen} |")
    return "\n".join(lines)
