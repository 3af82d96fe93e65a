"""Faults planted in the core one at a time: a proof that the simulation would see them.

To add one, write a function in one of the ``planted_...`` modules that patches the product, say in
its docstring what is wrong, and name the invariants that may catch it.
``make sim`` remembers the seeds that catch them, so that a test run plays these before any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tests.simulation import (  # noqa: F401 - they register theirs
    planted_files,
    planted_jobs,
    planted_people,
    planted_rules,
    planted_tables,
)
from tests.simulation.planting import MUTATIONS
from tests.simulation.play import Failure, simulate, simulated
from tests.simulation.seeds import pool_of, workers

# Every one of MUTATIONS is registered here.
__all__ = ["MUTATIONS", "Caught", "hunt", "hunt_all", "remember", "table"]

MAX_SEEDS = 5_000  # The rarest, sort_fences_by_version, needs 4,598; most a tenth of that.
CAUGHT_AT = Path(__file__).with_name("caught_at.json")  # A hint: a seed plays otherwise tomorrow.


@dataclass(frozen=True, slots=True)
class Caught:
    name: str
    seed: int
    failure: Failure

    def __str__(self) -> str:
        number, what = self.failure.kind
        return f"{what} (invariant {number})" if isinstance(number, int) else f"{number} in {what}"

    @property
    def is_as_expected(self) -> bool:
        return self.failure.kind[0] in MUTATIONS[self.name].caught_by


def hunt(name: str) -> Caught | None:
    """Play seeds with the fault planted, the remembered one first, until an invariant that it
    breaks sees it; another one that saw it before is the answer where none of them does.
    """
    by_another: Caught | None = None
    with simulated(MUTATIONS[name].plant):
        for seed in chain(_remembered(name), range(MAX_SEEDS)):
            failure = simulate(seed).failure
            if failure is None:
                continue
            caught = Caught(name, seed, failure)
            if caught.is_as_expected:
                return caught
            by_another = by_another or caught
    return by_another


def hunt_all(names: Iterable[str] = ()) -> dict[str, Caught | None]:
    wanted = [*names] or [*MUTATIONS]
    with pool_of(workers()) as pool:
        return dict(zip(wanted, pool.map(hunt, wanted), strict=True))


def remember(hunted: dict[str, Caught | None]) -> None:
    seeds = {name: caught.seed for name, caught in hunted.items() if caught is not None}
    CAUGHT_AT.write_text(json.dumps(seeds, indent=2, sort_keys=True) + "\n")


def _remembered(name: str) -> list[int]:
    seeds = json.loads(CAUGHT_AT.read_text())
    return [seeds[name]] if name in seeds else []


def table(hunted: dict[str, Caught | None]) -> str:
    lines = ["| mutation | what is wrong | caught by | seeds |", "|---|---|---|---|"]
    for name, caught in hunted.items():
        seeds = f"none of {MAX_SEEDS}" if caught is None else caught.seed + 1
        lines.append(f"| {name} | {MUTATIONS[name].wrong} | {caught or '**nothing**'} | {seeds} |")
    return "\n".join(lines)
