"""What the operators' properties hold for, whatever their sizes are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

_FEW = {
    "sluice.subtask.operators.ranking._FEW_ROWS": 10_000,
    "sluice.subtask.operators.grouping._STREAMED_ROWS": 100_000,
}


@pytest.fixture(scope="module", params=["as many", "as few"])
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tests' few rows are grouped and sorted as many are, and as what they are."""
    with pytest.MonkeyPatch.context() as patch:
        for limit, few in _FEW.items():
            patch.setattr(limit, 0 if request.param == "as many" else few)
        yield
