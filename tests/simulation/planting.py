"""Planted faults: a function that patches the product, and the invariant that should find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.play import Plant


@dataclass(frozen=True, slots=True)
class Mutation:
    """``caught_by``: the invariants that may catch it; whichever is seen first does."""

    plant: Plant
    caught_by: frozenset[int]

    @property
    def wrong(self) -> str:
        return (self.plant.__doc__ or "").strip().rstrip(".").replace("\n    ", " ")


MUTATIONS: dict[str, Mutation] = {}


def mutation(*caught_by: int) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        MUTATIONS[plant.__name__] = Mutation(plant, frozenset(caught_by))
        return plant

    return register
