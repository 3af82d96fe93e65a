"""What the operators' properties hold for, whatever their sizes are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", params=[0, 10_000], ids=["as many", "as few"])
def ranked_either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Rankings sort the tests' few rows as they sort many, and as what they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.subtask.operators.ranking._FEW_ROWS", request.param)
        yield
