"""The test of the test: every fault planted in the core is caught, by an invariant it breaks."""

from __future__ import annotations

import pytest

from tests.simulation.broken import INVARIANTS
from tests.simulation.mutations import MUTATIONS, Caught, hunt_all


@pytest.fixture(scope="module")
def hunted() -> dict[str, Caught | None]:
    return hunt_all()


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_fault_is_caught_by_an_invariant_it_breaks(
    name: str, hunted: dict[str, Caught | None]
) -> None:
    caught = hunted[name]

    assert caught is not None, MUTATIONS[name].wrong
    assert caught.is_as_expected, str(caught)


def test_every_invariant_catches_something(hunted: dict[str, Caught | None]) -> None:
    assert {c.kind[0] for c in hunted.values() if c is not None} == {*INVARIANTS}
