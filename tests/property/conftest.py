"""What the operators' properties hold for, whatever their sizes are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

# From so many rows on they are taken for many.
_LIMITS = (
    "sluice.operators.ranking._FEW_ROWS",
    "sluice.operators.kernels._STREAMED_ROWS",
)


@pytest.fixture(scope="module", params=["as many", "as few"])
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tests' few rows are grouped and sorted as many are, and as what they are."""
    with pytest.MonkeyPatch.context() as patch:
        for limit in _LIMITS if request.param == "as many" else ():
            patch.setattr(limit, 0)
        yield
