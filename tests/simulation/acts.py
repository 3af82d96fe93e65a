"""The acts of the simulation: each is a function with the weight of its turns.

To add an act, write a function of the world in ``coordinators`` or ``deploying`` and decorate it:
its weight is a number, or a function of the world.  Mostly what leads on; rarely what is out of
place, which has to be harmless, too.  The function's name is the act's; what it returns is history.
It draws from ``world.random``, and takes what may be gone in a shorter history by ``world.pick``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from tests.simulation.world import World

Do: TypeAlias = "Callable[[World], str]"
Weight: TypeAlias = "Callable[[World], float]"


@dataclass(frozen=True, slots=True)
class Act:
    do: Do
    weight: float | Weight


ACTS: dict[str, Act] = {}


def act(weight: float | Weight) -> Callable[[Do], Do]:
    def register(do: Do) -> Do:
        ACTS[do.__name__] = Act(do, weight)
        return do

    return register
